"""Averages of iterates: functions of noisy values only, and so post-processing without cost."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpvd.nn import set_scale

__all__ = ["IterateAverage"]


class IterateAverage:
    """The running mean of a model's trainable parameters over the steps it is shown.

    For layers whose scale ζ is tied to the privacy noise it also keeps the mean of ζ², which is the
    variance that the averaged weights are given. Before the first update it stands for the model as
    it is.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.count = 0
        self.mean: dict[str, Tensor] = {}
        self.mean_zeta2 = 0.0

    @torch.no_grad()
    def update(self, zeta: float = 0.0) -> None:
        """Add the model's parameters, and the scale ζ of its tied layers, to the average."""
        self.count += 1
        difference = zeta**2 - self.mean_zeta2
        self.mean_zeta2 += difference / self.count
        for name, parameter in self._trainable():
            if self.count == 1:
                self.mean[name] = parameter.detach().clone()
            else:
                self.mean[name].lerp_(parameter, 1 / self.count)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged parameters inside the block, and its own again after it."""
        own = {}
        if self.count:
            own = {name: parameter.detach().clone() for name, parameter in self._trainable()}
        self._copy(self.mean)
        try:
            yield
        finally:
            self._copy(own)

    def apply(self) -> None:
        """Give the model the averaged parameters and its tied layers the averaged scale."""
        self._copy(self.mean)
        if self.count:
            set_scale(self.model, math.sqrt(self.mean_zeta2))

    @torch.no_grad()
    def _copy(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._trainable():
            if name in values:
                parameter.copy_(values[name])

    def _trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter
