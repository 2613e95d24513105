"""The gradient engines by name."""

from collections.abc import Callable
from enum import StrEnum

from torch import nn

from dpvd.grads.batch import Batch, LossFn
from dpvd.grads.clipping import Clipping, Grouping
from dpvd.grads.engines.loop import loop
from dpvd.grads.engines.vmap import vmapped
from dpvd.grads.factored import factored
from dpvd.grads.per_example import ClippedGradients

__all__ = ["ENGINES", "Engine"]


class Engine(StrEnum):
    """How per-example gradients are formed. All give the same result."""

    AUTO = "auto"
    """The fastest that takes the model: factored, then vmap, then loop."""
    FACTORED = "factored"
    """From factors: no per-example gradient is stored."""
    VMAP = "vmap"
    """torch.func: any module, every per-example gradient stored."""
    LOOP = "loop"
    """One backward pass for each example: the oracle."""


Run = Callable[[nn.Module, LossFn, Batch, Clipping, Grouping], ClippedGradients]

ENGINES: dict[Engine, Run] = {Engine.FACTORED: factored, Engine.VMAP: vmapped, Engine.LOOP: loop}
