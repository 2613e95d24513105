"""A schema as a TOML file: read strictly, written the same way every time."""

import json
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from dpvd.data.schema import Schema
from dpvd.errors import DpvdError

__all__ = ["read_schema", "schema_text"]

_LARGEST = 16 * 2**20  # bytes; ten thousand columns are far below
_LINE = 96  # characters, before a list is broken over several lines


def read_schema(path: str | Path) -> Schema:
    """Return the schema in a TOML file.

    Raises:
        DpvdError: if there is no such file, it is no TOML (with the line), or an entry is wrong.
    """
    path = Path(path)
    try:
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise DpvdError(f"{path} is larger than 16 MB, which no schema is: name another file")
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DpvdError(f"the schema {path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, numbers without end
        raise DpvdError(f"the schema {path} is no TOML: {error}") from error
    try:
        return Schema.from_dict(values)
    except DpvdError as error:
        raise DpvdError(f"{path}: {error}") from error


def schema_text(schema: Schema, *, header: str = "", notes: Mapping[str, str] | None = None) -> str:
    """Return the schema as TOML.

    Guarantees:
        `read_schema` gives back an equal schema, and equal schemas have equal texts.

    Args:
        schema: what to write.
        header: lines to put first, as comments.
        notes: by ``"columns.age.bounds"``, ``"target.classes"`` or ``"rows_per_unit"``: a comment
            to put above that entry.
    """
    comments = dict(notes or {})
    entries = schema.to_dict()
    columns = entries.pop("columns")
    target = entries.pop("target")
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    if header:
        lines.append("")
    lines += _entries(entries, "", comments)
    lines += ["", "[target]", *_entries(target, "target.", comments)]
    for name, column in columns.items():
        dates = schema.column(name).bounds if column["kind"] == "date" else None
        shown = column if dates is None else {**column, "bounds": list(dates)}
        lines += ["", f"[columns.{_key(name)}]", *_entries(shown, f"columns.{name}.", comments)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _entries(values: Mapping[str, Any], prefix: str, comments: Mapping[str, str]) -> list[str]:
    lines = []
    for key, value in values.items():
        if prefix + key in comments:
            lines += [f"# {line}" for line in comments[prefix + key].splitlines()]
        lines.append(f"{key} = {_value(value)}")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, list):
        parts = [_value(entry) for entry in value]
        line = f"[{', '.join(parts)}]"
        if len(line) <= _LINE:
            return line
        return "[\n" + "".join(f"    {part},\n" for part in parts) + "]"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) else _text(value)


def _key(name: str) -> str:
    """A bare key where TOML allows one."""
    bare = name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
    return name if bare else _text(name)


def _text(value: str) -> str:
    """JSON's texts are TOML's, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
