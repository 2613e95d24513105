"""Rules of convolutions, of one to three dimensions: an outer product for each position of the
kernel.

With patch_t the part of the input under the kernel at position t, unrolled, a convolution is y_t =
W patch_t + b for every t, so that the gradient of W is Σ_t g_t ⊗ patch_t; groups are blocks. A
transposed convolution is the same with the roles of input and output swapped.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.rules.common import Rule, Terms, sum_to_channels, variance_gradient, variance_share
from dpvd.grads.terms import Direct, Outer, Term, gram_is_cheaper, materialised
from dpvd.nn import (
    AdditiveConv1d,
    AdditiveConv2d,
    AdditiveConv3d,
    AdditiveConvTranspose2d,
    MultiplicativeConv1d,
    MultiplicativeConv2d,
    MultiplicativeConv3d,
    Rates,
)
from dpvd.nn.conv import unfolded

if TYPE_CHECKING:
    from dpvd.grads.units import Call

__all__ = ["RULES"]

UNFOLDED_ENTRIES = 1 << 18  # 1 MB in float32


def conv(layer: Any, call: "Call", grad: Tensor) -> Terms:
    """y = x ∗ W + b, for every convolution of torch, transposed ones included."""
    return {
        "weight": [_weight_term(layer, call.input(), grad)],
        "bias": [Direct(sum_to_channels(grad))],
    }


def additive(layer: Any, call: "Call", grad: Tensor) -> Terms:
    """y = x ∗ W + b + √v ε, v = x² ∗ σ²: the weight enters the mean only, log σ² the variance
    only.
    """
    terms = _mean_terms(layer, call, grad)
    if call.draws and layer.learned:
        terms["log_sigma2"] = [_log_variance_term(layer, layer.log_sigma2, call, grad)]
    return terms


def multiplicative(layer: Any, call: "Call", grad: Tensor) -> Terms:
    """y = x ∗ W + b + √v ε, v = x² ∗ αW²: with dV the gradient of the variances, dW has a term 2αW
    ∘ dV.
    """
    terms = _mean_terms(layer, call, grad)
    if call.draws:
        u, slope = variance_gradient(call, grad), 2 * layer.log_rate.exp() * layer.mean_weight()
        terms["weight"].append(_weight_term(layer, call.input().square(), u, slope))
        if layer.learned:
            terms["log_rate"] = [_log_variance_term(layer, layer.log_rate, call, grad)]
    return terms


def _mean_terms(layer: Any, call: "Call", grad: Tensor) -> Terms:
    kept = (
        None if layer.kept is None else layer.kept.to(grad.dtype)
    )  # a pruned weight gets no gradient
    return {
        "weight": [_weight_term(layer, call.input(), grad, kept)],
        "bias": [Direct(sum_to_channels(grad))],
    }


def _log_variance_term(layer: Any, parameter: Tensor, call: "Call", grad: Tensor) -> Term:
    """Gradient of a log-variance through v = x² ∗ V, where the parameter scales V: V ∘ dV, summed
    as it is shared.

    For one rate in all that is Σ u v; for one per input channel Σ x² ∘ (dL/dx²), over positions and
    groups.
    """
    if layer.rates is Rates.LAYER:
        return Direct(variance_share(call, grad).flatten(1).sum(1))
    squares, u, variance = (
        call.input().square(),
        variance_gradient(call, grad),
        layer.weight_moments()[1],
    )
    if layer.rates is Rates.WEIGHT:
        return _weight_term(layer, squares, u, variance)
    with torch.enable_grad():
        squares = squares.detach().requires_grad_()
        (arriving,) = torch.autograd.grad(
            layer.linear_map(squares, variance.detach(), None), squares, u
        )
    per_channel = sum_to_channels(squares.detach() * arriving)
    return Direct(
        per_channel.view(len(u), -1, *parameter.shape).sum(1)
    )  # groups share the rates of their channels


def _weight_term(layer: Any, x: Tensor, grad: Tensor, scale: Tensor | None = None) -> Term:
    """The gradient of the weight (times ``scale``, of its shape) for input x [B, in, *] and
    arriving [B, out, *].
    """
    if scale is None and gram_is_cheaper(_outer(layer, x[:1], grad[:1])):
        return _outer(layer, x, grad)
    # Unfolded inputs are many times as large as the inputs: a few examples at a time stay in the
    # cache.
    count, size = (
        len(x),
        max(1, UNFOLDED_ENTRIES // max(1, _outer(layer, x[:1], grad[:1]).right.numel())),
    )
    gradients = grad.new_empty(count, *layer.weight.shape)
    for start in range(0, count, size):
        part = slice(start, start + size)
        term, found = _outer(layer, x[part], grad[part]), gradients[part]
        if layer.groups == 1:
            torch.bmm(term.left.mT, term.right, out=found.view(*found.shape[:2], -1))
        else:
            found.copy_(materialised(term).view_as(found))
    return Direct(gradients, scale)


def _outer(layer: Any, x: Tensor, grad: Tensor) -> Outer:
    """The gradient of the weight as products of unfolded inputs with gradients, one for each
    position.
    """
    left, right = (
        (x, _gradient_patches(layer, x, grad))
        if layer.transposed
        else (grad, _input_patches(layer, x))
    )
    return Outer(_positions(left), right, groups=layer.groups)


def _input_patches(layer: Any, x: Tensor) -> Tensor:
    """What the kernel sees at each output position, padding included, of whatever mode."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return _patches(layer, F.pad(x, layer._reversed_padding_repeated_twice, mode=mode))


def _gradient_patches(layer: Any, x: Tensor, grad: Tensor) -> Tensor:
    """What the kernel of a transposed convolution reaches from each input position, of the gradient
    of its output.
    """
    sizes: list[int] = []
    for d in range(x.dim() - 1, 1, -1):  # F.pad begins with the last dimension
        padding = layer.padding[d - 2]
        covered = (x.shape[d] - 1) * layer.stride[d - 2] + _span(layer, d - 2)
        sizes += [padding, covered - padding - grad.shape[d]]
    return _patches(layer, F.pad(grad, sizes))


def _patches(layer: Any, x: Tensor) -> Tensor:
    """[B, T, C · kernel]: all places of the kernel on x [B, C, *], which is padded already."""
    return unfolded(x, layer.kernel_size, layer.stride, layer.dilation).flatten(
        1, len(layer.kernel_size)
    )


def _span(layer: Any, d: int) -> int:
    """How far the kernel reaches in a dimension, gaps of the dilation included."""
    reach: int = layer.dilation[d] * (layer.kernel_size[d] - 1) + 1
    return reach


def _positions(x: Tensor) -> Tensor:
    """[B, T, C] from [B, C, *]."""
    return x.flatten(2).transpose(1, 2)


RULES: dict[type[nn.Module], Rule] = {
    nn.Conv1d: conv,
    nn.Conv2d: conv,
    nn.Conv3d: conv,
    nn.ConvTranspose1d: conv,
    nn.ConvTranspose2d: conv,
    nn.ConvTranspose3d: conv,
    AdditiveConv1d: additive,
    AdditiveConv2d: additive,
    AdditiveConv3d: additive,
    AdditiveConvTranspose2d: additive,
    MultiplicativeConv1d: multiplicative,
    MultiplicativeConv2d: multiplicative,
    MultiplicativeConv3d: multiplicative,
}
