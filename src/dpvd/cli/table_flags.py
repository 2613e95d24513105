"""Flags of commands that read tables."""

from typing import Annotated

import typer

from dpvd.settings import Group

__all__ = ["DelimiterFlag", "EncodingFlag", "delimiter_mark"]

_DELIMITER_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "bar": "|"}

DelimiterFlag = Annotated[
    str | None,
    typer.Option(
        help="What stands between cells: , ; | or tab. Default: recognised from the file.",
        rich_help_panel=Group.DATA,
    ),
]
EncodingFlag = Annotated[
    str | None,
    typer.Option(
        help="Of the text, such as latin-1. Default: utf-8, or utf-16 by its mark.",
        rich_help_panel=Group.DATA,
    ),
]


def delimiter_mark(given: str | None) -> str | None:
    """The character that a word stands for.

    >>> delimiter_mark("tab"), delimiter_mark(";")
    ('\\t', ';')
    """
    return None if given is None else _DELIMITER_WORDS.get(given, given)
