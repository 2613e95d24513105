"""Lower bounds on ε from one run with many canaries, each in it by the toss of a coin.

Scores of one run may depend on each other in any way. What is counted is how many of the boldest
guesses at the coins are right.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import binom

from dpvd.audit.bounds import Array
from dpvd.audit.family import NoiseFamily, least_refuted_noise
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan

__all__ = [
    "Guesses",
    "epsilon_by_f_dp",
    "epsilon_by_guesses",
    "guess",
    "guesses_to_make",
    "p_value",
]

_MOST_EPSILON = 100.0
_BISECTIONS = 40
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Guesses:
    """How many of the coins were guessed, and how many of these rightly.

    Args:
        canaries: m, with a fair and independent coin each.
        made: r, at most m.
        right: v, at most r.
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise DpvdError(
                f"of {self.canaries} canaries {self.made} were guessed, {self.right} rightly:"
                " that cannot be"
            )


def guess(scores: Array, included: npt.NDArray[np.bool_], made: int) -> Guesses:
    """Guess "in" for the canaries of the highest scores, "out" for those of the lowest.

    Args:
        scores: [m].
        included: [m], the coins.
        made: how many guesses, half of each kind; to be fixed before the scores are seen.
    """
    order = np.argsort(scores, kind="stable")
    low = made // 2
    high = made - low
    right = int((~included[order[:low]]).sum()) + int(included[order[len(order) - high :]].sum())
    return Guesses(len(scores), made, right)


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return the most probability with which (ε, δ)-privacy lets so many guesses be right.

    With W binomial of r tries at e^ε / (1 + e^ε),

        P(v or more right) ≤ P(W ≥ v) + 2 m δ max_i P(v - i ≤ W < v) / i,   i from 1 to v.

    References: Steinke, Nasr and Jagielski (2023), arXiv 2305.08846v1, Theorem 5.2 with its
    evaluation in appendix D.
    """
    share = 1 / (1 + math.exp(-epsilon))
    right = guesses.right
    tail = float(binom.sf(right - 1, guesses.made, share))
    if right == 0:
        return 1.0
    below = binom.pmf(np.arange(right - 1, -1, -1), guesses.made, share)
    steepest = float((np.cumsum(below) / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * guesses.canaries * delta * steepest)


def epsilon_by_guesses(guesses: Guesses, delta: float, confidence: float) -> float:
    """Return the largest ε that the guesses refute at δ, by `p_value`; 0 if they refute none.

    Guarantees: holds for every (ε, δ)-private mechanism and every way of guessing; with
        probability at most 1 - ``confidence`` it passes the true ε.
    """

    def refutes(epsilon: float) -> bool:
        return p_value(guesses, epsilon, delta) <= 1 - confidence

    if not refutes(0.0):
        return 0.0
    low, high = 0.0, _MOST_EPSILON
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low


def epsilon_by_f_dp(
    guesses: Guesses, family: NoiseFamily, delta: float, confidence: float
) -> float:
    """Return a lower bound on ε at δ that uses the whole trade-off curve of the claim.

    Of r guesses out of m, let v be right. For a mechanism with trade-off curve f the probability p
    of v right guesses or more is bounded by a recursion over the number i of right guesses,
    backwards from i = v:

        h_v = p (r - v) / m,   g_v = p v / m,
        h_i = max(h_{i+1}, f(1 - g_{i+1})),   g_i = g_{i+1} + i / (r - i) · (h_i - h_{i+1}),

    and the claim is refuted at significance p if g_0 + h_0 > r / m.

    Guarantees: holds for every mechanism with the family's trade-off curve, and every way of
        guessing.

    References: Mahloujifar, Melis and Chaudhuri (2024), arXiv 2410.22235v1, Theorem 9 and
    algorithms 2 and 3.
    """
    if guesses.made == 0 or guesses.right == 0:
        return 0.0

    def refutes(noise_multiplier: float) -> bool:
        return _recursion_refutes(guesses, family, noise_multiplier, 1 - confidence)

    noise = least_refuted_noise(refutes, family.claimed_noise)
    return 0.0 if noise is None else family.epsilon(noise, delta)


def _recursion_refutes(
    guesses: Guesses, family: NoiseFamily, noise_multiplier: float, significance: float
) -> bool:
    made, right = guesses.made, guesses.right
    wrong_mass = significance * (made - right) / guesses.canaries  # h
    right_mass = significance * right / guesses.canaries  # g
    limit = made / guesses.canaries
    for count in range(right - 1, -1, -1):
        # f(1 - x) = 1 - most detected at 1 - x
        curve = 1 - family.detected(noise_multiplier, 1 - right_mass)
        following = max(wrong_mass, curve)
        right_mass += count / (made - count) * (following - wrong_mass)
        wrong_mass = following
        if right_mass + wrong_mass > limit:
            return True
    return False


def guesses_to_make(
    canaries: int, family: NoiseFamily, confidence: float, rng: np.random.Generator
) -> int:
    """Return how many guesses should show most if the claim were tight.

    It is found on made-up normal scores at the distance that the claim allows, so it does not
    depend on the scores to be judged.
    """
    mu = float(ndtri(family.detected(family.claimed_noise, 0.5)))
    gaussian = NoiseFamily(
        PrivacyPlan(examples=1, batch_size=1, steps=1, noise_multiplier=1 / max(mu, 1e-3))
    )
    included = rng.random(canaries) < 0.5
    scores = rng.normal(size=canaries) + mu * included

    def shown(made: int) -> float:
        guesses = guess(scores, included, made)
        return epsilon_by_f_dp(guesses, gaussian, 1e-5, confidence)

    return max((max(1, round(share * canaries)) for share in _SHARES), key=shown)
