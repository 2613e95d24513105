"""Rules of convolutions of one to three dimensions: an outer product per kernel position.

With patch_t the part of the input under the kernel at position t, unrolled, a convolution is y_t =
W patch_t + b for every t, so that the gradient of W is Σ_t g_t ⊗ patch_t; groups are blocks. A
transposed convolution is the same with the roles of input and output swapped.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.factored.represent import gram_is_cheaper
from dpvd.grads.factored.rule import (
    Call,
    Direct,
    Outer,
    Rule,
    Term,
    Terms,
    sum_to_channels,
    variance_gradient,
    variance_share,
)
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

__all__ = ["RULES"]

UNFOLDED_ENTRIES = 1 << 18  # 1 MB in float32


def conv(layer: Any, call: Call, grad: Tensor) -> Terms:
    """y = x ∗ W + b, for every convolution of torch, transposed ones included."""
    x = call.input()
    weight = _weight_term(layer, x, grad)
    bias = Direct(sum_to_channels(grad))
    return {"weight": [weight], "bias": [bias]}


def additive(layer: Any, call: Call, grad: Tensor) -> Terms:
    """y = x ∗ W + b + √v ε with v = x² ∗ σ².

    The weight enters the mean only, log σ² the variance only.
    """
    terms = _mean_terms(layer, call, grad)
    if call.draws and layer.learned:
        terms["log_sigma2"] = [_log_variance_term(layer, layer.log_sigma2, call, grad)]
    return terms


def multiplicative(layer: Any, call: Call, grad: Tensor) -> Terms:
    """y = x ∗ W + b + √v ε with v = x² ∗ αW².

    With dV the gradient of the variances, dW has a term 2αW ∘ dV.
    """
    terms = _mean_terms(layer, call, grad)
    if call.draws:
        u = variance_gradient(call, grad)  # [B, out, *]
        derivative = 2 * layer.log_rate.exp() * layer.mean_weight()  # 2αW
        terms["weight"].append(_weight_term(layer, call.input().square(), u, derivative))
        if layer.learned:
            terms["log_rate"] = [_log_variance_term(layer, layer.log_rate, call, grad)]
    return terms


def _mean_terms(layer: Any, call: Call, grad: Tensor) -> Terms:
    """A pruned weight gets no gradient."""
    mask = None if layer.kept is None else layer.kept.to(grad.dtype)
    weight = _weight_term(layer, call.input(), grad, mask)
    bias = Direct(sum_to_channels(grad))
    return {"weight": [weight], "bias": [bias]}


def _log_variance_term(layer: Any, parameter: Tensor, call: Call, grad: Tensor) -> Term:
    """Gradient of a log-variance through v = x² ∗ V, where the parameter scales V.

    It is V ∘ dV, summed over the weights that share the parameter. For one rate in all that is
    Σ u v; for one per input channel Σ x² ∘ (dL/dx²), over positions and groups.
    """
    if layer.rates is Rates.LAYER:
        return Direct(variance_share(call, grad).flatten(1).sum(1))
    squares = call.input().square()  # [B, in, *]
    u = variance_gradient(call, grad)  # [B, out, *]
    _, variance = layer.weight_moments()
    if layer.rates is Rates.WEIGHT:
        return _weight_term(layer, squares, u, variance)
    with torch.enable_grad():
        squares = squares.detach().requires_grad_()
        output_variance = layer.linear_map(squares, variance.detach(), None)
        (arriving,) = torch.autograd.grad(output_variance, squares, u)
    per_channel = sum_to_channels(squares.detach() * arriving)  # [B, in]
    # Groups share the rates of their channels.
    per_rate = per_channel.view(len(u), -1, *parameter.shape).sum(1)
    return Direct(per_rate)


def _weight_term(layer: Any, x: Tensor, grad: Tensor, scale: Tensor | None = None) -> Term:
    """The gradient of the weight, times ``scale``, for x [B, in, *] and gradient [B, out, *]."""
    of_one = _outer(layer, x[:1], grad[:1])
    if scale is None and gram_is_cheaper(of_one):
        return _outer(layer, x, grad)
    # Unfolded inputs are many times as large as the inputs: a few examples at a time stay in the
    # cache.
    count = len(x)
    size = max(1, UNFOLDED_ENTRIES // max(1, of_one.right.numel()))
    gradients = grad.new_empty(count, *layer.weight.shape)
    for start in range(0, count, size):
        part = slice(start, start + size)
        term = _outer(layer, x[part], grad[part])
        found = gradients[part]  # [b, *shape of the weight]
        if layer.groups == 1:
            flat = found.view(*found.shape[:2], -1)  # [b, out, in · kernel]
            torch.bmm(term.left.mT, term.right, out=flat)
        else:
            found.copy_(term.materialised().view_as(found))
    return Direct(gradients, scale)


def _outer(layer: Any, x: Tensor, grad: Tensor) -> Outer:
    """The gradient of the weight: unfolded inputs times gradients, one product per position."""
    if layer.transposed:
        patches = _gradient_patches(layer, x, grad)
        return Outer(_positions(x), patches, groups=layer.groups)
    patches = _input_patches(layer, x)
    return Outer(_positions(grad), patches, groups=layer.groups)


def _input_patches(layer: Any, x: Tensor) -> Tensor:
    """What the kernel sees at each output position, padding included, of whatever mode."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    return _patches(layer, padded)


def _gradient_patches(layer: Any, x: Tensor, grad: Tensor) -> Tensor:
    """The output gradient under a transposed convolution's kernel, at each input position."""
    sizes: list[int] = []
    for d in range(x.dim() - 1, 1, -1):  # F.pad begins with the last dimension
        axis = d - 2  # of the kernel
        before = layer.padding[axis]
        way = (x.shape[d] - 1) * layer.stride[axis]
        covered = way + _span(layer, axis)
        after = covered - before - grad.shape[d]
        sizes += [before, after]
    padded = F.pad(grad, sizes)
    return _patches(layer, padded)


def _patches(layer: Any, x: Tensor) -> Tensor:
    """[B, T, C · kernel]: all positions of the kernel on x [B, C, *], which is padded already."""
    windows = unfolded(x, layer.kernel_size, layer.stride, layer.dilation)
    return windows.flatten(1, len(layer.kernel_size))


def _span(layer: Any, d: int) -> int:
    """How far the kernel reaches in a dimension, gaps of the dilation included."""
    reach: int = layer.dilation[d] * (layer.kernel_size[d] - 1) + 1
    return reach


def _positions(x: Tensor) -> Tensor:
    """[B, T, C] from [B, C, *]."""
    flat = x.flatten(2)  # [B, C, T]
    return flat.transpose(1, 2)


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
