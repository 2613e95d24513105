"""What all fits of this process cost together.

Cross-validation and grid search fit many models to the same people. Each fit has its own statement;
this is where their sum comes from.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dp_accounting import ComposedDpEvent

from dpvd.errors import DpvdError, in_unit_interval
from dpvd.plan import PrivacyPlan
from dpvd.privacy import (
    AccountantName,
    Cost,
    DataAccount,
    Relation,
    epsilon,
    round_up,
    whole_budget,
)

__all__ = [
    "FitDraw",
    "FitPlans",
    "RefitWarning",
    "TotalPrivacy",
    "fits_so_far",
    "note_fit",
    "reset_total_privacy",
    "total_of",
    "total_privacy",
]

FitPlans = tuple[PrivacyPlan, ...]
"""What one fit did to the data, each plan carried out in full."""

_NEIGHBOURS = {
    Relation.ADD_OR_REMOVE: "adding or removing",
    Relation.REPLACE_ONE: "replacing",
}

_fits: list[FitPlans] = []
_lock = threading.Lock()


class RefitWarning(UserWarning):
    """There was a fit before this one: if the people are the same, the costs add up."""


@dataclass(frozen=True)
class FitDraw:
    """What a fit has reserved in the account of its data.

    Attributes:
        account: that it draws from.
        run: its number there.
    """

    account: DataAccount
    run: str

    @classmethod
    def reserve(
        cls, path: Path | str, who: str, epsilon: float, delta: float, relation: Relation
    ) -> "FitDraw":
        """Set aside the whole budget of a fit.

        Raises:
            DpvdError: if the account does not have as much left.
        """
        account = DataAccount.open(path)
        return cls(account, account.reserve(who, whole_budget(epsilon, delta), relation=relation))

    def settle(self, plans: Mapping[str, PrivacyPlan]) -> None:
        """Put what the fit did in the place of its reservation."""
        event = ComposedDpEvent([plan.event() for plan in plans.values()])
        self.account.settle(self.run, Cost.of(event))


@dataclass(frozen=True)
class TotalPrivacy:
    """The sum over several fits.

    Attributes:
        fits: how many there were.
        epsilon: ε of all of them together, if everybody took part in each; infinite if fits share
            a seed, and with it their noise.
        delta: δ.
        relation: which data sets count as neighbours.
        unit: what one example is; empty without fits.
        accountant: who added up.
    """

    fits: int
    epsilon: float
    delta: float
    relation: Relation
    unit: str
    accountant: AccountantName

    def sentence(self) -> str:
        """Return the sum in words, with what was not seen."""
        if not self.fits:
            return (
                "No fit was seen in this process; those in other processes (n_jobs) are not seen."
            )
        fits = "1 fit" if self.fits == 1 else f"{self.fits} fits"
        if self.epsilon == math.inf:
            return (
                f"{fits} in this process, together not differentially private: some had the same"
                " random_state, and with it the same noise, which a difference of their results"
                " does not contain."
            )
        return (
            f"{fits} in this process, together ({round_up(self.epsilon)}, {self.delta!r})-"
            f"differentially private for {_NEIGHBOURS[self.relation]} one {self.unit}, if it took"
            " part in all of them. Not seen: fits in other processes (n_jobs), on other days, and"
            " scores that were computed on people's data without noise."
        )

    def __str__(self) -> str:
        return self.sentence()


def total_privacy(delta: float, accountant: AccountantName | str = "pld") -> TotalPrivacy:
    """Return what all fits in this process cost together, since it began or was last reset.

    A fold leaves some people out. Which ones is not looked at: the sum holds for somebody who was
    in all training parts, and so for everybody.

    Guarantees:
        The composed account of everything that the fits did to the data, not a sum of their ε.

    Edge cases:
        Fits in other processes (``n_jobs`` above 1) are not seen here, as the sentence says.

    Args:
        delta: δ of the sum.
        accountant: who adds up.

    Raises:
        DpvdError: if fits had different relations or units, for which there is no joint statement.
    """
    return total_of(fits_so_far(), delta, accountant)


def reset_total_privacy() -> None:
    """Begin to count anew, as for other people's data. Earlier fits keep their cost all the same.

    >>> reset_total_privacy()
    >>> total_privacy(1e-5).fits
    0
    """
    with _lock:
        _fits.clear()


def fits_so_far() -> list[FitPlans]:
    """All fits that the sum is made of."""
    with _lock:
        return list(_fits)


def note_fit(plans: Mapping[str, PrivacyPlan]) -> None:
    """Add a fit to the sum."""
    done = tuple(plans.values())
    with _lock:
        _fits.append(done)


def total_of(
    fits: Sequence[FitPlans], delta: float, accountant: AccountantName | str
) -> TotalPrivacy:
    """Return what these fits cost together; see `total_privacy`."""
    in_unit_interval(delta=delta)
    name = AccountantName.parse(accountant)
    plans = [plan for fit in fits for plan in fit]
    relations = {plan.relation for plan in plans}
    units = sorted({plan.unit for plan in plans})
    if len(relations) > 1 or len(units) > 1:
        kinds = [*sorted(relations), *units]
        raise DpvdError(
            f"the fits were for different relations or units ({', '.join(kinds)}): there is no"
            " joint statement; call reset_total_privacy() between them"
        )
    if not plans:
        return TotalPrivacy(0, 0.0, delta, Relation.ADD_OR_REMOVE, "", name)
    relation = plans[0].relation
    if _share_noise(fits):
        return TotalPrivacy(len(fits), math.inf, delta, relation, units[0], name)
    event = ComposedDpEvent([plan.event() for plan in plans])
    together = epsilon(event, delta, accountant=name, relation=relation)
    return TotalPrivacy(len(fits), together, delta, relation, units[0], name)


def _share_noise(fits: Sequence[FitPlans]) -> bool:
    """Whether two fits had the same seed: their noise is then the same, and no sum holds."""
    seeds = [fit[0].seed for fit in fits if fit[0].seed is not None]
    return len(set(seeds)) < len(seeds)
