"""What stands on the first screen follows from the judgements."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dpvd.experiments import Judgement, Results, Spec, Variant, judge, load_claims
from dpvd.experiments.catalogue import cell_specs
from dpvd.experiments.protocols import DIGITS_100, MNIST_10, MNIST_200, Protocol
from dpvd.experiments.summary import dropout_answer, overall, summary_table
from dpvd.experiments.verdicts import Finding, Verdict
from tests.experiments.small import made_up

YES, NO, OPEN = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE
CLAIMS = load_claims()


def judged(protocol: str, variant: str, verdict: Verdict, reason: str = "so") -> Judgement:
    return Judgement("Table 1", "A claim.", protocol, variant, "", Finding(verdict, "figure", reason))


@pytest.mark.parametrize(
    ("digits", "mnist", "expected"),
    [
        ((YES, NO), (NO, YES), YES),
        ((YES, YES), (NO, NO), NO),
        ((YES, YES), (NO, OPEN), OPEN),
        ((OPEN, NO), (YES, YES), OPEN),
    ],
)
def test_of_variants_the_better_counts_and_of_data_sets_the_worse(
    digits: tuple[Verdict, Verdict], mnist: tuple[Verdict, Verdict], expected: Verdict
) -> None:
    found = [
        judged(protocol, variant, verdict)
        for protocol, verdicts in (("digits-100", digits), ("mnist-200", mnist))
        for variant, verdict in zip(("as-printed", "tuned"), verdicts, strict=True)
    ]
    assert overall(found) is expected


def test_a_data_set_that_was_not_run_does_not_count_beside_one_that_was() -> None:
    missing = judged("mnist-200", "tuned", OPEN, "not run")
    assert overall([judged("digits-100", "tuned", YES), missing]) is YES
    assert overall([judged("digits-100", "tuned", YES), missing, judged("mnist-200", "as-printed", NO)]) is YES
    assert overall([missing, judged("mnist-200", "as-printed", NO)]) is NO
    assert overall([missing]) is OPEN
    assert overall([]) is None


def run_specs(protocol: Protocol, seeds: int) -> list[Spec]:
    return [
        spec
        for method in ("DPVD-zCDP", "SVI-zCDP")
        for epsilon in (10.0, 1.0, 0.1)
        for spec in cell_specs(protocol, method, Variant.AS_PRINTED, epsilon, {}, seeds)
    ]


def runs(accuracy: Callable[[Spec], float], protocol: Protocol = DIGITS_100, seeds: int = 30) -> Results:
    return Results([made_up(spec, accuracy(spec)) for spec in run_specs(protocol, seeds)], {})


def gains(gain: float) -> Callable[[Spec], float]:
    """Dropout gains so much, half a point more or less from one seed to the next."""

    def accuracy(spec: Spec) -> float:
        return 0.5 + (gain + 0.005 * (-1) ** spec.seed) * (spec.method == "DPVD-zCDP")

    return accuracy


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.02, "Yes.** At ε = 0.1 it changes accuracy by +2.00 ± 0.09 on DIGITS as printed (30 pairs of runs)"),
        (-0.02, "No.** At ε = 0.1 it changes accuracy by -2.00 ± 0.09 on DIGITS as printed (30 pairs of runs)"),
        (0.001, "No.** At ε = 0.1 it changes accuracy by +0.10 ± 0.09 on DIGITS as printed (30 pairs of runs)"),
    ],
)
def test_the_answer_on_dropout_has_its_standard_error(gain: float, words: str) -> None:
    answer = dropout_answer(runs(gains(gain)), [DIGITS_100])
    assert answer.startswith(f"**Does dropout help at low ε? {words} against the paper's method without dropout")


def test_a_gain_on_one_data_set_is_not_one_everywhere() -> None:
    digits, mnist = (run_specs(protocol, seeds) for protocol, seeds in ((DIGITS_100, 30), (MNIST_200, 3)))
    records = [made_up(spec, gains(0.02)(spec)) for spec in digits] + [made_up(spec, 0.5) for spec in mnist]
    assert "Not everywhere." in dropout_answer(Results(records, {}), [DIGITS_100, MNIST_200])


def test_the_answer_is_that_of_the_comparison_with_the_same_noise() -> None:
    with_abadi = [
        *run_specs(DIGITS_100, 30),
        *cell_specs(DIGITS_100, "Abadi et al.", Variant.AS_PRINTED, 0.1, {}, 30),
    ]
    better_than_svi = {"DPVD-zCDP": 0.5, "Abadi et al.": 0.5, "SVI-zCDP": 0.3}
    answer = dropout_answer(
        Results([made_up(spec, better_than_svi[spec.method]) for spec in with_abadi], {}), [DIGITS_100]
    )
    assert "? No.** At ε = 0.1 it changes accuracy by +0.00 ± 0.00 on DIGITS as printed" in answer
    assert "and by +20.00 ± 0.00 on DIGITS as printed (30 pairs of runs) against the paper's method" in answer


def test_an_answer_from_single_runs_says_that_its_error_is_assumed() -> None:
    answer = dropout_answer(runs(gains(0.02), MNIST_200, seeds=1), [MNIST_200])
    assert "on MNIST as printed (1 pair of runs, error assumed)" in answer
    assert "has not been run" in dropout_answer(Results([], {}), [DIGITS_100])


def test_a_short_protocol_is_not_on_the_first_screen() -> None:
    results = runs(gains(0.02))
    table = summary_table(judge(results, CLAIMS, [DIGITS_100, MNIST_10]), CLAIMS, [DIGITS_100, MNIST_10])
    assert table.header == ("claim", "verdict", "DIGITS", "reason")
    assert "mnist-10" not in table.note


@pytest.mark.parametrize(("gain", "shown"), [(0.02, True), (-0.02, False)])
def test_a_reason_stands_only_beside_the_verdict_it_was_written_for(gain: float, shown: bool) -> None:
    (claim,) = [claim for claim in CLAIMS.sentences if claim.id == "dropout-helps"]
    written = replace(claim, reason="because of dropout", reason_for="reproduced")
    claims = replace(CLAIMS, sentences=(written,))
    table = summary_table(judge(runs(gains(gain)), claims, [DIGITS_100]), claims, [DIGITS_100])
    (row,) = [row for row in table.rows if row[0] == claim.text]
    assert row[1] == ("reproduced" if shown else "not reproduced")
    assert (row[-1] == "because of dropout") == shown
    assert row[-1]


def test_single_runs_that_are_missing_are_named() -> None:
    table = summary_table(judge(Results([], {}), CLAIMS, [DIGITS_100]), CLAIMS, [DIGITS_100])
    cells = {row[0]: row[2] for row in table.rows}
    assert cells["Accuracy falls when ε falls."] == "not all run"
    assert cells["The printed accuracies."] == "as printed: not run; tuned: not run"
    assert cells["The published σ keep ε = 1."] == "1 of 2"
