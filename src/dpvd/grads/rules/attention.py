"""The rule for ``nn.MultiheadAttention``: four linear maps around an attention that has no parameters."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from dpvd.grads.calls import Call, CannotFactor
from dpvd.grads.factors import Direct, Outer
from dpvd.grads.rules.common import ManyOutputs, Terms

__all__ = ["RULES"]

ROLES = ("query", "key", "value")


def attention(
    layer: nn.MultiheadAttention, call: Call, grad: Tensor | None, weights_grad: Tensor | None = None
) -> Terms:
    """y = W_o a + b_o, with a and the attention weights functions of q = W_q x_q + b_q, and of k and v likewise."""
    arguments = call.arguments()
    _refuse(layer, call, arguments["query"])
    inputs = [arguments[role].detach() for role in ROLES]
    with torch.enable_grad(), call.torch_randomness():
        maps = zip(inputs, _projections(layer), strict=True)
        projected = [F.linear(x, weight, bias).requires_grad_() for x, (weight, bias) in maps]
        attended, weights = _without_projections(layer, arguments | dict(zip(ROLES, projected, strict=True)))
    back = None if grad is None else grad @ layer.out_proj.weight
    reached = [(v, g) for v, g in ((attended, back), (weights, weights_grad)) if g is not None]
    values, arriving = zip(*reached, strict=True)
    deltas = torch.autograd.grad(values, projected, arriving, materialize_grads=True)
    itself = arguments["query"] is arguments["key"] is arguments["value"]
    terms = _input_terms(layer, inputs[:1] if itself else inputs, list(deltas))
    if grad is not None:
        left = _batch_first(layer, grad)
        terms["out_proj.weight"] = [Outer(left, _batch_first(layer, attended.detach()))]
        terms["out_proj.bias"] = [Direct(left.sum(1))]
    return terms


def _input_terms(layer: nn.MultiheadAttention, inputs: list[Tensor], deltas: list[Tensor]) -> Terms:
    """The weights of q, k and v, which torch keeps apart, or as the three blocks of one matrix.

    With one input for all three the blocks share their right factor, and one term is enough.
    """
    lefts = [_batch_first(layer, delta) for delta in deltas]
    rights = [_batch_first(layer, x) for x in inputs]
    terms: Terms = {"in_proj_bias": [Direct(torch.cat([left.sum(1) for left in lefts], 1))]}
    if len(inputs) == 1:
        terms["in_proj_weight"] = [Outer(torch.cat(lefts, -1), rights[0])]
    elif not layer._qkv_same_embed_dim:
        for role, left, right in zip("qkv", lefts, rights, strict=True):
            terms[f"{role}_proj_weight"] = [Outer(left, right)]
    else:
        width = layer.embed_dim
        terms["in_proj_weight"] = [
            Outer(F.pad(left, (block * width, (2 - block) * width)), right)
            for block, (left, right) in enumerate(zip(lefts, rights, strict=True))
        ]
    return terms


def _without_projections(layer: nn.MultiheadAttention, arguments: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The layer's own forward pass, masks, heads and dropout included, with identities for its four linear maps."""
    like = layer.out_proj.weight.detach()
    identity = torch.eye(layer.embed_dim, dtype=like.dtype, device=like.device)
    replaced = {"out_proj.weight": identity}
    if layer._qkv_same_embed_dim:
        replaced["in_proj_weight"] = identity.repeat(3, 1)
    else:
        replaced |= {f"{role}_proj_weight": identity for role in "qkv"}
    if layer.in_proj_bias is not None:
        replaced |= {"in_proj_bias": like.new_zeros(3 * layer.embed_dim), "out_proj.bias": like.new_zeros(len(like))}
    result: tuple[Tensor, Tensor | None] = functional_call(layer, replaced, (), arguments)
    return result


def _projections(layer: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of q, k and v, without gradients."""
    if layer._qkv_same_embed_dim:
        weights = list(layer.in_proj_weight.detach().chunk(3))
    else:
        weights = [getattr(layer, f"{role}_proj_weight").detach() for role in "qkv"]
    bias = layer.in_proj_bias
    return list(zip(weights, [None] * 3 if bias is None else bias.detach().chunk(3), strict=True))


def _refuse(layer: nn.MultiheadAttention, call: Call, query: Tensor) -> None:
    if layer.bias_k is not None:
        raise CannotFactor(f"{call.unit.name!r} has keys and values of its own (add_bias_kv)")
    if query.dim() != 3:
        raise CannotFactor(f"{call.unit.name!r} was not called with a batch of sequences")
    if layer.dropout and layer.training and query.device.type != "cpu":
        raise CannotFactor(f"{call.unit.name!r} draws dropout masks that can be drawn again on the CPU only")


def _batch_first(layer: nn.MultiheadAttention, value: Tensor) -> Tensor:
    return value if layer.batch_first else value.transpose(0, 1)


def _batch_dims(layer: nn.MultiheadAttention) -> tuple[int, ...]:
    """Of the attended values and of the attention weights, which have the batch first always."""
    return (0 if layer.batch_first else 1, 0)


RULES: dict[type[nn.Module], ManyOutputs] = {nn.MultiheadAttention: ManyOutputs(attention, _batch_dims)}
