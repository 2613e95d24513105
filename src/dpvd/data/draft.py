"""A first draft of a schema, read off the data: for somebody who knows the domain to go through.

What a draft says was seen in the data without noise, so everything in it has source "data".
"""

import re
from dataclasses import dataclass

from dpvd.data.column import Column, Kind, Missing, Source, Target
from dpvd.data.profile import Profile, profile_table
from dpvd.data.schema import Schema
from dpvd.data.schema_file import schema_text
from dpvd.data.source import TableSource, require_columns
from dpvd.data.words import quoted
from dpvd.errors import DpvdError

__all__ = ["Draft", "draft_schema", "repeated_identifiers"]

_MOST_CATEGORIES = 100
_FEW_INTEGERS = 10  # a column with so few different whole numbers holds codes rather than amounts
_MOST_CLASSES = 20
_ROWS_PER_UNIT = 5
_ID_NAME = re.compile(
    r"(^|[_\s-])(id|ids|pid|uid|uuid|guid|ssn|mrn|key|nr|no|number)$|^id[_\s-]", re.IGNORECASE
)
_CAMEL_ID = re.compile(r"[a-z]I[Dd]$")

_HEADER = """Draft of a schema, by dpvd schema.

Each line below a comment "read off the data" was taken from the rows without noise, and so was the
kind of every column. These lines are not private, and the privacy statement will say so, until
somebody who knows the domain has gone through them, has put in what is known without this data, and
has changed source to "public".
source = "private" has bounds and categories estimated from the data within the privacy budget."""

_READ = "read off the data"
_WRITE_POINTS = "write them with a point"


@dataclass(frozen=True)
class Draft:
    """A schema that was read off the data, as an object and as text with comments.

    Args:
        schema: what the text says.
        text: TOML, ready to be written.
        warnings: sentences on what needs a decision.
    """

    schema: Schema
    text: str
    warnings: tuple[str, ...]


def draft_schema(source: TableSource, target: str, *, id: str | None = None) -> Draft:
    """Return a draft of the schema of a table, in one pass over it.

    Args:
        source: the table.
        target: name of the column to predict.
        id: name of the column that says to whom a row belongs, if there is one.

    Raises:
        DpvdError: if a column is not there, there are no rows, or the target has no two values.
    """
    if id == target:
        raise DpvdError(f"{quoted(target)} cannot be the target and the id at once")
    require_columns(source, [target] if id is None else [target, id])
    profiles = profile_table(source, source.columns)
    rows = profiles[target].rows
    if rows == 0:
        raise DpvdError(f"{source.name} has a header and no rows")
    notes: dict[str, str] = {}
    warnings: list[str] = []
    drafted_target = _target(profiles[target], source.name, notes)
    columns = []
    for name in source.columns:
        if name not in (target, id):
            columns.append(_column(profiles[name], id, notes, warnings))
    tokens = sorted({token for profile in profiles.values() for token in profile.tokens})
    if tokens:
        notes["missing_values"] = f"{_READ}: these seem to mean that there is no value"
    if id is not None:
        notes["rows_per_unit"] = "a proposal: no more rows than this of one unit take part"
    if all(column.kind is Kind.IGNORE for column in columns):
        raise DpvdError(f"{source.name} has no column to predict {quoted(target)} from")
    schema = Schema(
        tuple(columns),
        drafted_target,
        id=id,
        rows_per_unit=None if id is None else _ROWS_PER_UNIT,
        missing_values=tuple(tokens),
    )
    return Draft(schema, schema_text(schema, header=_HEADER, notes=notes), tuple(warnings))


def repeated_identifiers(source: TableSource, schema: Schema) -> tuple[str, ...]:
    """Return the columns that look like identifiers of which some stand in several rows.

    A schema without an id makes the guarantee one for a row; such a column makes that doubtful.
    Looked at are columns that are no features, and features with a name such as patient_id.
    """
    features = {column.name for column in schema.used}
    suspects = [
        name
        for name in source.columns
        if name != schema.target.name and (name not in features or _has_identifier_name(name))
    ]
    if not suspects:
        return ()
    profiles = profile_table(source, suspects)
    return tuple(
        name
        for name, profile in profiles.items()
        if not profile.is_unreadable
        and not profile.all_different
        and _looks_like_identifier(profile)
    )


def _target(profile: Profile, table: str, notes: dict[str, str]) -> Target:
    where = f"{table}, column {quoted(profile.name)}:"
    if profile.missing:
        raise DpvdError(
            f"{where} the target is missing in {profile.missing} of {profile.rows} rows, first in"
            f" row {profile.first_missing}: remove these rows"
        )
    distinct = profile.distinct
    if distinct is not None and len(distinct) == 1:
        raise DpvdError(
            f"{where} the target is {quoted(distinct[0])} in all rows: nothing to learn"
        )
    is_few = distinct is not None and len(distinct) <= _MOST_CLASSES
    if is_few and (not profile.is_numeric or profile.is_whole):
        assert distinct is not None
        notes["target.classes"] = f"{_READ}; for regression write bounds = [lower, upper] instead"
        return Target(profile.name, classes=tuple(distinct), source=Source.DATA)
    if profile.is_numeric:
        notes["target.bounds"] = f'{_READ}, rounded outward; add unit = "..." for the page'
        return Target(profile.name, bounds=profile.nice_bounds(), source=Source.DATA)
    if distinct is not None and len(distinct) <= _MOST_CATEGORIES:
        notes["target.classes"] = _READ
        return Target(profile.name, classes=tuple(distinct), source=Source.DATA)
    if profile.has_decimal_commas:
        raise DpvdError(f"{where} the target has numbers with a decimal comma: {_WRITE_POINTS}")
    raise DpvdError(
        f"{where} the target has more than {_MOST_CATEGORIES} different texts: name a column with"
        " classes or numbers"
    )


