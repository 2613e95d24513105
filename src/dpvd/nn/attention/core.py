"""``nn.MultiheadAttention`` written out, with its linear maps left to the caller."""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError

__all__ = ["ROLES", "Projection", "attention", "biases", "matrices", "own_keys"]

ROLES = ("query", "key", "value", "out")
"""The linear maps of the layer: three into the attention, one out of it."""

Projection: TypeAlias = Callable[[str, Tensor], Tensor]
"""``project(role, x [B, T, in])``: what the linear map of this role makes of x, with its bias."""


def attention(
    layer: nn.MultiheadAttention,
    project: Projection,
    own: tuple[Tensor, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What the layer computes, with ``project`` in place of its four linear maps.

    Per head, softmax(q kᵀ / √d + mask) v, with q, k and v the projections of the three inputs.

    Edge cases: dropout is drawn from torch's generator, in the order of the layer itself. Where
    torch believes the hint ``is_causal`` (no weights needed, no padding) instead of looking at the
    mask, so does this.

    Args:
        layer: gives heads, dropout, mode and the order of dimensions.
        project: the linear maps; asked once for each role, in the order of ``ROLES``, always with
            the batch first.
        own: keys and values [B, 1, E] that the layer adds itself; see :func:`own_keys`.
        query, ..., is_causal: as for the layer; the sequences have a batch.

    Returns:
        The values, in the layer's order of dimensions, and the attention weights or None.

    Raises:
        DpvdError: ``is_causal`` without a mask.

    >>> layer, x = nn.MultiheadAttention(4, 2), torch.randn(3, 5, 4)
    >>> plain = lambda role, v: F.linear(v, matrices(layer)[role], biases(layer)[role])
    >>> torch.allclose(attention(layer, plain, (), x, x, x)[0], layer(x, x, x)[0], atol=1e-6)
    True
    """
    if is_causal and attn_mask is None:
        raise DpvdError("is_causal is a hint about attn_mask, which is missing: pass the mask too")
    if not layer.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    q = project("query", query)  # [B, L, E]
    k = project("key", key)  # [B, S, E]
    v = project("value", value)  # [B, S, E]
    if own:
        k = torch.cat([k, own[0]], 1)
        v = torch.cat([v, own[1]], 1)
    if layer.add_zero_attn:
        k = F.pad(k, (0, 0, 0, 1))
        v = F.pad(v, (0, 0, 0, 1))
    causal = is_causal and key_padding_mask is None and not need_weights
    mask = None if causal else _joint_mask(layer, attn_mask, key_padding_mask, k)
    attended, weights = _attend(layer, q, k, v, mask, causal=causal, need_weights=need_weights)
    result = project("out", attended)
    if weights is not None:
        # A tensor of its own in either case: what flows back into it must not include what flows
        # back from the values.
        weights = weights.mean(1) if average_attn_weights else weights.view_as(weights)
    if not layer.batch_first:
        result = result.transpose(0, 1)
    return result, weights


def matrices(layer: nn.MultiheadAttention) -> dict[str, Tensor]:
    """The weight of each role, [E, in]; parts of one parameter where torch keeps them in one."""
    if layer._qkv_same_embed_dim:
        into = layer.in_proj_weight.chunk(3)
    else:
        into = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = (*into, layer.out_proj.weight)
    return dict(zip(ROLES, weights, strict=True))


def biases(layer: nn.MultiheadAttention) -> dict[str, Tensor | None]:
    """The bias of each role, [E], or None."""
    if layer.in_proj_bias is None:
        return dict.fromkeys(ROLES)
    into = layer.in_proj_bias.chunk(3)
    out = layer.out_proj.bias
    shifts = (*into, out)
    return dict(zip(ROLES, shifts, strict=True))


def own_keys(layer: nn.MultiheadAttention, count: int) -> tuple[Tensor, ...]:
    """The key and the value that ``add_bias_kv`` adds to those of every example, each [B, 1, E]."""
    if layer.bias_k is None or layer.bias_v is None:
        return ()
    key = layer.bias_k.expand(count, -1, -1)
    value = layer.bias_v.expand(count, -1, -1)
    return key, value


def _attend(
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """What the heads make of query [B, L, E], key [B, S, E] and value [B, S, E].

    Returns:
        [B, L, E], and the weights [B, heads, L, S] if they are needed.
    """
    q = _by_head(layer, query)  # [B, heads, L, d]
    k = _by_head(layer, key)  # [B, heads, S, d]
    v = _by_head(layer, value)  # [B, heads, S, d]
    dropout = layer.dropout if layer.training else 0.0
    weights = None
    if need_weights:
        scaled = q * math.sqrt(1 / q.shape[-1])
        scores = scaled @ k.mT  # [B, heads, L, S]
        if mask is not None:
            scores = scores + mask
        weights = F.dropout(scores.softmax(-1), dropout)
        values = weights @ v
    else:
        values = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    joined = values.transpose(1, 2).flatten(2)
    return joined, weights


def _by_head(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """[B, heads, T, d] from [B, T, heads · d]."""
    count, steps, _ = x.shape
    apart = x.reshape(count, steps, layer.num_heads, layer.head_dim)
    return apart.transpose(1, 2)


def _joint_mask(
    layer: nn.MultiheadAttention,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    key: Tensor,
) -> Tensor | None:
    """What is added to the scores [B, heads, L, S], in a shape that broadcasts, or None."""
    parts = []
    if attn_mask is not None:
        batch_and_heads = (-1, layer.num_heads) if attn_mask.dim() == 3 else (1, 1)
        additive = _additive(attn_mask, key)
        parts.append(additive.view(*batch_and_heads, *attn_mask.shape[-2:]))
    if key_padding_mask is not None:
        additive = _additive(key_padding_mask, key)
        parts.append(additive[:, None, None])
    if not parts:
        return None
    # Keys added by the layer come last and are never masked.
    keys = key.shape[1]
    padded = [F.pad(part, (0, keys - part.shape[-1])) for part in parts]
    return sum(padded[1:], padded[0])


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of numbers as it is; of truth values (True: no attention) as -∞ and 0."""
    if mask.dtype is not torch.bool:
        return mask.to(like.dtype)
    zeros = torch.zeros_like(mask, dtype=like.dtype)
    return zeros.masked_fill(mask, -math.inf)
