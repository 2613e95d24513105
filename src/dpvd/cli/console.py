"""What the terminal shows. Results go to stdout, progress and warnings to stderr."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dpvd import training
from dpvd.privacy import round_up

__all__ = ["out", "print_json", "progress_bar", "say", "warn"]

out = Console(soft_wrap=True)
say = Console(stderr=True, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on stdout, nothing else."""
    print(json.dumps(value, allow_nan=False))


def warn(message: str) -> None:
    say.print(f"[yellow]warning:[/] {message}", highlight=False)


@contextmanager
def progress_bar(epochs: float, budget: float | None) -> Iterator[Callable[[training.Progress], None]]:
    """A bar with epoch, loss, accuracy, ε spent and time left; yields what to call after every step."""
    columns = (
        TextColumn("{task.description}"),
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[metrics]}"),
        TextColumn("ε {task.fields[epsilon]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=say, transient=False) as progress:
        title = "training without privacy" if budget is None else "private training"
        task = progress.add_task(title, total=None, epoch=f"0/{epochs:g}", metrics="", epsilon="0")

        def update(state: training.Progress) -> None:
            metrics = state.metrics
            shown = f"loss {metrics['test_loss']:.3f}  acc {metrics['test_accuracy']:.3f}" if metrics else ""
            spent = "∞" if math.isinf(state.epsilon) else round_up(state.epsilon)
            progress.update(
                task,
                completed=state.step,
                total=state.steps,
                epoch=f"{state.epoch:.3g}/{epochs:.3g}",
                metrics=shown,
                epsilon=spent if budget is None else f"{spent} of {budget:g}",
            )

        yield update
