"""DP-SGD written out for two dense layers with a ReLU between: how fast any engine could be.

No module is observed, no model looked at, nothing checked but that all norms are finite. What
dpvd's step takes more is the price of taking any model.
"""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.plain import LEARNING_RATE
from benchmarks.workloads import Step, Workload
from dpvd.mechanisms import SystemBits, noise_on_grid, release_sums

__all__ = ["by_hand", "is_written_out"]

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0


def is_written_out(work: Workload) -> bool:
    """Whether the network of a workload is the one that is written out here."""
    layers = work.miniature.network().children()
    kinds = [type(layer) for layer in layers]
    return kinds == [nn.Linear, nn.ReLU, nn.Linear]


def by_hand(work: Workload) -> Step:
    """One weighted product for each weight, then noise and update in one pass, as dpvd does."""
    w1, b1, w2, b2 = work.network().parameters()
    x, y = work.data()
    bits = SystemBits()
    parameters = {str(place): p.detach() for place, p in enumerate((w1, b1, w2, b2))}
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    sum_w1, sum_b1, sum_w2, sum_b2 = sums.values()
    scales = dict.fromkeys(sums, -LEARNING_RATE / work.batch)
    entries = sum(p.numel() for p in parameters.values())
    noise = noise_on_grid(CLIP_NORM, NOISE_MULTIPLIER * CLIP_NORM, entries)

    def step() -> None:
        first = F.linear(x, w1, b1)
        hidden = F.relu(first)
        outputs = F.linear(hidden, w2, b2)
        losses = F.cross_entropy(outputs, y, reduction="none")
        g1, g2 = torch.autograd.grad(losses, [first, outputs], torch.ones_like(losses))
        with torch.no_grad():
            dot = torch.linalg.vecdot
            norms = (
                dot(g1, g1) * (dot(x, x) + 1) + dot(g2, g2) * (dot(hidden, hidden) + 1)
            ).sqrt_()
            if not norms.sum().isfinite():
                raise FloatingPointError("a gradient is not finite")
            factors = (CLIP_NORM / norms).clamp_max_(1.0).unsqueeze(1)
            g1.mul_(factors)
            g2.mul_(factors)
            sum_w1.addmm_(g1.T, x)
            sum_w2.addmm_(g2.T, hidden)
            sum_b1.add_(g1.sum(0))
            sum_b2.add_(g2.sum(0))
            release_sums(sums, noise, bits, scales=scales, parameters=parameters)

    return step
