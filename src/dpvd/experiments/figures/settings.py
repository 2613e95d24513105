"""Fig. 5: one setting changed at a time."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.catalogue import CLIP_NORM
from dpvd.experiments.figures.plotting import (
    ORANGE,
    VARIANT_WORDS,
    Drawing,
    Style,
    grid,
    legend,
    line_key,
    percent_axis,
    plain_numbers,
    run_words,
    shown_name,
)
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.report import PALETTE

__all__ = ["settings_figure"]

SETTINGS = {
    "hidden": "hidden units",
    "epochs": "epochs",
    "clip_norm": "clip norm C",
    "batch_size": "minibatch size S",
}
LINES: dict[Variant, tuple[Style, str]] = {
    Variant.AS_PRINTED: ((ORANGE, "--"), "s"),
    Variant.TUNED: ((PALETTE["blue"], "-"), "o"),
}
OWN_LINE: Style = (PALETTE["muted"], ":")

Points = Mapping[float, Summary]
"""Runs by the value of a setting."""


def settings_figure(results: Results, protocol: ExperimentProtocol) -> Drawing | None:
    """Fig. 5: one setting changed at a time, at ε = 1; a panel for each setting."""
    figure, panels = grid(2, 2)
    drawn: list[Summary] = []
    has_sweep = False
    for axes, setting in zip([*panels[0], *panels[1]], SETTINGS, strict=True):
        by_variant = {variant: results.sweep(protocol, variant, setting) for variant in LINES}
        for points in by_variant.values():
            drawn += points.values()
            has_sweep = has_sweep or len(points) > 1
        _draw_panel(axes, setting, by_variant, _own_value(protocol, setting))
    if not has_sweep:  # at most the protocol's own value was run
        return None
    keys = [
        line_key(VARIANT_WORDS[variant], style, marker)
        for variant, (style, marker) in LINES.items()
    ]
    keys.append(line_key("the protocol's own value", OWN_LINE))
    legend(figure, keys, columns=2)
    return Drawing(
        name=f"fig5-{protocol.name}",
        title=f"Fig. 5: effect of the settings, {shown_name(protocol)}",
        caption=(
            "DPVD-zCDP at ε = 1, one setting changed at a time, all else as in"
            f" {protocol.words}; noise calibrated for each point. Mean of {run_words(drawn)} a"
            " point; bars: one standard deviation over runs."
        ),
        figure=figure,
    )


def _own_value(protocol: ExperimentProtocol, setting: str) -> float:
    """The protocol's value of a setting."""
    if setting == "clip_norm":
        return CLIP_NORM
    value: float = getattr(protocol, setting)
    return value


def _draw_panel(axes: Axes, setting: str, by_variant: Mapping[Variant, Points], own: float) -> None:
    values: set[float] = set()
    for variant, points in by_variant.items():
        if not points:
            continue
        _draw_points(axes, variant, points)
        values.update(points)
    axes.axvline(own, color=OWN_LINE[0], linewidth=0.8, linestyle=OWN_LINE[1])
    axes.set(xlabel=SETTINGS[setting], ylabel="test accuracy")
    percent_axis(axes)
    if setting != "clip_norm" and len(values) > 1:  # values double from one to the next
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        axes.xaxis.set_minor_locator(NullLocator())
    ticks = sorted(values | {own})
    axes.xaxis.set_major_locator(FixedLocator(ticks))


def _draw_points(axes: Axes, variant: Variant, points: Points) -> None:
    """Means with a bar of one standard deviation."""
    style, marker = LINES[variant]
    axes.errorbar(
        list(points),
        [100 * summary.mean for summary in points.values()],
        [100 * (summary.spread or 0.0) for summary in points.values()],
        color=style[0],
        linestyle=style[1],
        marker=marker,
        markersize=4,
        capsize=3,
    )
