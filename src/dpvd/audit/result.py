"""What an audit found."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
