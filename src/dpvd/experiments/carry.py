"""Carrying a learning rate from a short protocol, at which it was chosen, over to a long one."""

import math
from functools import cache

from dpvd.experiments.catalogue import DELTA, METHODS
from dpvd.experiments.noise_levels import EXAMPLES
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.plan import PrivacyPlan

__all__ = ["carried_rate"]


def carried_rate(
    method: str,
    epsilon: float | None,
    rate: float,
    gamma: float,
    short: ExperimentProtocol,
    long: ExperimentProtocol,
) -> float:
    """η₀ at which all steps of a long run leave as much noise on a weight as those of a short one.

    A step leaves noise of η zΔ/S, with η = η₀/t^γ in epoch t; all steps of E epochs leave

        η₀ z(E) √(Σ_(t ≤ E) t^(-2γ)) · √(steps in an epoch) · Δ/S

    The last two factors are the same for both runs, which therefore have the same noise if

        η₀(E) = η₀(e) · z(e)/z(E) · √(Σ_(t ≤ e) t^(-2γ) / Σ_(t ≤ E) t^(-2γ))

    Edge cases: without privacy there is no noise to keep, and the rate stays. The result is rounded
        to two digits: the rule is no finer than that.

    Args:
        method, epsilon: what calibrates the noise, and for which budget.
        rate, gamma: η₀ and γ that were chosen.
        short, long: the protocol of the choice, and the one that it is for; both of the same data
            and batch size.
    """
    if epsilon is None:
        return rate
    noise_short = _multiplier(method, epsilon, short)
    noise_long = _multiplier(method, epsilon, long)
    steps_short = math.sqrt(_squares(short.epochs, gamma))
    steps_long = math.sqrt(_squares(long.epochs, gamma))
    carried = rate * noise_short / noise_long * steps_short / steps_long
    return float(f"{carried:.2g}")


def _squares(epochs: int, gamma: float) -> float:
    return math.fsum(t ** (-2 * gamma) for t in range(1, epochs + 1))


@cache
def _multiplier(method: str, epsilon: float, protocol: ExperimentProtocol) -> float:
    plan = PrivacyPlan(
        examples=EXAMPLES[protocol.dataset],
        batch_size=protocol.batch_size,
        epochs=float(protocol.epochs),
    )
    accountant = METHODS[method].accountant
    assert accountant is not None
    calibrated = plan.calibrate(epsilon, DELTA, accountant).noise_multiplier
    assert calibrated is not None
    return calibrated
