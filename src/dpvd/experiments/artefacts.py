"""Tables, figures and the page of a reproduction: pure functions of its records."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from dpvd import __version__
from dpvd.experiments.claims import load_claims
from dpvd.experiments.figures import Drawing, draw_all
from dpvd.experiments.protocols import Protocol
from dpvd.experiments.reproduction import Folder
from dpvd.experiments.results import Results
from dpvd.experiments.tables import Table, as_csv, as_latex, as_markdown, claims_table, table1, tuning_table
from dpvd.experiments.verdicts import Verdict, judge
from dpvd.report import inline_svg, png_bytes, svg_bytes, write_atomically

__all__ = ["write_artefacts"]

PAGE = "reproduction.html"
WRITERS = {".md": as_markdown, ".csv": as_csv, ".tex": as_latex}


def write_artefacts(folder: Folder, protocols: Sequence[Protocol]) -> Path:
    """Write tables, figures and one page that needs nothing but itself; return the page's path.

    Guarantees: each file appears complete or not at all. Cells without runs are shown as such.
    """
    claims = load_claims()
    results = Results(folder.records_of(protocols), folder.tuning.choices())
    tables = [
        table1(results, claims, protocols),
        claims_table(judge(results, claims, protocols)),
        tuning_table(folder.tuning.read_all(), protocols),
    ]
    drawings = draw_all(results, claims, protocols)
    for table in tables:
        for suffix, text in WRITERS.items():
            write_atomically(folder.path / "tables" / f"{table.name}{suffix}", text(table).encode())
    for drawing in drawings:
        for suffix, content in ((".png", png_bytes(drawing.figure)), (".svg", svg_bytes(drawing.figure))):
            write_atomically(folder.path / "figures" / f"{drawing.name}{suffix}", content)
    page = folder.path / PAGE
    write_atomically(page, _page(tables, drawings, protocols, len(results)).encode())
    return page


def _page(tables: Sequence[Table], drawings: Sequence[Drawing], protocols: Sequence[Protocol], runs: int) -> str:
    templates = ChoiceLoader([PackageLoader(package, "") for package in ("dpvd.experiments", "dpvd.report")])
    environment = Environment(
        loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pictures = [(d, inline_svg(svg_bytes(d.figure), d.name, f"{d.title}. {d.caption}")) for d in drawings]
    return environment.get_template("reproduction.html").render(
        tables=tables,
        drawings=pictures,
        protocols=protocols,
        runs=runs,
        verdicts=[str(verdict) for verdict in Verdict],
        version=__version__,
    )
