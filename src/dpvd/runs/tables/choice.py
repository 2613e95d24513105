"""Which table a run is about, and the schema it is read by."""

from dataclasses import dataclass, replace
from pathlib import Path

from dpvd.data import (
    Kind,
    Schema,
    Source,
    TableSource,
    Target,
    array_test,
    draft_schema,
    open_table,
    read_schema,
)
from dpvd.errors import DpvdError, in_unit_interval, positive_int

__all__ = ["KINDS_DRAFTED", "TableChoice", "chosen_schema", "to_estimate", "words_not_covered"]

KINDS_DRAFTED = "the kinds of the columns and how missing values are written, read off the data"


@dataclass(frozen=True)
class TableChoice:
    """A table to train on, as a user names it.

    Args:
        table: CSV, Parquet, Arrow or Feather file, or rows of numbers in an .npz or .npy file.
        target: column to predict; that of the schema if None.
        schema: TOML file; None has one drafted, for private bounds only.
        id: column that says to whom a row belongs; that of the schema if None.
        rows_per_unit: how many rows of one unit take part at most; that of the schema if None.
        test: table to test on.
        test_fraction: share of the units that is kept for the test, if there is no such table.
        delimiter: of CSV files; recognised if None.
        encoding: of CSV files.

    Raises:
        DpvdError: if the choices contradict each other.
    """

    table: Path
    target: str | None = None
    schema: Path | None = None
    id: str | None = None
    rows_per_unit: int | None = None
    test: Path | None = None
    test_fraction: float | None = None
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.test is not None and self.test_fraction is not None:
            raise DpvdError("give --test or --test-fraction, not both")
        if self.test is not None and self.test.resolve() == self.table.resolve():
            raise DpvdError(
                f"--test is the table to train on, {self.table}: its results are exact, and would"
                " tell of rows that the guarantee protects; give rows of other people, or"
                " --test-fraction"
            )
        if self.test_fraction is not None:
            in_unit_interval(test_fraction=self.test_fraction)
        if self.rows_per_unit is not None:
            positive_int(rows_per_unit=self.rows_per_unit)

    def files(self) -> dict[str, Path]:
        """The files that are read, by what they are."""
        named = {"table": self.table, "schema": self.schema, "test": self.test}
        return {what: path for what, path in named.items() if path is not None}

    def open(self) -> TableSource:
        """The table to train on."""
        return open_table(self.table, delimiter=self.delimiter, encoding=self.encoding)

    def open_test(self) -> TableSource | None:
        """The table to test on, if one is named, or the arrays of the table hold one.

        Raises:
            DpvdError: if there would be two of them.
        """
        within = array_test(self.table)
        if within is not None:
            if self.test is not None or self.test_fraction is not None:
                raise DpvdError(f"{self.table} holds x_test: leave out --test and --test-fraction")
            return within
        if self.test is None:
            return None
        return open_table(self.test, delimiter=self.delimiter, encoding=self.encoding)


def chosen_schema(choice: TableChoice, source: TableSource, *, private_bounds: bool) -> Schema:
    """The schema of the file, or a draft whose bounds and categories are to be estimated.

    Raises:
        DpvdError: if there is none, or the choices do not fit it.
    """
    if choice.schema is not None:
        return _with_unit(choice, read_schema(choice.schema))
    target = choice.target or ("y" if "y" in source.columns else "COLUMN")
    if choice.target is None and choice.table.suffix.lower() == ".npy":
        raise DpvdError(
            f"{choice.table} holds {len(source.columns)} columns and no y: save x and y into one"
            f" file with np.savez, or name the column to predict, as in --target"
            f" {source.columns[-1]}"
        )
    if not private_bounds:
        raise DpvdError(
            f"a table needs a schema: dpvd schema {choice.table} --target {target} --out"
            " schema.toml drafts one; go through it and give --schema schema.toml"
        )
    if choice.target is None:
        raise DpvdError("name the column to predict with --target")
    drafted = draft_schema(source, choice.target, id=choice.id).schema
    return _with_unit(choice, _emptied(drafted))


def _emptied(schema: Schema) -> Schema:
    """A draft without what it says of the values, which is to be estimated privately."""
    columns = []
    for column in schema.columns:
        if column.kind in (Kind.NUMERIC, Kind.DATE):
            column = replace(column, bounds=None, source=Source.PRIVATE)
        elif column.kind is Kind.CATEGORICAL:
            column = replace(column, categories=(), source=Source.PRIVATE)
        columns.append(column)
    target = schema.target
    if not target.is_classification:
        target = replace(target, source=Source.PRIVATE)
    return replace(schema, columns=tuple(columns), target=target)


def _with_unit(choice: TableChoice, schema: Schema) -> Schema:
    if choice.target is not None and choice.target != schema.target.name:
        raise DpvdError(
            f"the schema is for the target {schema.target.name!r}, not for {choice.target!r}:"
            " leave out --target, or draft another schema"
        )
    name = choice.id or schema.id
    rows = choice.rows_per_unit or schema.rows_per_unit
    if name is None:
        if rows is not None:
            raise DpvdError("--rows-per-unit needs --id, the column that says whose row it is")
        return schema
    if rows is None:
        raise DpvdError(
            f"--id {name} needs --rows-per-unit: how many rows of one unit may take part at most"
        )
    return schema.by_unit(name, rows, schema.unit)


def to_estimate(schema: Schema, *, drafted: bool) -> list[str]:
    """The names of columns, the target perhaps among them, that have to be estimated."""
    names = [column.name for column in schema.to_estimate()]
    if drafted and schema.target.source is Source.PRIVATE:
        names.append(schema.target.name)
    return names


def words_not_covered(schema: Schema, estimated: list[str], *, drafted: bool) -> tuple[str, ...]:
    """What the guarantee leaves open of the schema, in words for the statement."""
    words = list(schema.not_covered())
    declared: list[tuple[str, Source | None, str]] = [
        (column.name, column.source, column.fact) for column in schema.used
    ]
    target: Target = schema.target
    declared.append((target.name, target.source, target.fact))
    for name, source, fact in declared:
        if source is Source.PRIVATE and name not in estimated:
            words.append(f"{fact}, which the schema says were estimated privately before")
    if drafted:
        words.append(KINDS_DRAFTED)
    return tuple(words)
