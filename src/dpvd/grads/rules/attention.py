"""Rules for multi-head attention: four linear maps around an attention that has no parameters.

The call is repeated and differentiated down to what each map gives. With δ the gradient that arrives there and x what
went in, a map has the terms of a dense layer: δ ⊗ x for the weight and, under noise √v ε with v = x²∗Var(θ),
u ⊗ x² with u = δ ε / (2√v) for the variances.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.calls import Call, CannotFactor
from dpvd.grads.factors import Direct, Outer
from dpvd.grads.rules.common import ManyOutputs, Terms
from dpvd.nn import AdditiveMultiheadAttention, MultiplicativeMultiheadAttention
from dpvd.nn.attend import ROLES, Projection, attention, biases, matrices, own_keys
from dpvd.nn.attention import AttentionMap, projected_std

__all__ = ["RULES"]

Factors = dict[str, tuple[Tensor, Tensor]]  # by role: δ [B, T, E] and what it is multiplied with, [B, T, in]
Scales = dict[str, Tensor]  # by role: a matrix [E, in] that all examples share

INTO = ROLES[:3]


def plain(layer: nn.MultiheadAttention, call: Call, grad: Tensor | None, weights_grad: Tensor | None = None) -> Terms:
    """y = W_o a + b_o, with a and the attention weights functions of q = W_q x_q + b_q, and of k and v likewise."""
    weights, shifts = matrices(layer), biases(layer)
    factors, terms = _run_again(
        layer, call, grad, weights_grad, lambda role, x: F.linear(x, weights[role], shifts[role])
    )
    return terms | _weight_terms(layer, factors, {}, _itself(call))


def noisy(layer: AttentionMap, call: Call, grad: Tensor | None, weights_grad: Tensor | None = None) -> Terms:
    """The same with noise on what each of the maps gives; a pruned weight gets no gradient."""
    keys = call.arguments()["key"].shape[1 if layer.batch_first else 0]
    noise = call.draws[0] if call.draws else None
    factors, terms = _run_again(layer, call, grad, weights_grad, layer.projection(noise, keys))
    kept = {} if layer.kept is None else layer.blocks(layer.kept.to(layer.weight.dtype))
    terms |= _weight_terms(layer, factors, kept, _itself(call))
    if noise is None:
        return terms
    shares = _variance_factors(layer, layer.noise_of(noise, keys), factors)
    if isinstance(layer, MultiplicativeMultiheadAttention):  # the variance αφ² moves with the weight: d/dφ = 2αφ
        slopes = layer.blocks(2 * layer.log_rate.exp() * layer.mean_weight())
        for name, more in _weight_terms(layer, shares, slopes, _itself(call)).items():
            if "weight" in name:
                terms[name] = [*terms[name], *more]
    if layer.learned:
        (name,) = layer.noise_state
        terms[name] = [Direct(_scale_gradient(layer, shares, getattr(layer, name).dim()))]
    return terms


def _run_again(
    layer: nn.MultiheadAttention,
    call: Call,
    grad: Tensor | None,
    weights_grad: Tensor | None,
    project: Projection,
) -> tuple[Factors, Terms]:
    """Repeat the call with these linear maps: the factors of each map, and the terms of keys of the layer's own."""
    arguments = _arguments(layer, call)
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def recorded(role: str, x: Tensor) -> Tensor:
        inputs[role], outputs[role] = x.detach(), project(role, x)
        return outputs[role].requires_grad_()

    with torch.enable_grad(), call.torch_randomness():
        count = arguments["query"].shape[0 if layer.batch_first else 1]
        own = tuple(one.detach().requires_grad_() for one in own_keys(layer, count))
        results = attention(layer, recorded, own, **arguments)
    reached = [(v, g) for v, g in zip(results, (grad, weights_grad), strict=True) if g is not None]
    values, arriving = zip(*reached, strict=True)
    deltas = torch.autograd.grad(values, (*outputs.values(), *own), arriving, materialize_grads=True)
    factors = {role: (delta, inputs[role]) for role, delta in zip(ROLES, deltas, strict=False)}
    added = zip(("bias_k", "bias_v"), deltas[len(ROLES) :], strict=False)
    return factors, {name: [Direct(delta.unsqueeze(1))] for name, delta in added}


def _weight_terms(layer: nn.MultiheadAttention, factors: Factors, scales: Scales, itself: bool) -> Terms:
    """Terms S ∘ (δ ⊗ x) of the weights, which torch keeps apart or as three blocks of one, and δ of the biases.

    Args:
        layer: the attention.
        factors: of each role.
        scales: S of each role, or of none.
        itself: whether query, key and value are one input: blocks then share x, and one term is enough.
    """
    lefts = [factors[role][0] for role in INTO]
    terms: Terms = {
        "in_proj_bias": [Direct(torch.cat([left.sum(1) for left in lefts], 1))],
        "out_proj.bias": [Direct(factors["out"][0].sum(1))],
        "out_proj.weight": [Outer(*factors["out"], scales.get("out"))],
    }
    if not layer._qkv_same_embed_dim:
        return terms | {f"{role[0]}_proj_weight": [Outer(*factors[role], scales.get(role))] for role in INTO}
    scale = torch.cat([scales[role] for role in INTO]) if scales else None
    if itself:
        return terms | {"in_proj_weight": [Outer(torch.cat(lefts, -1), factors["query"][1], scale)]}
    width = layer.embed_dim
    blocks = [F.pad(left, (place * width, (2 - place) * width)) for place, left in enumerate(lefts)]
    return terms | {
        "in_proj_weight": [Outer(left, factors[role][1], scale) for left, role in zip(blocks, INTO, strict=True)]
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
    """[B, *shape]: Var(θ) ∘ Σ_t u_t ⊗ x_t², summed over the weights that share a rate, for a rate of ``dims`` dims."""
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


def _itself(call: Call) -> bool:
    arguments = call.arguments()
    return arguments["query"] is arguments["key"] is arguments["value"]


def _arguments(layer: nn.MultiheadAttention, call: Call) -> dict[str, Any]:
    """Those of the call, without gradients; refused what the rule does not know."""
    arguments = call.arguments()
    query = arguments["query"]
    if query.dim() != 3:
        raise CannotFactor(f"{call.unit.name!r} was not called with a batch of sequences")
    if layer.dropout and layer.training and query.device.type != "cpu":
        raise CannotFactor(f"{call.unit.name!r} draws dropout masks that can be drawn again on the CPU only")
    return {name: value.detach() if isinstance(value, Tensor) else value for name, value in arguments.items()}


def _batch_dims(layer: nn.MultiheadAttention) -> tuple[int, ...]:
    """Of the attended values and of the attention weights, which have the batch first always."""
    return (0 if layer.batch_first else 1, 0)


RULES: dict[type[nn.Module], ManyOutputs] = {
    nn.MultiheadAttention: ManyOutputs(plain, _batch_dims),
    AdditiveMultiheadAttention: ManyOutputs(noisy, _batch_dims),
    MultiplicativeMultiheadAttention: ManyOutputs(noisy, _batch_dims),
}
