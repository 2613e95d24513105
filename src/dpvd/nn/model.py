"""Questions and actions on whole models: KL term, log α, sparsity, pruning, the tied scale."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvd.nn.layer import VariationalLayer
from dpvd.nn.noise_families import AdditiveNoise

__all__ = [
    "LOG_ALPHA_RANGE",
    "LayerSparsity",
    "Sparsity",
    "kl",
    "log_alpha",
    "prune",
    "set_scale",
    "sparsity",
    "tied_layers",
]

LOG_ALPHA_RANGE = 8.0
"""log α is reported within ±8, beyond which a weight is noise, or certain, for every purpose."""


def variational_layers(model: nn.Module) -> Iterator[tuple[str, VariationalLayer]]:
    """Name and layer, each layer once even if the model uses it in several places."""
    for name, module in model.named_modules():
        if isinstance(module, VariationalLayer):
            yield name, module


def kl(model: nn.Module) -> Tensor:
    """The KL divergence of all layers: a scalar, the sum over layers of their sums over weights.

    Edge cases: 0 for a model without variational layers (it still is a tensor, on the model's
    device).
    """
    first = next(model.parameters(), torch.zeros(()))
    total = torch.zeros((), dtype=first.dtype, device=first.device)
    for _, layer in variational_layers(model):
        term = layer.kl()
        total = total + term
    return total


@torch.no_grad()
def log_alpha(model: nn.Module) -> dict[str, Tensor]:
    """log α of every weight by layer name, within ±``LOG_ALPHA_RANGE``, for display."""
    by_name = {}
    for name, layer in variational_layers(model):
        by_name[name] = layer.log_alpha().clamp(-LOG_ALPHA_RANGE, LOG_ALPHA_RANGE)
    return by_name


@dataclass(frozen=True)
class LayerSparsity:
    """How many of a layer's weights carry nothing but noise.

    >>> LayerSparsity("hidden", weights=200, pruned=150)
    LayerSparsity(name='hidden', weights=200, pruned=150)
    >>> LayerSparsity("hidden", weights=200, pruned=150).compression
    4.0
    """

    name: str
    weights: int
    pruned: int

    @property
    def fraction(self) -> float:
        """Pruned weights / all weights; 0 if there are none."""
        if self.weights == 0:
            return 0.0
        return self.pruned / self.weights

    @property
    def compression(self) -> float:
        """All weights / weights left; ∞ if none are left, 1 if there were none."""
        if self.weights == 0:
            return 1.0
        left = self.weights - self.pruned
        return self.weights / left if left else math.inf

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.pruned:,} of {self.weights:,} weights pruned "
            f"({self.fraction:.1%}, compression {self.compression:.1f}x)"
        )


@dataclass(frozen=True)
class Sparsity:
    """Sparsity of a model at a threshold on log α, by layer and in total, without biases."""

    threshold: float
    layers: tuple[LayerSparsity, ...]

    @property
    def total(self) -> LayerSparsity:
        """All layers taken together."""
        weights = sum(layer.weights for layer in self.layers)
        pruned = sum(layer.pruned for layer in self.layers)
        return LayerSparsity("total", weights, pruned)

    @property
    def fraction(self) -> float:
        return self.total.fraction

    @property
    def compression(self) -> float:
        return self.total.compression

    def __str__(self) -> str:
        lines = [str(layer) for layer in self.layers]
        lines.append(str(self.total))
        return "\n".join(lines)


@torch.no_grad()
def sparsity(model: nn.Module, threshold: float = 3.0) -> Sparsity:
    """Count the weights with log α ≥ threshold (noise more than 4.5 times the weight, at 3).

    Weights already pruned are counted whatever the threshold. Layers whose log α says nothing about
    single weights, because their rate is given and multiplies (dropout), count as having nothing to
    prune.
    """
    layers = []
    for name, layer in variational_layers(model):
        weights = layer.weight.numel()
        pruned = 0
        if layer.prunable:
            noisy = layer.log_alpha() >= threshold
            pruned = int(noisy.sum())
        layers.append(LayerSparsity(name or "model", weights, pruned))
    return Sparsity(threshold, tuple(layers))


def prune(model: nn.Module, threshold: float = 3.0) -> Sparsity:
    """Set weights with log α ≥ threshold to exactly 0 and switch their noise off, in place.

    Guarantees: pruned weights stay pruned, also under further training; doing it twice changes
    nothing.

    Returns:
        The sparsity, of which the pruned weights are a part.
    """
    for _, layer in variational_layers(model):
        layer.prune(threshold)
    return sparsity(model, threshold)


def set_scale(model: nn.Module, zeta: float) -> int:
    """Set the noise scale of all tied layers (additive, one fixed σ per layer) to ζ ≥ 0.

    Returns:
        How many layers that were.
    """
    tied = tied_layers(model)
    for layer in tied:
        layer.set_scale(zeta)
    return len(tied)


def tied_layers(model: nn.Module) -> list[AdditiveNoise]:
    """The layers whose one noise scale is set from outside."""
    tied = []
    for _, layer in variational_layers(model):
        if isinstance(layer, AdditiveNoise) and layer.tied:
            tied.append(layer)
    return tied
