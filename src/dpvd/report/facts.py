"""What a run's record says on each point that a privacy statement has to cover, in words.

A pure function of the record and of what its owner declared. What nobody declared is printed as
"not declared"; nothing is filled in.
"""

from collections.abc import Mapping
from typing import Any

from dpvd.errors import DpvdError, is_finite_number, phrase
from dpvd.privacy import round_up
from dpvd.report.wording import capitalised, percent, plain
from dpvd.runs import DRAWN, RunRecord

__all__ = [
    "DECLARATIONS",
    "NOT_DECLARED",
    "check_declared",
    "columns_read_off",
    "is_measured",
    "releases_of",
    "statement_facts",
    "table_of",
]

NOT_DECLARED = "not declared"

DECLARATIONS = {
    "name": "name of the product that the model is part of",
    "owner": "who holds the data and answers for the release",
    "owner_type": "what the owner is: government, company, hospital, ...",
    "purpose": "what the model is to be used for",
    "description": "what the model does",
    "region": "where its data come from",
    "sector": "health, finance, technology, ...",
    "publication_date": "when it is released, as YYYY-MM-DD",
    "authors": "who wrote the statement",
    "approval": "who approved the release",
    "data_domain": "which data sets could have been used instead of this one",
    "data_collection": "how the data were collected, and with what consent",
    "rows_per_unit": "at most how many rows one unit has",
    "earlier_runs": "what else was released from the same data, and at what cost",
    "access_control": "who can reach the data, the run's folder and the model",
    "bias": "for whom the model is worse, and how that was looked at",
    "justification": "why these parameters were chosen",
}
"""What only people can say about a release, by name."""

_SETTING = (
    "Central: the data are in one place, and whoever trains sees them. Trusted are the holder of"
    " the data, the machine that trained and the program. Nobody who receives the model is trusted."
)
_RELEASED = (
    "The final model. The account covers every noisy step as well, so checkpoints and whatever is"
    " computed from them may be released too. Results on test data are exact and not covered."
)
_RELEASED_OPENLY = "The final model, which no noise protects. Results on test data are exact."
_POST_PROCESSING = (
    "Everything computed from the noisy steps: averages of weights, predictions, pruning, export."
    " It costs nothing, however often it is done."
)
_NOTHING_PROTECTED = "Nothing is protected, in the model or in what is computed from it."
_NO_NOISE = "No noise was added."
_FLOATING_POINT = (
    "Clipped sums and their noise are rounded to one grid and added exactly, so that the last bits"
    " of a result tell nothing about what was added."
)
_TIMING = "Not protected: do not show the times of single steps to those you protect against."

_RELATIONS = {
    "add-or-remove": "one {} added or removed (unbounded)",
    "replace-one": "one {} replaced by any other, their number fixed (bounded)",
}
_ACCOUNTANTS = {
    "pld": "numerical composition of privacy loss distributions",
    "rdp": "Renyi differential privacy, converted at the best order",
    "zcdp": "truncated concentrated differential privacy",
    "advanced": "the advanced composition theorem",
}


def check_declared(declared: Mapping[str, str]) -> dict[str, str]:
    """Return what was declared, as words.

    Raises:
        DpvdError: if a name is unknown or a value is no words.

    >>> check_declared({"owner": " Ward 7 "})
    {'owner': 'Ward 7'}
    """
    unknown = sorted(set(declared) - set(DECLARATIONS))
    if unknown:
        raise DpvdError(
            f"there is no declaration {unknown[0]!r}; allowed are {', '.join(DECLARATIONS)}"
        )
    return {name: phrase(value, name) for name, value in declared.items()}


def statement_facts(
    record: RunRecord, declared: Mapping[str, str], *, with_test: bool = False
) -> dict[str, str]:
    """Return what the record and the declarations say, by point.

    Guarantees: every declaration of ``DECLARATIONS`` is among the points, as "not declared" where
    it was not made. No result on test data is among them unless it is asked for.

    Args:
        record: a run's record.
        declared: what people said of the release.
        with_test: whether results on test data, which are exact, may be told.

    Raises:
        DpvdError: if a declaration has an unknown name or no words.
    """
    said = dict.fromkeys(DECLARATIONS, NOT_DECLARED) | check_declared(declared)
    guarantee = record.guarantee
    plan = record.plan
    unit = str(guarantee.get("unit") or plan.get("unit") or "example")
    return said | {
        "setting": _SETTING,
        "covered": _covered(record, guarantee),
        "released": _RELEASED if record.is_private else _RELEASED_OPENLY,
        "unit": _unit(unit, table_of(record).get("id")),
        "rows_per_unit": _rows_per_unit(record, said["rows_per_unit"]),
        "adjacency": _adjacency(str(guarantee.get("relation") or plan.get("relation")), unit),
        "accounting": _accounting(record, guarantee),
        "assumptions": _assumptions(guarantee, plan),
        "met": _met(guarantee),
        "formal": str(record.guarantee["sentence"]),
        "tuning": _tuning(guarantee),
        "preprocessing": _preprocessing(record),
        "public": _public(guarantee),
        "composition": _composition(guarantee, said["earlier_runs"]),
        "post_processing": _POST_PROCESSING if record.is_private else _NOTHING_PROTECTED,
        "floating_point": _FLOATING_POINT if _has_noise(record) else _NO_NOISE,
        "timing": _TIMING,
        "randomness": _randomness(guarantee, plan) if _has_noise(record) else _NO_NOISE,
        "mechanism": _mechanism(record),
        "utility": _utility(record, with_test),
        "code": _code(record),
    }


