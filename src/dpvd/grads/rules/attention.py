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

from dpvd.grads.calls import Call, CannotFactor, Unit
from dpvd.grads.rules.common import Inside, OwnForward, Terms
from dpvd.grads.terms import Direct, Outer
from dpvd.nn import AdditiveMultiheadAttention, MultiplicativeMultiheadAttention
from dpvd.nn.attention.core import ROLES, Projection, attention, biases, matrices, own_keys
from dpvd.nn.attention.layers import AttentionMap, projected_std

__all__ = ["RULES"]

Factors = dict[
    str, tuple[Tensor, Tensor]
]  # by role: δ [B, T, E] and what it is multiplied with, [B, T, in]
Scales = dict[str, Tensor]  # by role: a matrix [E, in] that all examples share

INTO = ROLES[:3]


@dataclass(frozen=True)
class Memory:
    """What a call leaves for its terms.

    Attributes:
        inputs: what went into the map of each role, [B, T, in].
        noise: by role, [B, T, E]; {} without noise.
        itself: whether query, key and value are one input.
    """

    inputs: dict[str, Tensor]
    noise: dict[str, Tensor]
    itself: bool


def forward(
    unit: Unit, query: Tensor, key: Tensor, value: Tensor, *masks: Any, **options: Any
) -> tuple[Any, Inside]:
    """What the layer returns, with a way for gradients to what its linear maps give and to keys of
    its own.
    """
    layer: Any = unit.module
    if query.dim() != 3:
        raise CannotFactor(f"{unit.name!r} was not called with a batch of sequences")
    noise = layer.draw_noise(query, key) if isinstance(layer, AttentionMap) else {}
    project = (
        layer.projection(noise) if isinstance(layer, AttentionMap) else _plain_projection(layer)
    )
    inputs: dict[str, Tensor] = {}
    places: list[Tensor] = []

    def recorded(role: str, x: Tensor) -> Tensor:
        inputs[role] = x.detach()
        places.append(
            project(role, x).requires_grad_()
        )  # what depends on nothing that is trained does not yet
        return places[-1]

    own = own_keys(layer, query.shape[0 if layer.batch_first else 1])
    output = attention(layer, recorded, own, query, key, value, *masks, **options)
    edges = [get_gradient_edge(place) if place.requires_grad else None for place in (*places, *own)]
    return output, Inside(edges, Memory(inputs, noise, query is key is value))


def plain(layer: nn.MultiheadAttention, call: Call, *grads: Tensor | None) -> Terms:
    """y = W_o a + b_o, with a and the attention weights functions of q = W_q x_q + b_q, and of k
    and v likewise.
    """
    factors = _factors(layer, call.memory, grads)
    return _own_terms(grads) | _weight_terms(layer, factors, {}, call.memory.itself)


def noisy(layer: AttentionMap, call: Call, *grads: Tensor | None) -> Terms:
    """The same with noise on what each of the maps gives; a pruned weight gets no gradient."""
    memory: Memory = call.memory
    factors = _factors(layer, memory, grads)
    kept = {} if layer.kept is None else layer.blocks(layer.kept.to(layer.weight.dtype))
    terms = _own_terms(grads) | _weight_terms(layer, factors, kept, memory.itself)
    if not memory.noise or (isinstance(layer, AdditiveMultiheadAttention) and not layer.learned):
        return terms
    shares = _variance_factors(layer, memory.noise, factors)
    if isinstance(
        layer, MultiplicativeMultiheadAttention
    ):  # the variance αφ² moves with the weight: d/dφ = 2αφ
        slopes = layer.blocks(2 * layer.log_rate.exp() * layer.mean_weight())
        for name, more in _weight_terms(layer, shares, slopes, memory.itself).items():
            if "weight" in name:
                terms[name] = [*terms[name], *more]
    if layer.learned:
        (name,) = layer.noise_state
        terms[name] = [Direct(_scale_gradient(layer, shares, getattr(layer, name).dim()))]
    return terms


