"""The privacy noise that all steps of a run together leave in a weight."""

import math
from collections.abc import Sequence

from dpvd.errors import DpvdError, positive_int

__all__ = ["accumulated_noise"]


def accumulated_noise(
    rates: Sequence[float], *, momentum: float = 0.0, averaged: int = 1, curvature: float = 0.0
) -> float:
    """Standard deviation that noise of variance 1 in the gradient of every step leaves in a weight.

    Stochastic gradient descent on a weight w, whose loss bends by h:

        v_t = m v_(t-1) + h w_(t-1) + ξ_t        ξ_t of variance 1, v_0 = w_0 = 0
        w_t = w_(t-1) - η_t v_t
        result = mean of the last w_t

    It is linear in the draws ξ_t, so one pass from the last step to the first finds what each is
    worth in the result: λ_t for a change of w_t, μ_t for one of v_t,

        λ_t = [t is averaged] / averaged + λ_(t+1) + h μ_(t+1)
        μ_t = m μ_(t+1) - η_t λ_t

    and the variance is Σ μ_t².

    Guarantees: it depends on no data. With h = 0 it is exact for the noise itself; where the loss
    bends, it forgets some of the noise, which h > 0 describes.

    Args:
        rates: the learning rates η_t, in order.
        momentum: m.
        averaged: how many of the last iterates the result is the mean of.
        curvature: h; the decay of weights is a part of it.

    Raises:
        DpvdError: if more iterates are averaged than there are.

    >>> round(accumulated_noise([0.5] * 4), 3)  # η √T
    1.0
    >>> round(accumulated_noise([1.0, 1.0], averaged=2, curvature=1.0), 3)
    0.707
    """
    positive_int(averaged=averaged)
    steps = len(rates)
    if averaged > steps:
        raise DpvdError(f"{averaged} iterates cannot be averaged: there are {steps} steps")
    of_weight = 0.0
    of_velocity = 0.0
    variance = 0.0
    for step in reversed(range(steps)):
        of_weight += curvature * of_velocity
        if step >= steps - averaged:
            of_weight += 1 / averaged
        of_velocity = momentum * of_velocity - rates[step] * of_weight
        variance += of_velocity**2
    return math.sqrt(variance)
