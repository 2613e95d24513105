"""What is said of a model or a loss whose examples do not keep to themselves."""

from dpvd.errors import DpvdError
from dpvd.grads.state import Watch

__all__ = ["MEMORY", "MIXING", "SIZE", "NotIsolated", "keeps_data", "refuse_change"]


class NotIsolated(DpvdError):
    """Examples reach each other, or something of them leaves without noise."""


MIXING = (
    "the loss of an example changes when the other examples of its batch are replaced: "
    "something in the model or the loss mixes examples, so that clipping cannot bound what one "
    "of them contributes. Remove the mixing (statistics, attention, ranking, softmax or "
    "permutations over the batch dimension), or take isolation='vmap', which forms each "
    "example's gradient alone and stores it"
)
SIZE = (
    "the loss of an example depends on how many examples are in its batch, so that one more "
    "changes the gradients of all. Leave the division out: a step divides by the plan's batch "
    "size, which is public. Or take isolation='vmap', which forms each example's gradient alone "
    "and stores it"
)
MEMORY = (
    "the loss of an example changes with the batches that came before: the model or the loss "
    "keeps something of them, in an attribute or a variable, and clipping bounds nothing that "
    "comes that way. Keep nothing of the data between batches"
)


def refuse_change(names: list[str], settled: frozenset[str], watch: Watch) -> None:
    """Raise if something changed in a forward pass that was not seen to change whatever the
    data.
    """
    for name in names:
        if watch.is_parameter(name):
            raise NotIsolated(
                f"parameter {name!r} is changed by the forward pass itself: that leaves with the"
                " model without noise. Change it between steps, from what is private already"
            )
        if name not in settled:
            raise keeps_data(name)


def keeps_data(name: str) -> NotIsolated:
    return NotIsolated(
        f"buffer {name!r} keeps something of the data, statistics or examples, which leaves with"
        " the model without noise. Put the module that writes it in eval mode with values from"
        " public data, or remove it"
    )
