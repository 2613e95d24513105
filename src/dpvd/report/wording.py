"""Numbers and words of a report: how values are printed, and what the guarantee means."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dpvd.errors import is_finite_number
from dpvd.privacy import round_up
from dpvd.runs import RunRecord

__all__ = [
    "capitalised",
    "guess_limit",
    "label",
    "method_words",
    "noise_warning",
    "one_in",
    "percent",
    "plain",
    "promises",
    "uncovered",
]

_METHODS = {
    "dpvd": "private variational dropout (Algorithm 1)",
    "svi": "private stochastic variational inference",
    "dpsgd": "private stochastic gradient descent",
    "none": "ordinary training, without privacy",
    "own": "trained by a program of one's own",
}
"""Methods in words, by their names in a record."""

_TABLE_METHODS = {
    "statistics": "linear model of a table, from noisy statistics",
    "steps": "linear model of a table, by private steps on noisy statistics",
}


def method_words(record: RunRecord) -> str:
    """How a run trained, in words; what is not known by name is printed as it is."""
    if getattr(record, "table", None) and record.is_private:
        return _TABLE_METHODS.get(str(record.recipe.get("method")), "private model of a table")
    return _METHODS.get(record.method, record.method)


def percent(share: object, decimals: int = 1) -> str:
    r"""Print a share between 0 and 1 as a percentage, and what is no number as it is.

    >>> percent(0.889), percent(None)
    ('88.9\xa0%', 'not recorded')
    """
    if not is_finite_number(share):
        return plain(share)
    return f"{100 * share:.{decimals}f}\N{NO-BREAK SPACE}%"


def plain(value: object) -> str:
    """Print any value of a record for a table cell: numbers short, lists and mappings in one line.

    >>> plain(75010), plain(0.1 + 0.2), plain({"mode": "flat", "clip_norm": 1.0}), plain([])
    ('75,010', '0.3', 'mode flat, clip norm 1', 'none')
    """
    match value:
        case None:
            return "not recorded"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case Mapping():
            return ", ".join(f"{label(key)} {plain(item)}" for key, item in value.items()) or "none"
        case list() | tuple():
            return ", ".join(plain(item) for item in value) or "none"
        case _:
            return str(value)


def label(key: object) -> str:
    """Turn a field's name into words: ``learning_rate`` is shown as "learning rate"."""
    return str(key).replace("_", " ")


def capitalised(words: str) -> str:
    """Return words with a capital letter first; names among them stay as they are.

    >>> capitalised("bounds of BMI")
    'Bounds of BMI'
    """
    return words[:1].upper() + words[1:]


def one_in(probability: float) -> str:
    r"""Print a small probability as a chance that is never below it.

    >>> one_in(1e-05), one_in(3e-6), one_in(0.0)
    ('1\xa0in\xa0100,000', '1\xa0in\xa0333,333', '0')
    """
    if probability == 0:
        return "0"
    return f"1 in {int(1 / Decimal(repr(probability))):,}".replace(" ", "\N{NO-BREAK SPACE}")


def noise_warning(record: RunRecord) -> str:
    """What a reader must know about noise that is not from the system's generator, or nothing.

    Edge cases: a source that is missing or unknown is warned about; without a guarantee there is
    nothing to weaken.
    """
    noise = record.plan.get("noise")
    if noise == "system" or not record.is_private:
        return ""
    if noise is None:
        return "The record does not say where the noise came from."
    return "Reproducible: not private against whoever knows the seed."


def guess_limit(epsilon: float, delta: float) -> float:
    """Best possible rate of right guesses on whether one example was used, at even odds beforehand.

    The definition of (ε, δ)-differential privacy, applied to the answers "used" and "not used",
    says of a test's true and false positive rates that TPR ≤ e^ε FPR + δ and 1 - FPR ≤ e^ε (1 -
    TPR) + δ. At even odds a guess is right with probability (TPR + 1 - FPR) / 2, which the two
    together hold to (e^ε + δ) / (1 + e^ε).

    Edge cases: a very large ε gives 1 and does not overflow; ε = δ = 0 gives one half.

    >>> round(guess_limit(1.0, 1e-5), 4), guess_limit(0.0, 0.0), guess_limit(1e6, 0.1)
    (0.7311, 0.5, 1.0)

    References: Kairouz, Oh and Viswanath, arXiv 1311.0776v4, section 2 (privacy as hypothesis
    testing).
    """
    inverse = math.exp(-epsilon)
    return (1.0 + delta * inverse) / (1.0 + inverse)


def promises(record: RunRecord) -> list[tuple[str, str]]:
    """What a private run promises, in (heading, explanation) pairs for everybody.

    Edge cases: for a run that is not private there is nothing to promise and the list is empty.
    """
    if not record.is_private:
        return []
    guarantee = record.guarantee
    epsilon = float(guarantee["epsilon"])
    delta = float(guarantee["delta"])
    unit = str(guarantee.get("unit") or record.plan.get("unit") or "example")
    relation = str(guarantee.get("relation") or record.plan.get("relation") or "")
    is_repeatable = noise_warning(record) != ""
    return [
        ("Who is protected", _unit_words(unit, _rows_together(record))),
        ("Against what", _relation_words(relation, unit)),
        (f"What ε = {round_up(epsilon)} means", _epsilon_words(epsilon, delta, unit)),
        (f"What δ = {delta:g} means", _delta_words(delta, unit, _public_size(record))),
        ("Who the adversary may be", _adversary_words(is_repeatable)),
    ]


