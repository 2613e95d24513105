"""Adaptive clipping: the noisy count by which the clip norm follows a quantile."""

import torch

from dpvd.grads import ClippedGradients, Clipping
from dpvd.mechanisms import BitSource, noise_on_grid, release_sums
from dpvd.plan import PrivacyPlan

__all__ = ["QuantileCount"]


class QuantileCount:
    """How many of a step's gradients were within the clip norm, on its way through noise.

    One step is ``begin``, ``add`` for each micro-batch, and ``release``. What it costs is part of
    the plan's noise multiplier: see `Clipping.split_noise`.

    Guarantees:
        After ``begin`` and after ``release`` no count without noise is left.

    Args:
        plan: its clipping must be adaptive.
    """

    def __init__(self, plan: PrivacyPlan) -> None:
        sensitivity = plan.clipping.count_sensitivity(plan.relation)
        self.noise = noise_on_grid(sensitivity, plan.count_noise_std(), entries=1)
        self._batch_size = plan.batch_size
        self._total = torch.zeros((), dtype=torch.float64)

    def begin(self) -> None:
        self._total.zero_()

    def add(self, clipped: ClippedGradients) -> None:
        """Count the gradients of a micro-batch, by the norm that they were clipped to."""
        self._total += clipped.clipping.centred_count(clipped.norms).cpu()

    def release(self, clipping: Clipping, bits: BitSource) -> Clipping:
        """The clipping of the next step, by the noisy count of this one.

        Σ(bit - 1/2) / S + 1/2 estimates the share of gradients within the norm; S is the plan's
        batch size, not that of the batch that was drawn.
        """
        sums = {"count": self._total}
        release_sums(sums, self.noise, bits, scales={"count": 1 / self._batch_size}, parameters={})
        share = self._total.item() + 0.5
        self._total.zero_()
        return clipping.after(share)
