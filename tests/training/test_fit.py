"""Whole runs: they learn, they stop in time, they come back after a crash with the account
intact.
"""

import math
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpvd.data import load, prepare
from dpvd.errors import DpvdError
from dpvd.grads import Clipping
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Ledger
from dpvd.training import Checkpoint, Recipe, cross_entropy, entries_of, fit

RECIPE = Recipe(learning_rate=0.5, momentum=0.9, average=0.4)


def data(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    dataset = prepare(load("digits"))
    return dataset.train_x[:count], dataset.train_y[:count]


def network(scale: str = "tied") -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return variational(plain, rates="layer", learned=False) if scale == "tied" else plain


def plan(**changes) -> PrivacyPlan:
    start = PrivacyPlan(
        300,
        100,
        steps=20,
        noise_multiplier=0.5,
        clipping=Clipping("automatic"),
        noise="seeded",
        seed=1,
    )
    return replace(start, **changes)


def accuracy(model, x, y):
    with torch.no_grad():
        return {"accuracy": (model(x).argmax(1) == y).double().mean().item()}


def run(model, the_plan, **options):
    options = {"delta": 1e-5, "generator": torch.Generator().manual_seed(2)} | options
    recipe = options.pop("recipe", RECIPE)
    return fit(model, data(), the_plan, recipe, **options)


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


class Interrupt:
    """Stops a run after so many steps, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, progress) -> None:
        if progress.step == self.after:
            raise KeyboardInterrupt


def test_it_learns_and_says_what_it_spent():
    x, y = data()
    result = run(network(), plan(steps=60), evaluate=lambda m: accuracy(m, x, y), evaluations=5)
    assert result.history[-1]["accuracy"] > 0.75
    assert [entry["step"] for entry in result.history] == [12, 24, 36, 48, 60]
    spent = [entry["epsilon"] for entry in result.history]
    assert spent == sorted(spent)
    assert result.guarantee.epsilon == spent[-1] == plan(steps=60).epsilon(1e-5)
    assert result.steps == 60
    assert not result.model.training


def test_the_account_of_a_run_is_that_of_its_plan_and_its_sampler_really_ran():
    """Batch sizes as the loss sees them: Poisson varies, so a shuffled loader in its place is found
    out.
    """
    sizes = []

    def loss_fn(model, x, y):
        sizes.append(len(x))
        return cross_entropy(model, x, y)

    run(network(), plan(steps=40), loss_fn=loss_fn)
    drawn = torch.tensor(
        [size for size in sizes if size > 3], dtype=torch.float64
    )  # the check takes 3 rows
    assert len(drawn) >= 40
    variance = 300 * (1 / 3) * (2 / 3)
    assert 0.4 * variance < drawn.var().item() < 2 * variance


def test_progress_never_understates_what_was_spent():
    seen = []
    run(network(), plan(), on_step=seen.append, evaluations=4)
    assert [p.step for p in seen] == list(range(1, 21))
    assert all(p.epsilon >= plan().epsilon(1e-5, steps=p.step) for p in seen)
    assert seen[-1].epsilon == plan().epsilon(1e-5)


def test_seeded_runs_repeat_bit_for_bit():
    assert same(run(network(), plan()).model, run(network(), plan()).model)
    assert not same(run(network(), plan()).model, run(network(), plan(seed=2)).model)


class FromBytes(nn.Module):
    """What a model for images stored as bytes begins with."""

    def forward(self, x):
        return x.float() / 255


def test_memory_mapped_bytes_train_as_their_values_in_memory(tmp_path):
    inputs, labels = data()
    stored = (255 * inputs).round().to(torch.uint8)
    np.save(tmp_path / "x.npy", stored.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    from_bytes, from_values = nn.Sequential(FromBytes(), *network("plain")), network("plain")
    for model, x in ((from_bytes, mapped), (from_values, stored.float() / 255)):
        fit(model, (x, labels), plan(), RECIPE, delta=1e-5)
    assert same(from_bytes, from_values)
    assert not same(from_values, network("plain"))


@pytest.mark.parametrize(
    ("noise", "repeats"), [({"noise": "system", "seed": None}, False), ({}, True)]
)
@pytest.mark.parametrize("batch_size", [100, 300])
def test_noise_and_batches_repeat_only_if_they_are_seeded(batch_size, noise, repeats):
    """Runs that start alike: with part batches, what they draw is compared; with all examples,
    their noise.
    """

    def outcome() -> torch.Tensor:
        seen, model = [], network("plain")

        def loss_fn(model, x, y):
            seen.append(x)
            return cross_entropy(model, x, y)

        run(model, plan(batch_size=batch_size, steps=4, **noise), loss_fn=loss_fn, evaluations=1)
        return torch.cat(seen) if batch_size < 300 else model[0].weight

    assert torch.equal(outcome(), outcome()) is repeats


def test_averaging_takes_the_mean_of_the_last_iterates():
    iterates = []
    model = network()
    result = run(
        model,
        plan(),
        on_step=lambda p: iterates.append([q.detach().clone() for q in model.parameters()]),
        evaluations=1,
    )
    for i, parameter in enumerate(result.model.parameters()):
        expected = torch.stack([iterate[i] for iterate in iterates[-8:]]).mean(0)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-6)


def test_the_posterior_keeps_the_scale_of_the_averaged_steps():
    result = run(network(), plan(), recipe=replace(RECIPE, decay="linear"))
    zetas = [0.5 * (1 - step / 20) * 0.5 / 100 for step in range(12, 20)]
    expected = math.sqrt(sum(z * z for z in zetas) / 8)
    assert result.model[0].log_sigma2.exp().sqrt().item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupted_run_resumes_bit_for_bit(optimizer, tmp_path):
    recipe = replace(RECIPE, optimizer=optimizer, learning_rate=0.05)
    x, y = data()
    options = {"recipe": recipe, "evaluate": lambda m: accuracy(m, x, y), "evaluations": 5}
    whole = run(network("plain"), plan(), folder=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        run(network("plain"), plan(), folder=tmp_path / "broken", on_step=Interrupt(11), **options)
    resumed = run(network("plain"), plan(), folder=tmp_path / "broken", resume=True, **options)
    assert same(whole.model, resumed.model)
    assert resumed.history == whole.history
    # The resumed run tries out its first batch, too.
    assert replace(resumed.guarantee, seen=()) == replace(whole.guarantee, seen=())


def test_a_killed_run_keeps_its_charges_and_never_passes_the_budget(tmp_path):
    """SIGKILL between checkpoints: the lost steps stay charged, the rest is taken, the guarantee
    still holds.
    """
    folder = tmp_path / "run"
    program = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from tests.training.test_fit import network, plan, run
        def kill(progress):
            if progress.step == 13:
                os.kill(os.getpid(), signal.SIGKILL)
        run(network(), plan(), folder=Path({str(folder)!r}), evaluations=2, on_step=kill)
    """)
    killed = subprocess.run([sys.executable, "-c", program], cwd=os.getcwd(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert Ledger.open(folder / "ledger.jsonl").charged == 13
    resumed = run(network(), plan(), folder=folder, resume=True, evaluations=2)
    assert resumed.steps == 10 + 7  # up to the checkpoint, then what was left of the budget
    assert resumed.guarantee.steps == 20
    assert Ledger.open(folder / "ledger.jsonl").charged == 20


@pytest.fixture
def broken_run(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(network(), plan(), folder=tmp_path, on_step=Interrupt(11))
    return tmp_path


@pytest.mark.parametrize("change", [{"noise_multiplier": 0.4}, {"steps": 30}, {"batch_size": 50}])
def test_resuming_under_another_plan_is_refused(broken_run, change):
    with pytest.raises(DpvdError, match="belongs to another plan"):
        run(network(), plan(**change), folder=broken_run, resume=True)


def test_resuming_with_another_recipe_is_refused(broken_run):
    with pytest.raises(DpvdError, match="another recipe"):
        run(
            network(),
            plan(),
            recipe=replace(RECIPE, learning_rate=0.1),
            folder=broken_run,
            resume=True,
        )


def test_a_folder_with_a_run_is_not_overwritten(broken_run):
    before = {p.name: p.read_bytes() for p in broken_run.iterdir()}
    with pytest.raises(DpvdError, match="exists already"):
        run(network(), plan(), folder=broken_run)
    assert {p.name: p.read_bytes() for p in broken_run.iterdir()} == before


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused_and_kept(broken_run, keep):
    path = broken_run / "checkpoint.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    cut = path.read_bytes()
    with pytest.raises(DpvdError, match="damaged"):
        run(network(), plan(), folder=broken_run, resume=True)
    assert path.read_bytes() == cut


def test_a_missing_checkpoint_is_refused(broken_run):
    (broken_run / "checkpoint.safetensors").unlink()
    with pytest.raises(DpvdError, match="no checkpoint"):
        run(network(), plan(), folder=broken_run, resume=True)


def test_a_foreign_checkpoint_is_refused(broken_run):
    path = broken_run / "checkpoint.safetensors"
    saved = Checkpoint.load(path)
    Checkpoint(saved.tensors, saved.facts | {"fingerprint": "0" * 64}).save(path)
    with pytest.raises(DpvdError, match="another plan than the ledger"):
        run(network(), plan(), folder=broken_run, resume=True)


def test_resuming_needs_a_folder():
    with pytest.raises(DpvdError, match="name the folder"):
        run(network(), plan(), resume=True)


def test_resuming_a_run_that_had_not_begun(tmp_path):
    Ledger.create(tmp_path / "ledger.jsonl", plan().to_dict())
    assert same(
        run(network(), plan(), folder=tmp_path, resume=True).model, run(network(), plan()).model
    )


@pytest.mark.parametrize(
    ("inputs", "labels", "words"),
    [
        (torch.float64, torch.int64, r"data\[0\] is torch.float64, the model is torch.float32"),
        (torch.float32, torch.int32, r"data\[1\] is torch.int32: labels are int64"),
    ],
)
def test_data_of_another_type_than_the_model_charge_and_leave_nothing(
    tmp_path, inputs, labels, words
):
    model = nn.Linear(5, 2)
    data = (torch.zeros(64, 5, dtype=inputs), torch.zeros(64, dtype=labels))
    fields = {"examples": 64, "batch_size": 64, "steps": 3, "noise_multiplier": 4.0}
    with pytest.raises(DpvdError, match=words):
        fit(
            model,
            data,
            PrivacyPlan(**fields),
            Recipe(learning_rate=0.1),
            delta=1e-5,
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
    assert all(not entry["charged"] for entry in entries_of(model).values())
