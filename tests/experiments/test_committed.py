"""The records that come with the project: every ε is true for what ran, and what is shown follows
from them.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from reproduction.page import DOCS, FIGURES, FOLDER, documents

from dpvd.experiments import (
    PROTOCOLS,
    Artefacts,
    Experiment,
    ExperimentResult,
    Results,
    Variant,
    load_claims,
    run_spec,
    runs_of,
)
from dpvd.experiments.catalogue import BUDGETS, METHODS, NP
from dpvd.experiments.tables import table1
from dpvd.experiments.verdicts import FEWEST, assumed_spread
from dpvd.plan import PrivacyPlan
from tests.experiments.small import digits, spec

RECORDS = FOLDER.records.read_all()
needs_records = pytest.mark.skipif(not RECORDS, reason="no records are committed yet")


def recomputed(record: ExperimentResult) -> dict[str, float]:
    """ε of the record's plan, by the accountants that the record names."""
    plan = json.dumps({**record.plan, "seed": None, "noise": "system", "tuned": []}, sort_keys=True)
    return {name: _epsilon(plan, record.spec.delta, name) for name in record.epsilons}


@cache
def _epsilon(plan: str, delta: float, accountant: str) -> float:
    """ε by an accountant. Runs that differ in seed, learning rate or words share their plan and its
    ε.
    """
    return PrivacyPlan.from_dict(json.loads(plan)).epsilon(delta, accountant)


def check(record: ExperimentResult) -> None:
    """Every ε is that of the plan, and the plan is that of the spec."""
    wanted = set() if record.spec.epsilon is None else {"pld", str(record.spec.accountant)}
    assert set(record.epsilons) == wanted
    assert record.epsilons == pytest.approx(recomputed(record), rel=1e-6)
    if record.spec.epsilon is not None:
        assert max(recomputed(record).values()) <= record.spec.epsilon
    for name in ("batch_size", "seed"):
        assert getattr(record.spec, name) in (None, record.plan[name])
    if record.spec.epochs is not None:
        steps = record.spec.epochs * record.plan["examples"] / record.plan["batch_size"]
        assert abs(record.plan["steps"] - steps) <= 1


def test_a_record_that_claims_too_little_is_noticed() -> None:
    record = run_spec(spec(), digits())
    check(record)
    record.epsilons["pld"] *= 0.9
    with pytest.raises(AssertionError):
        check(record)


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 0.5}, {"steps": 4}, {"seed": 7}, {"batch_size": 100}]
)
def test_a_plan_that_is_not_the_records_is_noticed(change: dict[str, Any]) -> None:
    record = run_spec(spec(), digits())
    record.plan.update(change)
    with pytest.raises(AssertionError):
        check(record)


@needs_records
def test_every_committed_epsilon_is_that_of_its_plan() -> None:
    for record in RECORDS:
        check(record)


@needs_records
def test_every_epsilon_in_the_table_is_within_its_budget() -> None:
    results = Results(RECORDS, FOLDER.tuning.choices())
    table = table1(results, load_claims(), FOLDER.protocols())
    asked = table.header.index("ε asked for")
    spent = table.header.index("ε spent")
    rows = [row for row in table.rows if row[spent] != "–"]
    assert rows
    for row in rows:
        assert 0 < float(row[spent]) <= float(row[asked]), row


@needs_records
def test_no_spread_is_wider_than_the_one_assumed_of_few_runs() -> None:
    results = Results(RECORDS, FOLDER.tuning.choices())
    cells = [(m, e) for m in METHODS for e in ((None,) if m == NP else BUDGETS)]
    seen = 0
    for protocol in FOLDER.protocols():
        for method, epsilon in cells:
            for variant in Variant:
                cell = results.cell(protocol, method, variant, epsilon)
                if cell is not None and cell.spread is not None and cell.runs >= FEWEST:
                    name = (protocol.name, method, variant, epsilon)
                    assert cell.spread <= assumed_spread(cell), name
                    seen += 1
    assert seen


@needs_records
def test_every_committed_record_belongs_to_a_table_or_figure() -> None:
    choices = FOLDER.tuning.choices()
    wanted = {s.hash for p in PROTOCOLS.values() for s in runs_of(Experiment.ALL, p, choices)}
    assert {record.hash for record in RECORDS} <= wanted


@needs_records
def test_what_is_shown_is_what_the_records_give() -> None:
    """Whoever changes records or their pages runs ``python -m reproduction.page``."""
    made = documents(FOLDER, Artefacts.of(FOLDER, FOLDER.protocols()))
    assert {"reproduction.md", "how-we-read-the-paper.md"} < set(made)
    for name, content in made.items():
        path = DOCS / name
        assert path.exists(), f"{path} is missing"
        assert essence(path, path.read_bytes()) == essence(path, content), (
            f"{path} is not what the records give"
        )
    drawn = {path.relative_to(DOCS).as_posix() for path in (DOCS / FIGURES).iterdir()}
    assert drawn == {name for name in made if name.startswith(FIGURES)}


def essence(path: Path, content: bytes) -> bytes | list[str]:
    """Every byte of a page; of a figure its words: versions of matplotlib draw differently."""
    if path.suffix == ".svg":
        return re.findall(r"<text[^>]*>([^<]*)</text>", content.decode())
    return content


@needs_records
def test_records_are_folded_sorted_and_rounded() -> None:
    """Whoever adds records runs ``dpvd reproduce all --draw-only``."""
    files = sorted((FOLDER.path / "records").glob("*.jsonl"))
    kept = "".join(path.read_text(encoding="utf-8") for path in files)
    assert kept == "".join(record.to_line() for record in RECORDS)


@needs_records
def test_what_is_committed_stays_small() -> None:
    assert max(len(record.to_line()) for record in RECORDS) < 10_000
    assert all(len(record.curve) <= 400 for record in RECORDS)
