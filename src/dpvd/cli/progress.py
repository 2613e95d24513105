"""The progress bar of a run."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dpvd import training
from dpvd.cli.console import say
from dpvd.privacy import round_up

__all__ = ["progress_bar"]

INTERVAL = 0.1  # seconds between two looks at a run: steps may be much shorter, and text takes time to make


@contextmanager
def progress_bar(epochs: float, budget: float | None) -> Iterator[Callable[[training.Progress], None]]:
    """A bar with epoch, loss, accuracy, ε spent and time left; yields what to call after every step.

    Edge cases: the last step is always shown; others only when the last look is a tenth of a second ago.
    """
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

    last_look = -math.inf

    def update(state: training.Progress) -> None:
        nonlocal last_look
        now = time.monotonic()
        if now - last_look < INTERVAL and state.step < state.steps:
            return
        last_look = now
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
