"""``dpvd audit``: what it prints, and its exit codes."""

from pathlib import Path

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


def test_an_audit_of_nothing_is_refused(tmp_path: Path) -> None:
    assert_refused(call("audit"), "name a run to audit, or give --engine")
    assert_refused(call("audit", "--engine", "--epsilon", 1), "--epsilon and --delta")
    run = tmp_path / "run"
    assert call(*train_line(run, epsilon=None, method="none")).code == 0
    assert_refused(call("audit", run), "nothing to audit")
