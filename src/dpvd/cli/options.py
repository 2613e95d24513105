"""Flags: those that commands share, and those that are made from a dataclass of settings."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

import typer

from dpvd.cli.console import warn
from dpvd.errors import Choice, DpvdError, OptionalChoice
from dpvd.privacy import AccountantName, Relation, SamplingKind
from dpvd.settings import DELTA, RELATION, SAMPLING, Group, Setting, settings_of

__all__ = [
    "AsJson",
    "DataDir",
    "Delta",
    "RelationChoice",
    "SamplingChoice",
    "takes_options",
    "warn_of_large_delta",
]

_Options = TypeVar("_Options", covariant=True)


def flag(setting: Setting, *names: str, **typer_settings: Any) -> Any:
    """The flag of a setting, as typer takes it."""
    return typer.Option(*names, help=setting.help, rich_help_panel=setting.group, **typer_settings)


Delta = Annotated[float, flag(DELTA, show_default=False)]
RelationChoice = Annotated[Relation, flag(RELATION)]
SamplingChoice = Annotated[SamplingKind, flag(SAMPLING)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with MNIST's files. Default: $DPVD_DATA_DIR, then the download cache.",
        rich_help_panel=Group.DATA,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON on stdout, and nothing else there.",
        rich_help_panel=Group.OUTPUT,
    ),
]


class Given(Protocol[_Options]):
    """A dataclass of settings that is made from what a command line gives."""

    def from_given(self, given: Mapping[str, Any], /) -> _Options: ...


def takes_options(
    owner: Given[Any], *, several: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag for each setting of a dataclass, in place of its ``options``.

    Args:
        owner: the dataclass, whose fields are annotated with a ``Setting`` each.
        several: settings of which the command takes several values, separated by commas.

    Returns:
        A decorator for functions with a parameter ``options``, which gets the dataclass; or, for a
        command that takes several values, with ``given``: what was given, by name, and a tuple
        where there are several values.
    """
    flags = _flags(owner, several)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name in ("options", "given"):
                parameters += flags
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(command)
        def run(**values: Any) -> None:
            given = {each.name: values.pop(each.name) for each in flags}
            if several:
                command(given=given, **values)
            else:
                command(options=owner.from_given(given), **values)

        # What typer reads flags from.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _flags(owner: Any, several: Collection[str]) -> list[inspect.Parameter]:
    hints = get_type_hints(owner)
    settings = settings_of(owner)
    flags = []
    for field in fields(owner):
        value_type = _value_type(hints[field.name])
        is_required = field.default is MISSING
        if field.name in several:
            option = _flag_for_several(value_type, settings[field.name])
        else:
            option = _flag_for(field.name, value_type, settings[field.name], is_required)
        flags.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if is_required else field.default,
                annotation=Annotated[value_type, option],
            )
        )
    return flags


def _flag_for(name: str, value_type: Any, setting: Setting, is_required: bool) -> Any:
    if value_type is AccountantName:
        return flag(setting, parser=_parse_accountant)
    if value_type is bool:
        return flag(setting, f"--{name.replace('_', '-')}")  # without its opposite, --no-...
    if is_required:
        return flag(setting, show_default=False)
    return flag(setting)


def _flag_for_several(value_type: Any, setting: Setting) -> Any:
    """A flag whose values are separated by commas; a single one stays what it is."""
    kind = next((each for each in get_args(value_type) if each is not NoneType), value_type)
    is_choice = isinstance(kind, type) and issubclass(kind, StrEnum)
    metavar = f"<{'|'.join(kind)}>,..." if is_choice else f"<{kind.__name__}>,..."

    def parse(text: str) -> Any:
        # typer also passes the default through here
        parts = [part.strip() for part in str(text).split(",")]
        try:
            values = tuple(kind(part) for part in parts)
        except ValueError:
            allowed = f"one of {', '.join(kind)}" if is_choice else "a number"
            raise typer.BadParameter(
                f"{text!r} is not {allowed}, or several separated by commas."
            ) from None
        return values if len(values) > 1 else values[0]

    return flag(setting, parser=parse, metavar=metavar)


def _value_type(hint: Any) -> Any:
    """What a field is read as: ``Choice[Method]`` gives a ``Method``."""
    if get_origin(hint) is Choice:
        return get_args(hint)[0]
    if get_origin(hint) is OptionalChoice:
        return get_args(hint)[0] | None
    return hint


def _parse_accountant(name: str) -> AccountantName:
    """For typer: 'moments' is another name of rdp."""
    try:
        return AccountantName.parse(name)
    except DpvdError as error:
        raise typer.BadParameter(str(error)) from None


def warn_of_large_delta(delta: float, examples: int) -> None:
    """Warn of a δ of 1/N or more, which is legal and protects next to nothing."""
    if delta >= 1 / examples:
        warn(
            f"--delta {delta:g} is not below 1/N = {1 / examples:.3g}: "
            "at this δ, publishing entire examples would be allowed"
        )
