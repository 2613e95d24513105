"""The outcome of a run on disk: one JSON file that tables, figures and reports are functions of."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.files import write_atomically
from dpvd.runs.run_dir import RECORD

__all__ = ["RunRecord"]

FORMAT = 1

# What this program reads out of a record's parts; later versions may add to them.
NEEDED = {
    "dataset": ("name", "train", "test"),
    "model": ("network", "layers"),
    "plan": ("batch_size", "noise_multiplier"),
    "recipe": (),
    "guarantee": ("sentence", "epsilon", "delta", "steps"),
    "test": ("accuracy", "interval", "calibration_error"),
}


@dataclass(frozen=True)
class RunRecord:
    """What was run, on what, with what guarantee and what result. Plain data throughout."""

    method: str
    seed: int
    dataset: dict[str, Any]
    model: dict[str, Any]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    guarantee: dict[str, Any]
    history: list[dict[str, float | None]]
    test: dict[str, Any]
    seconds: float
    environment: dict[str, Any]
    created: str
    version: str
    alpha: dict[str, Any] = field(default_factory=dict)
    sparsity: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def epsilon(self) -> float | None:
        """ε that the run spent; None if it is not private."""
        value = self.guarantee["epsilon"]
        return None if value == "inf" else float(value)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, folder: Path) -> None:
        """Write into the run's folder, whole or not at all."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_atomically(folder / RECORD, f"{text}\n".encode())

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Read the record of a finished run.

        Raises:
            DpvdError: if the folder holds no record, or a damaged one.
        """
        path = folder / RECORD
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise DpvdError(f"{folder} holds no finished run: there is no {RECORD} in it") from None
        except (OSError, ValueError, TypeError) as error:
            raise DpvdError(f"the record {path} cannot be read: {error}") from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunRecord":
        if not isinstance(values, Mapping):
            raise DpvdError(
                f"a record is a mapping from names to values, got {type(values).__name__}"
            )
        if values.get("format") != FORMAT:
            raise DpvdError(f"a record of format {FORMAT} is needed, got {values.get('format')!r}")
        for name, needed in NEEDED.items():
            part = values.get(name)
            if not isinstance(part, Mapping) or not set(needed) <= set(part):
                raise DpvdError(f"the part {name!r} is missing or incomplete")
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
