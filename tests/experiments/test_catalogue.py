"""Which runs the tables and figures are made of."""

import pytest

from dpvd.experiments import (
    PROTOCOLS,
    Experiment,
    ExperimentProtocol,
    Spec,
    TuningCell,
    Variant,
    load_claims,
    runs_of,
    tuning_cells,
)
from dpvd.experiments.catalogue import BUDGETS, DELTA, EXPERIMENTS, METHODS, sweep_specs
from dpvd.experiments.protocols import DIGITS_100, MNIST_10, MNIST_200
from dpvd.experiments.verdicts import CHECKS

CLOSE = ("DPVD-zCDP", "SVI-zCDP", "Abadi et al.")  # between which the paper sees small differences


def all_runs(experiment: Experiment, protocol: ExperimentProtocol) -> list[Spec]:
    chosen = dict.fromkeys(tuning_cells(experiment, protocol), (0.3, 0.5))
    return runs_of(experiment, protocol, chosen)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))
def test_no_run_is_asked_for_twice(protocol: ExperimentProtocol) -> None:
    runs = all_runs(Experiment.ALL, protocol)
    assert runs
    assert len({spec.hash for spec in runs}) == len(runs)


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e is not Experiment.FIG3])
def test_every_table_and_figure_has_runs(experiment: Experiment) -> None:
    assert any(all_runs(experiment, protocol) for protocol in (DIGITS_100, MNIST_10))


def test_the_noise_figure_needs_no_training() -> None:
    assert not any(all_runs(Experiment.FIG3, protocol) for protocol in PROTOCOLS.values())


def test_curves_and_comparison_are_runs_of_the_table() -> None:
    table = set(all_runs(Experiment.TABLE1, DIGITS_100))
    for figure in (Experiment.FIG2, Experiment.FIG4):
        runs = all_runs(figure, DIGITS_100)
        assert runs
        assert set(runs) <= table


def test_all_is_the_union() -> None:
    parts = {spec for each in EXPERIMENTS for spec in all_runs(each, MNIST_10)}
    assert set(all_runs(Experiment.ALL, MNIST_10)) == parts


def test_the_table_has_every_method_budget_variant_and_seed() -> None:
    runs = [spec for spec in all_runs(Experiment.TABLE1, DIGITS_100) if spec.delta == DELTA]
    private = [m for m in METHODS if m != "NP"]
    wanted = {
        (m, v, e, s)
        for m in private
        for v in (Variant.AS_PRINTED, Variant.TUNED)
        for e in BUDGETS
        for s in range(30 if m in CLOSE and e < 10 else 10)
    }
    wanted |= {("DPVD-PLD", Variant.RECIPE, e, s) for e in BUDGETS for s in range(10)}
    wanted |= {("NP", v, None, s) for v in (Variant.AS_PRINTED, Variant.TUNED) for s in range(10)}
    assert {(r.method, r.variant, r.epsilon, r.seed) for r in runs} == wanted


def test_the_printed_settings_are_the_papers() -> None:
    printed = [s for s in all_runs(Experiment.TABLE1, MNIST_200) if s.variant is Variant.AS_PRINTED]
    private = [s for s in printed if s.epsilon is not None]
    settings = {
        (s.hidden, s.batch_size, s.epochs, s.learning_rate, s.gamma, s.delta) for s in printed
    }
    assert settings == {(1000, 600, 200.0, 0.1, 1.0, 1e-5)}
    assert {(s.clipping, s.clip_norm) for s in private} == {("per-layer", 2.0)}


def test_tuned_runs_differ_in_learning_rate_and_decay_only() -> None:
    runs = all_runs(Experiment.TABLE1, DIGITS_100)
    tuned = {(s.method, s.epsilon, s.seed): s.to_dict() for s in runs if s.variant is Variant.TUNED}
    for spec in runs:
        if spec.variant is Variant.AS_PRINTED and spec.delta == DELTA:
            other = tuned[spec.method, spec.epsilon, spec.seed]
            differing = {name for name, value in spec.to_dict().items() if other[name] != value}
            assert differing == {"variant", "learning_rate", "gamma"}


def test_runs_that_wait_for_a_choice_are_left_out() -> None:
    cell = TuningCell("digits-100", "DPVD-AC", 1.0)
    assert not [s for s in runs_of(Experiment.TABLE1, DIGITS_100, {}) if s.variant is Variant.TUNED]
    tuned = [
        s
        for s in runs_of(Experiment.TABLE1, DIGITS_100, {cell: (0.3, 0.5)})
        if s.variant is Variant.TUNED
    ]
    assert {(s.method, s.epsilon, s.learning_rate, s.gamma) for s in tuned} == {
        ("DPVD-AC", 1.0, 0.3, 0.5)
    }


def test_a_sweep_changes_one_setting_at_a_time() -> None:
    base = {
        s.seed: s.to_dict()
        for s in runs_of(Experiment.TABLE1, MNIST_10, {})
        if (s.method, s.epsilon) == ("DPVD-zCDP", 1.0)
    }
    for (variant, setting), points in sweep_specs(MNIST_10, {}).items():
        if variant is Variant.AS_PRINTED:
            assert len(points) > 2
            for value, specs in points.items():
                assert len(specs) == MNIST_10.sweep_seeds
                for spec in specs:
                    assert getattr(spec, setting) == value
                    assert {n for n, v in spec.to_dict().items() if base[spec.seed][n] != v} <= {
                        setting
                    }


def test_protocols_sweep_around_their_own_settings() -> None:
    for protocol in PROTOCOLS.values():
        if protocol.sweep_seeds:
            assert protocol.hidden in protocol.hidden_sweep
            assert protocol.epochs in protocol.epochs_sweep
            assert protocol.batch_size in protocol.batch_sweep


def test_claims_speak_of_what_there_is() -> None:
    claims = load_claims()
    cells = {
        (p.dataset, s.method, s.epsilon)
        for p in (DIGITS_100, MNIST_10)
        for s in all_runs(Experiment.TABLE1, p)
    }
    assert {(n.dataset, n.method, n.epsilon) for n in claims.numbers} <= cells
    assert len(claims.numbers) == 26
    assert len(claims.noise) == 4
    assert {claim.check for claim in claims.sentences} == set(CHECKS)
    assert len({claim.id for claim in claims.sentences}) == len(claims.sentences)
