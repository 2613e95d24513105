"""``torch.func``: the private step that PyTorch's own tutorials arrive at. Its noise is torch's,
not cryptographic.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from benchmarks.plain import LEARNING_RATE, plain
from benchmarks.workloads import Step, Workload

__all__ = ["SYSTEMS"]

CLIP_NORM = NOISE_MULTIPLIER = 1.0


def private(work: Workload) -> Step:
    model = work.network()
    x, y = work.data()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        outputs = functional_call(model, values, (one_x.unsqueeze(0),))
        return F.cross_entropy(outputs, one_y.unsqueeze(0))

    per_example = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    @torch.no_grad()
    def step() -> None:
        gradients = per_example(parameters, x, y)
        by_parameter = [g.flatten(1).norm(dim=1) for g in gradients.values()]
        norms = torch.stack(by_parameter).norm(dim=0)  # [B]
        factors = (CLIP_NORM / norms).clamp_max(1.0)
        for name, values in gradients.items():
            total = torch.tensordot(factors, values, dims=1)
            noise = torch.randn_like(total)
            total += NOISE_MULTIPLIER * CLIP_NORM * noise
            parameters[name].sub_(total, alpha=LEARNING_RATE / work.batch)

    return step


SYSTEMS: dict[str, Callable[[Workload], Step]] = {"plain": plain, "torch-func": private}
