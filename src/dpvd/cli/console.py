"""What the terminal shows. Results go to stdout, progress and warnings to stderr."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

__all__ = ["fail", "out", "print_json", "print_line", "print_text", "say", "warn"]

out = Console(soft_wrap=True)
say = Console(stderr=True, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on stdout, nothing else."""
    print(json.dumps(value, allow_nan=False))


def print_text(text: str, style: str = "") -> None:
    """Sentences on stdout: broken between words in a terminal, left whole in a pipe or file."""
    out.print(Text(text, style), soft_wrap=not out.is_terminal)


def print_line(text: str, style: str = "") -> None:
    """One line on stdout as it is, however long: a path stays whole."""
    out.print(Text(text, style))


def warn(message: str) -> None:
    say.print(Text.assemble(("warning: ", "yellow"), message))


def fail(message: str) -> None:
    """One line that says what is wrong."""
    line = " ".join(message.splitlines())
    say.print(Text.assemble(("error: ", "red"), line))
