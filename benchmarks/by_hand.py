"""DP-SGD written out for one network, two dense layers with a ReLU between: how fast any engine could be.

No module is observed, no model looked at, nothing checked but that all norms are finite. What dpvd's step takes more
is the price of taking any model.
"""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.plain import LEARNING_RATE
from benchmarks.workloads import Step, Workload
from dpvd.mechanisms import SystemBits, add_gaussian

__all__ = ["by_hand", "is_written_out"]

CLIP_NORM, NOISE_MULTIPLIER = 1.0, 1.0


def is_written_out(work: Workload) -> bool:
    """Whether the network of a workload is the one that is written out here."""
    return [type(layer) for layer in work.miniature.network().children()] == [nn.Linear, nn.ReLU, nn.Linear]


def by_hand(work: Workload) -> Step:
    """Noise into the parameters first, then one weighted product for each weight, as dpvd does it."""
    w1, b1, w2, b2 = work.network().parameters()
    (x, y), rate, bits = work.data(), LEARNING_RATE / work.batch, SystemBits()
    parameters = {str(place): p.detach() for place, p in enumerate((w1, b1, w2, b2))}

    def step() -> None:
        first = F.linear(x, w1, b1)
        hidden = F.relu(first)
        outputs = F.linear(hidden, w2, b2)
        losses = F.cross_entropy(outputs, y, reduction="none")
        g1, g2 = torch.autograd.grad(losses, [first, outputs], torch.ones_like(losses))
        with torch.no_grad():
            dot = torch.linalg.vecdot
            norms = (dot(g1, g1) * (dot(x, x) + 1) + dot(g2, g2) * (dot(hidden, hidden) + 1)).sqrt_()
            if not norms.sum().isfinite():
                raise FloatingPointError("a gradient is not finite")
            factors = (CLIP_NORM / norms).clamp_max_(1.0).unsqueeze(1)
            add_gaussian(parameters, NOISE_MULTIPLIER * CLIP_NORM * rate, bits)
            g1.mul_(factors)
            g2.mul_(factors)
            w1.addmm_(g1.T, x, alpha=-rate)
            w2.addmm_(g2.T, hidden, alpha=-rate)
            b1.sub_(g1.sum(0), alpha=rate)
            b2.sub_(g2.sum(0), alpha=rate)

    return step