_OPEN_POINTS = {
    "Outside the account": "not_covered",
    "Not declared": "undeclared",
}


def uncovered(record: RunRecord, *, with_test: bool = True) -> list[tuple[str, str]]:
    """What the guarantee does not cover, in (heading, explanation) pairs: on every private page.

    Args:
        record: the run's record.
        with_test: whether the page shows results on test data.
    """
    guarantee = record.guarantee
    public = guarantee.get("public") or ()
    facts = f"Treated as public, and not protected: {plain(list(public))}. " if public else ""
    open_points = []
    for heading, name in _OPEN_POINTS.items():
        if guarantee.get(name):
            words = plain(list(guarantee[name]))
            open_points.append((heading, f"{capitalised(words)}."))
    return [
        ("The test data", _test_words(record, with_test)),
        ("Choices made by looking at the data", _tuning_words(guarantee)),
        *open_points,
        (
            "Public facts",
            (
                f"{facts}The kind of model, the settings on this page and the size of the data are"
                " not secret."
            ),
        ),
        (
            "What is true of everybody",
            (
                "The model is meant to learn about people in general. It may say much about a"
                " person whose data was never used, merely because that person resembles others."
            ),
        ),
        (
            "Other releases",
            (
                "Every further model, table or answer made from the same data spends more: at worst"
                " the ε values add up. The data itself, its copies and its logs need their own"
                " protection."
            ),
        ),
    ]


def _test_words(record: RunRecord, shown: bool) -> str:
    if not any(is_finite_number(value) for value in record.test.values()):
        return "The model was not tested by this program. Results on other data are not covered."
    if not shown:
        return (
            "Results on test data are exact: no noise protects the test examples. This page shows"
            " none."
        )
    return (
        "Results on this page are computed from the test examples, which no noise protects. If the"
        " test data is sensitive, do not pass them on."
    )


def _tuning_words(guarantee: Mapping[str, Any]) -> str:
    tuned = guarantee.get("tuned")
    if tuned:
        return f"Tuned on the data, and not counted: {plain(list(tuned))}."
    start = "Nobody declared" if tuned is None else "The record names nothing"
    end = "what was" if tuned is None else "that was"
    return (
        f"{start} {end} tuned on the training data. Settings tried out on it before this run, by"
        " hand or by search, are not counted: each try spends privacy of its own."
    )


def _rows_together(record: RunRecord) -> int | None:
    """How many rows of one unit are accounted for together, where a table says so."""
    rows = (getattr(record, "table", None) or {}).get("rows_per_unit")
    return rows if isinstance(rows, int) else None


def _unit_words(unit: str, rows: int | None) -> str:
    if rows is not None:
        return (
            f"One {unit} with all their rows in the table, of which at most {rows:,} take part. ε"
            " is for all of them together. Rows of one person under several identifiers are not"
            " recognised."
        )
    return (
        f"One {unit} of the training data. A person who contributed several has a larger ε: k times"
        " as large for k of them (and δ grows as well)."
    )


def _relation_words(relation: str, unit: str) -> str:
    words = {
        "add-or-remove": (
            f"Telling whether one {unit} was added to or removed from the training data."
        ),
        "replace-one": (
            f"Telling whether one {unit} of the training data was replaced by any other."
        ),
    }
    unknown = relation or "The record does not name the relation between data sets."
    return words.get(relation, unknown)


def _epsilon_words(epsilon: float, delta: float, unit: str) -> str:
    limit = math.ceil(1000 * guess_limit(epsilon, delta) - 1e-9) / 10
    factor = ""
    if epsilon < 20:
        odds = round_up(math.exp(epsilon), digits=3)
        factor = f" (a factor of e^ε = {odds} on any odds, δ aside)"
    words = (
        "Someone who would otherwise toss a coin on the question above, and who sees the trained"
        f" model, answers it correctly at most {limit:.1f}\N{NO-BREAK SPACE}% of the time, whatever"
        f" else they know{factor}."
    )
    if limit > 99:
        words += f" That is little protection for one {unit} in the worst case."
    return words


def _public_size(record: RunRecord) -> object:
    """The number of examples that may be told: that of the plan, where the true one is secret."""
    return record.plan.get("examples", record.dataset["train"])


def _delta_words(delta: float, unit: str, examples: object) -> str:
    words = f"The promise on ε may fail with a probability of about {one_in(delta)}."
    if is_finite_number(examples) and delta * examples >= 1:
        return (
            words + f" Caution: this is not below one in {plain(examples)}, the number of training"
            f" examples, so the definition would allow a whole {unit} to be disclosed."
            " Choose a smaller δ."
        )
    return words + " It should be well below one divided by the number of training examples."


def _adversary_words(repeatable: bool) -> str:
    limit = " cannot repeat the noise (knows no seed and guesses none)," if repeatable else ""
    return (
        f"Anyone who{limit} sees the released model, knows how it was trained and may know every"
        " other training example; with any computing power, now or later. Using the model weakens"
        " nothing."
    )
