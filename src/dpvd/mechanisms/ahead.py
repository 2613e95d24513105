"""Work that is done in the background, one item ahead."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["ahead"]

_Item = TypeVar("_Item")


def ahead(items: Generator[_Item, None, None]) -> Generator[_Item, None, None]:
    """The same items, each made in a background thread while the one before it is used.

    Guarantees: at most one item more is made than is taken. What the making of an item raises is
    raised where it would have been taken. The thread ends with the generator.

    >>> list(ahead(n * n for n in range(4)))
    [0, 1, 4, 9]
    """
    end: Any = object()
    with ThreadPoolExecutor(
        1, thread_name_prefix="dpvd-ahead"
    ) as pool:  # waits for an item that is being made
        try:
            pending = pool.submit(next, items, end)
            while (item := pending.result()) is not end:
                pending = pool.submit(next, items, end)
                yield item
        finally:
            pool.submit(items.close)
