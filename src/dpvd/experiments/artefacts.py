"""Tables, figures and the page of a reproduction: pure functions of its records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from dpvd import __version__
from dpvd.experiments.aggregate import Results
from dpvd.experiments.claims import load_claims
from dpvd.experiments.figures import Drawing, draw_all
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.reproduction import Folder
from dpvd.experiments.table_formats import Table, as_csv, as_latex, as_markdown
from dpvd.experiments.tables import BELOW, claims_table, numbers_table, table1, tuning_table
from dpvd.experiments.verdicts import DropoutAnswer, Verdict, dropout_answer, judge, summary_table
from dpvd.files import HANDED_OUT, write_atomically
from dpvd.report import inline_svg, png_bytes, svg_bytes

__all__ = ["Artefacts", "write_artefacts"]

PAGE = "reproduction.html"
WRITERS = {".md": as_markdown, ".csv": as_csv, ".tex": as_latex}


@dataclass(frozen=True)
class Artefacts:
    """What a reproduction shows, before it is written anywhere.

    Args:
        protocols: that it shows.
        runs: how many records it is made of.
        verdicts: how many claims got each verdict.
        answer: whether dropout helps at low ε.
        tables, drawings: in the order of the page.
    """

    protocols: tuple[ExperimentProtocol, ...]
    runs: int
    verdicts: dict[str, int]
    answer: DropoutAnswer
    tables: tuple[Table, ...]
    drawings: tuple[Drawing, ...]

    @classmethod
    def of(cls, folder: Folder, protocols: Sequence[ExperimentProtocol]) -> "Artefacts":
        """Tables and figures of a folder's records. Cells without runs are shown as such."""
        claims = load_claims()
        results = Results(folder.records_of(protocols), folder.tuning.choices())
        judgements = judge(results, claims, protocols)
        tables = (
            summary_table(judgements, claims, protocols),
            table1(results, claims, protocols),
            claims_table(judgements),
            numbers_table(judgements),
            tuning_table(folder.tuning.read_all(), protocols),
        )
        verdicts = Counter(str(each.finding.verdict) for each in judgements)
        drawings = tuple(draw_all(results, claims, protocols))
        return cls(
            protocols=tuple(protocols),
            runs=len(results),
            verdicts=dict(sorted(verdicts.items())),
            answer=dropout_answer(results, protocols),
            tables=tables,
            drawings=drawings,
        )


def write_artefacts(folder: Folder, artefacts: Artefacts) -> Path:
    """Write tables, figures and one page that needs nothing but itself; return the page's path.

    Guarantees: each file appears complete or not at all. Equal records give equal bytes.
    """
    for table in artefacts.tables:
        for suffix, as_text in WRITERS.items():
            path = folder.path / "tables" / f"{table.name}{suffix}"
            write_atomically(path, as_text(table).encode(), mode=HANDED_OUT)
    pictures = {drawing.name: svg_bytes(drawing.figure) for drawing in artefacts.drawings}
    for drawing in artefacts.drawings:
        path = folder.path / "figures" / drawing.name
        picture = path.with_name(f"{drawing.name}.svg")
        write_atomically(picture, pictures[drawing.name], mode=HANDED_OUT)
        picture = path.with_name(f"{drawing.name}.png")
        write_atomically(picture, png_bytes(drawing.figure), mode=HANDED_OUT)
    page = folder.path / PAGE
    write_atomically(page, _page(artefacts, pictures).encode(), mode=HANDED_OUT)
    return page


def _page(artefacts: Artefacts, pictures: Mapping[str, bytes]) -> str:
    packages = ("dpvd.experiments", "dpvd.report")
    templates = ChoiceLoader([PackageLoader(package, "") for package in packages])
    environment = Environment(
        loader=templates,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = []
    for drawing in artefacts.drawings:
        description = f"{drawing.title}. {drawing.caption}"
        svg = inline_svg(pictures[drawing.name], drawing.name, description)
        drawn.append((drawing, svg))
    return environment.get_template("reproduction.html").render(
        tables=artefacts.tables,
        drawings=drawn,
        protocols=artefacts.protocols,
        runs=artefacts.runs,
        verdicts=[str(verdict) for verdict in Verdict],
        counts=artefacts.verdicts,
        answer=artefacts.answer,
        below=BELOW,
        version=__version__,
    )
