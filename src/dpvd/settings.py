"""What a setting means and which values it takes, said once for library and command line.

A dataclass of settings annotates each field with a ``Setting``. From that follow the checks at
construction, the flag of the command line, its help, and what the setting replaces.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from dpvd.errors import in_unit_interval

__all__ = ["DELTA", "RELATION", "SAMPLING", "Group", "Part", "Setting", "check", "settings_of"]


class Group(StrEnum):
    """The headings under which help shows settings. What is read and what is written are two."""

    PRIVACY = "Privacy"
    TRAINING = "Training"
    NETWORK = "Network"
    DATA = "Data"
    OUTPUT = "Output"


class Part(StrEnum):
    """What a setting of the same name belongs to."""

    PLAN = "plan"
    """A field of ``PrivacyPlan``."""
    RECIPE = "recipe"
    """A field of ``Recipe``."""


@dataclass(frozen=True)
class Setting:
    """One setting, for the annotation of a dataclass field.

    Args:
        help: one or two sentences; what happens if it is not given.
        group: its heading in the help.
        check: raises ``DpvdError`` for values out of range; called with the value under the field's
            name. None is not checked.
        part: where a value that is given replaces the default of the same name.
    """

    help: str
    group: Group
    check: Callable[..., None] | None = None
    part: Part | None = None


def settings_of(owner: type) -> dict[str, Setting]:
    """The settings of a dataclass by the names of its fields, in their order."""
    hints = get_type_hints(owner, include_extras=True)
    found = {}
    for field in fields(owner):
        hint = hints[field.name]
        assert get_origin(hint) is Annotated, f"{field.name} is not annotated with a Setting"
        setting = get_args(hint)[1]
        assert isinstance(setting, Setting), f"{field.name} is not annotated with a Setting"
        found[field.name] = setting
    return found


def check(options: Any) -> None:
    """Raise ``DpvdError`` unless every value that is given passes the check of its setting."""
    settings = settings_of(type(options))
    for name, setting in settings.items():
        value = getattr(options, name)
        if value is None or setting.check is None:
            continue
        setting.check(**{name: value})


# Those that runs and budgets share.

DELTA = Setting(
    "δ of the guarantee; should be well below 1/N.",
    Group.PRIVACY,
    in_unit_interval,
)
RELATION = Setting(
    "Which data sets are neighbours: one example added or removed, or one replaced.",
    Group.PRIVACY,
    part=Part.PLAN,
)
SAMPLING = Setting(
    "How batches are drawn: each example by itself, or a fixed number of them.",
    Group.PRIVACY,
    part=Part.PLAN,
)
