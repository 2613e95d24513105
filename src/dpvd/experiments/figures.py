"""Fig. 1 to 5 from records. Colours of Okabe and Ito; line styles and markers say the same without
colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from dpvd.experiments.catalogue import NP
from dpvd.experiments.claims import Claims
from dpvd.experiments.noise import noise_levels, sigma_of
from dpvd.experiments.panels import (
    GREEN,
    ORANGE,
    Style,
    accuracy_axes,
    curve,
    grid,
    legend,
    line_key,
    percent_axis,
    plain_numbers,
    published_key,
    published_value,
    run_words,
)
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.results import Results, Summary
from dpvd.experiments.spec import Variant
from dpvd.report import FIGURE_STYLE, PALETTE

__all__ = ["Drawing", "draw_all"]

VARIANTS = (Variant.AS_PRINTED, Variant.TUNED)
VARIANT_WORDS = {
    Variant.AS_PRINTED: "learning rate as printed",
    Variant.TUNED: "learning rate tuned",
}
BUDGET_LINES: dict[float, Style] = {
    10.0: (PALETTE["blue"], "-"),
    1.0: (GREEN, "--"),
    0.1: (PALETTE["vermilion"], "-."),
}
PLAIN_LINE: Style = (PALETTE["ink"], ":")
METHOD_LINES: dict[str, Style] = {
    "DPVD-AC": (PALETTE["vermilion"], "-."),
    "DPVD-zCDP": (PALETTE["blue"], "-"),
}
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
SWEEP_LINES: dict[Variant, tuple[Style, str]] = {
    Variant.AS_PRINTED: ((ORANGE, "--"), "s"),
    Variant.TUNED: ((PALETTE["blue"], "-"), "o"),
}
CURVE_BUDGETS = tuple(10 ** (step / 3) for step in range(-3, 4))  # 0.1 to 10
BANDS = "Bands: one standard deviation over runs."

Line = tuple[str, float | None, Style]
"""Method, budget and how the curve is drawn."""


@dataclass(frozen=True)
class Drawing:
    """A figure with its file name and words."""

    name: str
    title: str
    caption: str
    figure: Figure


def draw_all(
    results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]
) -> list[Drawing]:
    """Every figure for which there is something to draw."""
    drawn = []
    with matplotlib.rc_context(FIGURE_STYLE):
        for protocol in protocols:
            number = {"mnist": 1, "digits": 2}[protocol.dataset]
            drawn += [_curves(results, claims, protocol, number)]
            drawn += [_sweeps(results, protocol)]
        drawn += [_noise(claims, protocols), _comparison(results, claims, protocols)]
        found = sorted(
            (drawing for drawing in drawn if drawing is not None), key=lambda drawing: drawing.name
        )
        for drawing in found:
            # Lay it out once: every later drawing would move things by a last digit, and change the
            # file.
            drawing.figure.draw_without_rendering()
            drawing.figure.set_layout_engine("none")
    return found


def _curves(
    results: Results, claims: Claims, protocol: ExperimentProtocol, number: int
) -> Drawing | None:
    """Fig. 1 and 2: accuracy by epoch for each budget, a column for each method, a row for each
    variant.
    """
    if not any(_has_curve(results, protocol, epsilon) for epsilon in BUDGET_LINES):
        return None
    figure, panels = grid(2, 2)
    drawn: list[Summary] = []
    for row, variant in zip(panels, VARIANTS, strict=True):
        for axes, method in zip(row, METHOD_LINES, strict=True):
            axes.set_title(f"{method}, {VARIANT_WORDS[variant]}")
            lines: list[Line] = [
                (method, epsilon, style) for epsilon, style in BUDGET_LINES.items()
            ]
            drawn += _lines(
                axes, results, claims, protocol, variant, [*lines, (NP, None, PLAIN_LINE)]
            )
    keys = [line_key(f"ε = {epsilon:g}", style) for epsilon, style in BUDGET_LINES.items()]
    legend(figure, [*keys, line_key("NP", PLAIN_LINE), published_key()], columns=2)
    caption = (
        f"Mean test accuracy after each epoch, {run_words(drawn)} a curve. {protocol.words}."
        f" {BANDS} {_crosses([protocol])}"
    )
    title = f"Fig. {number}: accuracy by epoch, {_shown(protocol)}"
    return Drawing(f"fig{number}-{protocol.name}", title, caption, figure)


def _has_curve(results: Results, protocol: ExperimentProtocol, epsilon: float) -> bool:
    """Whether DPVD has been run at a budget: ordinary training alone is no comparison."""
    cells = [results.cell(protocol, m, v, epsilon) for m in METHOD_LINES for v in VARIANTS]
    return any(cell is not None for cell in cells)


def _comparison(
    results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]
) -> Drawing | None:
    """Fig. 4: AC against zCDP against NP at ε = 0.1, a column for each protocol that was run."""
    protocols = [protocol for protocol in protocols if _has_curve(results, protocol, 0.1)]
    if not protocols:
        return None
    figure, panels = grid(2, len(protocols))
    lines: list[Line] = [
        *((method, 0.1, style) for method, style in METHOD_LINES.items()),
        (NP, None, PLAIN_LINE),
    ]
    drawn: dict[str, list[Summary]] = {}
    for row, variant in zip(panels, VARIANTS, strict=True):
        for axes, protocol in zip(row, protocols, strict=True):
            axes.set_title(f"{_shown(protocol)}, {VARIANT_WORDS[variant]}")
            drawn.setdefault(protocol.name, []).extend(
                _lines(axes, results, claims, protocol, variant, lines)
            )
    keys = [line_key(method, style) for method, _, style in lines]
    legend(figure, [*keys, published_key()], columns=len(protocols))
    runs = "; ".join(
        f"{protocol.words}, {run_words(drawn[protocol.name])} a curve" for protocol in protocols
    )
    caption = f"Mean test accuracy at ε = 0.1. {runs}. {BANDS} {_crosses(protocols)}"
    title = "Fig. 4: advanced composition against zCDP at ε = 0.1"
    return Drawing("fig4", title, caption, figure)


def _lines(
    axes: Axes,
    results: Results,
    claims: Claims,
    protocol: ExperimentProtocol,
    variant: Variant,
    lines: Sequence[Line],
) -> list[Summary]:
    """Curves with the published values behind them; what was drawn."""
    drawn = []
    for column, (method, epsilon, style) in enumerate(lines):
        summary = results.cell(protocol, method, variant, epsilon)
        if summary is not None:
            curve(axes, summary, style)
            drawn.append(summary)
        printed = claims.accuracy(protocol.dataset, method, epsilon)
        if printed is not None:
            published_value(axes, printed, protocol.epochs, column, style[0])
    accuracy_axes(axes, protocol.epochs)
    return drawn


def _crosses(protocols: Sequence[ExperimentProtocol]) -> str:
    """What the crosses are, and at what length they were published where ours is another."""
    paper = {protocol.dataset: protocol for protocol in PROTOCOLS.values() if protocol.as_in_paper}
    other = [paper[p.dataset] for p in protocols if p.dataset in paper and not p.as_in_paper]
    lengths = " and ".join(
        f"{p.epochs} epochs with {p.hidden} hidden units on {p.dataset.upper()}" for p in other
    )
    after = f"; there they stand for {lengths}" if other else ""
    return (
        "Crosses behind the last epoch, from left to right in the order of the legend: the final"
        f" accuracies that the paper prints{after}."
    )


def _noise(claims: Claims, protocols: Sequence[ExperimentProtocol]) -> Drawing:
    """Fig. 3: σ against ε for every accountant, with the published points."""
    figure, panels = grid(1, len(protocols))
    printed = [
        noise
        for noise in claims.noise
        if any(_is_for(noise.dataset, protocol) for protocol in protocols)
    ]
    for axes, protocol in zip(panels[0], protocols, strict=True):
        axes.set_title(
            f"{protocol.dataset.upper()}, S = {protocol.batch_size}, {_epochs(protocol)}"
        )
        levels = noise_levels(protocol, CURVE_BUDGETS)
        for name, (
            colour,
            dashes,
        ) in ACCOUNTANT_LINES.items():  # dashes last: they lie on top of what they cover
            sigmas = [sigma_of(level) for level in levels[name]]
            axes.plot(CURVE_BUDGETS, sigmas, color=colour, linestyle=dashes, linewidth=1.8)
        for noise in printed:
            if _is_for(noise.dataset, protocol):
                colour = METHOD_LINES[noise.method][0]
                axes.plot(
                    noise.epsilon,
                    noise.sigma,
                    "X",
                    color=colour,
                    markersize=9,
                    markeredgecolor=PALETTE["paper"],
                )
        axes.set(xscale="log", yscale="log", xlabel="ε at δ = 1e-5", ylabel="σ = noise / (2C)")
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
    keys = [line_key(ACCOUNTANT_WORDS[name], style) for name, style in ACCOUNTANT_LINES.items()]
    legend(figure, [*keys, *([published_key()] if printed else [])], columns=len(protocols))
    crosses = (
        "Crosses: published for advanced composition and for zCDP, drawn where the length is the"
        " paper's."
    )
    caption = (
        "Noise that each accountant asks for, in the paper's unit under flat clipping (z = 2σ);"
        " computed, no training. Truncated zCDP and RDP nearly"
        f" coincide.{' ' + crosses if printed else ''}"
    )
    return Drawing("fig3", "Fig. 3: noise against budget", caption, figure)


def _shown(protocol: ExperimentProtocol) -> str:
    """The data set, and the protocol's name where its length is not the paper's."""
    name = protocol.dataset.upper()
    return name if protocol.as_in_paper else f"{name} ({protocol.name})"


def _is_for(dataset: str, protocol: ExperimentProtocol) -> bool:
    return dataset == protocol.dataset and protocol.as_in_paper


def _epochs(protocol: ExperimentProtocol) -> str:
    return f"{protocol.epochs} epoch{'s' * (protocol.epochs != 1)}"


def _sweeps(results: Results, protocol: ExperimentProtocol) -> Drawing | None:
    """Fig. 5: one setting changed at a time, at ε = 1."""
    sweeps = [results.sweep(protocol, v, setting) for v in SWEEP_LINES for setting in SWEEPS]
    if all(len(points) < 2 for points in sweeps):  # at most the protocol's own value was run
        return None
    figure, panels = grid(2, 2)
    drawn: list[Summary] = []
    own = {
        "hidden": protocol.hidden,
        "epochs": protocol.epochs,
        "clip_norm": 2.0,
        "batch_size": protocol.batch_size,
    }
    for axes, (setting, words) in zip([*panels[0], *panels[1]], SWEEPS.items(), strict=True):
        values: set[float] = set()
        for variant, (style, marker) in SWEEP_LINES.items():
            points = results.sweep(protocol, variant, setting)
            drawn += points.values()
            values |= set(points)
            if points:
                means = [100 * summary.mean for summary in points.values()]
                spreads = [100 * (summary.spread or 0.0) for summary in points.values()]
                axes.errorbar(
                    list(points),
                    means,
                    spreads,
                    color=style[0],
                    linestyle=style[1],
                    marker=marker,
                    markersize=4,
                    capsize=3,
                )
        axes.axvline(own[setting], color=PALETTE["muted"], linewidth=0.8, linestyle=":")
        axes.set(xlabel=words, ylabel="test accuracy")
        percent_axis(axes)
        if setting != "clip_norm" and len(values) > 1:  # values double from one to the next
            axes.set_xscale("log")
            plain_numbers(axes.xaxis)
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator(sorted(values | {own[setting]})))
    keys = [
        line_key(VARIANT_WORDS[variant], style, marker)
        for variant, (style, marker) in SWEEP_LINES.items()
    ]
    legend(
        figure, [*keys, line_key("the protocol's own value", (PALETTE["muted"], ":"))], columns=2
    )
    caption = (
        f"DPVD-zCDP at ε = 1, one setting changed at a time, all else as in {protocol.words}; noise"
        f" calibrated for each point. Mean of {run_words(drawn)} a point; bars: one standard"
        " deviation over runs."
    )
    title = f"Fig. 5: effect of the settings, {_shown(protocol)}"
    return Drawing(f"fig5-{protocol.name}", title, caption, figure) if drawn else None
