"""Fig. 3: the noise that each accountant requires."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from dpvd.experiments.claims import Claims, PublishedNoise
from dpvd.experiments.figures.plotting import (
    ACCOUNTANT_LINES,
    METHOD_LINES,
    Drawing,
    grid,
    legend,
    line_key,
    plain_numbers,
    published_key,
)
from dpvd.experiments.noise_levels import noise_levels, sigma_of
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.report import PALETTE

__all__ = ["noise_figure"]

ACCOUNTANT_WORDS = {
    "advanced": "advanced composition",
    "zcdp": "truncated zCDP",
    "rdp": "RDP (moments)",
    "pld": "PLD",
}
BUDGETS = tuple(10 ** (step / 3) for step in range(-3, 4))  # 0.1 to 10
CROSSES = (
    " Crosses: published for advanced composition and for zCDP, drawn where the length is the"
    " paper's."
)


def noise_figure(claims: Claims, protocols: Sequence[ExperimentProtocol]) -> Drawing:
    """Fig. 3: σ against ε for every accountant, with the published points."""
    figure, panels = grid(1, len(protocols))
    published: list[PublishedNoise] = []
    for axes, protocol in zip(panels[0], protocols, strict=True):
        _draw_levels(axes, protocol)
        points = [point for point in claims.noise if _is_for(point, protocol)]
        for point in points:
            _draw_published(axes, point)
        published += points
    keys = [line_key(ACCOUNTANT_WORDS[name], style) for name, style in ACCOUNTANT_LINES.items()]
    if published:
        keys.append(published_key())
    legend(figure, keys, columns=len(protocols))
    return Drawing(
        name="fig3",
        title="Fig. 3: noise against budget",
        caption=(
            "Noise that each accountant asks for, in the paper's unit under flat clipping (z = 2σ);"
            " computed, no training. Truncated zCDP and RDP nearly"
            f" coincide.{CROSSES if published else ''}"
        ),
        figure=figure,
    )


def _draw_levels(axes: Axes, protocol: ExperimentProtocol) -> None:
    """A line for each accountant. Dashes last: they lie on top of what they cover."""
    epochs = "1 epoch" if protocol.epochs == 1 else f"{protocol.epochs} epochs"
    axes.set_title(f"{protocol.dataset.upper()}, S = {protocol.batch_size}, {epochs}")
    levels = noise_levels(protocol, BUDGETS)
    for name, (colour, dashes) in ACCOUNTANT_LINES.items():
        sigmas = [sigma_of(level) for level in levels[name]]
        axes.plot(BUDGETS, sigmas, color=colour, linestyle=dashes, linewidth=1.8)
    axes.set(xscale="log", yscale="log", xlabel="ε at δ = 1e-5", ylabel="σ = noise / (2C)")
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)


def _draw_published(axes: Axes, point: PublishedNoise) -> None:
    axes.plot(
        point.epsilon,
        point.sigma,
        "X",
        color=METHOD_LINES[point.method][0],
        markersize=9,
        markeredgecolor=PALETTE["paper"],
    )


def _is_for(point: PublishedNoise, protocol: ExperimentProtocol) -> bool:
    return protocol.as_in_paper and point.dataset == protocol.dataset
