"""The noise that each accountant asks for: Fig. 3, which needs no training."""

from collections.abc import Sequence

from dpvd.experiments.catalogue import DELTA
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName

__all__ = ["EXAMPLES", "multiplier_of", "noise_levels", "sigma_of"]

EXAMPLES = {"digits": 1437, "mnist": 60_000}
"""Training examples by data set."""


def noise_levels(protocol: ExperimentProtocol, budgets: Sequence[float]) -> dict[str, list[float]]:
    """Noise multipliers of a protocol at each budget, by accountant.

    >>> from dpvd.experiments.protocols import MNIST_200
    >>> levels = noise_levels(MNIST_200, [1.0])
    >>> {name: round(values[0], 1) for name, values in levels.items()}
    {'pld': 5.3, 'rdp': 5.8, 'zcdp': 5.8, 'advanced': 34.6}
    """
    plan = PrivacyPlan(
        examples=EXAMPLES[protocol.dataset],
        batch_size=protocol.batch_size,
        epochs=float(protocol.epochs),
    )
    found: dict[str, list[float]] = {}
    for name in AccountantName:
        calibrated = [plan.calibrate(budget, DELTA, name).noise_multiplier for budget in budgets]
        found[str(name)] = [noise for noise in calibrated if noise is not None]
    return found


def sigma_of(noise_multiplier: float) -> float:
    """The paper's σ of a noise multiplier: noise over twice the clip norm, under flat clipping."""
    return noise_multiplier / 2


def multiplier_of(sigma: float) -> float:
    """The noise multiplier of the paper's σ.

    >>> multiplier_of(2.68)
    5.36
    """
    return 2 * sigma
