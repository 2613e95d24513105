"""``dpvd audit``: what it prints, and its exit codes."""

import json
import stat
from pathlib import Path

import pytest

from tests.cli.program import Outcome, assert_refused, call, train_line

ENGINE = ("audit", "--engine", "--epsilon", 8, "--delta", 1e-5, "--trials", 10_000)


def test_an_audit_prints_claim_bound_confidence_and_verdict() -> None:
    done = call(*ENGINE, "--confidence", 0.999999, "--clipping", "per-layer", "--json")
    assert done.code == 0, done
    found = done.json
    assert 0.8 * 8 < found["lower_bound"] <= found["claimed_epsilon"] <= 8
    assert found["confidence"] == 0.999999
    assert found["verdict"] == "consistent with the claim"


def test_a_violated_claim_ends_with_exit_code_1() -> None:
    """Without any confidence an audit errs half of the time: never in 20 is one in a million."""

    def audited() -> Outcome:
        return call(*ENGINE, "--confidence", 1e-4)

    outcomes = [audited() for _ in range(20)]
    violated = [done for done in outcomes if done.code == 1]
    assert violated
    assert violated[0].out.splitlines()[-1] == "the claim is violated"
    assert {done.code for done in outcomes} <= {0, 1}


def test_the_plan_of_a_run_is_audited(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*train_line(run)).code == 0
    done = call("audit", run, "--steps", 2, "--trials", 3000, "--json")
    assert done.code == 0, done
    assert done.json["details"]["steps_per_run"] == 2
    assert done.json["claimed_epsilon"] < 1
    kept = run / "audit.json"
    assert json.loads(kept.read_text())["audit"] == done.json
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    page = (run / "report.html").read_text()
    assert "What an audit measured" in page
    assert "claimed for the first 2 of" in page
    assert "audit measured" not in (run / "statement.html").read_text()
    assert (run / "figures" / "audit.svg").exists()
    assert call("verify", run).code == 0


def test_an_audit_of_nothing_is_refused(tmp_path: Path) -> None:
    assert_refused(call("audit"), "name a run to audit, or give --engine")
    assert_refused(call("audit", "--engine", "--epsilon", 1), "--epsilon and --delta")
    run = tmp_path / "run"
    assert call(*train_line(run, epsilon=None, method="none")).code == 0
    assert_refused(call("audit", run), "nothing to audit")


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG")])
def test_claimed_and_measured_are_plotted(name: str, start: bytes, tmp_path: Path) -> None:
    done = call(*ENGINE, "--confidence", 0.999999, "--plot", tmp_path / name)
    assert done.code == 0, done
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_plot_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    assert_refused(call(*ENGINE, "--plot", tmp_path / "a.pdf"), "ends in .svg or .png")
    (tmp_path / "a.svg").touch()
    assert_refused(call(*ENGINE, "--plot", tmp_path / "a.svg"), "exists already")


def test_a_verdict_stands_although_it_cannot_be_kept() -> None:
    done = call(*ENGINE, "--confidence", 0.999999, "--plot", "/dev/null/a.svg")
    assert done.code == 0, done
    assert "the audit is not kept" in done.err
    assert done.out.splitlines()[-1] == "consistent with the claim"