def _plain_projection(layer: nn.MultiheadAttention) -> Projection:
    weights, shifts = matrices(layer), biases(layer)
    return lambda role, x: F.linear(x, weights[role], shifts[role])


def _factors(
    layer: nn.MultiheadAttention, memory: Memory, grads: tuple[Tensor | None, ...]
) -> Factors:
    """A map whose result is not used has δ = 0."""
    found = {}
    for (role, x), grad in zip(memory.inputs.items(), grads, strict=False):
        found[role] = x.new_zeros(*x.shape[:2], layer.embed_dim) if grad is None else grad, x
    return found


def _own_terms(grads: tuple[Tensor | None, ...]) -> Terms:
    """Of the key and the value that the layer adds itself, [1, 1, E] each, if it does."""
    own = zip(("bias_k", "bias_v"), grads[len(ROLES) :], strict=False)
    return {name: [Direct(grad.unsqueeze(1))] for name, grad in own if grad is not None}


def _weight_terms(
    layer: nn.MultiheadAttention, factors: Factors, scales: Scales, itself: bool
) -> Terms:
    """Terms S ∘ (δ ⊗ x) of the weights, which torch keeps apart or as three blocks of one, and δ of
    the biases.

    Args:
        layer: the attention.
        factors: of each role.
        scales: S of each role, or of none.
        itself: whether query, key and value are one input: blocks then share x, and one term is
            enough.
    """
    lefts = [factors[role][0] for role in INTO]
    terms: Terms = {
        "in_proj_bias": [Direct(torch.cat([left.sum(1) for left in lefts], 1))],
        "out_proj.bias": [Direct(factors["out"][0].sum(1))],
        "out_proj.weight": [Outer(*factors["out"], scales.get("out"))],
    }
    if not layer._qkv_same_embed_dim:
        return terms | {
            f"{role[0]}_proj_weight": [Outer(*factors[role], scales.get(role))] for role in INTO
        }
    scale = torch.cat([scales[role] for role in INTO]) if scales else None
    if itself:
        return terms | {"in_proj_weight": [Outer(torch.cat(lefts, -1), factors["query"][1], scale)]}
    width = layer.embed_dim
    blocks = [F.pad(left, (place * width, (2 - place) * width)) for place, left in enumerate(lefts)]
    return terms | {
        "in_proj_weight": [
            Outer(left, factors[role][1], scale) for left, role in zip(blocks, INTO, strict=True)
        ]
    }


def _variance_factors(layer: AttentionMap, noise: dict[str, Tensor], factors: Factors) -> Factors:
    """u = δ ε / (2√v), zero where there is no variance, and x², of each role."""
    found = {}
    for role, variance in layer.variances().items():
        delta, x = factors[role]
        std = projected_std(x, variance)
        found[role] = torch.where(std > 0, delta * noise[role] / (2 * std), 0.0), x.square()
    return found


def _scale_gradient(layer: AttentionMap, shares: Factors, dims: int) -> Tensor:
    """[B, *shape]: Var(θ) ∘ Σ_t u_t ⊗ x_t², summed over the weights that share a rate, for a rate
    of ``dims`` dims.
    """
    parts = []
    for role, variance in layer.variances().items():
        u, square = shares[role]
        if dims == 2:
            parts.append(u.mT @ square * variance)
        else:
            reached = u @ variance if variance.dim() == 2 else u.sum(-1, keepdim=True) * variance
            parts.append((reached * square).sum(1))
    together = torch.cat(parts, -1)
    return together if dims else together.sum(1)


def _batch_dims(layer: nn.MultiheadAttention) -> tuple[int, ...]:
    """Of the gradients at the maps and at keys of the layer's own: they have the batch first."""
    return (0,) * (len(ROLES) + (0 if layer.bias_k is None else 2))


_PLAIN, _NOISY = (OwnForward(terms, _batch_dims, forward) for terms in (plain, noisy))

RULES: dict[type[nn.Module], OwnForward] = {
    nn.MultiheadAttention: _PLAIN,
    AdditiveMultiheadAttention: _NOISY,
    MultiplicativeMultiheadAttention: _NOISY,
}
