"""What an audit found."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dpvd.errors import DpvdError, is_finite_number

__all__ = ["AuditResult", "Verdict"]


class Verdict(StrEnum):
    """What the measured ε says of the claimed one."""

    CONSISTENT = "consistent with the claim"
    """No more was learnt than the claim allows. An attack that sees more may exist."""
    VIOLATED = "the claim is violated"
    """More was learnt than the claim allows, but for a false alarm of the stated probability."""


@dataclass(frozen=True)
class AuditResult:
    """A claim, and how much of it was seen to be spent.

    Attributes:
        attack: who looks at what, in words.
        bound: how scores became a lower bound, in words.
        claimed_epsilon: ε at ``delta`` of what was audited.
        delta: δ of both.
        lower_bound: with probability ``confidence`` the true ε is at least this.
        confidence: of the verdict: a true claim is called violated with probability 1 - this.
        trials: canaries that were judged.
        seconds: that the audit took.
        details: other figures, by name; none of them enters the verdict.
    """

    attack: str
    bound: str
    claimed_epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    trials: int
    seconds: float
    details: dict[str, float]

    @property
    def verdict(self) -> Verdict:
        return Verdict.VIOLATED if self.lower_bound > self.claimed_epsilon else Verdict.CONSISTENT

    @property
    def is_consistent(self) -> bool:
        return self.verdict is Verdict.CONSISTENT

    def to_dict(self) -> dict[str, Any]:
        """Plain data; an infinite bound, of scores without any noise, is None."""
        finite = self.lower_bound != float("inf")
        return {
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "lower_bound": self.lower_bound if finite else None,
            "confidence": self.confidence,
            "verdict": str(self.verdict),
            "attack": self.attack,
            "bound": self.bound,
            "trials": self.trials,
            "seconds": self.seconds,
            "details": self.details,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AuditResult":
        """Return what ``to_dict`` described.

        Raises:
            DpvdError: if it is no description of an audit, or its verdict is not that of its
                figures.
        """
        try:
            names = ("claimed_epsilon", "delta", "confidence", "trials", "seconds")
            numbers = {name: values[name] for name in names}
            bound = values["lower_bound"]
            details = dict(values["details"])
            known = [*numbers.values(), *details.values(), 0 if bound is None else bound]
            if not all(is_finite_number(value) and value >= 0 for value in known):
                raise ValueError("a figure that is none")
            result = cls(
                attack=str(values["attack"]),
                bound=str(values["bound"]),
                lower_bound=float("inf") if bound is None else float(bound),
                details=details,
                **numbers,
            )
            if result.to_dict() != dict(values):
                raise ValueError("another verdict, or more than this")
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DpvdError("not the description of an audit that this program wrote") from None
        return result
