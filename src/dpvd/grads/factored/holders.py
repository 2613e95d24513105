"""Where a model holds its parameters, and how other values stand in for them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["Holder", "holders_of", "substituted"]

Holder = tuple[dict[str, Any], str, str]
"""A module's parameters, the name of one among them, and its name in the model."""


def holders_of(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[Holder]:
    """Where each parameter is held: once for each module, however many names lead to it.

    torch.func's functional_call goes by names. Where two lead to one module it takes its own
    stand-in for what was there before, and leaves that behind: the parameter is an ordinary tensor
    from then on and learns nothing.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found = []
    for part in module.modules():
        for local, parameter in part._parameters.items():
            if id(parameter) in names:
                found.append((part._parameters, local, names[id(parameter)]))
    return found


@contextmanager
def substituted(holders: list[Holder], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the model compute with these values instead of its parameters."""
    own = [held[local] for held, local, _ in holders]
    for held, local, name in holders:
        held[local] = values[name]
    try:
        yield
    finally:
        for (held, local, _), parameter in zip(holders, own, strict=True):
            held[local] = parameter
