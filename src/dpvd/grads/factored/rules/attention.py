"""Rules for multi-head attention: four linear maps around an attention that has no parameters.

Gradients are carried back to what each map gives. With δ the gradient that arrives there and x what
went in, a map has the terms of a dense layer: δ ⊗ x for the weight and, under noise √v ε with v =
x²∗Var(θ), u ⊗ x² with u = δ ε / (2√v) for the variances. torch's own layer does not let δ out, so
the forward pass is ours (``dpvd.nn.attention.core``).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from dpvd.grads.clipping import Unit
from dpvd.grads.factored.rule import (
    Call,
    CannotFactor,
    CustomForwardRule,
    Direct,
    ForwardTrace,
    Outer,
    Terms,
)
from dpvd.nn import AdditiveMultiheadAttention, MultiplicativeMultiheadAttention
from dpvd.nn.attention.core import ROLES, Projection, attention, biases, matrices, own_keys
from dpvd.nn.attention.layers import AttentionMap, projected_std

__all__ = ["RULES"]

Factors = dict[str, tuple[Tensor, Tensor]]
"""By role: δ [B, T, E] and what it is multiplied with, [B, T, in]."""

Scales = dict[str, Tensor]
"""By role: a matrix [E, in] that all examples share."""

INTO = ROLES[:3]


@dataclass(frozen=True)
class Saved:
    """What a forward pass saves for the terms.

    Attributes:
        inputs: what went into the map of each role, [B, T, in].
        noise: by role, [B, T, E]; {} without noise.
        is_self_attention: whether query, key and value are one input.
    """

    inputs: dict[str, Tensor]
    noise: dict[str, Tensor]
    is_self_attention: bool


def forward(
    unit: Unit, query: Tensor, key: Tensor, value: Tensor, *masks: Any, **options: Any
) -> tuple[Any, ForwardTrace]:
    """What the layer returns, and edges at the outputs of its linear maps and its own keys."""
    layer: Any = unit.module
    if query.dim() != 3:
        raise CannotFactor(f"{unit.name!r} was not called with a batch of sequences")
    noise: dict[str, Tensor] = {}
    if isinstance(layer, AttentionMap):
        noise = layer.draw_noise(query, key)
        project = layer.projection(noise)
    else:
        project = _plain_projection(layer)
    inputs: dict[str, Tensor] = {}
    projected: list[Tensor] = []

    def recorded(role: str, x: Tensor) -> Tensor:
        inputs[role] = x.detach()
        output = project(role, x)
        # Where nothing before it is trained, it does not require a gradient yet.
        projected.append(output.requires_grad_())
        return output

    batch_dim = 0 if layer.batch_first else 1
    own = own_keys(layer, query.shape[batch_dim])
    output = attention(layer, recorded, own, query, key, value, *masks, **options)
    edges: list[Any] = []
    for tensor in (*projected, *own):
        edges.append(get_gradient_edge(tensor) if tensor.requires_grad else None)
    saved = Saved(inputs, noise, query is key is value)
    return output, ForwardTrace(edges, saved)


def plain(layer: nn.MultiheadAttention, call: Call, *grads: Tensor | None) -> Terms:
    """y = W_o a + b_o, with a function of q = W_q x_q + b_q, and of k and v likewise."""
    saved: Saved = call.saved
    factors = _factors(layer, saved, grads)
    return _own_terms(grads) | _weight_terms(layer, factors, {}, saved.is_self_attention)


def noisy(layer: AttentionMap, call: Call, *grads: Tensor | None) -> Terms:
    """The same with noise on what each of the maps gives; a pruned weight gets no gradient."""
    saved: Saved = call.saved
    factors = _factors(layer, saved, grads)
    masks = {} if layer.kept is None else layer.blocks(layer.kept.to(layer.weight.dtype))
    terms = _own_terms(grads)
    terms |= _weight_terms(layer, factors, masks, saved.is_self_attention)
    is_fixed = isinstance(layer, AdditiveMultiheadAttention) and not layer.learned
    if not saved.noise or is_fixed:
        return terms
    variance_factors = _variance_factors(layer, saved.noise, factors)
    if isinstance(layer, MultiplicativeMultiheadAttention):
        # The variance αφ² moves with the weight: d/dφ = 2αφ.
        derivatives = layer.blocks(2 * layer.log_rate.exp() * layer.mean_weight())
        more = _weight_terms(layer, variance_factors, derivatives, saved.is_self_attention)
        for name, parts in more.items():
            if "weight" in name:
                terms[name] = [*terms[name], *parts]
    if layer.learned:
        (name,) = layer.noise_state
        dims = getattr(layer, name).dim()
        terms[name] = [Direct(_scale_gradient(layer, variance_factors, dims))]
    return terms


def _plain_projection(layer: nn.MultiheadAttention) -> Projection:
    weights = matrices(layer)
    shifts = biases(layer)

    def project(role: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[role], shifts[role])

    return project


def _factors(
    layer: nn.MultiheadAttention, saved: Saved, grads: tuple[Tensor | None, ...]
) -> Factors:
    """A map whose result is not used has δ = 0."""
    found = {}
    for (role, x), grad in zip(saved.inputs.items(), grads, strict=False):
        delta = grad
        if delta is None:
            delta = x.new_zeros(*x.shape[:2], layer.embed_dim)
        found[role] = (delta, x)
    return found


def _own_terms(grads: tuple[Tensor | None, ...]) -> Terms:
    """Of the key and the value that the layer adds itself, [1, 1, E] each, if it does."""
    terms: Terms = {}
    own = grads[len(ROLES) :]
    for name, grad in zip(("bias_k", "bias_v"), own, strict=False):
        if grad is not None:
            terms[name] = [Direct(grad.unsqueeze(1))]
    return terms


def _weight_terms(
    layer: nn.MultiheadAttention, factors: Factors, scales: Scales, is_self_attention: bool
) -> Terms:
    """Terms S ∘ (δ ⊗ x) of the weights, and δ of the biases.

    torch has the weights of query, key and value apart, or as three blocks of one matrix.

    Args:
        layer: the attention.
        factors: of each role.
        scales: S of each role, or of none.
        is_self_attention: whether query, key and value are one input: blocks then share x, and one
            term is enough.
    """
    deltas = [factors[role][0] for role in INTO]  # [B, T, E] each
    out_delta, out_input = factors["out"]
    in_bias = torch.cat([delta.sum(1) for delta in deltas], 1)  # [B, 3 E]
    terms: Terms = {
        "in_proj_bias": [Direct(in_bias)],
        "out_proj.bias": [Direct(out_delta.sum(1))],
        "out_proj.weight": [Outer(out_delta, out_input, scales.get("out"))],
    }
    if not layer._qkv_same_embed_dim:
        for role in INTO:
            delta, x = factors[role]
            terms[f"{role[0]}_proj_weight"] = [Outer(delta, x, scales.get(role))]
        return terms
    scale = torch.cat([scales[role] for role in INTO]) if scales else None
    if is_self_attention:
        _, x = factors["query"]
        terms["in_proj_weight"] = [Outer(torch.cat(deltas, -1), x, scale)]
        return terms
    width = layer.embed_dim
    terms["in_proj_weight"] = []
    for i, role in enumerate(INTO):
        delta, x = factors[role]
        block = F.pad(delta, (i * width, (2 - i) * width))  # [B, T, 3 E], zero in other blocks
        terms["in_proj_weight"].append(Outer(block, x, scale))
    return terms


def _variance_factors(layer: AttentionMap, noise: dict[str, Tensor], factors: Factors) -> Factors:
    """u = δ ε / (2√v), zero where there is no variance, and x², of each role."""
    found = {}
    for role, variance in layer.variances().items():
        delta, x = factors[role]
        std = projected_std(x, variance)
        u = torch.where(std > 0, delta * noise[role] / (2 * std), 0.0)
        found[role] = (u, x.square())
    return found


def _scale_gradient(layer: AttentionMap, factors: Factors, dims: int) -> Tensor:
    """[B, *shape]: Var(θ) ∘ Σ_t u_t ⊗ x_t², summed over the weights that share a rate.

    Args:
        layer: the attention.
        factors: u and x² of each role.
        dims: how many dimensions the rates have.
    """
    parts = []
    for role, variance in layer.variances().items():
        u, square = factors[role]  # [B, T, E] and [B, T, in]
        if dims == 2:
            parts.append(u.mT @ square * variance)
            continue
        shared = u.sum(-1, keepdim=True) * variance if variance.dim() < 2 else u @ variance
        parts.append((shared * square).sum(1))
    together = torch.cat(parts, -1)
    if dims:
        return together
    return together.sum(1)


def _batch_dims(layer: nn.MultiheadAttention) -> tuple[int, ...]:
    """Of the gradients at the maps and at keys of the layer's own: they have the batch first."""
    own_keys = 0 if layer.bias_k is None else 2
    return (0,) * (len(ROLES) + own_keys)


_PLAIN = CustomForwardRule(plain, _batch_dims, forward)
_NOISY = CustomForwardRule(noisy, _batch_dims, forward)

RULES: dict[type[nn.Module], CustomForwardRule] = {
    nn.MultiheadAttention: _PLAIN,
    AdditiveMultiheadAttention: _NOISY,
    MultiplicativeMultiheadAttention: _NOISY,
}
