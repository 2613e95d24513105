"""What stands on the first screen follows from the judgements."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dpvd.experiments import Judgement, Results, Spec, Variant, judge, load_claims
from dpvd.experiments.catalogue import cell_specs
from dpvd.experiments.protocols import DIGITS_100, MNIST_10, MNIST_200, ExperimentProtocol
from dpvd.experiments.verdicts import Finding, Verdict, dropout_answer, overall, summary_table
from tests.experiments.small import made_up

YES, NO, OPEN = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE
CLAIMS = load_claims()
Accuracy = Callable[[Spec], float]


def judged(protocol: str, variant: Variant, verdict: Verdict, reason: str = "so") -> Judgement:
    finding = Finding(verdict, "figure", reason)
    return Judgement("Table 1", "A claim.", protocol, variant, "", finding)


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
        for variant, verdict in zip((Variant.AS_PRINTED, Variant.TUNED), verdicts, strict=True)
    ]
    assert overall(found) is expected


def test_a_data_set_that_was_not_run_does_not_count_beside_one_that_was() -> None:
    digits = judged("digits-100", Variant.TUNED, YES)
    missing = judged("mnist-200", Variant.TUNED, OPEN, "not run")
    beside = judged("mnist-200", Variant.AS_PRINTED, NO)
    assert overall([digits, missing]) is YES
    assert overall([digits, missing, beside]) is YES
    assert overall([missing, beside]) is NO
    assert overall([missing]) is OPEN
    assert overall([]) is None


def run_specs(protocol: ExperimentProtocol, seeds: int) -> list[Spec]:
    return [
        spec
        for method in ("DPVD-zCDP", "SVI-zCDP")
        for epsilon in (10.0, 1.0, 0.1)
        for spec in cell_specs(protocol, method, Variant.AS_PRINTED, epsilon, {}, seeds)
    ]


def runs(accuracy: Accuracy, protocol: ExperimentProtocol = DIGITS_100, seeds: int = 30) -> Results:
    return Results([made_up(spec, accuracy(spec)) for spec in run_specs(protocol, seeds)], {})


def gains(gain: float) -> Accuracy:
    """Dropout gains so much, half a point more or less from one seed to the next."""

    def accuracy(spec: Spec) -> float:
        return 0.5 + (gain + 0.005 * (-1) ** spec.seed) * (spec.method == "DPVD-zCDP")

    return accuracy


@pytest.mark.parametrize(
    ("gain", "answer", "figure"),
    [(0.02, "Yes", "+2.00 ± 0.09"), (-0.02, "No", "-2.00 ± 0.09"), (0.001, "No", "+0.10 ± 0.09")],
)
def test_the_answer_on_dropout_has_an_error(gain: float, answer: str, figure: str) -> None:
    assert str(dropout_answer(runs(gains(gain)), [DIGITS_100])).startswith(
        f"Does dropout help at low ε? {answer}. At ε = 0.1 it changes accuracy by {figure} on "
        "DIGITS as printed (30 pairs of runs) against the paper's method without dropout"
    )


def test_a_gain_on_one_data_set_is_not_one_everywhere() -> None:
    records = [made_up(spec, gains(0.02)(spec)) for spec in run_specs(DIGITS_100, 30)]
    records += [made_up(spec, 0.5) for spec in run_specs(MNIST_200, 3)]
    assert "Not everywhere." in dropout_answer(Results(records, {}), [DIGITS_100, MNIST_200]).short


def test_the_answer_is_that_of_the_comparison_with_the_same_noise() -> None:
    with_abadi = [
        *run_specs(DIGITS_100, 30),
        *cell_specs(DIGITS_100, "Abadi et al.", Variant.AS_PRINTED, 0.1, {}, 30),
    ]
    better_than_svi = {"DPVD-zCDP": 0.5, "Abadi et al.": 0.5, "SVI-zCDP": 0.3}
    records = [made_up(spec, better_than_svi[spec.method]) for spec in with_abadi]
    answer = str(dropout_answer(Results(records, {}), [DIGITS_100]))
    assert "? No. At ε = 0.1 it changes accuracy by +0.00 ± 0.00 on DIGITS as printed" in answer
    assert "and by +20.00 ± 0.00 on DIGITS as printed (30 pairs of runs) against the" in answer


def test_an_answer_from_single_runs_says_that_its_error_is_assumed() -> None:
    answer = str(dropout_answer(runs(gains(0.02), MNIST_200, seeds=1), [MNIST_200]))
    assert "on MNIST as printed (1 pair of runs, error assumed)" in answer
    assert "has not been run" in str(dropout_answer(Results([], {}), [DIGITS_100]))


def test_a_short_protocol_is_not_on_the_first_screen() -> None:
    protocols = [DIGITS_100, MNIST_10]
    table = summary_table(judge(runs(gains(0.02)), CLAIMS, protocols), CLAIMS, protocols)
    assert table.header == ("claim", "verdict", "DIGITS", "reason")
    assert "mnist-10" not in table.note


@pytest.mark.parametrize(("gain", "shown"), [(0.02, True), (-0.02, False)])
def test_a_reason_stands_only_beside_the_verdict_it_is_for(gain: float, shown: bool) -> None:
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
