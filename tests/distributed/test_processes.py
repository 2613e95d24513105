"""Several processes train the model that one would, under the same account."""

import json
from pathlib import Path

import pytest
import torch
from scipy import stats

import dpvd
from dpvd.privacy import Ledger
from tests.distributed import worker
from tests.distributed.launch import run_alone, run_together

LOOPS = ("loop:sgd", "loop:adam", "loop:ordinary")
REFUSED = {
    "untold": "the step was not told",
    "local draws": "drawn by process 0 of 1",
    "other weights": "disagree about the weights",
    "other plan": "disagree about the plan",
    "shuffled": "disagree about the data",
    "declared": "the plan's own draws only",
    "parallel": "give the module inside it",
    "fixed size": "drawn from all examples at once",
    "adaptive": "adaptive clipping works in one process",
    "bands": "correlated noise is kept in one process",
    "sharded": "is split over processes (fully_shard)",
}

PAGE = "page:coming-from-opacus.md"
OTHERS = ("one raises", "ledgers")  # of which the processes say different things


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    run_alone(out, *LOOPS, "fitted:-1")
    return out


@pytest.fixture(scope="module", params=[2, 3])
def processes(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def together(processes: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(f"together-{processes}")
    jobs = (PAGE, *LOOPS, "fitted:-1", "noise_alone", "draws")
    assert run_together(processes, out, *jobs) == 0
    return out


def weights(out: Path, job: str, rank: int = 0) -> torch.Tensor:
    parts = torch.load(out / job / f"weights-{rank}.pt")
    return torch.cat([part.flatten() for part in parts])


def facts(out: Path, job: str, rank: int = 0) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / job / f"facts-{rank}.json").read_text())
    return found


@pytest.mark.parametrize("job", ["loop-sgd", "loop-adam", "loop-ordinary", "fitted--1"])
def test_all_processes_end_with_the_weights_of_one(
    job: str, alone: Path, together: Path, processes: int
) -> None:
    expected = weights(alone, job)
    for rank in range(processes):
        found = weights(together, job, rank)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(found, weights(together, job))


def test_the_program_on_the_page_runs(together: Path, processes: int) -> None:
    job = PAGE.replace(":", "-")
    for rank in range(processes):
        assert facts(together, job, rank)["charged"] == 10
        assert torch.equal(weights(together, job, rank), weights(together, job))


@pytest.mark.parametrize("job", ["loop-sgd", "fitted--1"])
def test_the_account_is_that_of_one_process(
    job: str, alone: Path, together: Path, processes: int
) -> None:
    for rank in range(processes):
        for fact in ("charged", "epsilon"):
            assert facts(together, job, rank)[fact] == facts(alone, job)[fact]


def test_the_processes_share_the_batches_of_one(
    alone: Path, together: Path, processes: int
) -> None:
    sizes = [facts(together, "loop-sgd", rank)["sizes"] for rank in range(processes)]
    sums = [sum(of_step) for of_step in zip(*sizes, strict=True)]  # type: ignore[call-overload]
    assert sums == facts(alone, "loop-sgd")["sizes"]
    assert all(min(of_rank) < max(sums) for of_rank in sizes)  # type: ignore[call-overload]


def test_one_ledger_is_written(together: Path) -> None:
    folder = together / "fitted--1" / "run"
    assert [path.name for path in folder.glob("*ledger*")] == ["ledger.jsonl"]
    with_plan = worker.plan(steps=20).to_dict()
    ledger = Ledger.open(folder / "ledger.jsonl", with_plan)
    assert ledger.charged == 20
    ledger.close()


class TestNoise:
    def test_noise_of_the_planned_variance_enters_once(self, together: Path) -> None:
        moved = torch.load(together / "noise_alone" / "moved-0.pt")
        entries = torch.cat([part.flatten() for part in moved]).double()
        planned = worker.plan()
        # η · zΔ / S, of the plan in `noise_alone`.
        std = 0.5 * 2.0 * 0.5 / planned.batch_size
        # χ² of the variance, two-sided, false alarms one in a million.
        count = len(entries)
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], count) / count
        share = float(entries.square().mean()) / std**2
        assert low < share < high * 1.003  # rounding to the grid adds at most 0.1 % to the noise
        assert not low < share * 2 < high  # it would notice noise of one process more

    def test_every_part_of_every_parameter_has_noise(self, together: Path) -> None:
        for part in torch.load(together / "noise_alone" / "moved-0.pt"):
            assert (part != 0).all()

    def test_no_two_processes_draw_the_same_noise(self, together: Path) -> None:
        moved = torch.load(together / "noise_alone" / "moved-0.pt")[0].flatten()
        assert len(moved.unique()) > 0.99 * len(moved)


