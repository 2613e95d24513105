"""Rules of normalisation within an example: y = w ∘ x̂ + b, so dw = Σ g ∘ x̂ and db = Σ g.

The sums are over positions.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.factored.rule import Call, Direct, Rule, Terms, sum_to_channels, sum_to_last

__all__ = ["RULES"]


def layer_norm(layer: nn.LayerNorm, call: Call, grad: Tensor) -> Terms:
    """x̂ has mean 0 and variance 1 over the last dimensions; a weight for each entry of them."""
    normalised = F.layer_norm(call.input(), layer.normalized_shape, eps=layer.eps)
    dims = len(layer.normalized_shape)
    weight = sum_to_last(grad * normalised, dims)  # [B, *normalized_shape]
    bias = sum_to_last(grad, dims)
    return {"weight": [Direct(weight)], "bias": [Direct(bias)]}


def rms_norm(layer: nn.RMSNorm, call: Call, grad: Tensor) -> Terms:
    """x̂ has mean square 1 over the last dimensions; no bias."""
    x = call.input()
    shape = layer.normalized_shape
    normalised = F.rms_norm(x, shape, eps=layer.eps)
    dims = len(shape)
    weight = sum_to_last(grad * normalised, dims)
    return {"weight": [Direct(weight)]}


def group_norm(layer: nn.GroupNorm, call: Call, grad: Tensor) -> Terms:
    """x̂ has mean 0 and variance 1 over each group of channels; a weight for each channel."""
    x = call.input()
    normalised = F.group_norm(x, layer.num_groups, eps=layer.eps)
    return _channel_terms(normalised, grad)


def instance_norm(
    layer: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d, call: Call, grad: Tensor
) -> Terms:
    """x̂ has mean 0 and variance 1 over a channel's positions, or is scaled by frozen statistics."""
    own = layer.training or not layer.track_running_stats
    mean = None if own else layer.running_mean
    variance = None if own else layer.running_var
    normalised = F.instance_norm(call.input(), mean, variance, use_input_stats=own, eps=layer.eps)
    return _channel_terms(normalised, grad)


def _channel_terms(normalised: Tensor, grad: Tensor) -> Terms:
    weight = sum_to_channels(grad * normalised)  # [B, C]
    bias = sum_to_channels(grad)
    return {"weight": [Direct(weight)], "bias": [Direct(bias)]}


RULES: dict[type[nn.Module], Rule] = {
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
}
