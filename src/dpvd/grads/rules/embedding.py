"""Rules of embeddings: the gradient of a table has entries only in the rows that an example looked
up.
"""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from dpvd.grads.rules.common import Rule, Terms, variance_share
from dpvd.grads.terms import Direct, Lookup
from dpvd.nn import AdditiveEmbedding, Rates

if TYPE_CHECKING:
    from dpvd.grads.units import Call

__all__ = ["RULES"]


def embedding(layer: nn.Embedding, call: "Call", grad: Tensor) -> Terms:
    """y_t = W[i_t]."""
    return {"weight": [_looked_up(layer, call.input(), grad)]}


def additive(layer: AdditiveEmbedding, call: "Call", grad: Tensor) -> Terms:
    """y_t = W[i_t] + σ[i_t] ε_t: every output has a variance of its own, and d log σ² = u v."""
    index = call.input()
    kept = (
        grad if layer.kept is None else grad * layer.kept[index]
    )  # a pruned weight gets no gradient
    terms: Terms = {"weight": [_looked_up(layer, index, kept)]}
    if call.draws and layer.learned:
        share = variance_share(call, grad)
        if layer.rates is Rates.LAYER:
            terms["log_sigma2"] = [Direct(share.flatten(1).sum(1))]
        else:
            per_row = share.sum(-1, keepdim=True) if layer.rates is Rates.NEURON else share
            terms["log_sigma2"] = [_looked_up(layer, index, per_row)]
    return terms


def _looked_up(layer: nn.Embedding, index: Tensor, values: Tensor) -> Lookup:
    """Values [B, ..., d] as gradients of the rows that the index [B, ...] names; the padding row
    gets none.
    """
    if layer.padding_idx is not None:
        values = values.masked_fill((index == layer.padding_idx).unsqueeze(-1), 0.0)
    count, width = len(index), values.shape[-1]
    return Lookup(index.reshape(count, -1), values.reshape(count, -1, width), layer.num_embeddings)


RULES: dict[type[nn.Module], Rule] = {nn.Embedding: embedding, AdditiveEmbedding: additive}
