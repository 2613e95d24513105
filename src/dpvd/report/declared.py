"""What people declared of a release: from the record, a file beside it, and the command line."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpvd.errors import DpvdError
from dpvd.report.facts import check_declared
from dpvd.runs import RunRecord

__all__ = ["DECLARED", "declared_for", "parse_declared"]

DECLARED = "declared.toml"
"""Name of the file in a run's folder."""


def declared_for(
    record: RunRecord, folder: Path | None = None, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return all declarations; the file goes before the record, and what is given before both.

    Args:
        record: the run's record.
        folder: of the run, which may hold ``declared.toml``.
        given: declarations of this call.

    Raises:
        DpvdError: if one has an unknown name or no words, or the file cannot be read.
    """
    found = dict(check_declared(getattr(record, "declared", None) or {}))
    if folder is not None:
        found |= _read(folder / DECLARED)
    return found | check_declared(given or {})


def parse_declared(entries: Sequence[str]) -> dict[str, str]:
    """Return declarations that were given as ``name=value``.

    Raises:
        DpvdError: if one is no such pair, is given twice, or has an unknown name or no words.

    >>> parse_declared(["owner=Ward 7", "purpose=triage"])
    {'owner': 'Ward 7', 'purpose': 'triage'}
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, separator, words = entry.partition("=")
        if not separator:
            raise DpvdError(f'a declaration is name=value, such as owner="Ward 7"; got {entry!r}')
        if name in found:
            raise DpvdError(f"{name} is declared twice: say all of it in one declaration")
        found[name] = words
    return check_declared(found)


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DpvdError(f"{path} cannot be read: {error}") from error
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DpvdError(
            f'{path} is no TOML ({error}): write one line for each declaration, owner = "Ward 7"'
        ) from error
    try:
        return check_declared(values)
    except DpvdError as error:
        raise DpvdError(f"{path}: {error}") from error