def _covered(record: RunRecord, guarantee: Mapping[str, Any]) -> str:
    if not record.is_private:
        return "Nothing: the run is not differentially private."
    steps = guarantee.get("steps")
    training = "Training" if steps is None else f"Training, {plain(steps)} noisy steps in all"
    names = [str(entry.get("name")) for entry in releases_of(record)]
    parts = f" ({', '.join(names)})" if names else ""
    outside = guarantee.get("not_covered") or ()
    rest = f" Not covered: {'; '.join(map(str, outside))}." if outside else ""
    return f"{training}{parts}. Preprocessing and tuning only as far as said below.{rest}"


def releases_of(record: RunRecord) -> list[Mapping[str, Any]]:
    """Return the parts that the budget was split into; none where all went into the steps."""
    return list(getattr(record, "releases", None) or ())


def table_of(record: RunRecord) -> Mapping[str, Any]:
    """Return what the record says of the table that was learnt; nothing for other data."""
    return getattr(record, "table", None) or {}


def columns_read_off(record: RunRecord) -> list[str]:
    """Return the columns, and the target, whose description was read off the data without noise."""
    table = table_of(record)
    schema = table.get("schema") or (table.get("encoder") or {}).get("schema") or {}
    columns = schema.get("columns") or {}
    found = [
        str(name)
        for name, column in columns.items()
        if isinstance(column, Mapping) and column.get("source") == "data"
    ]
    target = schema.get("target") or {}
    if isinstance(target, Mapping) and target.get("source") == "data":
        found.append(str(target.get("name", "the target")))
    return found


def _read_off(record: RunRecord) -> list[str]:
    columns = columns_read_off(record)
    if not columns:
        return []
    return [f"bounds and categories that were read off the data: {', '.join(columns)}"]


def _preprocessing(record: RunRecord) -> str:
    words = str(record.dataset.get("preprocessing") or NOT_DECLARED)
    read_off = "; ".join(_read_off(record))
    return f"{words}; {read_off}" if read_off else words


def _rows_per_unit(record: RunRecord, declared: str) -> str:
    """What the program held to comes before what people say."""
    rows = table_of(record).get("rows_per_unit")
    if not is_finite_number(rows):
        return declared
    if rows == 1:
        return "One, as accounted."
    return f"At most {plain(rows)}, chosen at random; sampled and clipped together, as accounted."


def _unit(unit: str, column: object) -> str:
    """What the guarantee is for; a column with identifiers does not say whose they are."""
    if unit == "example":
        return f"One example; what one example stands for: {NOT_DECLARED}."
    if unit == "row":
        return f"One row of the table; whose row it is: {NOT_DECLARED}."
    if unit == f"value of {column}":
        return f"One {unit}; what one value stands for: {NOT_DECLARED}."
    return f"One {unit}, as declared."


def _adjacency(relation: str, unit: str) -> str:
    words = _RELATIONS.get(relation)
    return NOT_DECLARED if words is None else capitalised(words.format(unit)) + "."


def _accounting(record: RunRecord, guarantee: Mapping[str, Any]) -> str:
    method = _ACCOUNTANTS.get(str(guarantee.get("accountant")))
    if not record.is_private:
        return "No finite ε holds."
    numbers = f"ε = {round_up(guarantee['epsilon'])} at δ = {guarantee['delta']:g}"
    return f"{numbers}, by {method or 'an accountant that the record does not name'}."


