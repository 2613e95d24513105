"""Runs from options to a folder and back, through the library."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpvd.data import Dataset, load
from dpvd.errors import DpvdError
from dpvd.privacy import Guarantee
from dpvd.runs import RunOptions, RunRecord, TrainedRun, execute, prepare_run

SMALL = RunOptions(delta=1e-5, epsilon=1.0, hidden=16, epochs=2.0, batch_size=200)


def trained(folder: Path, **changes) -> RunRecord:
    return execute(prepare_run(replace(SMALL, **changes), load("digits")), folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, RunRecord]:
    folder = tmp_path_factory.mktemp("run")
    return folder, trained(folder)


def test_the_record_is_read_back_as_it_was(run):
    folder, record = run
    assert RunRecord.read(folder) == record
    assert RunRecord.from_dict(record.to_dict()) == record
    assert 0.9 < record.epsilon <= 1
    assert Guarantee.from_dict(record.guarantee).sentence() == record.guarantee["sentence"]


def test_the_model_on_disk_reproduces_the_recorded_accuracy(run):
    folder, record = run
    data = load("digits")
    probabilities, _ = TrainedRun(folder).predict_dist(data.test_x, samples=record.test["samples"])
    assert (probabilities.argmax(1) == data.test_y).double().mean().item() == record.test[
        "accuracy"
    ]


def test_the_history_leads_to_the_spent_budget(run):
    history = run[1].history
    spent = [entry["epsilon"] for entry in history]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(run[1].epsilon, rel=1e-3)
    assert [entry["step"] for entry in history] == list(range(1, 16))


@pytest.mark.parametrize("accountant", ["rdp", "zcdp", "advanced"])
def test_every_accountant_keeps_the_budget_with_more_noise(accountant, run, tmp_path):
    record = trained(tmp_path, accountant=accountant)
    assert 0.9 < record.epsilon <= 1
    assert record.guarantee["accountant"] == accountant
    assert record.plan["noise_multiplier"] > run[1].plan["noise_multiplier"]


@pytest.mark.parametrize("scale", ["learned", "fixed", "none"])
def test_every_scale_costs_the_same(scale, run, tmp_path):
    record = trained(tmp_path, scale=scale)
    assert record.model["network"]["scale"] == scale
    assert record.epsilon == run[1].epsilon
    assert bool(record.sparsity) == (scale == "learned")
    assert TrainedRun(tmp_path).record == record


def test_seeded_noise_repeats_the_model_bit_for_bit_and_says_so(tmp_path):
    records = [trained(tmp_path / name, seeded_noise=True) for name in ("first", "second")]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert models[0] == models[1]
    assert records[0].test == records[1].test
    assert "not private against whoever knows the seed" in records[0].guarantee["sentence"]


def test_the_systems_noise_never_repeats(run, tmp_path):
    record = trained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() != (
        run[0] / "model.safetensors"
    ).read_bytes()
    assert "system's cryptographic generator" in record.guarantee["sentence"]


def test_a_run_leaves_the_global_generator_alone(tmp_path):
    before = torch.get_rng_state()
    trained(tmp_path, epochs=0.2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rule_sizes_a_run_of_which_nothing_is_chosen():
    prepared = prepare_run(RunOptions(delta=1e-5, epsilon=1.0), load("digits"))
    assert prepared.plan.batch_size <= prepared.plan.examples == 1437
    assert 0.9 < prepared.plan.epsilon(1e-5) <= 1
    assert prepared.network.kind == "linear"


def test_the_papers_schedule_falls_with_the_number_of_the_epoch(tmp_path):
    options = replace(SMALL, learning_rate=0.1, decay="power", gamma=0.5)
    prepared = prepare_run(options, load("digits"))
    rate = prepared.recipe.schedule(prepared.plan)
    assert [rate(0), rate(7), rate(8), rate(14)] == pytest.approx(
        [0.1, 0.1, 0.1 / 2**0.5, 0.1 / 2**0.5]
    )
    assert execute(prepared, tmp_path).recipe["decay"] == "power"


def test_the_papers_schedule_has_the_papers_exponent():
    assert prepare_run(replace(SMALL, decay="power"), load("digits")).recipe.gamma == 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"epochs": 0.0}, "epochs"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"delta": 1.0}, "delta"),
        ({"epsilon": None}, "--epsilon"),
        ({"method": "magic"}, "dpvd, svi, dpsgd, none"),
        ({"clipping": "magic"}, "clipping"),
        ({"network": "magic"}, "mlp, cnn"),
        ({"hidden": 0}, "hidden"),
        ({"decay": "magic"}, "constant, power, linear, cosine"),
        ({"gamma": 0.5}, "--decay power"),
        ({"decay": "linear", "gamma": 0.5}, "--decay power"),
        ({"decay": "power", "gamma": -1.0}, "gamma"),
    ],
)
def test_bad_options_are_refused(changes, words):
    with pytest.raises(DpvdError, match=words):
        replace(SMALL, **changes)


def test_names_may_be_given_as_text():
    assert replace(SMALL, method="none", accountant="moments").to_dict()["accountant"] == "rdp"


def tiny(x: torch.Tensor, y: torch.Tensor) -> Dataset:
    return Dataset(
        "tiny",
        x,
        y,
        torch.ones(4, 3),
        torch.zeros(4, dtype=torch.int64),
        classes=2,
        preprocessing="none",
    )


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.full((4, 3), torch.nan), torch.zeros(4, dtype=torch.int64), "4 of 4 rows .* NaN"),
        (torch.ones(4, 3), torch.tensor([0, 1, 2, 0]), "1 of 4 labels .* first row 2"),
        (torch.ones(4, 3), torch.tensor([0, -1, 1, 0]), "labels"),
        (torch.ones(0, 3), torch.zeros(0, dtype=torch.int64), "empty"),
    ],
)
def test_bad_data_never_reaches_a_run(x, y, words):
    with pytest.raises(DpvdError, match=words):
        tiny(x, y)


def test_a_run_on_data_of_ones_own(tmp_path, generator):
    y = torch.arange(400) % 2
    x = torch.randn(400, 3, generator=generator) + 3 * y.unsqueeze(1)
    data = Dataset("own", x[:300], y[:300], x[300:], y[300:], classes=2, preprocessing="none")
    options = RunOptions(delta=1e-5, epsilon=8.0, hidden=8, batch_size=300, epochs=30.0)
    record = execute(prepare_run(options, data), tmp_path)
    assert record.test["accuracy"] > 0.7
    assert record.guarantee["tuned"] is None


def test_resuming_on_other_data_is_refused(tmp_path):
    def interrupt(progress):
        raise KeyboardInterrupt

    data = load("digits")
    with pytest.raises(KeyboardInterrupt):
        execute(prepare_run(SMALL, data), tmp_path, on_step=interrupt)
    changed = replace(data, train_x=1 - data.train_x, checksum="")
    with pytest.raises(DpvdError, match="checksum"):
        execute(prepare_run(SMALL, changed), tmp_path, resume=True)
