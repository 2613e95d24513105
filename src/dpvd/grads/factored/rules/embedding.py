"""Rules of embeddings: a table's gradient has entries only in the rows an example looked up."""

from torch import Tensor, nn

from dpvd.grads.factored.rule import Call, Direct, Lookup, Rule, Terms, variance_share
from dpvd.nn import AdditiveEmbedding, Rates

__all__ = ["RULES"]


def embedding(layer: nn.Embedding, call: Call, grad: Tensor) -> Terms:
    """y_t = W[i_t]."""
    index = call.input()
    weight = _looked_up(layer, index, grad)
    return {"weight": [weight]}


def additive(layer: AdditiveEmbedding, call: Call, grad: Tensor) -> Terms:
    """y_t = W[i_t] + σ[i_t] ε_t: every output has a variance of its own, and d log σ² = u v."""
    index = call.input()  # [B, ...]
    masked = grad  # [B, ..., d]
    if layer.kept is not None:  # a pruned weight gets no gradient
        masked = grad * layer.kept[index]
    terms: Terms = {"weight": [_looked_up(layer, index, masked)]}
    if not call.draws or not layer.learned:
        return terms
    share = variance_share(call, grad)  # [B, ..., d]
    if layer.rates is Rates.LAYER:
        terms["log_sigma2"] = [Direct(share.flatten(1).sum(1))]
        return terms
    if layer.rates is Rates.NEURON:
        share = share.sum(-1, keepdim=True)
    terms["log_sigma2"] = [_looked_up(layer, index, share)]
    return terms


def _looked_up(layer: nn.Embedding, index: Tensor, values: Tensor) -> Lookup:
    """Gradients of the rows in index [B, ...], from values [B, ..., d]; padding has none."""
    if layer.padding_idx is not None:
        is_padding = (index == layer.padding_idx).unsqueeze(-1)
        values = values.masked_fill(is_padding, 0.0)
    count = len(index)
    width = values.shape[-1]
    flat_index = index.reshape(count, -1)  # [B, T]
    flat_values = values.reshape(count, -1, width)  # [B, T, d]
    return Lookup(flat_index, flat_values, layer.num_embeddings)


RULES: dict[type[nn.Module], Rule] = {nn.Embedding: embedding, AdditiveEmbedding: additive}