def _column(profile: Profile, id: str | None, notes: dict[str, str], warnings: list[str]) -> Column:
    """Return the draft of one column, and write down why it is so."""
    name = profile.name
    prefix = f"columns.{name}."
    if profile.missing == profile.rows or profile.is_unreadable:
        reason = "lists or other nested values" if profile.is_unreadable else "no row has a value"
        notes[prefix + "kind"] = f"{_READ}: {reason}"
        return Column(name, Kind.IGNORE)
    if _looks_like_identifier(profile):
        return _identifier(profile, id, notes, warnings)
    share = f"{profile.missing} of {profile.rows} rows have no value"
    has_gaps = profile.missing > 0
    if has_gaps:
        notes[prefix + "missing"] = f"{_READ}: {share}"
    indicator = Missing.INDICATOR if has_gaps else Missing.REFUSE
    if profile.is_boolean:
        notes[prefix + "kind"] = _READ
        return Column(name, Kind.BOOLEAN, missing=indicator, source=Source.DATA)
    distinct = profile.distinct
    is_code = profile.is_whole and distinct is not None and len(distinct) <= _FEW_INTEGERS
    if profile.is_numeric and not is_code:
        notes[prefix + "bounds"] = f"{_READ}, rounded outward"
        bounds = profile.nice_bounds()
        return Column(name, Kind.NUMERIC, bounds=bounds, missing=indicator, source=Source.DATA)
    if profile.date_format is not None:
        notes[prefix + "bounds"] = f"{_READ}, rounded outward to whole years"
        return Column(
            name,
            Kind.DATE,
            bounds=profile.year_bounds(),
            date_format=profile.date_format,
            missing=indicator,
            source=Source.DATA,
        )
    if distinct is None or len(distinct) > _MOST_CATEGORIES:
        notes.pop(prefix + "missing", None)
        notes[prefix + "kind"] = f"{_READ}: more than {_MOST_CATEGORIES} different texts"
        remedy = _WRITE_POINTS if profile.has_decimal_commas else "clean it, or declare it"
        warnings.append(f"{_odd_words(profile)}, and is ignored in the draft: {remedy}")
        return Column(name, Kind.IGNORE)
    if profile.first_text_row is not None and len(distinct) > _FEW_INTEGERS:
        warnings.append(f"{_odd_words(profile)}: if it should be numeric, correct these cells")
    notes[prefix + "categories"] = _READ
    return Column(
        name,
        Kind.CATEGORICAL,
        categories=tuple(distinct),
        missing=Missing.CATEGORY if has_gaps else Missing.REFUSE,
        source=Source.DATA,
    )


def _identifier(
    profile: Profile, id: str | None, notes: dict[str, str], warnings: list[str]
) -> Column:
    notes[f"columns.{profile.name}.kind"] = f"{_READ}: it looks like an identifier"
    if id is None and not profile.all_different:
        warnings.append(
            f"column {quoted(profile.name)} looks like an identifier with repeats: if one person"
            f" has several rows, draft again with --id {profile.name}; otherwise the guarantee is"
            " for one row, not for a person"
        )
    return Column(profile.name, Kind.IGNORE)


def _looks_like_identifier(profile: Profile) -> bool:
    """A name such as patient_id, texts of which no two are alike, or numbers that count rows."""
    if profile.date_format is not None or profile.is_boolean:
        return False
    has_name = _has_identifier_name(profile.name)
    has_many = profile.distinct is None or len(profile.distinct) > _FEW_INTEGERS
    is_long = profile.rows > _MOST_CATEGORIES
    if not profile.is_numeric:
        is_name = profile.all_different and is_long and not profile.has_decimal_commas
        return (has_name and has_many) or is_name
    return profile.is_whole and ((has_name and has_many) or (profile.counts_rows and is_long))


def _has_identifier_name(name: str) -> bool:
    return bool(_ID_NAME.search(name) or _CAMEL_ID.search(name))


def _odd_words(profile: Profile) -> str:
    column = f"column {quoted(profile.name)}"
    if profile.has_decimal_commas:
        return f"{column} has numbers with a decimal comma"
    if profile.first_text_row is None:
        return f"{column} has more than {_MOST_CATEGORIES} different texts"
    place = f"{quoted(profile.first_text)} in row {profile.first_text_row}"
    return f"{column} has numbers and texts ({place})"
