"""A sweep: which runs, in which folders, what is done again, and what all of it costs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting import ComposedDpEvent

from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import epsilon
from dpvd.runs import RunOptions, RunRecord, execute, prepare_run, total_spent
from dpvd.runs.sweep import SWEEP, plan_sweep, sweep, total_in_words

GIVEN = {"delta": 1e-5, "hidden": 8, "epochs": 1.0, "batch_size": 400}
DATA = {"name": "digits"}
RUNS = plan_sweep(GIVEN, methods=["dpvd", "dpsgd"], epsilons=[0.5, 2.0], seeds=1)


class Trainer:
    """Trains on DIGITS, and notes what it was asked for."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.stop_at = stop_at

    def __call__(self, options: RunOptions, folder: Path, resume: bool) -> RunRecord:
        self.calls.append((folder.name, resume))
        run = prepare_run(options, load("digits"))

        def interrupt(progress: object) -> None:
            if len(self.calls) == self.stop_at:
                raise KeyboardInterrupt

        return execute(run, folder, resume=resume, on_step=interrupt)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A finished sweep, its trainer and its result."""
    folder = tmp_path_factory.mktemp("sweep") / "out"
    trainer = Trainer()
    return folder, trainer, sweep(RUNS, folder, trainer, data=DATA)


def test_every_combination_is_run_the_first_seed_first():
    names = [
        run.name
        for run in plan_sweep(GIVEN, methods=["dpvd", "none"], epsilons=[0.5, 1, 2.0], seeds=2)
    ]
    assert names[:4] == [
        "dpvd-epsilon-0.5-seed-0",
        "dpvd-epsilon-1-seed-0",
        "dpvd-epsilon-2-seed-0",
        "none-seed-0",
    ]
    assert len(names) == len(set(names)) == 8
    assert names[4].endswith("seed-1")


def test_names_of_close_budgets_differ():
    close = plan_sweep(GIVEN, epsilons=[1.0, 1.0000001])
    assert len({run.name for run in close}) == 2


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"methods": ["dpvd", "sgd"], "epsilons": [1.0]}, "method must be one of"),
        ({"epsilons": [1.0, 1.0]}, "--epsilon has a value twice"),
        ({"methods": ["dpvd", "dpvd"], "epsilons": [1.0]}, "--method has a value twice"),
        ({"epsilons": [-1.0]}, "epsilon must be"),
        ({"epsilons": [1.0], "seeds": 0}, "seeds must be"),
        ({"methods": ["dpvd"]}, "needs a privacy budget"),
    ],
)
def test_bad_choices_are_refused(choices, words):
    with pytest.raises(DpvdError, match=words):
        plan_sweep(GIVEN, **choices)


def test_each_run_has_a_folder_that_says_what_it_is(swept):
    folder, trainer, result = swept
    assert {path.name for path in folder.iterdir()} == {SWEEP, *(run.name for run in RUNS)}
    assert trainer.calls == [(run.name, False) for run in RUNS]
    assert result.records["dpsgd-epsilon-2-seed-0"].method == "dpsgd"


def test_the_total_is_the_composition_of_all_runs(swept):
    _, _, result = swept
    plans = [PrivacyPlan.from_dict(record.plan) for record in result.records.values()]
    composed = epsilon(ComposedDpEvent([plan.event() for plan in plans]), 1e-5)
    assert result.total.epsilon == pytest.approx(composed, rel=1e-9)
    largest = max(record.guarantee["epsilon"] for record in result.records.values())
    assert largest < result.total.epsilon < sum(r.epsilon for r in result.records.values())
    words = total_in_words(result.total)
    assert "All 4 private runs cost" in words
    assert "if more than one of them is kept" in words


def test_finished_runs_are_not_trained_again(swept):
    folder, _, first = swept
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = Trainer()
    result = sweep(RUNS, folder, again, data=DATA)
    assert again.calls == []
    assert result.total == first.total
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sweep(RUNS[:2], tmp_path / "out", Trainer(stop_at=2), data=DATA)
    later = Trainer()
    result = sweep(RUNS[:2], tmp_path / "out", later, data=DATA)
    assert later.calls == [(RUNS[1].name, True)]
    assert all(
        record.guarantee["steps"] == record.plan["steps"] for record in result.records.values()
    )


@pytest.mark.parametrize("runs", [RUNS[:3], plan_sweep(GIVEN | {"hidden": 9}, epsilons=[1.0])])
def test_another_sweep_is_refused_and_nothing_changed(swept, runs):
    folder, _, _ = swept
    before = sorted(folder.rglob("*"))
    with pytest.raises(DpvdError, match="another sweep"):
        sweep(runs, folder, Trainer(), data=DATA)
    with pytest.raises(DpvdError, match="another sweep"):
        sweep(RUNS, folder, Trainer(), data={"name": "mnist"})
    assert sorted(folder.rglob("*")) == before


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    trainer = Trainer()
    with pytest.raises(DpvdError, match="holds no sweep"):
        sweep(RUNS, tmp_path, trainer, data=DATA)
    with pytest.raises(DpvdError, match="is a file"):
        sweep(RUNS, tmp_path / "thesis.tex", trainer, data=DATA)
    assert trainer.calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_record_of_another_run_is_noticed(swept, tmp_path):
    folder, _, result = swept
    place = tmp_path / "out"
    place.mkdir()
    (place / SWEEP).write_text((folder / SWEEP).read_text())
    result.records["dpsgd-epsilon-2-seed-0"].write(place / RUNS[0].name)
    with pytest.raises(DpvdError, match="holds a run of method dpsgd"):
        sweep(RUNS, place, Trainer(), data=DATA)


def test_a_damaged_description_is_refused(tmp_path):
    (tmp_path / SWEEP).write_text("{")
    with pytest.raises(DpvdError, match="cannot be read"):
        sweep(RUNS, tmp_path, Trainer(), data=DATA)


def test_runs_without_privacy_are_not_in_the_sum(tmp_path):
    runs = plan_sweep(GIVEN, methods=["dpvd", "none"], epsilons=[1.0])
    result = sweep(runs, tmp_path / "out", Trainer(), data=DATA)
    assert result.total.runs == 1
    assert result.total.without_privacy == 1
    assert result.total.epsilon == pytest.approx(result.records[runs[0].name].epsilon, rel=1e-6)
    assert "do not release" in total_in_words(result.total)
    assert json.loads((tmp_path / "out" / SWEEP).read_text())["data"] == DATA


def test_costs_that_no_record_tells_apart_are_added_up(swept):
    _, _, result = swept
    first, second, *_ = result.records.values()
    vague = replace(first, guarantee=first.guarantee | {"steps": 1})
    total = total_spent([vague, second])
    assert not total.composed
    assert total.epsilon == pytest.approx(first.epsilon + second.epsilon)
    assert total.delta == pytest.approx(2e-5)
    other = replace(second, guarantee=second.guarantee | {"relation": "replace-one"})
    with pytest.raises(DpvdError, match="different relations"):
        total_spent([first, other])
