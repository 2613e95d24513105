"""Four ways to add up the privacy loss of many steps, behind one interface.

Each accountant is a :class:`dp_accounting.PrivacyAccountant`. The base class walks the event (once,
in :func:`dpvd.privacy.events.leaves`) and refuses what the accountant has no theorem for; a
subclass only turns counts of steps into an epsilon.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from dpvd.errors import DpvdError
from dpvd.privacy.bounds import (
    Array,
    advanced_composition,
    amplify,
    gaussian_epsilon,
    rdp_to_epsilon,
    zcdp_to_epsilon,
)
from dpvd.privacy.enums import AccountantName, Relation, SamplingKind
from dpvd.privacy.events import Step, count_steps, leaves, step_of
from dpvd.privacy.pld import LEAST_NOISE, pld_epsilon
from dpvd.privacy.renyi import FRACTIONAL_ORDERS, INTEGER_ORDERS, fractional_rdp, integer_rdp

__all__ = [
    "AdvancedAccountant",
    "PldAccountant",
    "RdpAccountant",
    "StepAccountant",
    "ZcdpAccountant",
    "accountant_for",
]

_LIBRARY_RELATION = {
    Relation.ADD_OR_REMOVE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    Relation.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}

_IN_WORDS: Mapping[SamplingKind | None, str] = {
    None: "no sampling",
    SamplingKind.POISSON: "Poisson sampling",
    SamplingKind.FIXED_SIZE: "fixed-size sampling without replacement",
}

_EITHER = frozenset(Relation)
_ADD_OR_REMOVE = frozenset({Relation.ADD_OR_REMOVE})
_REPLACE_ONE = frozenset({Relation.REPLACE_ONE})


class StepAccountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]
    """An accountant for compositions of Gaussian releases on samples of the data.

    Guarantees: ``get_epsilon`` never under-reports; a step whose sampling and relation have no
    theorem is refused. Edge cases: nothing composed costs 0; a release without noise costs
    infinity.
    """

    name: ClassVar[AccountantName]
    theorems: ClassVar[Mapping[SamplingKind | None, frozenset[Relation]]]
    """For each way of sampling, the relations under which there is a theorem."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(_LIBRARY_RELATION[relation])
        self.relation = relation
        self._steps: Counter[Step] = Counter()

    def compose_steps(self, steps: Mapping[Step, int]) -> None:
        """Add steps to the account.

        Raises:
            DpvdError: if there is no theorem for one of them; then none is added.
        """
        self._refuse_unsupported(steps)
        self._steps.update(steps)

    def _maybe_compose(
        self, event: DpEvent, count: int, do_compose: bool
    ) -> dp_accounting.PrivacyAccountant.CompositionErrorDetails | None:
        for leaf, _ in leaves(event):  # the library asks what is supported with a count of 0
            try:
                self._refuse_unsupported([step_of(leaf)])
            except DpvdError as problem:
                return self.CompositionErrorDetails(leaf, str(problem))
        if do_compose:
            self.compose_steps(count_steps(event, count))
        return None

    def _refuse_unsupported(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if self.relation not in self.theorems[step.sampling]:
                supported = "; ".join(
                    f"{_IN_WORDS[sampling]} under {' or '.join(sorted(relations))}"
                    for sampling, relations in self.theorems.items()
                    if relations
                )
                raise DpvdError(
                    f"the accountant {self.name} has no theorem for"
                    f" {_IN_WORDS[step.sampling]} under {self.relation}; it supports: {supported}"
                )

    def get_epsilon(self, target_delta: float) -> float:
        """Return the epsilon of everything composed so far."""
        if any(step.noise_multiplier == 0 for step in self._steps):
            return float("inf")
        if not self._steps:
            return 0.0
        return self._epsilon(self._steps, target_delta)

    @abstractmethod
    def _epsilon(self, steps: Mapping[Step, int], delta: float) -> float:
        """Return the epsilon of at least one step, all of them with noise."""


class PldAccountant(StepAccountant):
    """Numerical composition of privacy loss distributions; see :mod:`dpvd.privacy.pld`."""

    name = AccountantName.PLD
    theorems: ClassVar = {
        None: _EITHER,
        SamplingKind.POISSON: _EITHER,
        SamplingKind.FIXED_SIZE: _REPLACE_ONE,
    }

    def _epsilon(self, steps: Mapping[Step, int], delta: float) -> float:
        too_little_noise = any(step.noise_multiplier < LEAST_NOISE for step in steps)
        if too_little_noise or all(_is_full_batch(step) for step in steps):
            # Exact without sampling; otherwise a bound, since sampling never costs privacy.
            joint = _joint_noise_multiplier(steps)
            return float(gaussian_epsilon(joint, delta))
        return pld_epsilon(steps, delta, self.relation)


class RdpAccountant(StepAccountant):
    """Renyi differential privacy: divergences of each order add up, the best order is converted.

    References: Mironov (2017), arXiv 1702.07476v3; for samples: Mironov, Talwar and Zhang (2019),
    arXiv 1908.10530v1 (Poisson, add-or-remove) and Wang, Balle and Kasiviswanathan (2019), arXiv
    1808.00087v2, Theorem 27 (fixed size, replace-one).
    """

    name = AccountantName.RDP
    theorems: ClassVar = {
        None: _EITHER,
        SamplingKind.POISSON: _ADD_OR_REMOVE,
        SamplingKind.FIXED_SIZE: _REPLACE_ONE,
    }

    def _epsilon(self, steps: Mapping[Step, int], delta: float) -> float:
        if all(_is_full_batch(step) for step in steps):
            return zcdp_to_epsilon(0.5 / _joint_noise_multiplier(steps) ** 2, delta)
        orders = np.concatenate([FRACTIONAL_ORDERS, INTEGER_ORDERS])
        rdp = np.zeros(orders.shape)
        for step, count in steps.items():
            of_one_step = np.concatenate([fractional_rdp(step), integer_rdp(step)])
            rdp += count * of_one_step
        return rdp_to_epsilon(orders, rdp, delta)


class ZcdpAccountant(StepAccountant):
    """Truncated concentrated differential privacy, read off the Renyi divergences.

    rho(w) = max_{2 <= a <= w} RDP(a)/a over integer orders; then RDP(a) <= rho(w) a for those
    orders, so they, and only they, may be converted. The truncation w is optimised.

    Plain zCDP (w infinite) with rho = T q^2 / (2 z^2) is not a bound under sampling.

    Guarantees: never below :class:`RdpAccountant`, whose orders include these.

    References: Bun, Dwork, Rothblum and Steinke (2018), Composable and Versatile Privacy via
    Truncated CDP, Definition 1; conversion as in :func:`dpvd.privacy.bounds.rdp_to_epsilon`.
    """

    name = AccountantName.ZCDP
    theorems: ClassVar = RdpAccountant.theorems

    def _epsilon(self, steps: Mapping[Step, int], delta: float) -> float:
        if all(_is_full_batch(step) for step in steps):
            return zcdp_to_epsilon(0.5 / _joint_noise_multiplier(steps) ** 2, delta)
        rdp = np.zeros(INTEGER_ORDERS.shape)
        for step, count in steps.items():
            rdp += count * integer_rdp(step)
        rho = np.maximum.accumulate(rdp / INTEGER_ORDERS)  # one for every truncation
        best = float("inf")
        for last in range(len(INTEGER_ORDERS)):
            orders = INTEGER_ORDERS[: last + 1]
            epsilon = rdp_to_epsilon(orders, rho[last] * orders, delta)
            best = min(best, epsilon)
        return best


class AdvancedAccountant(StepAccountant):
    """Advanced composition of amplified Gaussian mechanisms, as far as pencil and paper go.

    A step is (eps0, d)-private by the analytic Gaussian mechanism, on a sample (eps1, q d)-private
    with eps1 = log(1 + q (e^eps0 - 1)). Delta is split between the steps and the composition, and
    the split is optimised. Plain addition of the epsilons is used where it is better (few steps).
    """

    name = AccountantName.ADVANCED
    theorems: ClassVar = RdpAccountant.theorems

    def _epsilon(self, steps: Mapping[Step, int], delta: float) -> float:
        logits = np.linspace(-14.0, 14.0, 281)
        share = 1 / (1 + np.exp(-logits))  # of delta, given to the steps
        slack = (1 - share) * delta
        expected_uses = sum(count * step.sampling_prob for step, count in steps.items())
        with_slack = _amplified(steps, share * delta / expected_uses)
        advanced = advanced_composition(with_slack, slack)
        best_advanced = float(advanced.min())
        without_slack = _amplified(steps, np.asarray(delta / expected_uses))
        basic = sum(float(epsilon) * count for epsilon, count in without_slack)
        return min(basic, best_advanced)


def _amplified(steps: Mapping[Step, int], step_delta: Array) -> list[tuple[Array, float]]:
    """Return the epsilon of each kind of step on a sample, and how often it is taken.

    ``step_delta`` is the delta of a step on all the data.
    """
    parts: list[tuple[Array, float]] = []
    for step, count in steps.items():
        whole = gaussian_epsilon(step.noise_multiplier, step_delta)
        sampled = amplify(whole, step.sampling_prob)
        parts.append((sampled, count))
    return parts


def _is_full_batch(step: Step) -> bool:
    return step.sampling_prob == 1


def _joint_noise_multiplier(steps: Mapping[Step, int]) -> float:
    """Return the noise multiplier of the one Gaussian release that is as private as all of these.

    1/z^2 = sum_i k_i / z_i^2, exact for full-batch Gaussian releases, adaptive or not.
    References: Dong, Roth and Su (2022), arXiv 1905.02383v3, Corollary 2.
    """
    precision = sum(count / step.noise_multiplier**2 for step, count in steps.items())
    return float(precision**-0.5)


_ACCOUNTANTS: Mapping[AccountantName, type[StepAccountant]] = {
    kind.name: kind for kind in (PldAccountant, RdpAccountant, ZcdpAccountant, AdvancedAccountant)
}


def accountant_for(name: AccountantName, relation: Relation) -> StepAccountant:
    """Return a fresh accountant of this name under this relation.

    >>> accountant_for(AccountantName.RDP, Relation.ADD_OR_REMOVE).get_epsilon(1e-5)
    0.0
    """
    return _ACCOUNTANTS[name](relation)