def _assumptions(guarantee: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    sampling = guarantee.get("sampling") or plan.get("sampling")
    if sampling is None:
        return NOT_DECLARED
    return (
        f"Batches are drawn as accounted ({sampling}); no example reaches another's gradient; each"
        " gradient is clipped; noise is fresh in every step and nobody can repeat it."
    )


def _met(guarantee: Mapping[str, Any]) -> str:
    seen = guarantee.get("seen")
    if seen is None:
        return "Not known: nobody saw the plan carried out."
    if not seen:
        return "The program saw none of it."
    return f"Seen by the program: {'; '.join(map(str, seen))}."


def _tuning(guarantee: Mapping[str, Any]) -> str:
    tuned = guarantee.get("tuned")
    if tuned is None:
        return f"What was tuned on the data: {NOT_DECLARED}."
    if not tuned:
        return "Nothing was tuned on the data, as declared."
    return f"Tuned on the data and not in the account: {'; '.join(map(str, tuned))}."


def _public(guarantee: Mapping[str, Any]) -> str:
    public = "; ".join(map(str, guarantee.get("public") or ()))
    undeclared = "; ".join(map(str, guarantee.get("undeclared") or ()))
    parts = [
        f"Taken as public: {public}." if public else f"Public facts: {NOT_DECLARED}.",
        f"What is {NOT_DECLARED}: {undeclared}." if undeclared else "",
    ]
    return " ".join(part for part in parts if part)


def _composition(guarantee: Mapping[str, Any], earlier: str) -> str:
    parts = ["All steps of this run are added up, whatever was seen between them."]
    which = "Earlier releases from the same data"
    for drawn in _drawn(guarantee):
        parts.append(f"The run is {drawn}. What else draws from it is counted there.")
        which = "Releases from the same data outside of that account"
    if earlier == NOT_DECLARED:
        parts.append(f"{which}: {NOT_DECLARED}, and not counted.")
    else:
        parts.append(f"{which}, not counted here: {earlier}.")
    return " ".join(parts)


def _drawn(guarantee: Mapping[str, Any]) -> list[str]:
    """What the statement says of the account that the run drew from; nothing if it did not."""
    return [str(words) for words in guarantee.get("seen") or () if str(words).startswith(DRAWN)]


def _randomness(guarantee: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    source = guarantee.get("noise_source") or plan.get("noise")
    return NOT_DECLARED if source is None else f"Noise and sampling come from {source}."


def _has_noise(record: RunRecord) -> bool:
    noise = record.guarantee.get("noise_multiplier", record.plan.get("noise_multiplier"))
    return is_finite_number(noise) and noise != 0


def _mechanism(record: RunRecord) -> str:
    plan = record.plan
    noise = record.guarantee.get("noise_multiplier", plan.get("noise_multiplier"))
    if not _has_noise(record):
        return _NO_NOISE
    if releases_of(record):
        parts = [_release(entry) for entry in releases_of(record)]
        return f"Gaussian mechanism on bounded sums over the data: {'; '.join(parts)}."
    clipping = plan.get("clipping") or {}
    norm = clipping.get("clip_norm")
    bound = f" to norm {plain(norm)}" if is_finite_number(norm) else ""
    if clipping.get("mode") == "adaptive":
        return (
            "Gaussian mechanism on sums of gradients and on the number of gradients within the clip"
            f" norm, which starts at {plain(norm)} and follows a quantile of their norms"
            f" ({plain(clipping.get('quantile'))}); both are one release, with standard deviation"
            f" {noise:.6g} times the sensitivity."
        )
    return (
        f"Gaussian mechanism on sums of gradients, clipped{bound}"
        f" ({clipping.get('mode', 'mode not recorded')}); standard deviation {noise:.6g} times the"
        " sensitivity."
    )


def _release(entry: Mapping[str, Any]) -> str:
    noise = entry.get("noise_multiplier")
    words = f"standard deviation {noise:.6g} times" if is_finite_number(noise) else "in units of"
    return f"{entry.get('name')}, {words} the sensitivity"


_MEASURES = {"auc": "AUC", "rmse": "root mean squared error", "mae": "mean absolute error"}


def is_measured(record: RunRecord) -> bool:
    """Whether the record holds a result on test data."""
    return any(is_finite_number(record.test.get(name)) for name in ("accuracy", *_MEASURES))


def _utility(record: RunRecord, told: bool) -> str:
    test = record.test
    known = [name for name in ("accuracy", *_MEASURES) if is_finite_number(test.get(name))]
    if not known:
        return "Not measured."
    if not told:
        return (
            "Measured on test data. The results are exact, no noise protects the test data, and"
            " they are not told here."
        )
    parts = [f"{_MEASURES[name]} {test[name]:.4g}" for name in known if name in _MEASURES]
    if "accuracy" in known:
        low, high = test.get("interval") or (None, None)
        accuracy = f"accuracy {percent(test['accuracy'])}"
        parts.insert(0, f"{accuracy} (95 % interval {percent(low)} to {percent(high)})")
    return f"On test data: {', '.join(parts)}; computed exactly."


def _code(record: RunRecord) -> str:
    environment = record.environment
    versions = [f"dpvd {record.version}"]
    versions += [
        f"{name} {environment[name]}" for name in ("python", "torch") if name in environment
    ]
    commit = environment.get("commit")
    return f"{', '.join(versions)}; commit {commit if commit else 'not recorded'}."
