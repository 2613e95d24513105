"""Containers inside containers, taken apart and put together again.

Batches come as tensors, tuples, dictionaries of a collate function, dataclasses, or any of them
inside another.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["leaves_of", "mapped"]


def leaves_of(
    tree: Any, path: str = "", is_leaf: Callable[[Any], bool] = lambda _: False
) -> Iterator[tuple[str, Any]]:
    """Yield everything that is no container, in order, with the way to it as one would write it.

    Containers are mappings, tuples, lists, named tuples and instances of dataclasses, unless
    ``is_leaf`` says that they are not to be opened.

    >>> list(leaves_of({"x": (1, 2), "flag": True}))
    [("['x'][0]", 1), ("['x'][1]", 2), ("['flag']", True)]
    """
    children = None if is_leaf(tree) else _children(tree)
    if children is None:
        yield path, tree
        return
    for label, child in children:
        yield from leaves_of(child, path + label, is_leaf)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers with the function's results in the place of the leaves.

    Edge cases: subclasses of tuple other than named tuples become tuples. The attributes that a
    mapping or a dataclass has beside its entries are those of the original.

    >>> mapped(lambda leaf: 2 * leaf, {"x": (1, 2)})
    {'x': (2, 4)}
    """
    children = _children(tree)
    if children is None:
        return function(tree)
    return _like(tree, [mapped(function, child) for _, child in children])


def _children(tree: Any) -> list[tuple[str, Any]] | None:
    """The entries of a container and how they are reached; None if it is no container."""
    if isinstance(tree, Mapping):  # also those of transformers, which are dataclasses besides
        return [(f"[{key!r}]", value) for key, value in tree.items()]
    if _is_named_tuple(tree):
        return [(f".{name}", value) for name, value in zip(tree._fields, tree, strict=True)]
    if isinstance(tree, tuple | list):
        return [(f"[{position}]", value) for position, value in enumerate(tree)]
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(f".{field.name}", getattr(tree, field.name)) for field in fields(tree)]
    return None


def _like(tree: Any, entries: list[Any]) -> Any:
    """A container of the same kind with these entries."""
    if isinstance(tree, Mapping):
        return _mapping_like(tree, entries)
    if _is_named_tuple(tree):
        return tree._make(entries)
    if isinstance(tree, tuple):
        return tuple(entries)
    if isinstance(tree, list):
        return entries
    clone = copy.copy(tree)
    for field, entry in zip(fields(tree), entries, strict=True):
        object.__setattr__(clone, field.name, entry)  # frozen ones, too
    return clone


def _mapping_like(tree: Mapping[Any, Any], entries: list[Any]) -> Any:
    values = dict(zip(tree, entries, strict=True))
    if type(tree) is dict:
        return values
    if not isinstance(tree, MutableMapping):
        return type(tree)(values)  # type: ignore[call-arg]
    clone = copy.copy(tree)
    for key, value in values.items():
        clone[key] = value
    return clone


def _is_named_tuple(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")
