"""Rules of normalisation layers within one example: y = w ∘ x̂ + b, with dw = Σ g ∘ x̂ and db = Σ g
over positions.
"""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.rules.common import Rule, Terms, sum_to_channels, sum_to_last
from dpvd.grads.terms import Direct

if TYPE_CHECKING:
    from dpvd.grads.units import Call

__all__ = ["RULES"]


def layer_norm(layer: nn.LayerNorm, call: "Call", grad: Tensor) -> Terms:
    """x̂ has mean 0 and variance 1 over the last dimensions; a weight for each entry of them."""
    normalised = F.layer_norm(call.input(), layer.normalized_shape, eps=layer.eps)
    dims = len(layer.normalized_shape)
    return {
        "weight": [Direct(sum_to_last(grad * normalised, dims))],
        "bias": [Direct(sum_to_last(grad, dims))],
    }


def rms_norm(layer: nn.RMSNorm, call: "Call", grad: Tensor) -> Terms:
    """x̂ has mean square 1 over the last dimensions; no bias."""
    normalised = F.rms_norm(call.input(), layer.normalized_shape, eps=layer.eps)
    return {"weight": [Direct(sum_to_last(grad * normalised, len(layer.normalized_shape)))]}


def group_norm(layer: nn.GroupNorm, call: "Call", grad: Tensor) -> Terms:
    """x̂ has mean 0 and variance 1 over each group of channels; a weight for each channel."""
    return _channel_terms(F.group_norm(call.input(), layer.num_groups, eps=layer.eps), grad)


def instance_norm(
    layer: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d, call: "Call", grad: Tensor
) -> Terms:
    """x̂ has mean 0 and variance 1 over the positions of each channel, or is scaled by frozen
    statistics.
    """
    own = layer.training or not layer.track_running_stats
    mean, variance = (None, None) if own else (layer.running_mean, layer.running_var)
    return _channel_terms(
        F.instance_norm(call.input(), mean, variance, use_input_stats=own, eps=layer.eps), grad
    )


def _channel_terms(normalised: Tensor, grad: Tensor) -> Terms:
    return {
        "weight": [Direct(sum_to_channels(grad * normalised))],
        "bias": [Direct(sum_to_channels(grad))],
    }


RULES: dict[type[nn.Module], Rule] = {
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
}
