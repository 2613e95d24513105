"""The planner as one page with one slider: what each ε buys, on paper or in a browser."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from dpvd.errors import DpvdError
from dpvd.privacy import Interpretation, Relation, round_up
from dpvd.report.lay_reading import lay_reading, percent_up
from dpvd.report.templates import template

__all__ = ["PlannerRow", "planner_rows", "render_planner"]

LARGEST_SHOWN = 50.0
"""A bound on ε above this is not printed: e^50 limits nothing that anybody could measure."""

# The charts' drawing area within a viewBox of 640 by 260.
LEFT, RIGHT, TOP, BOTTOM = 76.0, 624.0, 16.0, 216.0


@dataclass(frozen=True)
class PlannerRow:
    """What the page shows for one ε: texts, and the heights of its points in the charts."""

    epsilon: str
    x: float
    values: Mapping[str, str]
    reading: Sequence[str]
    shares: Mapping[str, float]


def planner_rows(
    offers: Sequence[Mapping[str, Any]],
    readings: Sequence[Interpretation],
    relation: Relation | str,
) -> list[PlannerRow]:
    """Return the texts and points of a page.

    Args:
        offers: what each ε buys, in the order of ε; as ``dpvd plan --json`` prints it.
        readings: what each means, in the same order.
        relation: that the readings are for.

    Raises:
        DpvdError: if there is nothing to show.
    """
    if not offers:
        raise DpvdError("a planner needs at least one epsilon")
    places = _places([offer["epsilon"] for offer in offers])
    return [
        PlannerRow(
            epsilon=f"{offer['epsilon']:g}",
            x=place,
            values=_values(offer),
            reading=lay_reading(reading, unit="row", relation=relation),
            shares={
                name: float(offer[name])
                for name in (
                    "accuracy_low",
                    "accuracy_high",
                    "best_low",
                    "best_high",
                    "correct_guesses",
                )
            },
        )
        for offer, reading, place in zip(offers, readings, places, strict=True)
    ]


def _values(offer: Mapping[str, Any]) -> dict[str, str]:
    group = offer["group_epsilon"]
    lost = group is None or group > LARGEST_SHOWN
    return {
        "accuracy": _range(offer["accuracy_low"], offer["accuracy_high"]),
        "guess": percent_up(offer["correct_guesses"]),
        "found": percent_up(offer["true_positive_rate"]),
        "belief": percent_up(offer["posterior"]),
        "mu": round_up(offer["mu"], 3),
        "group": "none proved" if lost else f"ε = {round_up(group, 3)}",
        "noise": f"{offer['noise_multiplier']:.4g}",
        "batch": f"{offer['batch_size']:,}",
        "steps": f"{offer['steps']:,}",
        "recipe": str(offer["recipe"]),
        "rate": f"{offer['learning_rate']:.3g}" if offer["learning_rate"] else "none",
    }


def _range(low: float, high: float) -> str:
    return f"{100 * low:.0f}-{100 * high:.0f}\N{NO-BREAK SPACE}%"


def _places(epsilons: Sequence[float]) -> list[float]:
    """Return where each ε stands from left to right, on a logarithmic scale."""
    first = log(epsilons[0])
    width = log(epsilons[-1]) - first
    if width == 0:
        return [(LEFT + RIGHT) / 2] * len(epsilons)
    room = RIGHT - LEFT - 40
    return [round(LEFT + 20 + room * (log(each) - first) / width, 1) for each in epsilons]


def _height(share: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * share, 1)


def _line(rows: Sequence[PlannerRow], name: str) -> str:
    return " ".join(f"{row.x},{_height(row.shares[name])}" for row in rows)


def _band(rows: Sequence[PlannerRow], low: str, high: str) -> str:
    return f"{_line(rows, high)} {_line(rows[::-1], low)}"


def render_planner(rows: Sequence[PlannerRow], facts: Mapping[str, Any]) -> str:
    """Return the page as HTML that needs nothing but itself.

    Guarantees: all texts are escaped; nothing is loaded from anywhere; without scripts the table
    of all ε is still there.

    Args:
        rows: from :func:`planner_rows`, in the order of ε.
        facts: ``examples``, ``features``, ``classes``, ``delta``, ``unit_rows``,
            ``rehearsed_rows``, ``rehearsed`` (what was) and ``version``.
    """
    chosen = min(range(len(rows)), key=lambda number: abs(log(float(rows[number].epsilon))))
    data = [
        {"epsilon": row.epsilon, "x": row.x, "values": row.values, "reading": row.reading}
        for row in rows
    ]
    return template("planner.html").render(
        rows=rows,
        facts=facts,
        chosen=chosen,
        data=data,
        grid=[(share, _height(share / 100)) for share in (0, 25, 50, 75, 100)],
        edges={"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        reached=_band(rows, "accuracy_low", "accuracy_high"),
        best_low=_line(rows, "best_low"),
        best_high=_line(rows, "best_high"),
        guesses=_line(rows, "correct_guesses"),
    )
