"""What may be claimed about a run, as data and as a sentence."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from dpvd.errors import DpvdError, in_unit_interval, non_negative, phrase, phrases, positive_int
from dpvd.privacy.enums import AccountantName, Relation

__all__ = ["Guarantee", "round_down", "round_up"]

_DIGITS = 4

_NEIGHBOURS = {
    Relation.ADD_OR_REMOVE: "adding or removing one {}",
    Relation.REPLACE_ONE: "replacing one {}",
}

_METHODS = {
    AccountantName.PLD: "privacy loss distributions",
    AccountantName.RDP: "Renyi differential privacy",
    AccountantName.ZCDP: "truncated concentrated differential privacy",
    AccountantName.ADVANCED: "advanced composition",
}


@dataclass(frozen=True)
class Guarantee:
    """A privacy claim with everything it rests on.

    Guarantees: the sentence never states less than ``epsilon``; it names the relation, the
    sampling, the noise and its source, what the program saw of these, what is taken as public, and
    what was tuned on the data. What nobody declared is printed as not declared, never as nothing.

    Edge cases: an infinite epsilon is legal and reads "Not differentially private". A claim about a
    plan that nobody has carried out says so.

    Raises:
        DpvdError: if a number is out of range or a name unknown.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str
    """What one neighbour has and the other has not, in the singular: "example", "patient"."""
    accountant: AccountantName
    sampling: str
    """How the data of a step are chosen, as the sampler describes itself."""
    noise_source: str
    """Where the noise comes from, as the bit source describes itself."""
    steps: int
    noise_multiplier: float
    public: tuple[str, ...] = ()
    """Facts about the data that the claim does not protect."""
    tuned: tuple[str, ...] | None = None
    """Choices made by looking at the data and not accounted for; None if nobody said."""
    seen: tuple[str, ...] | None = None
    """What the program that trained saw itself; None for a plan that was not carried out."""
    not_covered: tuple[str, ...] = ()
    """What the claim rests on without the program having seen it, or what it leaves open."""
    noise_by_steps: tuple[tuple[float, int], ...] = ()
    """Noise multiplier and number of steps, where not all steps have the same noise."""
    undeclared: tuple[str, ...] = ()
    """What only the holder of the data knows, and did not say."""
    also_released: str = ""
    """What steps release beside the gradient, covered by the same noise multiplier; or nothing."""
    bands: int = 1
    """Over how many steps the noise is correlated; 1 if it is independent."""

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            non_negative(epsilon=self.epsilon)
        in_unit_interval(delta=self.delta)
        object.__setattr__(self, "delta", float(self.delta))  # NumPy's prints its type
        non_negative(steps=self.steps, noise_multiplier=self.noise_multiplier)
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        object.__setattr__(self, "accountant", AccountantName.parse(self.accountant))
        for name in ("sampling", "noise_source"):
            if not isinstance(getattr(self, name), str):
                raise DpvdError(f"{name} must be words, got {getattr(self, name)!r}")
        object.__setattr__(self, "unit", phrase(self.unit, "unit"))
        if self.also_released:
            released = phrase(self.also_released, "also_released")
            object.__setattr__(self, "also_released", released)
        positive_int(bands=self.bands)
        for name in ("public", "tuned", "seen", "not_covered", "undeclared"):
            entries = getattr(self, name)
            if entries is not None:
                object.__setattr__(self, name, phrases(entries, name))
        pairs = tuple((float(multiplier), int(steps)) for multiplier, steps in self.noise_by_steps)
        object.__setattr__(self, "noise_by_steps", pairs)

    def sentence(self) -> str:
        """Return the claim in words, with what it rests on and what it does not cover."""
        parts = [self._claim()]
        if self.seen:
            parts.append(f"Seen by the program: {'; '.join(self.seen)}.")
        if self.not_covered:
            parts.append(f"Not covered: {'; '.join(self.not_covered)}.")
        parts.append(f"Public: {'; '.join(self.public) or 'nothing'}.")
        undeclared = self.undeclared
        if self.tuned is None:
            undeclared += ("what was tuned on the data",)
        else:
            entries = "; ".join(self.tuned)
            parts.append(
                f"Tuned on the data: {entries + ' (not in the account)' if entries else 'nothing'}."
            )
        if undeclared:
            parts.append(f"Not declared: {'; '.join(undeclared)}.")
        return " ".join(parts)

    def observed(self, *, seen: tuple[str, ...], not_covered: tuple[str, ...] = ()) -> "Guarantee":
        """Return the claim of a program that carried the plan out: what it saw, what it did not."""
        gaps = self.not_covered + not_covered
        return replace(self, seen=seen, not_covered=gaps)

    def __str__(self) -> str:
        return self.sentence()

    def _claim(self) -> str:
        times = "1 step" if self.steps == 1 else f"{self.steps} steps"
        how = f"{self.sampling} for {times}"
        if self.noise_multiplier == 0 and self.steps > 0:
            return f"Not differentially private: no noise was added; {how}."
        neighbours = _NEIGHBOURS[self.relation].format(self.unit)
        basis = (
            f"{neighbours}; {how}; Gaussian noise of {self._noise_size()} from"
            f" {self._noise_origin()}; accounted with {_METHODS[self.accountant]}."
        )
        if self.epsilon == math.inf:
            return (
                f"Not differentially private: no finite epsilon holds at delta {self.delta!r};"
                f" {basis}"
            )
        condition = " if it is carried out as planned" if self.seen is None else ""
        return (
            f"({round_up(self.epsilon)}, {self.delta!r})-differentially private{condition}: {basis}"
        )

    def _noise_size(self) -> str:
        size = self._multipliers()
        if self.bands > 1:
            size += f", correlated over up to {self.bands} steps,"
        if self.also_released:
            return f"{size.removesuffix(',')}, for the gradient and {self.also_released} together,"
        return size

    def _multipliers(self) -> str:
        if not self.noise_by_steps:
            return f"multiplier {round_down(self.noise_multiplier)}"
        parts = [
            f"{round_down(multiplier)} in {steps} step{'s' if steps > 1 else ''}"
            for multiplier, steps in self.noise_by_steps
        ]
        return f"multiplier {', '.join(parts[:-1])} and {parts[-1]}"

    def _noise_origin(self) -> str:
        if self.noise_source.startswith("reproducible"):
            return f"a seeded generator ({self.noise_source})"
        return self.noise_source

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the sentence; an infinite epsilon becomes "inf"."""
        plain = asdict(self)
        plain.update(
            epsilon="inf" if self.epsilon == math.inf else self.epsilon,
            relation=str(self.relation),
            accountant=str(self.accountant),
            noise_by_steps=[list(pair) for pair in self.noise_by_steps],
            sentence=self.sentence(),
        )
        if not self.also_released:
            del plain["also_released"]
        if self.bands == 1:
            del plain["bands"]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in plain.items()
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Guarantee":
        """Return the guarantee that :meth:`to_dict` wrote; its sentence is made anew, not read.

        Raises:
            DpvdError: if a field is missing, unknown or out of range.
        """
        try:
            fields = {key: value for key, value in plain.items() if key != "sentence"}
            if fields["epsilon"] == "inf":
                fields["epsilon"] = math.inf
            return cls(**fields)
        except DpvdError:
            raise
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as problem:
            raise DpvdError(
                f"not a privacy guarantee: {problem}; write it with Guarantee.to_dict"
            ) from None


def round_up(epsilon: float, digits: int = _DIGITS) -> str:
    """Return epsilon with a few significant digits, never below its value.

    >>> round_up(0.99951), round_up(33.1037), round_up(1.0), round_up(1e-7), round_up(float("inf"))
    ('0.9996', '33.11', '1', '1e-07', 'inf')
    """
    if epsilon == math.inf:
        return "inf"
    return _round(epsilon, ROUND_CEILING, digits)


def round_down(value: float, digits: int = _DIGITS) -> str:
    """Return a noise multiplier with a few significant digits, never above its value.

    >>> round_down(11.7985)
    '11.79'
    """
    return _round(value, ROUND_FLOOR, digits)


def _round(value: float, direction: str, digits: int = _DIGITS) -> str:
    """Print a number with a few significant digits, rounded in the given direction."""
    context = Context(prec=digits, rounding=direction)
    exact = Decimal(repr(float(value)))
    rounded = context.create_decimal(exact)
    return f"{float(rounded):g}"
