"""Errors that name flags: ``--batch-size must ...`` for the library's ``batch_size must ...``."""

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from dpvd.errors import DpvdError

__all__ = ["FlagCommand", "name_flags"]

# Where the library's messages name a parameter: as the subject of the sentence, or as an option
# that an earlier run was started with. Anywhere else the word may be part of a path or be plain
# English ("epochs", "seed"), and stays as it is.
_PARAMETER = re.compile(
    r"^\w+(?= must | is the | can be )"  # the subject
    r"|(?<= was started with )\w+"
)


class FlagCommand(TyperCommand):
    """A command whose errors name its flags instead of the parameters behind them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DpvdError as error:
            options = [each for each in self.params if each.param_type_name == "option"]
            flags = {option.name: option.opts[0] for option in options}
            raise DpvdError(name_flags(str(error), flags)) from error


def name_flags(message: str, flags: Mapping[str, str]) -> str:
    """Return the message with the parameter it is about replaced by its flag.

    Edge cases: what is no parameter of the command stays as it is.

    >>> name_flags("batch_size must be at least 1, got 0", {"batch_size": "--batch-size"})
    '--batch-size must be at least 1, got 0'
    """

    def flag(found: re.Match[str]) -> str:
        name = found[0]
        return flags.get(name, name)

    return _PARAMETER.sub(flag, message)
