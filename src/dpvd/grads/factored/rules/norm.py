"""Rules of normalisation within an example: y = w ∘ x̂ + b, so dw = Σ g ∘ x̂ and db = Σ g.

The sums are over positions.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.factored.rule import (
    Call,
    Direct,
    Rule,
    Terms,
    in_full,
    sum_to_channels,
    sum_to_last,
)

__all__ = ["RULES"]

CACHED_ENTRIES = 1 << 17  # 512 kB in float32


def layer_norm(layer: nn.LayerNorm, call: Call, grad: Tensor) -> Terms:
    """x̂ has mean 0 and variance 1 over the last dimensions; a weight for each entry of them."""
    shape = layer.normalized_shape

    def normalise(x: Tensor) -> Tensor:
        return F.layer_norm(x, shape, eps=layer.eps)

    weight = _products(normalise, call.input(), grad, partial(sum_to_last, dims=len(shape)))
    bias = sum_to_last(grad, len(shape))
    return {"weight": [Direct(weight)], "bias": [Direct(bias)]}


def rms_norm(layer: nn.RMSNorm, call: Call, grad: Tensor) -> Terms:
    """x̂ has mean square 1 over the last dimensions; no bias."""
    shape = layer.normalized_shape

    def normalise(x: Tensor) -> Tensor:
        return F.rms_norm(x, shape, eps=layer.eps)

    weight = _products(normalise, call.input(), grad, partial(sum_to_last, dims=len(shape)))
    return {"weight": [Direct(weight)]}


def group_norm(layer: nn.GroupNorm, call: Call, grad: Tensor) -> Terms:
    """x̂ has mean 0 and variance 1 over each group of channels; a weight for each channel."""

    def normalise(x: Tensor) -> Tensor:
        return F.group_norm(x, layer.num_groups, eps=layer.eps)

    return _channel_terms(normalise, call.input(), grad)


def instance_norm(
    layer: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d, call: Call, grad: Tensor
) -> Terms:
    """x̂ has mean 0 and variance 1 over a channel's positions, or is scaled by frozen statistics."""
    own = layer.training or not layer.track_running_stats
    mean = None if own else layer.running_mean
    variance = None if own else layer.running_var

    def normalise(x: Tensor) -> Tensor:
        return F.instance_norm(x, mean, variance, use_input_stats=own, eps=layer.eps)

    return _channel_terms(normalise, call.input(), grad)


def _channel_terms(normalise: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> Terms:
    weight = _products(normalise, x, grad, sum_to_channels)  # [B, C]
    bias = sum_to_channels(grad)
    return {"weight": [Direct(weight)], "bias": [Direct(bias)]}


def _products(
    normalise: Callable[[Tensor], Tensor],
    x: Tensor,
    grad: Tensor,
    summed: Callable[[Tensor], Tensor],
) -> Tensor:
    """Σ g ∘ x̂ of each example, for a few at a time: x̂ is as large as x, and stays in the cache."""
    size = max(1, CACHED_ENTRIES * len(x) // max(1, x.numel()))
    found = []
    for inputs, gradients in zip(torch.split(x, size), torch.split(grad, size), strict=True):
        normalised = normalise(in_full(inputs))
        found.append(summed(normalised.mul_(gradients)))
    return torch.cat(found)


RULES: dict[type[nn.Module], Rule] = {
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
}
