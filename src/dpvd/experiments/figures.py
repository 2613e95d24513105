"""Fig. 1 to 5 from records. Colours of Okabe and Ito; line styles and markers say the same without colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, PercentFormatter, StrMethodFormatter

from dpvd.experiments.catalogue import NP
from dpvd.experiments.claims import Claims
from dpvd.experiments.noise import noise_levels, sigma_of
from dpvd.experiments.protocols import Protocol
from dpvd.experiments.results import Results, Summary
from dpvd.experiments.spec import Variant
from dpvd.report import FIGURE_STYLE, PALETTE

__all__ = ["Drawing", "draw_all"]

Style = tuple[str, Literal["-", "--", "-.", ":"]]
"""Colour and dashes of a line."""

VARIANTS = (Variant.AS_PRINTED, Variant.TUNED)
VARIANT_WORDS = {Variant.AS_PRINTED: "learning rate as printed", Variant.TUNED: "learning rate tuned"}
GREEN, ORANGE = "#009e73", "#e69f00"
BUDGET_LINES: dict[float, Style] = {10.0: (PALETTE["blue"], "-"), 1.0: (GREEN, "--"), 0.1: (PALETTE["vermilion"], "-.")}
PLAIN_LINE: Style = (PALETTE["ink"], ":")
METHOD_LINES: dict[str, Style] = {"DPVD-AC": (PALETTE["vermilion"], "-."), "DPVD-zCDP": (PALETTE["blue"], "-")}
ACCOUNTANT_LINES: dict[str, Style] = {
    "advanced": (PALETTE["vermilion"], "-."),
    "zcdp": (PALETTE["blue"], "-"),
    "rdp": (ORANGE, "--"),
    "pld": (PALETTE["ink"], ":"),
}
ACCOUNTANT_WORDS = {
    "advanced": "advanced composition",
    "zcdp": "truncated zCDP",
    "rdp": "RDP (moments)",
    "pld": "PLD",
}
SWEEPS = {
    "hidden": "hidden units",
    "epochs": "epochs",
    "clip_norm": "clip norm C",
    "batch_size": "minibatch size S",
}
CURVE_BUDGETS = tuple(10 ** (step / 3) for step in range(-3, 4))  # 0.1 to 10
PANEL = (3.6, 2.9)  # inches


@dataclass(frozen=True)
class Drawing:
    """A figure with its file name and words."""

    name: str
    title: str
    caption: str
    figure: Figure


def draw_all(results: Results, claims: Claims, protocols: Sequence[Protocol]) -> list[Drawing]:
    """Every figure for which there is something to draw."""
    drawn = []
    with matplotlib.rc_context(FIGURE_STYLE):
        for protocol in protocols:
            number = {"mnist": 1, "digits": 2}[protocol.dataset]
            drawn += [_curves(results, claims, protocol, number)]
            drawn += [_sweeps(results, protocol)]
        drawn += [_noise(claims, protocols), _comparison(results, claims, protocols)]
    return sorted((drawing for drawing in drawn if drawing is not None), key=lambda drawing: drawing.name)


def _curves(results: Results, claims: Claims, protocol: Protocol, number: int) -> Drawing | None:
    """Fig. 1 and 2: accuracy by epoch for each budget, a column for each method, a row for each variant."""
    figure, panels = _grid(2, 2)
    any_line = False
    for row, variant in zip(panels, VARIANTS, strict=True):
        for axes, method in zip(row, METHOD_LINES, strict=True):
            axes.set_title(f"{method}, {VARIANT_WORDS[variant]}")
            for epsilon, style in BUDGET_LINES.items():
                any_line |= _curve(axes, results.cell(protocol, method, variant, epsilon), style)
                _published(axes, claims.accuracy(protocol.dataset, method, epsilon), protocol.epochs, style[0])
            any_line |= _curve(axes, results.cell(protocol, NP, variant, None), PLAIN_LINE)
            _published(axes, claims.accuracy(protocol.dataset, NP, None), protocol.epochs, PLAIN_LINE[0])
            _label_accuracy(axes)
    entries = [(f"ε = {epsilon:g}", style) for epsilon, style in BUDGET_LINES.items()] + [("NP", PLAIN_LINE)]
    _legend(figure, entries)
    caption = f"Mean test accuracy after each epoch. {protocol.words}. Crosses: published values."
    title = f"Fig. {number}: accuracy by epoch, {protocol.dataset.upper()}"
    return Drawing(f"fig{number}-{protocol.name}", title, caption, figure) if any_line else None


def _comparison(results: Results, claims: Claims, protocols: Sequence[Protocol]) -> Drawing | None:
    """Fig. 4: AC against zCDP against NP at ε = 0.1, a column for each protocol."""
    figure, panels = _grid(2, len(protocols))
    any_line = False
    for row, variant in zip(panels, VARIANTS, strict=True):
        for axes, protocol in zip(row, protocols, strict=True):
            axes.set_title(f"{protocol.dataset.upper()}, {VARIANT_WORDS[variant]}")
            for method, epsilon, style in [*((m, 0.1, s) for m, s in METHOD_LINES.items()), (NP, None, PLAIN_LINE)]:
                any_line |= _curve(axes, results.cell(protocol, method, variant, epsilon), style)
                _published(axes, claims.accuracy(protocol.dataset, method, epsilon), protocol.epochs, style[0])
            _label_accuracy(axes)
    _legend(figure, [*METHOD_LINES.items(), (NP, PLAIN_LINE)])
    caption = f"Mean test accuracy at ε = 0.1. {'; '.join(p.words for p in protocols)}. Crosses: published values."
    return (
        Drawing("fig4", "Fig. 4: advanced composition against zCDP at ε = 0.1", caption, figure) if any_line else None
    )


def _noise(claims: Claims, protocols: Sequence[Protocol]) -> Drawing:
    """Fig. 3: σ against ε for every accountant, with the published points."""
    figure, panels = _grid(1, len(protocols))
    for axes, protocol in zip(panels[0], protocols, strict=True):
        axes.set_title(f"{protocol.dataset.upper()}, {protocol.epochs} epoch{'s' * (protocol.epochs != 1)}")
        levels = noise_levels(protocol, CURVE_BUDGETS)
        for name, (colour, dashes) in ACCOUNTANT_LINES.items():  # dashes last: they lie on top of what they cover
            sigmas = [sigma_of(level) for level in levels[name]]
            axes.plot(CURVE_BUDGETS, sigmas, color=colour, linestyle=dashes, linewidth=1.8)
        for noise in claims.noise:
            if noise.dataset == protocol.dataset and protocol.as_in_paper:
                colour = METHOD_LINES[noise.method][0]
                axes.plot(noise.epsilon, noise.sigma, "X", color=colour, markersize=9, markeredgecolor=PALETTE["paper"])
        axes.set(xscale="log", yscale="log", xlabel="ε at δ = 1e-5", ylabel="σ = noise / (2C)")
        _plain_numbers(axes.xaxis)
        _plain_numbers(axes.yaxis)
    _legend(figure, [(ACCOUNTANT_WORDS[name], style) for name, style in ACCOUNTANT_LINES.items()])
    caption = (
        "Noise that each accountant asks for, in the paper's unit under flat clipping (z = 2σ). Truncated zCDP and RDP "
        "nearly coincide. Crosses: published values, drawn where the length is the paper's."
    )
    return Drawing("fig3", "Fig. 3: noise against budget", caption, figure)


def _sweeps(results: Results, protocol: Protocol) -> Drawing | None:
    """Fig. 5: one setting changed at a time, at ε = 1."""
    if not protocol.sweep_seeds:
        return None
    figure, panels = _grid(2, 2)
    any_line = False
    for axes, (setting, words) in zip([*panels[0], *panels[1]], SWEEPS.items(), strict=True):
        for variant, colour, marker in zip(VARIANTS, (ORANGE, PALETTE["blue"]), "so", strict=True):
            points = results.sweep(protocol, variant, setting)
            if not points:
                continue
            any_line = True
            means = [100 * summary.mean for summary in points.values()]
            spreads = [100 * (summary.spread or 0.0) for summary in points.values()]
            axes.errorbar(list(points), means, yerr=spreads, color=colour, marker=marker, markersize=4, capsize=2)
        axes.set(xlabel=words, ylabel="test accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))
        if setting in ("hidden", "batch_size"):
            axes.set_xscale("log")
            _plain_numbers(axes.xaxis)
            axes.xaxis.set_major_locator(FixedLocator(_swept(protocol, setting)))
            axes.xaxis.set_minor_locator(NullLocator())
    handles = [
        Line2D([], [], color=colour, marker=marker, label=VARIANT_WORDS[variant])
        for variant, colour, marker in zip(VARIANTS, (ORANGE, PALETTE["blue"]), "so", strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    runs = "1 run" if protocol.sweep_seeds == 1 else f"{protocol.sweep_seeds} runs"
    caption = f"DPVD-zCDP at ε = 1, all else as in {protocol.name}; mean and standard deviation of {runs}."
    title = f"Fig. 5: effect of the settings, {protocol.dataset.upper()}"
    return Drawing(f"fig5-{protocol.name}", title, caption, figure) if any_line else None


def _grid(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.4))
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def _curve(axes: Axes, summary: Summary | None, style: Style) -> bool:
    if summary is None:
        return False
    epochs, accuracy = zip(*summary.curve, strict=True)
    marker = "o" if len(epochs) < 5 else ""
    percent = [100 * share for share in accuracy]
    axes.plot(epochs, percent, color=style[0], linestyle=style[1], linewidth=1.8, marker=marker, markersize=4)
    return True


def _published(axes: Axes, accuracy: float | None, epochs: float, colour: str) -> None:
    """A cross right of the last epoch, where no line can hide it."""
    if accuracy is not None:
        axes.plot(
            epochs * 1.04, 100 * accuracy, "X", color=colour, markersize=7, markeredgecolor=PALETTE["paper"], zorder=5
        )


def _label_accuracy(axes: Axes) -> None:
    axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 102))
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))


def _plain_numbers(axis: Axis) -> None:
    """Write 0.1 and 100: matplotlib's powers of ten are formulas, which the style leaves unread."""
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _swept(protocol: Protocol, setting: str) -> tuple[int, ...]:
    return {"hidden": protocol.hidden_sweep, "batch_size": protocol.batch_sweep}[setting]


def _legend(figure: Figure, entries: Sequence[tuple[str, Style]]) -> None:
    handles = [Line2D([], [], color=c, linestyle=d, linewidth=1.8, label=words) for words, (c, d) in entries]
    handles.append(Line2D([], [], color=PALETTE["muted"], marker="X", linestyle="", label="published"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
