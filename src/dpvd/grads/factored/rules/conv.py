"""Rules of convolutions of one to three dimensions: an outer product per kernel position.

With patch_t the part of the input under the kernel at position t, unrolled, a convolution is y_t =
W patch_t + b for every t, so that the gradient of W is Σ_t g_t ⊗ patch_t; groups are blocks. A
transposed convolution is the same with the roles of input and output swapped.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.factored.rule import (
    Call,
    Convolved,
    Direct,
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

__all__ = ["RULES", "Kernel"]


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
    return Convolved(x.detach(), grad, Kernel.of(layer), scale)


@dataclass(frozen=True)
class Kernel:
    """The geometry of a layer's kernel. It holds no weights.

    Args:
        shape: of the weight, [out, in / groups, *kernel]; [in, out / groups, *kernel] transposed.
        stride, dilation, padding: in each dimension; the padding of a transposed layer only.
        around: padding as ``F.pad`` takes it, of a layer that is not transposed.
        mode: of the padding.
    """

    shape: torch.Size
    groups: int
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    around: tuple[int, ...]
    mode: str
    transposed: bool

    @classmethod
    def of(cls, layer: Any) -> "Kernel":
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        own = layer.padding if layer.transposed else ()
        around = () if layer.transposed else tuple(layer._reversed_padding_repeated_twice)
        return cls(
            layer.weight.shape,
            layer.groups,
            tuple(layer.stride),
            tuple(layer.dilation),
            tuple(own),
            around,
            mode,
            layer.transposed,
        )

    def positions(self, x: Tensor, grad: Tensor) -> Tensor:
        """[B, T, C] from [B, C, *]: of the output, or of a transposed layer's input."""
        values = x if self.transposed else grad
        flat = values.flatten(2)  # [B, C, T]
        return flat.transpose(1, 2)

    def patches(self, x: Tensor, grad: Tensor) -> Tensor:
        """[B, T, groups · kernel · C / groups]: what the kernel sees at each position."""
        if self.transposed:
            padded = _padded(grad, self._around_gradient(x, grad), "constant")
        else:
            padded = _padded(x, self.around, self.mode)
        return self._windows(padded)

    def total(self, x: Tensor, grad: Tensor) -> Tensor:
        """Σ_i of the weight's gradients, by torch's own backward pass of a convolution."""
        dims = len(self.stride)
        padding = list(self.padding) or [0] * dims
        if not self.transposed:
            symmetric = self.around[::2] == self.around[1::2]
            if self.mode == "constant" and symmetric:
                padding = list(self.around[::2])[::-1]
            elif any(self.around):
                x = F.pad(x, self.around, mode=self.mode)
        rest = self._output_padding(x, grad, padding) if self.transposed else [0] * dims
        weight = grad.new_empty(1).expand(self.shape)  # its values do not matter
        _, total, _ = torch.ops.aten.convolution_backward(
            grad,
            x,
            weight,
            None,
            list(self.stride),
            padding,
            list(self.dilation),
            self.transposed,
            rest,
            self.groups,
            [False, True, False],
        )
        found: Tensor = total
        return found

    def _windows(self, x: Tensor) -> Tensor:
        """All positions of the kernel on x [B, *, C], which is padded already."""
        dims = len(self.stride)
        geometry = zip(self.shape[2:], self.stride, self.dilation, strict=True)
        for dim, (size, step, gap) in enumerate(geometry, start=1):
            reach = gap * (size - 1) + 1
            x = x.unfold(dim, reach, step)[..., ::gap]
        x = torch.unflatten(x, dims + 1, (self.groups, -1))  # [B, *positions, G, C / G, *kernel]
        x = x.movedim(dims + 2, -1)  # [B, *positions, G, *kernel, C / G]
        vectors = x.flatten(dims + 1)  # a copy, in runs of C / G
        return vectors.flatten(1, dims)

    def _around_gradient(self, x: Tensor, grad: Tensor) -> tuple[int, ...]:
        """Padding with which a transposed layer's kernel covers its output, for every input."""
        sizes: list[int] = []
        for d in range(x.dim() - 1, 1, -1):  # F.pad begins with the last dimension
            axis = d - 2  # of the kernel
            before = self.padding[axis]
            covered = self._covered(x.shape[d], axis)
            after = covered - before - grad.shape[d]
            sizes += [before, after]
        return tuple(sizes)

    def _output_padding(self, x: Tensor, grad: Tensor, padding: list[int]) -> list[int]:
        """By how much a transposed layer's output is larger than it would be."""
        sizes = []
        for axis in range(len(self.stride)):
            covered = self._covered(x.shape[axis + 2], axis)
            sizes.append(grad.shape[axis + 2] - (covered - 2 * padding[axis]))
        return sizes

    def _covered(self, positions: int, axis: int) -> int:
        """How far a kernel reaches over its positions in a dimension, gaps included."""
        reach = self.dilation[axis] * (self.shape[axis + 2] - 1) + 1
        return (positions - 1) * self.stride[axis] + reach


def _padded(x: Tensor, around: tuple[int, ...], mode: str) -> Tensor:
    """[B, *, C], padded, from [B, C, *]: in one copy if that is with zeros."""
    last = x.movedim(1, -1)
    if not any(around):
        return last.contiguous()
    if mode != "constant" or min(around) < 0:
        return F.pad(x, around, mode=mode).movedim(1, -1).contiguous()
    begins = around[::2][::-1]
    ends = around[1::2][::-1]
    sizes = [b + n + e for b, n, e in zip(begins, x.shape[2:], ends, strict=True)]
    padded = x.new_zeros(len(x), *sizes, x.shape[1])
    inner = padded
    for dim, (begin, size) in enumerate(zip(begins, x.shape[2:], strict=True), start=1):
        inner = inner.narrow(dim, begin, size)
    inner.copy_(last)
    return padded


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
