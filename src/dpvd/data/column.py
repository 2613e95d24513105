"""What a schema declares of one column, and of the target."""

from dataclasses import dataclass, fields
from datetime import date
from enum import StrEnum
from typing import Any

from dpvd.data.schema_checks import (
    changed_entries,
    check_date_bounds,
    check_edges,
    check_keys,
    check_name,
    check_number_bounds,
    check_option,
    check_texts,
    plain,
    store,
)
from dpvd.data.words import quoted
from dpvd.errors import DpvdError, phrase

__all__ = ["Column", "Kind", "Missing", "Source", "Target", "Unseen"]


class Kind(StrEnum):
    """What a column holds."""

    NUMERIC = "numeric"
    """Numbers between two bounds; what lies outside is moved to the nearer bound."""
    CATEGORICAL = "categorical"
    """One of the declared categories."""
    BOOLEAN = "boolean"
    """Yes or no: true/false, yes/no, 1/0, t/f, y/n in any case."""
    DATE = "date"
    """Days between two dates."""
    IGNORE = "ignore"
    """Not used."""


class Source(StrEnum):
    """Where the bounds, categories or classes of a column come from."""

    PUBLIC = "public"
    """Known to whoever knows the domain, without this data."""
    DATA = "data"
    """Read off this data without noise: the privacy guarantee does not cover them."""
    PRIVATE = "private"
    """To be estimated from the data under the privacy account."""


class Missing(StrEnum):
    """What happens to an empty cell."""

    REFUSE = "refuse"
    """An error with row and column."""
    INDICATOR = "indicator"
    """The value becomes the middle of the bounds, and a feature of its own says so."""
    CATEGORY = "category"
    """A category of its own."""


class Unseen(StrEnum):
    """What happens to a category that is not declared."""

    REFUSE = "refuse"
    """An error with row and column."""
    OTHER = "other"
    """One further category takes them all."""


_MISSING_RULES = {
    Kind.NUMERIC: (Missing.REFUSE, Missing.INDICATOR),
    Kind.DATE: (Missing.REFUSE, Missing.INDICATOR),
    Kind.BOOLEAN: (Missing.REFUSE, Missing.INDICATOR),
    Kind.CATEGORICAL: (Missing.REFUSE, Missing.CATEGORY),
}

# What each kind may say.
_ENTRIES = {
    Kind.NUMERIC: ("bounds", "edges", "missing", "missing_values", "source"),
    Kind.DATE: ("bounds", "date_format", "missing", "missing_values", "source"),
    Kind.BOOLEAN: ("missing", "missing_values", "source"),
    Kind.CATEGORICAL: ("categories", "unseen", "missing", "missing_values", "source"),
    Kind.IGNORE: (),
}

_FACTS = {
    Kind.NUMERIC: "bounds",
    Kind.DATE: "date range",
    Kind.BOOLEAN: "values",
    Kind.CATEGORICAL: "categories",
}

