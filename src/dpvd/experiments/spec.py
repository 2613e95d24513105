"""One experiment, complete: everything that determines its result, and the hash that names it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from dpvd.errors import DpvdError, choice, exact_fields, in_unit_interval, positive, positive_int
from dpvd.grads import ClippingMode
from dpvd.privacy import AccountantName
from dpvd.runs import Method

__all__ = ["PRINTED_SCHEDULE", "Part", "Spec", "Variant"]

PRINTED_SCHEDULE = "η₀/t^γ, t the number of the epoch from 1, on the mean gradient"
"""How the paper's learning rate is read."""


class Variant(StrEnum):
    """Where learning rate and decay come from."""

    AS_PRINTED = "as-printed"
    """All settings as the paper prints them."""
    TUNED = "tuned"
    """As printed, but learning rate and decay were chosen on a split of the training data."""
    RECIPE = "recipe"
    """Same network and budget, everything else by the default rule of this package."""

    @property
    def words(self) -> str:
        """As tables write it.

        >>> Variant.AS_PRINTED.words
        'as printed'
        """
        return self.value.replace("-", " ")


class Part(StrEnum):
    """What the accuracy is measured on."""

    TEST = "test"
    """The test data, after training on all training data."""
    HELD_OUT = "held-out"
    """A tenth of the training data, after training on the other nine: to choose settings."""


@dataclass(frozen=True)
class Spec:
    """What is trained, on what, with what budget.

    Guarantees:
        Equal specs have equal hashes, in every process and on every machine. Noise and sampling
        follow from the seed, so that a spec can be run again; anyone who knows the seed can
        subtract the noise.

    Edge cases: None in a setting of the optimisation leaves it to the default rule (the recipe);
        the rule in force is in the record.

    Args:
        protocol: name of the set of sizes and lengths that the spec belongs to.
        dataset: ``digits`` or ``mnist``.
        method: name as in Table 1 of the paper, or of one of ours.
        variant: where learning rate and decay come from.
        training: the training method behind the name.
        accountant: which accountant calibrates the noise; None without privacy.
        epsilon: ε to spend; None without privacy.
        delta: δ.
        hidden: units of the hidden layer.
        batch_size, epochs: planned batch size S and passes over the data E.
        clipping, clip_norm: how gradients are bounded, and C.
        learning_rate, gamma, schedule: η₀, γ and what they mean.
        momentum, average: of the optimiser; the paper has neither.
        prior, kl_weight: of the weights, and the factor of its term.
        inputs: what the network is given.
        seed: of initial weights, dropout, sampling and noise.
        part: what the accuracy is measured on.

    Raises:
        DpvdError: if a name is unknown, a value out of range, or a budget is given without an
            accountant.
    """

    protocol: str
    dataset: str
    method: str
    variant: Variant
    training: Method
    accountant: AccountantName | None
    epsilon: float | None
    delta: float
    hidden: int
    batch_size: int | None
    epochs: float | None
    clipping: ClippingMode | None
    clip_norm: float | None
    learning_rate: float | None
    gamma: float | None
    schedule: str
    momentum: float | None
    average: float | None
    prior: str
    kl_weight: float | None
    inputs: str
    seed: int
    part: Part = Part.TEST

    def __post_init__(self) -> None:
        parsed = {
            "variant": choice(self.variant, Variant, "variant"),
            "training": choice(self.training, Method, "training"),
            "part": choice(self.part, Part, "part"),
            "accountant": (
                None if self.accountant is None else AccountantName.parse(self.accountant)
            ),
            "clipping": (
                None if self.clipping is None else choice(self.clipping, ClippingMode, "clipping")
            ),
        }
        for name, value in parsed.items():
            object.__setattr__(self, name, value)
        in_unit_interval(delta=self.delta)
        positive_int(hidden=self.hidden)
        for name in ("epsilon", "epochs", "clip_norm", "learning_rate"):
            if getattr(self, name) is not None:
                positive(**{name: getattr(self, name)})
        private = self.training is not Method.NONE
        if (self.epsilon is not None) != private or (self.accountant is not None) != private:
            raise DpvdError(
                f"{self.training} with ε = {self.epsilon} by {self.accountant}: private methods"
                " have both"
            )

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON (sorted keys, no spaces), in hexadecimal."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain data. Numbers that may be fractions are floats: 1 and 1.0 are the same spec."""
        plain = {
            name: str(value) if isinstance(value, str) else value
            for name, value in asdict(self).items()
        }
        return {
            name: float(value) if name in _FRACTIONS and value is not None else value
            for name, value in plain.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Spec":
        return cls(**exact_fields(values, cls, "a spec"))


_FRACTIONS = {field.name for field in fields(Spec) if field.type in (float, float | None)}
