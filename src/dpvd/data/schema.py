"""The schema of a table: what is known of its columns before anybody looks at the rows.

Bounds and categories that were read off private data tell something about it, and no noise hides
that. So a schema says of each column where its facts come from, and a statement can repeat it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dpvd.data.column import Column, Kind, Source, Target
from dpvd.data.schema_checks import (
    changed_entries,
    check_keys,
    check_name,
    check_texts,
    plain,
    store,
)
from dpvd.data.words import quoted
from dpvd.errors import DpvdError, phrase, positive_int

__all__ = ["Schema"]


@dataclass(frozen=True)
class Schema:
    """All that is declared of a table.

    Args:
        columns: in the order of their features.
        target: what is to be predicted.
        id: column that says to whom a row belongs; None if a row stands for itself.
        rows_per_unit: how many rows of one unit take part at most; needed with ``id`` only.
        unit: what one value of ``id``, or one row, is, in a word such as ``"patient"``; optional.
        missing_values: what counts as empty in all columns, beside cells with nothing in them.

    Raises:
        DpvdError: naming the column, what was got and what is allowed.
    """

    columns: tuple[Column, ...]
    target: Target
    id: str | None = None
    rows_per_unit: int | None = None
    unit: str = ""
    missing_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tokens = check_texts(self.missing_values, "schema: missing_values")
        store(self, columns=tuple(self.columns), missing_values=tokens)
        self._check_names()
        self._check_unit()
        if not self.used:
            raise DpvdError('schema: no column is used: all have kind = "ignore"')
        declared = [(self.target.name, self.target.classes)]
        declared += [(column.name, column.categories) for column in self.columns]
        for name, texts in declared:
            both = [text for text in texts if text in tokens]
            if both:
                raise DpvdError(
                    f"schema: column {quoted(name)}: {quoted(both[0])} is declared and also one of"
                    " missing_values: remove it from one of the two"
                )

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that become features."""
        return tuple(column for column in self.columns if column.kind is not Kind.IGNORE)

    @property
    def unit_words(self) -> str:
        """What the guarantee is for, in the singular."""
        if self.unit:
            return self.unit
        return "row" if self.id is None else f"value of {self.id}"

    def column(self, name: str) -> Column:
        """Return the column with this name."""
        found = [column for column in self.columns if column.name == name]
        if not found:
            raise DpvdError(f"schema: there is no column {quoted(name)}")
        return found[0]

    def with_column(self, changed: Column) -> "Schema":
        """Return the schema with the column of the same name replaced."""
        self.column(changed.name)
        swapped = (changed if changed.name == old.name else old for old in self.columns)
        return replace(self, columns=tuple(swapped))

    def by_unit(self, id: str, rows_per_unit: int, unit: str = "") -> "Schema":
        """Return the schema with a guarantee for each value of a column, which is no feature."""
        others = tuple(column for column in self.columns if column.name != id)
        return replace(self, columns=others, id=id, rows_per_unit=rows_per_unit, unit=unit)

    def missing_tokens(self, column: Column) -> tuple[str, ...]:
        """Return the texts that count as empty in a column."""
        return ("", *self.missing_values, *column.missing_values)

    def not_covered(self) -> tuple[str, ...]:
        """Return what was read off the data without noise, in words for a statement."""
        return self._facts(Source.DATA)

    def public_facts(self) -> tuple[str, ...]:
        """Return what was declared to be public, in words for a statement."""
        return self._facts(Source.PUBLIC)

    def to_estimate(self) -> tuple[Column, ...]:
        """Return the columns whose bounds or categories must be estimated under the account."""
        return tuple(column for column in self.used if not column.is_complete)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema fit for JSON; `from_dict` is the way back."""
        entries = {key: plain(value) for key, value in changed_entries(self).items()}
        entries["target"] = self.target.to_dict()
        entries["columns"] = {column.name: column.to_dict() for column in self.columns}
        return entries

    @classmethod
    def from_dict(cls, values: object) -> "Schema":
        """Return the schema that `to_dict` described, or a whole TOML file."""
        allowed = [entry.name for entry in fields(cls)]
        entries: Any = dict(check_keys(values, allowed, "schema"))
        for needed in ("target", "columns"):
            if needed not in entries:
                raise DpvdError(f"schema: there is no [{needed}] table: add one")
        if not isinstance(entries["columns"], Mapping):
            raise DpvdError("schema: columns must be tables such as [columns.age]")
        entries["target"] = Target.from_dict(entries["target"])
        columns = entries["columns"].items()
        entries["columns"] = tuple(Column.from_dict(name, column) for name, column in columns)
        return cls(**entries)

    def _facts(self, source: Source) -> tuple[str, ...]:
        facts = [column.fact for column in self.used if column.source is source]
        if self.target.source is source:
            facts.append(self.target.fact)
        return tuple(facts)

    def _check_names(self) -> None:
        names = [column.name for column in self.columns]
        twice = [name for position, name in enumerate(names) if name in names[:position]]
        if twice:
            raise DpvdError(f"schema: column {quoted(twice[0])} is declared twice")
        for name, role in ((self.target.name, "the target"), (self.id, "the id")):
            if name in names:
                raise DpvdError(
                    f"schema: column {quoted(str(name))} is {role} and cannot be a feature too:"
                    f" remove [columns.{name}]"
                )
        if self.id == self.target.name:
            raise DpvdError(f"schema: {quoted(self.target.name)} cannot be target and id at once")

    def _check_unit(self) -> None:
        if self.unit:
            store(self, unit=phrase(self.unit, "schema: unit"))
        if self.id is None:
            if self.rows_per_unit is not None:
                raise DpvdError(
                    'schema: rows_per_unit needs an id column: add id = "..." or remove it'
                )
            return
        store(self, id=check_name(self.id, "schema: id"))
        if self.rows_per_unit is None:
            raise DpvdError(
                f"schema: id = {quoted(self.id)} needs rows_per_unit: say how many rows of one"
                " unit may take part at most, such as rows_per_unit = 5"
            )
        positive_int(**{"schema: rows_per_unit": self.rows_per_unit})
