"""One statement for steps under several plans, taken on the same data."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dp_accounting import ComposedDpEvent

from dpvd.plan import PrivacyPlan
from dpvd.privacy import Guarantee, epsilon

__all__ = ["Taken", "distinct", "joint_statement"]

Taken = tuple[PrivacyPlan, int]
"""A plan, and how many of its steps were taken."""


def joint_statement(own: Guarantee, plans: Sequence[Taken]) -> Guarantee:
    """The statement of several plans together.

    Args:
        own: statement of the last plan; δ and accountant are taken from it, and what was seen.
        plans: all of them, in the order in which they were carried out, under one relation.
    """
    every = [plan.guarantee(own.delta, own.accountant, steps=steps) for plan, steps in plans]
    units = distinct(plan.unit for plan, _ in plans)
    event = ComposedDpEvent([plan.event(steps) for plan, steps in plans])
    seeded = [plan.bits("noise").description for plan, _ in plans if plan.seed is not None]
    return replace(
        own,
        epsilon=epsilon(event, own.delta, accountant=own.accountant, relation=own.relation),
        steps=sum(steps for _, steps in plans),
        noise_multiplier=min(plan.noise_multiplier or 0.0 for plan, _ in plans),
        noise_by_steps=_noise_by_steps(plans),
        bands=max(plan.bands for plan, _ in plans),
        also_released="; ".join(distinct(one.also_released for one in every if one.also_released)),
        sampling=_sampling_words(plans),
        noise_source=(seeded or [own.noise_source])[0],
        tuned=_joined([plan.tuned for plan, _ in plans]),
        unit=units[0] if len(units) == 1 else "example",
        public=distinct(fact for one in every for fact in one.public),
        undeclared=distinct(fact for one in every for fact in one.undeclared),
        not_covered=distinct([*own.not_covered, *_left_open(every), *_several_units(units)]),
    )


def distinct(words: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order of its first time."""
    return tuple(dict.fromkeys(words))


def _noise_by_steps(plans: Sequence[Taken]) -> tuple[tuple[float, int], ...]:
    """How many steps were taken with which noise multiplier; nothing if it was the same in all."""
    steps = Counter[float]()
    for plan, taken in plans:
        steps[plan.noise_multiplier or 0.0] += taken
    return tuple(steps.items()) if len(steps) > 1 else ()


def _joined(tuned: list[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    known = [entries for entries in tuned if entries is not None]
    if len(known) < len(tuned):
        return None
    return distinct(entry for entries in known for entry in entries)


def _sampling_words(plans: Sequence[Taken]) -> str:
    """How the data of all steps were chosen; neighbours that were drawn alike stand together."""
    drawn: list[tuple[str, int]] = []
    for plan, steps in plans:
        words = plan.sampler.describe()
        if drawn and drawn[-1][0] == words:
            drawn[-1] = (words, drawn[-1][1] + steps)
        else:
            drawn.append((words, steps))
    if len(drawn) == 1:
        return drawn[0][0]
    return "; then ".join(f"{words}, {steps} of them" for words, steps in drawn)


def _left_open(guarantees: list[Guarantee]) -> list[str]:
    return [words for one in guarantees for words in one.not_covered]


def _several_units(units: tuple[str, ...]) -> list[str]:
    if len(units) == 1:
        return []
    return [f"what one example stands for, which was declared as {' and as '.join(units)}"]
