"""What every variational layer has, whatever its linear map (dense, convolution) and its noise."""

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

__all__ = ["Rates", "VariationalLayer"]


class Rates(StrEnum):
    """Which weights share one noise rate."""

    LAYER = "layer"
    """One rate for the whole layer: shape []."""
    NEURON = "neuron"
    """One rate for each input unit: shape [in, 1, ...], which broadcasts to the weight."""
    WEIGHT = "weight"
    """One rate for each weight: the weight's shape."""


class VariationalLayer(nn.Module, ABC):
    """A layer with a distribution over its weights; ``weight`` holds the means.

    A concrete class lists this (through a noise family) before the torch layer whose linear map it
    noises: ``class AdditiveLinear(AdditiveNoise, nn.Linear)``. ``weight`` and ``bias`` keep their
    names, so the state of the plain torch layer loads; what such a state lacks keeps its value.

    Attributes:
        kept: None, or a boolean mask of the weight's shape that is False for pruned weights. A
            pruned weight has mean 0 and no noise, and gets no gradient.
        noise_state: names of the parameters and buffers that a plain layer does not have.
        input_dim: which dimension of the weight is that of the input units.
    """

    weight: Tensor
    bias: Any  # a parameter, or None; torch's layers declare it in different ways
    kept: Tensor | None
    noise_state: ClassVar[tuple[str, ...]] = ()
    input_dim: ClassVar[int] = 1

    # Interface

    @abstractmethod
    def kl(self) -> Tensor:
        """KL divergence from the prior: a scalar, the *sum* over weights."""

    @abstractmethod
    def log_alpha(self) -> Tensor:
        """log α = log(noise variance / mean²), in the weight's shape; +∞ where pruned."""

    @abstractmethod
    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The map whose weights are random: ``F.linear`` for a dense layer."""

    @property
    @abstractmethod
    def prunable(self) -> bool:
        """Whether log α tells which weights matter (a fixed dropout rate does not)."""

    @abstractmethod
    def reset_noise(self) -> None:
        """Set the noise parameters to the values given at construction."""

    def scale_jacobian(self) -> dict[str, Tensor]:
        """By parameter name ∂σ/∂(parameter) of learned noise scales, newly made, or {}."""
        return {}

    # Weights

    def mean_weight(self) -> Tensor:
        """The means of the weights, 0 where pruned."""
        if self.kept is None:
            return self.weight
        return self.weight * self.kept

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of every weight, each of the weight's shape."""
        mean = self.mean_weight()
        variance = self.weight_variance()
        return mean, variance.expand_as(mean)

    @abstractmethod
    def weight_variance(self) -> Tensor:
        """Variances of the weights, in a shape that broadcasts to the weight's."""

    @torch.no_grad()
    def prune(self, threshold: float) -> None:
        """Set weights with log α ≥ threshold to exactly 0, without noise, once and for all."""
        if self.prunable:
            kept = self.log_alpha() < threshold
            self.kept = kept
            self.weight.masked_fill_(~kept, 0.0)

    def only_kept(self, values: Tensor, pruned: float) -> Tensor:
        """Expand to the weight's shape, with the value ``pruned`` where a weight is pruned."""
        values = values.expand_as(self.weight)
        if self.kept is None:
            return values
        return values.masked_fill(~self.kept, pruned)

    # State

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Accept a plain layer's state too (no noise state at all). The mask follows the state."""
        kept = state_dict.get(prefix + "kept")
        self.kept = None if kept is None else torch.empty_like(self.weight, dtype=torch.bool)
        missing: list[str] = []
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing,
            unexpected_keys,
            error_msgs,
        )
        extra = {prefix + name for name in self.noise_state}
        from_plain_layer = extra <= set(missing)
        missing_keys.extend(key for key in missing if not (from_plain_layer and key in extra))
