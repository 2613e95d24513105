"""Write the performance page and its figures from the latest results.

python -m benchmarks.page
"""

import sys
from pathlib import Path

from benchmarks.check import judge, remarks
from benchmarks.children import ROOT
from benchmarks.draw import LABELS, growth_curves, ratio_bars
from benchmarks.results import LATEST, Results, load
from benchmarks.shares import PIECES, REST
from benchmarks.systems import SYSTEMS, applies
from benchmarks.workloads import WORKLOADS
from dpvd.experiments.table_formats import markdown_table
from dpvd.report import svg_bytes

__all__ = ["main", "page", "write"]

_NAMES = {"plain": "plain PyTorch", **LABELS}
_SUMMARISED = ("dpsgd", "dpvd", "opacus-ghost", "opacus-hooks", "jax-privacy")
_METHOD = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")


def page(results: Results) -> str:
    """The page in Markdown."""
    return _METHOD.format(
        answer=_answer(results),
        summary=_summary(results),
        met=_met(results),
        circumstances=_circumstances(results),
        limits=_limits(results),
        remarks="".join(f"\n- {remark}" for remark in remarks(results)),
        systems="\n\n".join(_systems(name, work) for name, work in results["workloads"].items()),
        failures=_failures(results),
        shares=_shares(results),
        growth="\n\n".join(_growth(what, found) for what, found in results["growth"].items()),
    )


def write(results: Results, folder: Path) -> None:
    """Write the page and its figures into the folder of the documentation."""
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    bars = svg_bytes(ratio_bars(results))
    (figures / "ratios.svg").write_bytes(bars)
    curves = svg_bytes(growth_curves(results))
    (figures / "growth.svg").write_bytes(curves)
    text = page(results)
    (folder / "performance.md").write_text(text, encoding="utf-8")


def _answer(results: Results) -> str:
    """What a private step costs, over all workloads, in two sentences."""
    dpsgd = _range(results, "dpsgd")
    dpvd = _range(results, "dpvd")
    ghost = _range(results, "opacus-ghost")
    return (
        f"A private step costs {dpsgd} times the plain PyTorch step with DP-SGD and {dpvd} times"
        " with Algorithm 1. On the same networks Opacus with ghost clipping takes"
        f" {ghost} times the plain step."
    )


def _range(results: Results, system: str) -> str:
    """The smallest and the largest ratio of times to the plain step, and on which workloads."""
    ratios = {}
    for name, work in results["workloads"].items():
        found = work["systems"].get(system, {})
        if "ratio" in found:
            ratios[name] = found["ratio"]
    if not ratios:
        return "an unknown number of"
    fastest = min(ratios, key=lambda name: ratios[name])
    slowest = max(ratios, key=lambda name: ratios[name])
    return f"{_number(ratios[fastest])} (`{fastest}`) to {_number(ratios[slowest])} (`{slowest}`)"


def _summary(results: Results) -> str:
    """Time and memory of ours and of other libraries, a row for each workload."""
    rows = []
    for name, work in results["workloads"].items():
        plain = work["systems"]["plain"]
        cells = [
            _time_and_memory(work["systems"].get(system), plain)
            if system not in SYSTEMS or applies(system, WORKLOADS[name])
            else "not timed"
            for system in _SUMMARISED
        ]
        rows.append((name, *cells))
    header = ("workload", *(_NAMES[system] for system in _SUMMARISED))
    return markdown_table(header, rows)


def _time_and_memory(found: Results | None, plain: Results) -> str:
    """Both ratios to the plain step, or that there is no result."""
    if found is None:
        return "not measured"
    if "failed" in found:
        return "no result"
    time = _number(found["ratio"])
    memory = _number(found["peak_mb"] / plain["peak_mb"])
    return f"{time}, {memory}"


def _met(results: Results) -> str:
    verdicts = judge(results)
    met = [verdict for verdict in verdicts if verdict.met]
    return f"{len(met)} of {len(verdicts)} limits met."


def _circumstances(results: Results) -> str:
    machine = results["machine"]
    versions = results["versions"]
    clock = {"wall": "elapsed time", "cpu": "processor time"}[results["clock"]]
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{results['date'][:10]}, {machine['processor']}, {machine['cores']} cores,"
        f" {results['threads']} torch threads, {clock}. {software}. Noise: {results['noise']}."
    )


def _limits(results: Results) -> str:
    rows = [
        (
            verdict.workload,
            _NAMES[verdict.system],
            f"{verdict.quantity} to {_NAMES[verdict.baseline]}",
            _number(verdict.found),
            f"{verdict.limit:g}",
            "met" if verdict.met else "**OVER LIMIT**",
        )
        for verdict in judge(results)
    ]
    return markdown_table(("workload", "system", "ratio of", "measured", "at most", ""), rows)


def _systems(name: str, work: Results) -> str:
    base = work["systems"]["plain"]["peak_mb"]
    rows = []
    for system, found in work["systems"].items():
        if "failed" in found:
            rows.append((_NAMES[system], "no result", "", "", ""))
            continue
        low, high = found["ratio_quartiles"]
        peak = found["peak_mb"]
        rows.append(
            (
                _NAMES[system],
                f"{found['ms']:.3g}",
                f"{_number(found['ratio'])} ({_number(low)} to {_number(high)})",
                f"{peak:,.0f}",
                f"{peak / base:.2f}",
            )
        )
    sizes = f"Batch {work['batch']}, {work['parameters']:,} parameters, {work['rounds']} rounds."
    if "date" in work:
        sizes += f" Measured on {work['date']}."
    if work["variational"]:
        sizes += f" Variational: {work['variational']}."
    if "two_threads" in work:
        sizes += " " + _on_two_threads(work["two_threads"])
    heading = f"### {name}\n\n{sizes}\n\n"
    return heading + markdown_table(
        ("system", "ms", "ratio (quartiles)", "peak MB", "ratio of peaks"), rows
    )


def _on_two_threads(found: Results) -> str:
    plain, own = found["plain"], found["dpsgd"]
    return (
        f"On one thread; on two the plain step takes {plain['ms']:.3g} ms and DP-SGD"
        f" {_number(own['ratio'])} times as long."
    )


def _failures(results: Results) -> str:
    lines = []
    for name, work in results["workloads"].items():
        for system, found in work["systems"].items():
            if "failed" in found:
                lines.append(f"- {_NAMES[system]}, {name}: {found['failed']}")
    if not lines:
        return "Every library took every workload."
    return "No result:\n\n" + "\n".join(lines)


def _shares(results: Results) -> str:
    pieces = [*dict.fromkeys(piece for piece, _, _ in PIECES), REST]
    rows = []
    for name, work in results["workloads"].items():
        for system, found in work["shares"].items():
            cells = [f"{100 * found[piece]:.0f} %" for piece in pieces]
            rows.append((name, _NAMES[system], *cells))
    return markdown_table(("workload", "system", *pieces), rows)


def _growth(what: str, found: Results) -> str:
    rows = [
        (
            str(size),
            f"{ms:.3g}",
            *(_number(found["ratios"][system][place]["median"]) for system in ("dpsgd", "dpvd")),
        )
        for place, (size, ms) in enumerate(zip(found["at"], found["ms"], strict=True))
    ]
    return f"{found['network']}:\n\n" + markdown_table(
        (what, "plain ms", "DP-SGD", "Algorithm 1"), rows
    )


def _number(value: float | None) -> str:
    if value is None:
        return "not measured"
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.0f}"


def main() -> int:
    write(load(LATEST), ROOT / "docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
