"""Rules of embeddings: the gradient of a table has entries only in the rows that an example looked up."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.grads.factors import Lookup
from dpvd.grads.rules.common import Rule, Terms

if TYPE_CHECKING:
    from dpvd.grads.units import Call

__all__ = ["RULES"]


def embedding(layer: nn.Embedding, call: "Call", grad: Tensor) -> Terms:
    """y_t = W[i_t]."""
    if layer.sparse:
        raise DpvdError(
            f"nn.Embedding at {call.unit.name!r} asks for sparse gradients, which noise would make dense. "
            "Set sparse=False"
        )
    return {"weight": [looked_up(layer, call.input(), grad)]}


def looked_up(layer: nn.Embedding, index: Tensor, values: Tensor) -> Lookup:
    """Values [B, ..., d] as gradients of the rows that the index [B, ...] names; the padding row gets none."""
    if layer.padding_idx is not None:
        values = values.masked_fill((index == layer.padding_idx).unsqueeze(-1), 0.0)
    count, width = len(index), values.shape[-1]
    return Lookup(index.reshape(count, -1), values.reshape(count, -1, width), layer.num_embeddings)


RULES: dict[type[nn.Module], Rule] = {nn.Embedding: embedding}
