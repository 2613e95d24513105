"""How far a run is: a bar in a terminal, plain lines where the output is a file or a pipe."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dpvd import training
from dpvd.cli.console import say
from dpvd.privacy import round_up

__all__ = ["PlainLines", "show_features", "show_progress"]

# Seconds between two updates of the bar: steps may be much shorter, and text takes time to make.
INTERVAL = 0.1
WORTH_SHOWING = 5000  # examples whose features take a second or more
LINES = 10  # of a log: one for each tenth of the work

OnStep = Callable[[training.Progress], None]


@contextmanager
def show_progress(epochs: float, budget: float | None) -> Iterator[OnStep]:
    """Show epoch, loss, accuracy and ε spent; yields what to call after every step.

    Guarantees:
        The last step is always shown. Nothing is shown before the first: what goes wrong until
        then is told by its message alone.

    Args:
        epochs: of the whole run.
        budget: the ε of the whole run; None without privacy.
    """
    if say.is_terminal:
        with _bar(epochs, budget) as update:
            yield update
    else:
        yield _log(epochs, budget)


@contextmanager
def show_features() -> Iterator[Callable[[int, int], None]]:
    """Show of how many examples features are made; yields what to call with that, and with all.

    In a terminal the line goes away when all are done; few examples, which take no time, show
    nothing.
    """
    status = say.status("making features")
    lines = PlainLines()

    def update(done: int, total: int) -> None:
        if total < WORTH_SHOWING:
            return
        text = f"making features: {done:,} of {total:,} examples"
        if not say.is_terminal:
            lines.update(done, total, lambda: text)
        elif done < total:
            status.update(text)
            status.start()
        else:
            status.stop()

    try:
        yield update
    finally:
        status.stop()


class PlainLines:
    """A log of the progress: one line whenever another tenth of the work is done.

    Edge cases: tenths that pass in one step give one line, so that work of fewer than ten steps
    has a line for each.
    """

    def __init__(self) -> None:
        self._shown = 0  # tenths

    def update(self, done: float, total: float, text: Callable[[], str]) -> None:
        """Print the text if another tenth is done; it is made only then.

        Args:
            done: work done so far, of ``total``, in any unit.
        """
        tenths = math.floor(LINES * done / total + 1e-9)  # 0.3 / 0.1 is less than 3
        if tenths > self._shown:
            self._shown = tenths
            say.print(text(), highlight=False, markup=False)


def _log(epochs: float, budget: float | None) -> OnStep:
    lines = PlainLines()

    def update(state: training.Progress) -> None:
        def text() -> str:
            parts = (
                f"epoch {state.epoch:.1f}/{epochs:.1f}",
                _metrics(state),
                f"ε {_spent(state, budget)}",
            )
            return "  ".join(part for part in parts if part)

        lines.update(state.step, state.steps, text)

    return update


@contextmanager
def _bar(epochs: float, budget: float | None) -> Iterator[OnStep]:
    """Edge cases: steps within a tenth of a second after an update are passed over."""
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
    last_update = -math.inf

    def update(state: training.Progress) -> None:
        nonlocal last_update
        now = time.monotonic()
        if now - last_update < INTERVAL and state.step < state.steps:
            return
        last_update = now
        progress.start()
        progress.update(
            task,
            completed=state.step,
            total=state.steps,
            description=f"{state.epoch:.1f}/{epochs:.1f}",
            metrics=_metrics(state),
            epsilon=_spent(state, budget),
        )

    try:
        yield update
    finally:
        if progress.live.is_started:
            progress.stop()


def _metrics(state: training.Progress) -> str:
    """On the evaluation data; empty before the first evaluation."""
    if not state.metrics:
        return ""
    loss = state.metrics["test_loss"]
    accuracy = state.metrics["test_accuracy"]
    return f"loss {loss:.3f} acc {accuracy:.3f}"


def _spent(state: training.Progress, budget: float | None) -> str:
    """The ε spent, rounded up, and of how much."""
    spent = "∞" if math.isinf(state.epsilon) else round_up(state.epsilon)
    if budget is None:
        return spent
    return f"{spent} of {budget:g}"
