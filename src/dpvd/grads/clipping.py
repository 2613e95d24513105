"""How per-example gradients are bounded, and what bound on their sum that gives."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from dpvd.errors import Choice, DpvdError, positive
from dpvd.privacy import Relation

__all__ = ["Clipping", "ClippingMode"]

# Norms and factors are computed in floating point. Aiming this many units of rounding below the
# clip norm keeps the bound true in spite of it (2e-6 of the norm in float32, 4e-15 in float64).
ROUNDING_UNITS = 16


class ClippingMode(StrEnum):
    """Which norm is bounded, and how."""

    FLAT = "flat"
    """The gradient over all parameters is scaled down to the clip norm where it is longer."""
    PER_LAYER = "per-layer"
    """Each layer's gradient is clipped on its own at the clip norm (the paper): sensitivity √L ·
    C.
    """
    AUTOMATIC = "automatic"
    """Each gradient is normalised, C·g/(‖g‖ + γ) (Bu et al., arXiv 2206.07136): no threshold to
    tune.
    """
    NONE = "none"
    """No bound: ordinary training, without privacy."""


@dataclass(frozen=True)
class Clipping:
    """The bound on one example's share of the gradient sum.

    Guarantees:
        The scaled gradient of one example has norm at most ``clip_norm`` (in each layer, for
        ``PER_LAYER``), for every input, non-finite ones included: those are scaled to exactly zero.

    Args:
        mode: which norm is bounded, and how.
        clip_norm: C, the bound.
        stability: γ of automatic clipping; gradients much shorter than it are not blown up to the
            full norm.
    """

    mode: Choice[ClippingMode] = Choice(ClippingMode.FLAT, called="clipping mode")
    clip_norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        positive(clip_norm=self.clip_norm, stability=self.stability)

    def factors(self, norms: Tensor) -> Tensor:
        """What each example's gradient is multiplied by.

        Args:
            norms: [B, G], one column for each group of parameters that is clipped together;
                infinite for an example that is to be left out.

        Returns:
            [B, G]; 0 where the norm is infinite.
        """
        bound = self.clip_norm * (1 - ROUNDING_UNITS * torch.finfo(norms.dtype).eps)
        if self.mode is ClippingMode.NONE:
            return (norms < math.inf).to(norms.dtype)
        if self.mode is ClippingMode.AUTOMATIC:
            return bound / (norms + self.stability)
        return (bound / norms).clamp_max_(1.0)

    def sensitivity(self, relation: Relation, groups: int) -> float:
        """L2 sensitivity of the sum: how far one example can move it.

        Adding or removing an example moves the sum by at most its clipped gradient, C·√G for G
        groups that are clipped separately; replacing one example by another by at most twice that.
        """
        if self.mode is ClippingMode.NONE:
            return math.inf
        reach = self.clip_norm * math.sqrt(groups if self.mode is ClippingMode.PER_LAYER else 1)
        return {Relation.ADD_OR_REMOVE: 1.0, Relation.REPLACE_ONE: 2.0}[relation] * reach

    def to_dict(self) -> dict[str, Any]:
        return {"mode": str(self.mode), "clip_norm": self.clip_norm, "stability": self.stability}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Clipping":
        try:
            return cls(**fields)
        except TypeError as error:
            raise DpvdError(f"not a description of clipping: {dict(fields)!r}") from error
