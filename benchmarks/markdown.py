"""Tables of the pages that are written from measurements."""

from collections.abc import Iterable, Sequence

__all__ = ["table"]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, without a line break at its end.

    >>> print(table(("what", "ms"), [("plain", 1.2)]))
    | what | ms |
    |---|---|
    | plain | 1.2 |
    """
    first, *others = ("| " + " | ".join(map(str, row)) + " |" for row in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])
