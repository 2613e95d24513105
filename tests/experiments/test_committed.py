"""The records that come with the project: every ε in them is true for what ran."""

from pathlib import Path

import pytest

from dpvd.experiments import PROTOCOLS, Experiment, Folder, Record, run_spec, runs_of
from dpvd.plan import PrivacyPlan
from tests.experiments.small import digits, spec

FOLDER = Folder(Path(__file__).parents[2] / "reproduction")


def recomputed(record: Record) -> dict[str, float]:
    """ε of the record's plan, by the accountants that the record names."""
    plan = PrivacyPlan.from_dict(record.plan)
    return {name: plan.epsilon(record.spec.delta, name) for name in record.epsilons}


def check(record: Record) -> None:
    assert set(record.epsilons) == (set() if record.spec.epsilon is None else {"pld", str(record.spec.accountant)})
    assert record.epsilons == pytest.approx(recomputed(record), rel=1e-6)
    if record.spec.epsilon is not None:
        assert recomputed(record)["pld"] <= record.spec.epsilon


def test_a_record_that_claims_too_little_is_noticed() -> None:
    record = run_spec(spec(), digits())
    check(record)
    record.epsilons["pld"] *= 0.9
    with pytest.raises(AssertionError):
        check(record)


def test_every_committed_epsilon_is_that_of_its_plan() -> None:
    records = FOLDER.records.read_all()
    if not records:
        pytest.skip("no records are committed yet")
    for record in records:
        check(record)


def test_every_committed_record_belongs_to_a_table_or_figure() -> None:
    records = FOLDER.records.read_all()
    if not records:
        pytest.skip("no records are committed yet")
    choices = FOLDER.tuning.choices()
    wanted = {s.hash for p in PROTOCOLS.values() for s in runs_of(Experiment.ALL, p, choices)}
    assert {record.hash for record in records} <= wanted
