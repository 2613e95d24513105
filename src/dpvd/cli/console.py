"""What the terminal shows. Results go to stdout, progress and warnings to stderr."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dpvd import training
from dpvd.privacy import round_up

__all__ = ["fail", "out", "print_json", "print_line", "print_text", "progress_bar", "say", "warn"]

out = Console(soft_wrap=True)
say = Console(stderr=True, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on stdout, nothing else."""
    print(json.dumps(value, allow_nan=False))


def print_text(text: str, style: str = "") -> None:
    """Sentences on stdout: broken between words in a terminal, left whole in a pipe or file."""
    out.print(Text(text, style), soft_wrap=not out.is_terminal)


def print_line(text: str, style: str = "") -> None:
    """One line on stdout as it is, however long: a path stays whole."""
    out.print(Text(text, style))


def warn(message: str) -> None:
    say.print(Text.assemble(("warning: ", "yellow"), message))


def fail(message: str) -> None:
    """One line that says what is wrong."""
    say.print(Text.assemble(("error: ", "red"), " ".join(message.splitlines())))


@contextmanager
def progress_bar(epochs: float, budget: float | None) -> Iterator[Callable[[training.Progress], None]]:
    """A bar with epoch, loss, accuracy, ε spent and time left; yields what to call after every step."""
    columns = (  # together under 80 characters
        TextColumn("epoch {task.description}"),
        BarColumn(bar_width=14),
        TextColumn("{task.fields[metrics]}"),
        TextColumn("ε {task.fields[epsilon]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    progress = Progress(*columns, console=say)
    started = "∞" if budget is None else "0"
    task = progress.add_task(f"0/{epochs:.1f}", total=None, metrics="", epsilon=started)

    def update(state: training.Progress) -> None:
        progress.start()  # not before the first step: what goes wrong until then is told by its message alone
        metrics = state.metrics
        shown = f"loss {metrics['test_loss']:.3f} acc {metrics['test_accuracy']:.3f}" if metrics else ""
        spent = "∞" if math.isinf(state.epsilon) else round_up(state.epsilon)
        progress.update(
            task,
            completed=state.step,
            total=state.steps,
            description=f"{state.epoch:.1f}/{epochs:.1f}",
            metrics=shown,
            epsilon=spent if budget is None else f"{spent} of {budget:g}",
        )

    try:
        yield update
    finally:
        if progress.live.is_started:
            progress.stop()
