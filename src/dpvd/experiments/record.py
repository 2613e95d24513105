"""The outcome of one spec: a small JSON file, named by the spec's hash."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.experiments.spec import Spec
from dpvd.files import write_atomically

__all__ = ["Record", "RecordStore"]

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What a run gave.

    Args:
        spec: what was run.
        curve: epoch and accuracy with the mean weights, once per epoch or step, whichever is rarer.
        accuracy: the last of the curve.
        examples: how many examples the accuracy is a share of.
        epsilons: ε of what ran, by accountant: the one that calibrated the noise, and ``pld``;
            empty without privacy.
        notes: what a reader of the figures must know.
        plan, recipe: what ran, as ``PrivacyPlan.from_dict`` and ``Recipe.from_dict`` read it.
        seconds: time spent training.
        versions: of what ran.
    """

    spec: Spec
    curve: list[list[float]]
    accuracy: float
    examples: int
    epsilons: dict[str, float]
    notes: list[str]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    seconds: float
    versions: dict[str, str]

    @property
    def hash(self) -> str:
        """The hash of the spec."""
        return self.spec.hash

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "hash": self.hash} | asdict(self) | {"spec": self.spec.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Record":
        """Read what ``to_dict`` wrote.

        Raises:
            DpvdError: if a field is missing or unknown, or the hash is not that of the spec.
        """
        known = {f.name for f in fields(cls)} | {"format", "hash"}
        if not isinstance(values, Mapping) or set(values) != known or values["format"] != FORMAT:
            raise DpvdError(
                f"not a record of format {FORMAT}: delete it, and its spec will run again"
            )
        record = cls(
            **{name: values[name] for name in known - {"format", "hash", "spec"}},
            spec=Spec.from_dict(values["spec"]),
        )
        if record.hash != values["hash"]:
            raise DpvdError(
                "the record's hash is not that of its spec: delete it, and its spec will run again"
            )
        return record


class RecordStore:
    """A folder of records.

    Guarantees: a record is there whole or not at all, whenever the writer is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __contains__(self, spec: Spec) -> bool:
        return self._path(spec).is_file()

    def missing(self, specs: Iterable[Spec]) -> list[Spec]:
        """Those without a record, in their order."""
        return [spec for spec in specs if spec not in self]

    def write(self, record: Record) -> None:
        text = json.dumps(record.to_dict(), indent=None, sort_keys=True, allow_nan=False)
        try:
            write_atomically(self._path(record.spec), (text + "\n").encode())
        except DpvdError as error:
            raise DpvdError(
                f"cannot write into {self.folder} ({error}): choose another --out"
            ) from error

    def read(self, spec: Spec) -> Record:
        """The record of a spec.

        Raises:
            DpvdError: if there is none, or it is damaged.
        """
        return _read(self._path(spec))

    def read_all(self) -> list[Record]:
        """Every record there is, in the order of their names."""
        return [_read(path) for path in sorted(self.folder.glob("*.json"))]

    def _path(self, spec: Spec) -> Path:
        return self.folder / f"{spec.hash}.json"


def _read(path: Path) -> Record:
    try:
        return Record.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DpvdError(f"there is no record {path}: run its spec first") from None
    except (OSError, ValueError) as error:
        raise DpvdError(f"the record {path} cannot be read: {error}") from error
