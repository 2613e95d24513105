"""Progress: a bar in a terminal, a line for each tenth of the work elsewhere."""

import io
import time

import pytest
from rich.console import Console

from dpvd.cli import progress, reproduce
from dpvd.experiments import Status
from dpvd.training import Progress


def state(step: int, steps: int = 500) -> Progress:
    metrics = {"test_loss": 0.5, "test_accuracy": step / steps}
    return Progress(step, steps, step / 100, step / 1000, metrics)


def console_to(monkeypatch, *, terminal: bool) -> io.StringIO:
    """What the commands write to stderr from now on."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, soft_wrap=True)
    for module in (progress, reproduce):
        monkeypatch.setattr(module, "say", console)
    return text


@pytest.fixture
def screen(monkeypatch):
    return console_to(monkeypatch, terminal=True)


@pytest.fixture
def log(monkeypatch):
    return console_to(monkeypatch, terminal=False)


def test_the_bar_shows_the_last_step_however_quick_the_steps(screen):
    with progress.show_progress(5.0, 1.0) as on_step:
        for step in range(1, 501):
            on_step(state(step))
    assert "5.0/5.0" in screen.getvalue()
    assert "acc 1.000" in screen.getvalue()
    assert "ε 0.5 of 1" in screen.getvalue()


@pytest.mark.parametrize(("interval", "shown"), [(0.0, True), (3600.0, False)])
def test_a_step_soon_after_the_last_update_is_passed_over(screen, monkeypatch, interval, shown):
    monkeypatch.setattr(progress, "INTERVAL", interval)
    with progress.show_progress(5.0, 1.0) as on_step:
        on_step(state(1))
        on_step(state(250))
        time.sleep(0.3)  # the bar is drawn ten times a second
        on_step(state(500))
    assert ("acc 0.500" in screen.getvalue()) == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_shown_before_the_first_step(monkeypatch, terminal):
    text = console_to(monkeypatch, terminal=terminal)
    with progress.show_progress(5.0, None):
        pass
    assert text.getvalue() == ""


@pytest.mark.parametrize(("steps", "expected"), [(500, 10), (15, 10), (10, 10), (3, 3), (1, 1)])
def test_a_log_has_one_line_for_each_tenth(log, steps, expected):
    with progress.show_progress(5.0, 1.0) as on_step:
        for step in range(1, steps + 1):
            on_step(state(step, steps))
    lines = log.getvalue().splitlines()
    assert len(lines) == expected
    assert lines[-1].startswith(f"epoch {steps / 100:.1f}/5.0  loss 0.500 acc 1.000  ε ")
    assert lines[-1].endswith(" of 1")


def test_a_log_holds_nothing_for_terminals_only(log):
    with progress.show_progress(5.0, None) as on_step:
        on_step(Progress(1, 1, 5.0, float("inf"), {}))
    assert log.getvalue() == "epoch 5.0/5.0  ε ∞\n"


def test_a_resumed_run_begins_its_log_where_it_is(log):
    with progress.show_progress(5.0, 1.0) as on_step:
        for step in range(451, 501):
            on_step(state(step))
    assert len(log.getvalue().splitlines()) == 2  # 90 % and the end


def test_a_reproduction_logs_tenths_of_its_work(log):
    with reproduce._show_progress() as on_progress:
        for done in range(21):
            on_progress(Status(done=float(done), total=20.0, runs=done, of=20))
    assert log.getvalue().splitlines() == [f"{runs} of 20 specs" for runs in range(2, 21, 2)]


def test_a_reproduction_with_nothing_to_do_logs_nothing(log):
    with reproduce._show_progress() as on_progress:
        on_progress(Status(done=0.0, total=0.0, runs=0, of=0))
    assert log.getvalue() == ""
