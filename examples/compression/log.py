"""A run of sparse training between two epochs, and the file that says what happened in it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Run:
    """A run between two epochs: all that going on from here takes.

    Attributes:
        weights: how many weights the network had at first.
        shrinking: whether it is still to be shrunk.
        history: what is to be said of each epoch.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    randomness: Tensor
    weights: int
    shrinking: bool = True
    history: list[dict[str, Any]] = field(default_factory=list)


class Log:
    """A file that says what happened in every epoch, and beside it, while the run lasts, a
    checkpoint.

    Guarantees: the file is JSON in the strict sense: no infinities.

    Edge cases: without a path nothing is kept.

    Attributes:
        about: what the file says before the epochs: network, seed, protocol.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path, self.about = path, about

    def last(self) -> Run | None:
        """The run as it was kept last, if it was stopped."""
        if self.path is None or not self._checkpoint.exists():
            return None
        run: Run = torch.load(self._checkpoint, weights_only=False)  # our own file
        return run

    def keep(self, run: Run) -> None:
        if self.path is not None:
            torch.save(run, self._checkpoint)
            self._write(run, None)

    def finish(self, run: Run, result: dict[str, Any]) -> None:
        if self.path is not None:
            self._write(run, result)
            self._checkpoint.unlink()

    @property
    def _checkpoint(self) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".checkpoint")

    def _write(self, run: Run, result: dict[str, Any] | None) -> None:
        assert self.path is not None
        fields = {**self.about, "result": result}
        head = [
            f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
            for name, value in fields.items()
        ]
        epochs = ",\n  ".join(
            json.dumps(record, allow_nan=False) for record in run.history
        )  # a line for each
        self.path.write_text("{" + ",\n ".join([*head, f'"history": [\n  {epochs}\n ]']) + "}\n")
