"""Reads our docstrings as they are meant: examples as code, sections that fit on one line as such.

A griffe extension for the API pages. Markdown would take ``>>>`` for a threefold quotation and
``:func:`x``` for text.
"""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):(`[^`]+`)")
_INLINE_SECTION = re.compile(r"^(Guarantees|Edge cases|References): (?=\S)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object after it was read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """Return a docstring with its roles, one-line sections and examples in Markdown.

    >>> print(readable("See :func:`twice`.\\n\\n>>> twice(2)\\n4"))
    See `twice`.
    <BLANKLINE>
    ```pycon
    >>> twice(2)
    4
    ```
    """
    plain = _INLINE_SECTION.sub(r"**\1:** ", _ROLE.sub(r"\1", text))
    return "\n\n".join(_fenced(paragraph) for paragraph in plain.split("\n\n"))


def _fenced(paragraph: str) -> str:
    stripped = paragraph.strip("\n")
    if not stripped.lstrip().startswith(">>>"):
        return paragraph
    indent = stripped[: len(stripped) - len(stripped.lstrip())]
    return f"{indent}```pycon\n{stripped}\n{indent}```"
