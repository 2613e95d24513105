"""The progress bar: the first and the last step are shown, and steps in between cost next to nothing."""

import io
import time

import pytest
from rich.console import Console

from dpvd.cli import progress
from dpvd.training import Progress


def state(step: int, steps: int = 500) -> Progress:
    return Progress(step, steps, step / 100, step / 1000, {"test_loss": 0.5, "test_accuracy": step / 500})


@pytest.fixture
def screen(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(progress, "say", Console(file=text, force_terminal=True, width=100))
    return text


def test_the_last_step_is_shown_however_quick_the_steps(screen):
    with progress.progress_bar(5.0, 1.0) as on_step:
        for step in range(1, 501):
            on_step(state(step))
    assert "5.0/5.0" in screen.getvalue()
    assert "acc 1.000" in screen.getvalue()
    assert "ε 0.5 of 1" in screen.getvalue()


@pytest.mark.parametrize(("interval", "shown"), [(0.0, True), (3600.0, False)])
def test_a_step_soon_after_the_last_look_is_passed_over(screen, monkeypatch, interval, shown):
    monkeypatch.setattr(progress, "INTERVAL", interval)
    with progress.progress_bar(5.0, 1.0) as on_step:
        on_step(state(1))
        on_step(state(250))
        time.sleep(0.3)  # the bar is drawn ten times a second
        on_step(state(500))
    assert ("acc 0.500" in screen.getvalue()) == shown


def test_nothing_is_shown_before_the_first_step(screen):
    with progress.progress_bar(5.0, None):
        pass
    assert screen.getvalue() == ""
