"""What is kept of the run of one spec."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpvd.errors import DpvdError
from dpvd.experiments.spec import Spec

__all__ = ["ExperimentResult"]

FORMAT = 1
# Thousands of results are kept. Finer than one example of any test set in use.
EPOCH_DIGITS = 3
ACCURACY_DIGITS = 6


@dataclass(frozen=True)
class ExperimentResult:
    """Spec, learning curve and ε of one run: what tables and figures are drawn from.

    A slim form of :class:`dpvd.runs.RunRecord`, for thousands of runs side by side. Fields of the
    same name hold the same. What a record has beyond that is left out here: it follows from the
    spec (data set, model, statement), or is not measured in an experiment (calibration, test loss).

    Guarantees: epochs and accuracies are rounded to 3 and 6 digits, however they were given.

    Args:
        spec: what was run.
        accuracy: the last of the curve.
        examples: how many examples the accuracy is a share of.
        epsilons: ε of what ran, by accountant: the one that calibrated the noise, and ``pld``;
            empty without privacy.
        notes: what a reader of the numbers must know.
        seconds: time spent training.
        versions: of what ran.
        plan, recipe: what ran, as ``PrivacyPlan.from_dict`` and ``Recipe.from_dict`` read it.
        curve: epoch and accuracy with the mean weights, once per epoch or step, whichever is rarer.
    """

    spec: Spec
    accuracy: float
    examples: int
    epsilons: dict[str, float]
    notes: list[str]
    seconds: float
    versions: dict[str, str]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    curve: list[list[float]]

    def __post_init__(self) -> None:
        rounded = [
            [round(epoch, EPOCH_DIGITS), round(accuracy, ACCURACY_DIGITS)]
            for epoch, accuracy in self.curve
        ]
        object.__setattr__(self, "curve", rounded)
        object.__setattr__(self, "accuracy", round(self.accuracy, ACCURACY_DIGITS))

    @property
    def hash(self) -> str:
        """The hash of the spec."""
        return self.spec.hash

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"format": FORMAT, "hash": self.hash}
        values |= asdict(self)
        values["spec"] = self.spec.to_dict()
        return values

    def to_line(self) -> str:
        """One line of JSON, the curve at its end."""
        values = self.to_dict()
        text = json.dumps(values, ensure_ascii=False, allow_nan=False)
        return f"{text}\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ExperimentResult":
        """Read what ``to_dict`` wrote.

        Raises:
            DpvdError: if a field is missing or unknown, or the hash is not that of the spec.
        """
        known = {f.name for f in fields(cls)} | {"format", "hash"}
        if not isinstance(values, Mapping) or set(values) != known or values["format"] != FORMAT:
            raise DpvdError(
                f"not a result of format {FORMAT}: delete it, and its spec will run again"
            )
        others = {name: values[name] for name in known - {"format", "hash", "spec"}}
        result = cls(spec=_spec(values["spec"]), **others)
        if result.hash != values["hash"]:
            raise DpvdError(
                "the hash of the result is not that of its spec: delete it, and its spec will run"
                " again"
            )
        return result

    @classmethod
    def from_line(cls, line: str) -> "ExperimentResult":
        """Read what ``to_line`` wrote.

        Raises:
            DpvdError: as ``from_dict`` does.
            ValueError: if the line is no JSON, or a curve is no curve.
        """
        return cls.from_dict(json.loads(line))


def _spec(values: Any) -> Spec:
    if not isinstance(values, Mapping):
        raise DpvdError(f"a spec is a mapping from names to values, got {type(values).__name__}")
    return Spec.from_dict(values)
