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
    "other order": "disagree about the weights",
    "other plan": "disagree about the plan",
    "other version": "disagree about the versions of dpvd and torch",
    "other shapes": "disagree about the names and shapes of the parameters",
    "other trained": "disagree about which parameters are trained",
    "shuffled": "disagree about the data",
    "declared": "the plan's own draws only",
    "parallel": "give the module inside it",
    "fixed size": "drawn from all examples at once",
    "adaptive": "adaptive clipping works in one process",
    "bands": "correlated noise is kept in one process",
    "sharded": "is split over processes (fully_shard)",
}

PAGE = "page:coming-from-opacus.md"
# Of which the processes say different things.
OTHERS = ("one raises", "ledgers", "ledger of another plan", "half held")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    run_alone(out, *LOOPS, "tiny", "fitted:never")
    return out


@pytest.fixture(scope="module", params=[2, 3])
def processes(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def together(processes: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(f"together-{processes}")
    jobs = (PAGE, *LOOPS, "fitted:never", "noise_alone", "draws")
    assert run_together(processes, out, *jobs) == 0
    return out


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("together-4")
    assert run_together(4, out, "loop:adam", "tiny", "shared") == 0
    return out


def weights(out: Path, job: str, rank: int = 0) -> torch.Tensor:
    parts = torch.load(out / job / f"weights-{rank}.pt")
    return torch.cat([part.flatten() for part in parts])


def facts(out: Path, job: str, rank: int = 0) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / job / f"facts-{rank}.json").read_text())
    return found


@pytest.mark.parametrize("job", ["loop-sgd", "loop-adam", "loop-ordinary", "fitted-never"])
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


@pytest.mark.parametrize("job", ["loop-adam", "tiny"])
def test_four_processes_end_with_the_weights_of_one(job: str, alone: Path, four: Path) -> None:
    for rank in range(4):
        found = weights(four, job, rank)
        torch.testing.assert_close(found, weights(alone, job), rtol=1e-5, atol=1e-5)
        assert torch.equal(found, weights(four, job))
        assert facts(four, job, rank)["charged"] == facts(alone, job)["charged"]


def test_processes_may_have_no_examples_and_steps_no_batch(alone: Path, four: Path) -> None:
    sizes = [facts(four, "tiny", rank)["sizes"] for rank in range(4)]
    assert [max(of_rank) for of_rank in sizes] == [0, 1, 1, 1]  # type: ignore[call-overload]
    assert min(facts(alone, "tiny")["sizes"]) == 0  # type: ignore[call-overload]


def test_weights_and_sums_are_shared_however_they_lie_in_memory(four: Path) -> None:
    for rank in range(4):
        assert torch.equal(weights(four, "shared", rank), weights(four, "shared"))
        assert facts(four, "shared", rank)["total"] == [[10.0] * 3] * 2


@pytest.mark.parametrize("job", ["loop-sgd", "fitted-never"])
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
    folder = together / "fitted-never" / "run"
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
            # Of many entries one may be rounded to zero.
            assert (part == 0).float().mean() < 1e-2

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

    @pytest.mark.parametrize(
        ("what", "rank", "words"),
        [
            ("ledger of another plan", 0, "the ledger belongs to another plan"),
            ("half held", 1, "the optimizer does not hold"),
        ],
    )
    def test_what_one_process_lacks_at_the_start_stops_all(
        self, what: str, rank: int, words: str, refusals: Path
    ) -> None:
        folder = refusals / f"refused-{what.replace(' ', '-')}"
        assert words in (folder / f"refused-{rank}.txt").read_text()
        other = (folder / f"refused-{1 - rank}.txt").read_text()
        assert "another process of the group" in other


def test_a_launcher_without_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = worker.network()
    with pytest.raises(dpvd.DpvdError, match="one of 2 processes, and the step was not told"):
        dpvd.PrivateStep(model, worker.loss_fn, worker.plan(), worker.optimizer_of(model, "sgd"))


# How the processes end in the step after the seventh, and how many of 20 steps move the weights
# then: those up to the checkpoint after step 6, and those that were not charged when it ended.
KILLED = {
    "fitted:7@last@loss": 6 + 13,
    "fitted:7@last@charged": 6 + 12,
    "fitted:7@0@charged": 6 + 12,
}


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("restarted")
    assert run_together(2, out, *KILLED, restarts=len(KILLED)) == 0
    return out


class TestDeath:
    def test_a_killed_process_stops_the_run_and_another_number_goes_on(
        self, alone: Path, tmp_path: Path
    ) -> None:
        stopped, killed = "fitted:12@0@stop", "fitted:13@last@step"
        assert run_together(2, tmp_path, stopped, killed) != 0
        assert not list(tmp_path.glob("*/weights-*.pt"))
        before = _charged(tmp_path / name(killed))
        assert 13 <= before <= 20
        assert run_together(3, tmp_path, stopped, killed) == 0
        found = facts(tmp_path, name(killed))
        assert found["charged"] == 20
        assert found["epsilon"] == facts(alone, "fitted-never")["epsilon"]
        ends = [weights(tmp_path, name(killed), rank) for rank in range(3)]
        assert torch.equal(ends[0], ends[2])
        # An ordinary stop loses nothing: the weights are those of a run that never stopped.
        expected = weights(alone, "fitted-never")
        found_weights = weights(tmp_path, name(stopped))
        torch.testing.assert_close(found_weights, expected, rtol=1e-5, atol=1e-5)
        assert facts(tmp_path, name(stopped))["taken"] == 20

    @pytest.mark.parametrize("job", KILLED)
    def test_the_launcher_s_restart_goes_on_and_counts_what_was_lost(
        self, job: str, alone: Path, restarted: Path
    ) -> None:
        found = facts(restarted, name(job))
        assert found["taken"] == KILLED[job]
        assert found["charged"] == 20
        assert found["epsilon"] == facts(alone, "fitted-never")["epsilon"]
        assert torch.equal(weights(restarted, name(job), 0), weights(restarted, name(job), 1))


def name(job: str) -> str:
    """The folder of a job."""
    return job.replace(":", "-")


def _charged(place: Path) -> int:
    ledger = Ledger.open(place / "run" / "ledger.jsonl", worker.plan(steps=20).to_dict())
    charged = ledger.charged
    ledger.close()
    return charged
