"""The figures of the performance page, from results alone."""

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.results import Results
from dpvd.report import FIGURE_STYLE, PALETTE

__all__ = ["LABELS", "growth_curves", "ratio_bars"]

LABELS = {
    "plain-channels-last": "plain, channels_last",
    "by-hand": "DP-SGD written out by hand",
    "dpsgd": "dpvd: DP-SGD",
    "dpvd": "dpvd: Algorithm 1",
    "sparse": "sparse VD, not private",
    "sparse-private": "dpvd: sparse VD, private",
    "opacus-ghost": "Opacus, ghost",
    "opacus-hooks": "Opacus, hooks",
    "torch-func": "torch.func",
    "jax-privacy": "JAX-Privacy",
}
"""Systems in the order in which they are drawn, and their names there."""

_ORDINARY = ("plain-channels-last", "by-hand", "sparse")
_OURS = ("dpsgd", "dpvd", "sparse-private")
_ROW = 0.27  # inches of a bar
_PANEL = 0.75  # inches that a panel needs beside its bars
_LOWEST = 0.3  # left end of the axis
_ROOM = 2.6  # on its right, for numbers, as a factor


def ratio_bars(results: Results) -> Figure:
    """Time over that of the plain step, by workload: bars from 1, quartiles as lines."""
    works = results["workloads"]
    heights = []
    ratios = [1.0]
    for work in works.values():
        heights.append(len(_drawn_systems(work)) * _ROW + _PANEL)
        ratios += [found.get("ratio", 1.0) for found in work["systems"].values()]
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(7.0, sum(heights) + 0.3))
        grid = figure.subplots(len(works), 1, sharex=True, squeeze=False, height_ratios=heights)
        panels = grid[:, 0]
        for axes, (name, work) in zip(panels, works.items(), strict=True):
            _bars(axes, name, work)
        _log_axis(panels[-1], max(ratios))
        panels[-1].set_xlabel("times the plain PyTorch step (logarithmic)")
    return figure


def _drawn_systems(work: Results) -> list[str]:
    return [system for system in LABELS if system in work["systems"]]


def _bars(axes: Axes, name: str, work: Results) -> None:
    """The panel of one workload."""
    systems = _drawn_systems(work)
    for place, system in enumerate(systems):
        _bar(axes, place, system, work["systems"][system])
    plain_ms = work["systems"]["plain"]["ms"]
    axes.set_title(f"{name}, batch {work['batch']}: plain step {plain_ms:.3g} ms")
    axes.set_yticks(range(len(systems)), [LABELS[system] for system in systems])
    axes.set_ylim(len(systems) - 0.4, -0.6)
    axes.axvline(1, color=PALETTE["ink"], linewidth=1)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=PALETTE["ink"])


def _bar(axes: Axes, place: int, system: str, found: Results) -> None:
    colour = PALETTE["vermilion"]
    if system in _ORDINARY:
        colour = PALETTE["muted"]
    elif system in _OURS:
        colour = PALETTE["blue"]
    if "failed" in found:
        axes.text(
            1.05, place, "no result (see below)", va="center", color=PALETTE["muted"], fontsize=8
        )
        return
    ratio = found["ratio"]
    low, high = found["ratio_quartiles"]
    axes.barh(place, ratio - 1, left=1, height=0.62, color=colour)
    axes.hlines(place, low, high, color=PALETTE["ink"], linewidth=1)
    axes.text(
        max(high, 1.0) * 1.05,
        place,
        f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}",
        va="center",
        fontsize=8,
    )


def _log_axis(axes: Axes, highest: float) -> None:
    axes.set_xscale("log")
    right = max(highest, 3.0) * _ROOM
    axes.set_xlim(_LOWEST, right)
    ticks = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(plain_numbers)


def growth_curves(results: Results) -> Figure:
    """The ratio to the plain step as batch, width and depth grow; bands are quartiles."""
    kinds: dict[str, Any] = results["growth"]
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(7.0, 3.0))
        panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for axes, (what, found) in zip(panels, kinds.items(), strict=True):
            sizes = found["at"]
            ratios = found["ratios"]
            _curve(axes, sizes, ratios["dpsgd"], PALETTE["blue"], "o", "DP-SGD")
            _curve(axes, sizes, ratios["dpvd"], PALETTE["vermilion"], "s", "Algorithm 1")
            axes.axhline(1, color=PALETTE["ink"], linewidth=1)
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlabel(what)
            axes.set_title(found["network"], fontsize=8)
        panels[0].set_ylabel("times the plain step")
        panels[0].set_ylim(bottom=0)
        panels[-1].legend(frameon=False, fontsize=8)
    return figure


def _curve(
    axes: Axes, at: list[int], ratios: list[Results], colour: str, marker: str, label: str
) -> None:
    axes.fill_between(
        at,
        [r["low"] for r in ratios],
        [r["high"] for r in ratios],
        color=colour,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(
        at, [r["median"] for r in ratios], color=colour, marker=marker, markersize=4, label=label
    )
