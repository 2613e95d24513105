"""A guarantee in a few sentences for readers who have never heard of ε: what an attacker can do.

Every number is an upper bound, rounded up, and the sentences say "at most".
"""

import math

from dpvd.privacy import Interpretation, Relation
from dpvd.report.wording import one_in

__all__ = ["lay_reading", "percent_up"]

_NO_BREAK = "\N{NO-BREAK SPACE}"
_NO_LIMIT = 0.9995  # from here on a bound is printed as no limit


def percent_up(share: float) -> str:
    r"""Print a share as a percentage that is never below it: one decimal, or two digits if small.

    >>> percent_up(0.55371), percent_up(0.01989), percent_up(0.002402), percent_up(1.0)
    ('55.4\xa0%', '2.0\xa0%', '0.25\xa0%', '100\xa0%')
    """
    percent = 100 * share
    # A millionth of the last digit is rounding of the computer's, not of ours.
    decimals = 1 if percent >= 1 else 1 - math.floor(math.log10(percent)) if percent > 0 else 1
    unit = 10**decimals
    raised = math.ceil(percent * unit - 1e-6) / unit
    return f"100{_NO_BREAK}%" if raised >= 100 else f"{raised:.{decimals}f}{_NO_BREAK}%"


def lay_reading(
    interpretation: Interpretation, *, unit: str, relation: Relation | str
) -> list[str]:
    """Return what a guarantee means, in five short paragraphs.

    Guarantees: each number is the upper bound it came from, rounded up.

    Edge cases: where next to nothing is promised, one paragraph says so.

    Args:
        interpretation: the numbers; see :func:`dpvd.privacy.interpret`.
        unit: what is protected, in the singular: "patient".
        relation: the relation that the numbers were computed for.
    """
    if interpretation.mu is None or interpretation.correct_guesses >= _NO_LIMIT:
        return [
            f"There is no limit worth the name: somebody who sees the model may be able to tell,"
            f" with near certainty, what the data of one {unit} were."
        ]
    words = _CASES[Relation.parse(relation)]
    return [
        words["who"].format(unit=unit)
        + f" {words['guess']} at most {percent_up(interpretation.correct_guesses)} of the time;"
        f" tossing a coin gives 50{_NO_BREAK}%.",
        _tests(interpretation, words["absent"], words["present"]),
        _beliefs(interpretation, words["belief"].format(unit=unit)),
        _one_number(interpretation),
        "These are limits on every method, now and later, whatever else is known; they are not"
        " what an attacker is expected to reach. They do not limit what the model says about"
        " everybody, which is what it is trained for.",
    ]


_CASES = {
    Relation.ADD_OR_REMOVE: {
        "who": (
            "Take somebody who knows the whole training data except whether one particular {unit}"
            " is in it, and who studies the trained model."
        ),
        "guess": "They answer that question correctly",
        "absent": "those that are not in the data",
        "present": "those that are",
        "belief": "that the {unit} is in the data",
    },
    Relation.REPLACE_ONE: {
        "who": (
            "Take somebody who knows the whole training data except one {unit}, has two candidates"
            " for it, and studies the trained model."
        ),
        "guess": "They pick the right candidate",
        "absent": "the cases in which it is the other candidate",
        "present": "those in which it is the reported one",
        "belief": "in one of the two candidates",
    },
}


def _tests(interpretation: Interpretation, absent: str, present: str) -> str:
    (wrong, right), *others = interpretation.true_positive_rates.items()
    more = "".join(
        f", and one that wrongly reports {_exact(rate)} finds at most {percent_up(bound)}"
        for rate, bound in others
    )
    return (
        f"A test that wrongly reports {_exact(wrong)} of {absent} finds at most"
        f" {percent_up(right)} of {present}{more}."
    )


def _beliefs(interpretation: Interpretation, what: str) -> str:
    (before, after), *others = interpretation.posteriors.items()
    more = "".join(
        f", and one of {_exact(prior)} to at most {percent_up(bound)}" for prior, bound in others
    )
    return (
        f"A belief of {_exact(before)} {what} grows to at most {percent_up(after)}{more}; that the"
        f" noise of training lets it grow further has a probability of at most"
        f" {one_in(interpretation.delta)}."
    )


def _one_number(interpretation: Interpretation) -> str:
    assert interpretation.mu is not None  # checked by the caller
    slack = interpretation.mu_slack
    but = f" (but for a probability of {one_in(slack)})" if slack else ""
    mu = math.ceil(interpretation.mu * 1e4 - 1e-6) / 1e4
    return (
        f"In one number, μ = {mu:g}: the two cases are at least as hard to tell apart as one draw"
        f" from a normal distribution is from a draw from the same one shifted by μ standard"
        f" deviations{but}."
    )


def _exact(share: float) -> str:
    return f"{100 * share:g}{_NO_BREAK}%"
