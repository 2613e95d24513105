"""The paper's experiments as data: which specs each table and figure is made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.spec import PRINTED_SCHEDULE, Spec, Variant
from dpvd.grads import ClippingMode
from dpvd.privacy import AccountantName
from dpvd.runs import Method

__all__ = [
    "BUDGETS",
    "DELTA",
    "DELTAS",
    "EXPERIMENTS",
    "METHODS",
    "NP",
    "Choices",
    "Experiment",
    "MethodEntry",
    "TuningCell",
    "cell_specs",
    "delta_specs",
    "make_spec",
    "runs_of",
    "seeds_of",
    "sweep_specs",
    "tuning_cells",
]

BUDGETS = (10.0, 1.0, 0.1)
DELTA = 1e-5
DELTAS = (1e-2, 1e-3, 1e-4, DELTA)
"""The δ between which the paper sees hardly a difference."""
CLIP_NORM = 2.0
PIXELS = "pixels from 0 to 1"
BY_RULE = "by the default rule"


@dataclass(frozen=True)
class MethodEntry:
    """A row of Table 1, or one that we add to it.

    Args:
        name: as in the paper.
        training: how it trains.
        accountant: what calibrates its noise.
        prior: on the weights.
        in_paper: whether the paper has it.
    """

    name: str
    training: Method
    accountant: AccountantName | None
    prior: str
    in_paper: bool = True


METHODS = {
    entry.name: entry
    for entry in (
        MethodEntry("DPVD-AC", Method.DPVD, AccountantName.ADVANCED, "log-uniform"),
        MethodEntry("DPVD-zCDP", Method.DPVD, AccountantName.ZCDP, "log-uniform"),
        MethodEntry("SVI-zCDP", Method.SVI, AccountantName.ZCDP, "standard normal"),
        MethodEntry("Abadi et al.", Method.DPSGD, AccountantName.RDP, "none"),
        MethodEntry("DPVD-PLD", Method.DPVD, AccountantName.PLD, "log-uniform", in_paper=False),
        MethodEntry("NP", Method.NONE, None, "none"),
    )
}
"""The methods by name, in the order of the table."""

NP = "NP"
SWEPT = "DPVD-zCDP"
"""The method of Fig. 5."""
CLOSE_METHODS = ("DPVD-zCDP", "SVI-zCDP", "Abadi et al.")
CLOSE_BUDGETS = (1.0, 0.1)
"""The cells between which the paper sees small differences, and which get more seeds. They are
named here, before they are run: whoever adds seeds until a verdict appears finds one."""


class Experiment(StrEnum):
    """What can be reproduced."""

    TABLE1 = "table1"
    FIG1 = "fig1"
    FIG2 = "fig2"
    FIG3 = "fig3"
    FIG4 = "fig4"
    FIG5 = "fig5"
    ALL = "all"


EXPERIMENTS = tuple(experiment for experiment in Experiment if experiment is not Experiment.ALL)


@dataclass(frozen=True)
class TuningCell:
    """For what learning rate and decay are chosen once: protocol, method and budget."""

    protocol: str
    method: str
    epsilon: float | None

    @property
    def name(self) -> str:
        """A file name.

        >>> TuningCell("digits-100", "Abadi et al.", 0.1).name
        'digits-100-abadi-et-al-0.1'
        """
        budget = "none" if self.epsilon is None else f"{self.epsilon:g}"
        words = self.method.lower().replace(".", "").split()
        method = "-".join(words)
        return f"{self.protocol}-{method}-{budget}"


Choices = Mapping[TuningCell, tuple[float, float]]
"""η₀ and γ that were chosen, by cell."""


def make_spec(
    protocol: ExperimentProtocol,
    method: str,
    variant: Variant,
    epsilon: float | None,
    seed: int,
    **changes: Any,
) -> Spec:
    """The spec of one run of a method at the protocol's settings.

    Args:
        protocol: sizes and lengths.
        method: a name of ``METHODS``.
        variant: as printed, tuned (then ``changes`` must hold ``learning_rate`` and ``gamma``) or
            by our rule.
        epsilon: the budget; None without privacy.
        seed: of the run.
        changes: other values of single fields.
    """
    entry = METHODS[method]
    ours = variant is Variant.RECIPE
    private = entry.training is not Method.NONE
    spec = Spec(
        protocol=protocol.name,
        dataset=protocol.dataset,
        method=method,
        variant=variant,
        training=entry.training,
        accountant=entry.accountant,
        epsilon=epsilon if private else None,
        delta=DELTA,
        hidden=protocol.hidden,
        batch_size=None if ours else protocol.batch_size,
        epochs=None if ours else float(protocol.epochs),
        clipping=ClippingMode.PER_LAYER if private and not ours else None,
        clip_norm=CLIP_NORM if private and not ours else None,
        learning_rate=None if ours else protocol.learning_rate,
        gamma=None if ours else 1.0,
        schedule=BY_RULE if ours else PRINTED_SCHEDULE,
        momentum=None if ours else 0.0,
        average=None if ours else 0.0,
        prior=entry.prior,
        # Section 3.3 holds α in the gradient: the KL term then moves no weight. DPVD with the term
        # at ζ held, the other reading, is measured in "How we read the paper", point 7.
        kl_weight=None if ours else 0.0,
        inputs=BY_RULE if ours else PIXELS,
        seed=seed,
    )
    return replace(spec, **changes)


def runs_of(experiment: Experiment, protocol: ExperimentProtocol, choices: Choices) -> list[Spec]:
    """The runs that a table or figure is drawn from at one protocol; none twice.

    Edge cases: a figure that does not show the protocol's data set has none, and neither has Fig.
        3, which needs no training. Tuned runs whose cell is not among the choices are left out:
        they are not known yet.
    """
    match experiment:
        case Experiment.TABLE1:
            found = _cells(protocol, METHODS, BUDGETS, choices)
            for epsilon in BUDGETS:
                found += cell_specs(
                    protocol, "DPVD-PLD", Variant.RECIPE, epsilon, choices, protocol.seeds
                )
            for specs in delta_specs(protocol).values():
                found += specs
        case Experiment.FIG1 | Experiment.FIG2:
            shown = {Experiment.FIG1: "mnist", Experiment.FIG2: "digits"}[experiment]
            methods = ("DPVD-AC", "DPVD-zCDP", NP) if protocol.dataset == shown else ()
            found = _cells(protocol, methods, BUDGETS, choices)
        case Experiment.FIG3:
            found = []
        case Experiment.FIG4:
            found = _cells(protocol, ("DPVD-AC", "DPVD-zCDP", NP), (0.1,), choices)
        case Experiment.FIG5:
            found = []
            for points in sweep_specs(protocol, choices).values():
                for specs in points.values():
                    found += specs
        case Experiment.ALL:
            found = []
            for each in EXPERIMENTS:
                found += runs_of(each, protocol, choices)
    return list(dict.fromkeys(found))


def seeds_of(protocol: ExperimentProtocol, method: str, epsilon: float | None) -> int:
    """How many runs a cell of Table 1 is the mean of."""
    is_close = method in CLOSE_METHODS and epsilon in CLOSE_BUDGETS
    if is_close and protocol.close_seeds:
        return protocol.close_seeds
    return protocol.seeds


def sweep_specs(
    protocol: ExperimentProtocol, choices: Choices
) -> dict[tuple[Variant, str], dict[float, list[Spec]]]:
    """Fig. 5: for each variant and setting, the runs at each of its values.

    All else is as in the protocol.
    The tuned variant keeps η₀ and γ of the protocol's own settings: one setting is changed at a
    time.
    """
    values: dict[str, tuple[float, ...]] = {
        "hidden": protocol.hidden_sweep,
        "epochs": protocol.epochs_sweep,
        "clip_norm": protocol.clip_sweep,
        "batch_size": protocol.batch_sweep,
    }
    found: dict[tuple[Variant, str], dict[float, list[Spec]]] = {}
    for variant in (Variant.AS_PRINTED, Variant.TUNED):
        base = cell_specs(protocol, SWEPT, variant, 1.0, choices, protocol.sweep_seeds)
        for setting, points in values.items():
            found[variant, setting] = {
                value: [
                    replace(spec, **{setting: type(getattr(spec, setting))(value)}) for spec in base
                ]
                for value in points
            }
    return found


def tuning_cells(experiment: Experiment, protocol: ExperimentProtocol) -> list[TuningCell]:
    """For which cells η₀ and γ must be chosen before all runs of an experiment are known."""
    if experiment is Experiment.ALL:
        cells = [cell for each in EXPERIMENTS for cell in tuning_cells(each, protocol)]
    elif experiment is Experiment.FIG3:
        cells = []
    elif experiment is Experiment.FIG5:
        cells = [TuningCell(protocol.name, SWEPT, 1.0)] if protocol.sweep_seeds else []
    else:
        printed = runs_of(experiment, protocol, {})
        cells = [
            TuningCell(protocol.name, spec.method, spec.epsilon)
            for spec in printed
            if spec.variant is Variant.AS_PRINTED and spec.delta == DELTA
        ]
    return list(dict.fromkeys(cells))


def _cells(
    protocol: ExperimentProtocol, methods: Iterable[str], budgets: Iterable[float], choices: Choices
) -> list[Spec]:
    found = []
    for method in methods:
        for epsilon in (None,) if method == NP else tuple(budgets):
            for variant in (Variant.AS_PRINTED, Variant.TUNED):
                seeds = seeds_of(protocol, method, epsilon)
                found += cell_specs(protocol, method, variant, epsilon, choices, seeds)
    return found


def cell_specs(
    protocol: ExperimentProtocol,
    method: str,
    variant: Variant,
    epsilon: float | None,
    choices: Choices,
    seeds: int,
) -> list[Spec]:
    """The runs of one cell of Table 1, one for each seed.

    Edge cases: a tuned cell for which nothing was chosen yet has none.
    """
    changes: dict[str, Any] = {}
    if variant is Variant.TUNED:
        chosen = choices.get(TuningCell(protocol.name, method, epsilon))
        if chosen is None:
            return []
        changes = dict(zip(("learning_rate", "gamma"), chosen, strict=True))
    return [make_spec(protocol, method, variant, epsilon, seed, **changes) for seed in range(seeds)]


def delta_specs(protocol: ExperimentProtocol) -> dict[float, list[Spec]]:
    """The runs at each δ of Section 5. On the small data set only, where it costs little."""
    if protocol.dataset != "digits":
        return {}
    base = cell_specs(protocol, SWEPT, Variant.AS_PRINTED, 1.0, {}, protocol.seeds)
    return {delta: [replace(spec, delta=delta) for spec in base] for delta in DELTAS}