class TestSampling:
    def test_each_example_is_drawn_by_one_process(self, together: Path, processes: int) -> None:
        owners = [
            {index for batch in drawn(together, rank) for index in batch}
            for rank in range(processes)
        ]
        assert set.union(*owners) == set(range(worker.EXAMPLES))
        assert sum(len(owned) for owned in owners) == worker.EXAMPLES

    def test_the_joint_draw_has_the_law_of_one_process(
        self, together: Path, processes: int
    ) -> None:
        steps = zip(*(drawn(together, rank) for rank in range(processes)), strict=True)
        sizes = [sum(len(part) for part in parts) for parts in steps]
        prob = worker.plan().sampling_prob
        total = worker.EXAMPLES * len(sizes)
        # Every inclusion is a coin of its own: the total is binomial, and so is each size.
        assert stats.binomtest(sum(sizes), total, prob).pvalue > 1e-6
        assert stats.binomtest(sum(sizes), total, prob * 1.2).pvalue < 1e-6
        variance = worker.EXAMPLES * prob * (1 - prob)
        spread = sum((size - worker.EXAMPLES * prob) ** 2 for size in sizes) / variance
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(sizes))
        assert low < spread < high

    def test_processes_draw_independently(self, together: Path, processes: int) -> None:
        sizes = [[len(part) for part in drawn(together, rank)] for rank in range(processes)]
        correlation, _ = stats.pearsonr(sizes[0], sizes[1])
        assert abs(correlation) < 5 / len(sizes[0]) ** 0.5


def drawn(out: Path, rank: int) -> list[list[int]]:
    found: list[list[int]] = json.loads((out / "draws" / f"draws-{rank}.json").read_text())
    return found


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("refusals")
    assert run_together(2, out, *(f"refused:{what}" for what in (*REFUSED, *OTHERS))) == 0
    return out


class TestRefusals:
    @pytest.mark.parametrize("what", REFUSED)
    def test_every_process_says_what_is_wrong(self, what: str, refusals: Path) -> None:
        folder = refusals / f"refused-{what.replace(' ', '-')}"
        for rank in range(2):
            assert REFUSED[what] in (folder / f"refused-{rank}.txt").read_text()

    def test_a_second_ledger_is_refused(self, refusals: Path) -> None:
        words = (refusals / "refused-ledgers" / "refused-1.txt").read_text()
        assert "rank 1 has a ledger of its own" in words

    def test_what_one_process_raises_stops_all(self, refusals: Path) -> None:
        folder = refusals / "refused-one-raises"
        assert "not drawn by plan.batches" in (folder / "refused-1.txt").read_text()
        assert "another process of the group" in (folder / "refused-0.txt").read_text()


def test_a_launcher_without_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = worker.network()
    with pytest.raises(dpvd.DpvdError, match="one of 2 processes, and the step was not told"):
        dpvd.PrivateStep(model, worker.loss_fn, worker.plan(), worker.optimizer_of(model, "sgd"))


class TestDeath:
    def test_a_killed_process_stops_the_run_and_another_number_goes_on(
        self, alone: Path, tmp_path: Path
    ) -> None:
        assert run_together(2, tmp_path, "fitted:13") != 0
        place = tmp_path / "fitted-13"
        assert not (place / "weights-0.pt").exists()
        before = _charged(place)
        assert 13 <= before <= 20
        (tmp_path / "fitted-13").rename(tmp_path / "fitted--1")
        assert run_together(3, tmp_path, "fitted:-1") == 0
        found = facts(tmp_path, "fitted--1")
        assert found["charged"] == 20
        assert found["epsilon"] == facts(alone, "fitted--1")["epsilon"]
        assert torch.equal(weights(tmp_path, "fitted--1", 0), weights(tmp_path, "fitted--1", 2))


def _charged(place: Path) -> int:
    ledger = Ledger.open(place / "run" / "ledger.jsonl", worker.plan(steps=20).to_dict())
    charged = ledger.charged
    ledger.close()
    return charged