_EXAMPLES = {
    Kind.NUMERIC: "bounds = [0, 120]",
    Kind.DATE: "bounds = [2000-01-01, 2020-12-31]",
    Kind.CATEGORICAL: 'categories = ["a", "b"]',
}


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Args:
        name: as in the header.
        kind: what it holds.
        bounds: smallest and largest value, of a numeric or date column.
        categories: of a categorical column, in the order of their features.
        edges: of a numeric column, where bins begin and end between the bounds; optional.
        date_format: as for ``strptime``, such as ``"%d.%m.%Y"``; empty for 2020-12-31.
        missing: the rule for empty cells.
        missing_values: what else counts as empty in this column, such as ``"0"``.
        unseen: the rule for categories that are not declared.
        source: where bounds or categories come from; no default where there are any.

    Raises:
        DpvdError: naming the column, the entry, what was got and what is allowed.

    >>> Column("age", Kind.NUMERIC, bounds=(0, 120), source=Source.PUBLIC).fact
    'bounds of age'
    """

    name: str
    kind: Kind
    bounds: tuple[float, float] | tuple[date, date] | None = None
    categories: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    date_format: str = ""
    missing: Missing = Missing.REFUSE
    missing_values: tuple[str, ...] = ()
    unseen: Unseen = Unseen.REFUSE
    source: Source | None = None

    def __post_init__(self) -> None:
        name = check_name(self.name, "schema: a column")
        where = f"schema: column {quoted(name)}:"
        kind = check_option(self.kind, Kind, f"{where} kind")
        self._refuse_foreign_entries(kind, where)
        source = self.source
        if kind is Kind.BOOLEAN and source is None:
            source = Source.PUBLIC  # there is nothing to declare but that it is yes or no
        if kind is not Kind.IGNORE:
            source = check_option(source, Source, f"{where} source")
        if kind is Kind.NUMERIC and self.bounds is not None:
            store(self, bounds=check_number_bounds(self.bounds, f"{where} bounds"))
        if kind is Kind.DATE and self.bounds is not None:
            store(self, bounds=check_date_bounds(self.bounds, f"{where} bounds"))
        if not isinstance(self.date_format, str):
            raise DpvdError(f'{where} date_format must be a text such as "%d.%m.%Y"')
        store(
            self,
            name=name,
            kind=kind,
            source=source,
            missing=check_option(self.missing, Missing, f"{where} missing"),
            unseen=check_option(self.unseen, Unseen, f"{where} unseen"),
            categories=check_texts(self.categories, f"{where} categories"),
            missing_values=check_texts(self.missing_values, f"{where} missing_values"),
        )
        numbers: Any = self.bounds
        edges = check_edges(self.edges, numbers, f"{where} edges") if self.edges else ()
        store(self, edges=edges)
        self._refuse_missing_rule(where)
        if self.source is not Source.PRIVATE and not self.is_complete:
            raise DpvdError(
                f'{where} write {_EXAMPLES[kind]}, or source = "private" to have them estimated'
            )

    @property
    def is_complete(self) -> bool:
        """Whether the column can be encoded: private bounds have to be estimated first."""
        if self.kind in (Kind.NUMERIC, Kind.DATE):
            return self.bounds is not None
        return self.kind is not Kind.CATEGORICAL or bool(self.categories)

    @property
    def fact(self) -> str:
        """What a schema declares of the column, in words; empty if that is nothing."""
        return f"{_FACTS[self.kind]} of {self.name}" if self.kind in _FACTS else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the entries that differ from their defaults, fit for JSON; the name is the key."""
        return {key: plain(value) for key, value in changed_entries(self).items() if key != "name"}

    @classmethod
    def from_dict(cls, name: str, values: object) -> "Column":
        """Return the column that `to_dict` described, or a table of a TOML file."""
        where = f"schema: column {quoted(str(name))}"
        allowed = [entry.name for entry in fields(cls) if entry.name != "name"]
        entries: Any = check_keys(values, allowed, where)
        return cls(name, **{"kind": None, **entries})

    def _refuse_foreign_entries(self, kind: Kind, where: str) -> None:
        allowed = {"name", "kind", *_ENTRIES[kind]}
        foreign = [entry for entry in changed_entries(self) if entry not in allowed]
        if foreign:
            raise DpvdError(
                f"{where} {foreign[0]} does not belong to kind = {quoted(kind)}, which takes"
                f" {', '.join(_ENTRIES[kind]) or 'nothing else'}: remove it or change the kind"
            )

    def _refuse_missing_rule(self, where: str) -> None:
        allowed = _MISSING_RULES.get(self.kind, (Missing.REFUSE,))
        if self.missing not in allowed:
            words = " or ".join(f'"{rule}"' for rule in allowed)
            raise DpvdError(f'{where} missing must be {words}, got "{self.missing}"')
        both = [text for text in self.categories if text in self.missing_values]
        if both:
            raise DpvdError(f"{where} {quoted(both[0])} is a category and a missing value")


@dataclass(frozen=True)
class Target:
    """What is to be predicted: one of several classes, or a number between two bounds.

    Args:
        name: of its column.
        classes: their names, two or more, for classification.
        bounds: smallest and largest value, for regression.
        unit: what the number is measured in, such as ``"days"``; for regression, optional.
        source: where classes or bounds come from.

    >>> Target("diagnosis", classes=("benign", "malignant"), source=Source.PUBLIC).fact
    'classes of diagnosis'
    """

    name: str
    classes: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    unit: str = ""
    source: Source | None = None

    def __post_init__(self) -> None:
        where = "schema: target:"
        classes = check_texts(self.classes, f"{where} classes")
        store(
            self,
            name=check_name(self.name, f"{where} name"),
            classes=classes,
            source=check_option(self.source, Source, f"{where} source"),
        )
        if classes and self.bounds is not None:
            raise DpvdError(f"{where} give classes (classification) or bounds (regression)")
        if not classes and self.bounds is None:
            raise DpvdError(
                f'{where} needs classes = ["a", "b"] for classification, or bounds = [0, 100] for'
                " regression"
            )
        if len(classes) == 1:
            raise DpvdError(f"{where} classes must be two or more, got {list(classes)}")
        if self.bounds is not None:
            store(self, bounds=check_number_bounds(self.bounds, f"{where} bounds"))
        if self.unit:
            store(self, unit=phrase(self.unit, f"{where} unit"))
            if classes:
                raise DpvdError(f"{where} unit belongs to a number, not to classes: remove it")

    @property
    def is_classification(self) -> bool:
        """Whether there are classes; otherwise the target is a number."""
        return bool(self.classes)

    @property
    def fact(self) -> str:
        """What a schema declares of the target, in words."""
        return f"{'classes' if self.is_classification else 'bounds'} of {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the entries that differ from their defaults, fit for JSON."""
        return {key: plain(value) for key, value in changed_entries(self).items()}

    @classmethod
    def from_dict(cls, values: object) -> "Target":
        """Return the target that `to_dict` described, or the table of a TOML file."""
        allowed = [entry.name for entry in fields(cls)]
        entries: Any = check_keys(values, allowed, "schema: [target]")
        return cls(**{"name": None, **entries})
