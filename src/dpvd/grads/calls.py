"""What the factored engine knows of one call of a module."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

__all__ = ["Call", "CannotFactor", "Unit", "leaves"]


class CannotFactor(Exception):
    """The factored engine cannot treat this model; the message says why. Another engine takes
    over.
    """


@dataclass(frozen=True)
class Unit:
    """A module whose trainable parameters get their gradients from its inputs and output
    gradients.
    """

    name: str
    module: nn.Module
    rule: Any = None  # that of the module's type, if there is one

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The unit's trainable parameters by their name inside the unit, when they were first asked
        for.
        """
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


@dataclass
class Call:
    """One call of a unit in one forward pass."""

    unit: Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    draws: list[Tensor]  # the random numbers the unit drew, each with the batch first
    aux: list[
        Tensor | None
    ]  # what the layer told of each draw: the standard deviation it was multiplied by
    edges: list[Any] = field(
        default_factory=list
    )  # where the gradient of each output arrives in the graph
    memory: Any = None  # what the rule's own forward pass keeps for its terms
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = self._versions()

    def input(self) -> Tensor:
        """The single tensor the unit was called with."""
        if len(self.args) != 1 or self.kwargs or not isinstance(self.args[0], Tensor):
            raise CannotFactor(f"{self.unit.name!r} was called with more than one input")
        return self.args[0]

    def check_unchanged(self) -> None:
        """Raise if an input was overwritten in place after the call: its gradient cannot be formed
        any more.
        """
        if self.versions != self._versions():
            raise CannotFactor(
                f"an input of {self.unit.name!r} was changed in place after the call"
            )

    def check_batch(
        self, grads: tuple[Tensor | None, ...], batch_dims: tuple[int, ...], count: int
    ) -> None:
        """Raise if an output does not have ``count`` examples where they should be."""
        for grad, dim in zip(grads, batch_dims, strict=True):
            if grad is not None and (grad.dim() <= dim or grad.shape[dim] != count):
                where = (
                    "the batch as its first dimension"
                    if dim == 0
                    else f"the batch as dimension {dim}"
                )
                raise CannotFactor(f"the output of {self.unit.name!r} does not have {where}")

    def _versions(self) -> list[int]:
        if (
            len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], Tensor)
        ):  # as most are called
            return [self.args[0]._version]
        return [
            value._version
            for value in leaves((*self.args, *self.kwargs.values()))
            if isinstance(value, Tensor)
        ]


def leaves(value: Any) -> list[Any]:
    """What a nest of tuples and lists holds, in order.

    >>> leaves((1, (2, [None])))
    [1, 2, None]
    """
    return (
        [leaf for part in value for leaf in leaves(part)]
        if isinstance(value, tuple | list)
        else [value]
    )
