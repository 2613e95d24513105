"""What an audit found, on the page of its run."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpvd.audit import AuditResult
from dpvd.errors import DpvdError
from dpvd.report import render
from dpvd.report.audited import audit_figure, measured_words
from dpvd.runs import AUDIT, RunRecord, read_audit, write_audit

RESULT = AuditResult(
    attack="white box",
    bound="normal scores",
    claimed_epsilon=1.0,
    delta=1e-5,
    lower_bound=0.8996,
    confidence=0.999,
    trials=10_000,
    seconds=1.23,
    details={"runs": 1, "steps_per_run": 4},
)
VIOLATED = replace(RESULT, lower_bound=2.5)
Record = dict[str, Any]


@pytest.fixture
def run(record: Record) -> RunRecord:
    return RunRecord.from_dict(record)


def test_what_was_kept_comes_back(run: RunRecord, tmp_path: Path) -> None:
    for result in (RESULT, VIOLATED, replace(RESULT, lower_bound=math.inf)):
        write_audit(tmp_path, run, result)
        assert read_audit(tmp_path, run) == result
    (tmp_path / AUDIT).unlink()
    assert read_audit(tmp_path, run) is None


def test_the_audit_of_another_plan_is_refused(run: RunRecord, tmp_path: Path) -> None:
    write_audit(tmp_path, replace(run, plan={**run.plan, "steps": 1}), RESULT)
    with pytest.raises(DpvdError) as caught:
        read_audit(tmp_path, run)
    assert "of another plan" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "consistent with the claim", "lower_bound": 2.5},
        {"lower_bound": -1},
        {"lower_bound": "none"},
        {"claimed_epsilon": None},
        {"claimed_epsilon": 10**400},
        {"details": [1]},
        {"details": {"runs": "<b>"}},
        {"more": 1},
    ],
)
def test_what_no_audit_wrote_is_refused(change: Record, run: RunRecord, tmp_path: Path) -> None:
    path = write_audit(tmp_path, run, RESULT)
    values = json.loads(path.read_text())
    values["audit"] |= change
    for content in (json.dumps(values), json.dumps(values)[:-9], "[" * 100_000, "[]"):
        path.write_text(content)
        with pytest.raises(DpvdError, match="is damaged"):
            read_audit(tmp_path, run)


def test_the_page_says_what_was_measured(record: Record, run: RunRecord) -> None:
    consistent = render(run, audit=RESULT)
    assert "Consistent with the claim" in consistent
    assert "at least 0.8996, 89\N{NO-BREAK SPACE}% of the claim," in consistent
    violated = render(run, audit=VIOLATED)
    assert "The claim is violated" in violated
    assert "Do not hand out the model" in violated
    assert "What an audit measured" not in render(run)


def test_the_bars_are_claim_and_measurement_and_nothing_lies_on_their_labels() -> None:
    for result in (RESULT, VIOLATED, replace(RESULT, lower_bound=math.inf)):
        (axes,) = audit_figure(result).axes
        widths = [bar.get_width() for bar in axes.patches]
        assert widths == [1.0, result.lower_bound if result.lower_bound < 9 else 2.0]
        assert all(text.get_position()[0] > max(widths) for text in axes.texts)
    assert measured_words(replace(RESULT, lower_bound=math.inf)) == "an ε without limit"
