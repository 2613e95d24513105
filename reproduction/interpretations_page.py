"""What was measured of the seven points, in words, for "How we read the paper"."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.experiments import Folder
from dpvd.experiments.table_formats import markdown_table
from dpvd.privacy import round_up
from reproduction.interpretations import FILE

__all__ = ["PAGE", "WORDS", "filled_in", "load"]

PAGE = Path(__file__).parents[1] / "docs" / "how-we-read-the-paper.md"
BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
SCHEDULES = {"printed": "as printed", "tuned": "tuned"}

Measured = Mapping[str, Any]


def load(folder: Folder) -> Measured | None:
    """What ``python -m reproduction.interpretations`` wrote; None if it has not been run."""
    path = folder.path / FILE
    if not path.exists():
        return None
    found: Measured = json.loads(path.read_text(encoding="utf-8"))
    return found


def filled_in(page: str, measured: Measured) -> str:
    """The page with every block between ``<!-- measured: x -->`` and ``<!-- end -->`` as the
    measurements have it.

    Raises:
        DpvdError: if a point has no block, or a block no measurement.
    """
    names = [match[1] for match in BLOCK.findall(page)]
    if sorted(names) != sorted(WORDS):
        raise DpvdError(
            f"blocks for {', '.join(sorted(WORDS))} are expected, each once; found"
            f" {', '.join(names)}"
        )
    return BLOCK.sub(
        lambda block: f"{block[1]}\n{_wrapped(WORDS[block[2]](measured))}\n{block[3]}", page
    )


def _scale(measured: Measured) -> str:
    m = measured["scale"]
    return (
        "*Measured.* σ = 2.97 is published for ε = 1 on DIGITS. On every weight in every step,"
        f" that is noise of {m['noise']:.1f}, and of {m['after_all_steps']:.0f} after all"
        f" {m['steps']:,} steps, on weights that begin at {m['initial_weight']:.2g}:"
        f" {_percent(m['on_weights'])}, where guessing gives 10 %. The same noise on the sum gives"
        f" {_percent(m['on_sum'])} at ε = {round_up(m['on_sum_epsilon'])} (by `pld`, two layers"
        f" clipped); noise of {m['for_one_noise']:.1f}, which ε = 1 takes, gives"
        f" {_percent(m['for_one'])}. All with the printed learning rate, without KL term and"
        f" dropout noise; {_runs(measured)}."
    )


def _carried(measured: Measured) -> str:
    m = measured["carried"]
    small, printed = m["small"], m["printed"]
    return (
        "*Measured.* Without noise on the way, training on DIGITS and on DIGITS less one example,"
        f" with the same batches, ends up to {m['distance']:.2g} apart ({m['neighbours']} examples"
        f" tried; median {m['distance_median']:.2g}). If what is released carries the noise of the"
        f" last step alone, ζ = {small['noise']:.2g} at ε = 1, whoever knows the batches tells the"
        f" two apart: no ε below {_large(small['epsilon'])} is true of it"
        f" ({_percent(small['accuracy'])}). The printed noise of {printed['noise']:.1f}, added"
        f" once, hides those pairs (ε = {round_up(printed['epsilon'])}), but nothing is left of the"
        f" network ({_percent(printed['accuracy'])}), and ε = 1 cannot be promised either: once one"
        f" gradient has differed all later ones may, by up to {m['reach']:.0f} over the run, for"
        f" which ε is {round_up(printed['epsilon_reach'])}."
    )


def _tied(measured: Measured) -> str:
    rows = []
    for name, words in SCHEDULES.items():
        m, (rate, gamma) = measured["tied"][name], measured["about"]["schedules"][name]
        rows.append(
            (
                f"{words}: η₀ = {rate:g}, γ = {gamma:g}",
                f"{m['first']:.2g} to {m['last']:.2g}",
                f"{m['together']:.2g}",
                _pair(m["weights"], "{:.2g}"),
                _pair([100 * share for share in m["noise_larger"]], "{:.2g} %"),
                _percent(m["without"]),
                _percent(m["sampled"]),
            )
        )
    header = (
        "learning rate",
        "ζ, first to last step",
        "noise of all steps",
        "weights (root mean square)",
        "weights below ζ",
        "without dropout noise",
        "with it",
    )
    return (
        "*Measured* at ε = 1, weights of the first and of the second layer at the end, no KL term; "
        f"{_runs(measured)}:\n\n{markdown_table(header, rows)}"
    )


def _layers(measured: Measured) -> str:
    rows = [
        (row["dataset"].upper(), f"{row['claimed']:g}", round_up(row["true"]))
        for row in measured["layers"]
    ]
    header = ("data", "ε claimed", "ε by `pld`")
    return (
        "*Measured.* What noise calibrated for one clip (by `pld`, at the paper's lengths) is"
        f" worth when two layers are clipped:\n\n{markdown_table(header, rows)}"
    )


def _kl(measured: Measured) -> str:
    rows = []
    words = {"none": "left out", "outside": "outside the clip", "inside": "inside the clip"}
    for name, schedule in SCHEDULES.items():
        for kl, where in words.items():
            m = measured["kl"][name][kl]
            pull = "–" if kl == "none" else _pair(m["kl_gradient"], "{:.3g}")
            rows.append(
                (schedule, where, _percent(m["accuracy"]), pull, _pair(m["factor"], "{:.2f}"))
            )
    header = (
        "learning rate",
        "KL term",
        "accuracy",
        "norm of its gradient over N",
        "clip factor, mean",
    )
    return (
        "*Measured* at ε = 1, by layer, with dropout noise and the full weight 1 of the lower"
        f" bound; {_runs(measured)}:\n\n{markdown_table(header, rows)}"
    )


def _schedule(measured: Measured) -> str:
    m = measured["schedule"]
    return (
        "*Measured* on DIGITS without privacy, in the paper's 100 epochs:"
        f" {_percent(m['as-printed'])} as printed, {_percent(m['tuned'])} tuned, where the paper"
        f" prints {100 * m['published']:.2f} %; {m['as-printed']['runs']} runs. With privacy:"
        " [Reproduction](reproduction.md)."
    )


def _alpha(measured: Measured) -> str:
    rows = [
        (
            f"{row['epsilon']:g}",
            f"{SCHEDULES[row['schedule']]}: η₀ = {row['rate']:g}, γ = {row['gamma']:g}",
            _percent(row["alpha_held"]),
            _percent(row["zeta_held"]),
            _pair(row["kl_gradient"], "{:.3g}"),
        )
        for row in measured["alpha"]
    ]
    header = ("ε", "learning rate", "α held", "ζ held", "norm of the KL gradient over N, ζ held")
    return (
        "*Measured*, with dropout noise, the term outside the clip and at its full weight where ζ "
        f"is held; norms by layer; {_runs(measured)}:\n\n{markdown_table(header, rows)}"
    )


WORDS: Mapping[str, Callable[[Measured], str]] = {
    "scale": _scale,
    "carried": _carried,
    "tied": _tied,
    "layers": _layers,
    "kl": _kl,
    "schedule": _schedule,
    "alpha": _alpha,
}
"""The text of each block."""


def _percent(accuracy: Measured) -> str:
    """
    >>> _percent({"mean": 0.8512, "spread": 0.0123, "runs": 5})
    '85.1 ± 1.2 %'
    """
    return f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['spread']:.1f} %"


def _large(epsilon: float) -> str:
    """
    >>> _large(123456.0)
    '120,000'
    """
    digits = 10 ** max(0, len(str(int(epsilon))) - 2)
    return f"{int(epsilon // digits * digits):,}"


def _pair(values: Sequence[float], form: str) -> str:
    return " and ".join(form.format(value) for value in values)


def _runs(measured: Measured) -> str:
    return f"mean and standard deviation of {measured['about']['seeds']} runs"


def _wrapped(text: str) -> str:
    """Paragraphs broken as the rest of the page is; tables as they are."""
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith("|") else "\n".join(_lines(part)) for part in parts)


def _lines(paragraph: str) -> list[str]:
    lines = [""]
    for word in paragraph.split(" "):
        if len(lines[-1]) + len(word) > 120:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
