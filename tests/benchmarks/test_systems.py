"""The workloads are those that were set, and every system trains every kind of them."""

from dataclasses import replace

import pytest
import torch
from benchmarks.memory import peak_mb
from benchmarks.shares import PIECES, REST, shares
from benchmarks.systems import SYSTEMS, applies, dpvd
from benchmarks.workloads import WORKLOADS, Step, Workload, workload
from torch import nn

from benchmarks import by_hand, systems
from dpvd import training
from dpvd.mechanisms import GridNoise
from dpvd.nn import variational

ENCODER_LAYER = 4 * 257 * 256 + 257 * 1024 + 1025 * 256 + 4 * 256
ENCODER = (5000 + 66 + 2 + 2) * 256 + 4 * ENCODER_LAYER + 257 * 256 + 257 * 10
DECODER = 4_510_208
RESNET = 2_801_450
PARAMETERS = {
    "digits-mlp": 65 * 1000 + 1001 * 10,
    "mnist-mlp": 785 * 1000 + 1001 * 10,
    "wide-mlp": 785 * 4096 + 4097 * 4096 + 4097 * 10,
    "cnn": 65 * 16 + (16 * 16 + 1) * 32 + 513 * 32 + 33 * 10,
    "lstm": 4 * 128 * (28 + 128 + 2) + 129 * 10,
    "encoder": ENCODER,
    "decoder-lora": DECODER,
    "resnet": RESNET,
}
BATCHES = {"digits-mlp": 100, "mnist-mlp": 600, "wide-mlp": 256, "cnn": 600, "lstm": 256}
BATCHES |= {"encoder": 32, "decoder-lora": 32, "resnet": 32}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_have_the_sizes_that_were_set(name: str) -> None:
    work = workload(name)
    assert sum(p.numel() for p in work.network().parameters()) == PARAMETERS[name]
    assert work.batch == BATCHES[name]


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_the_same_in_every_process(name: str) -> None:
    work = workload(f"{name}/miniature")
    assert all(torch.equal(a, b) for a, b in zip(work.data(), work.data(), strict=True))
    x, _ = work.data()
    assert torch.equal(work.network().eval()(x), work.network().eval()(x))


def test_networks_can_be_written_out_and_nonsense_is_refused() -> None:
    work = workload("20-30-10@40")
    assert work.network()(work.data()[0]).shape == (40, 10)
    with pytest.raises(ValueError, match="no workload 'mnist'"):
        workload("mnist")


@pytest.mark.parametrize("kind", ["digits-mlp", "cnn", "lstm", "encoder", "decoder-lora", "resnet"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_trains_every_parameter(
    system: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = workload(f"{kind}/miniature")
    if not applies(system, work):
        pytest.skip("says nothing on this workload")
    models: list[
        nn.Module
    ] = []  # the plain network, and the variational copy that is trained in its place

    def remembered(model: nn.Module) -> nn.Module:
        models.append(model)
        return model

    watched = replace(work, build=lambda: remembered(work.build()))
    monkeypatch.setattr(
        systems, "variational", lambda *args, **options: remembered(variational(*args, **options))
    )
    step = SYSTEMS[system](watched)
    before = {name: p.clone() for name, p in models[-1].named_parameters() if p.requires_grad}
    for _ in range(2):  # an adapter begins at zero, and its other half moves from the second on
        step()
    after = dict(models[-1].named_parameters())
    assert [name for name, values in before.items() if torch.equal(after[name], values)] == []
    assert len(models) == (
        1 if system in ("plain", "plain-channels-last", "by-hand", "dpsgd") else 2
    )


def test_the_step_written_by_hand_is_the_one_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    work, found = workload("20-30-10@40"), []
    for module in (by_hand, training.step):  # next to no noise
        monkeypatch.setattr(module, "noise_on_grid", lambda *_: GridNoise(std=1e-12, unit=2.0**-40))
    for system in ("by-hand", "dpsgd"):
        models: list[nn.Module] = []
        watched = replace(
            work, build=lambda models=models: models.append(work.build()) or models[-1]
        )
        step = SYSTEMS[system](watched)
        for _ in range(3):
            step()
        found.append(models[-1].state_dict())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


def test_shares_add_up_and_every_piece_of_algorithm_1_is_seen() -> None:
    """A function that was renamed would leave its piece without time."""
    found = shares(dpvd(workload("64-50-10@20")), 3)
    assert sum(found.values()) == pytest.approx(1)
    assert set(found) == {piece for piece, _, _ in PIECES} | {REST}
    assert all(share > 0 for share in found.values())


def test_the_peak_is_that_of_temporaries_too() -> None:
    """40 MB that live only inside a step are seen; those of the miniature are not counted."""

    def make(work: Workload) -> Step:
        return lambda: torch.ones(work.batch, 1_000_000).sum()

    work = Workload("test", 10, (1,), nn.Identity, Workload("miniature", 1, (1,), nn.Identity))
    assert 39 <= peak_mb(make, work) < 50  # pages that were there already may be used again
