"""Write the documentation of the reproduction from its records: ``python -m benchmarks.reproduction_page``.

Redraws tables and figures in ``reproduction/``, writes ``docs/reproduction.md`` with its figures, and fills in what was
measured in ``docs/how-we-read-the-paper.md``. Runs nothing; equal records give equal bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.children import ROOT
from benchmarks.markdown import table
from benchmarks.readings_page import PAGE as READINGS_PAGE
from benchmarks.readings_page import filled_in, load
from dpvd.experiments import Artefacts, Folder, Record, write_artefacts
from dpvd.experiments.figures import Drawing
from dpvd.experiments.tables import Table, as_markdown
from dpvd.report import svg_bytes, write_atomically

__all__ = ["FOLDER", "documents", "main"]

FOLDER = Folder(ROOT / "reproduction")
FIGURES = "figures/reproduction"
TEMPLATE = Path(__file__).parent / "reproduction_page.md"
MINUTE = 60


def main() -> None:
    artefacts = Artefacts.of(FOLDER, FOLDER.protocols())
    write_artefacts(FOLDER, artefacts)
    for path, content in documents(FOLDER, artefacts).items():
        write_atomically(ROOT / "docs" / path, content)


def documents(folder: Folder, artefacts: Artefacts) -> Mapping[str, bytes]:
    """By their place in the documentation, the files that are made from a reproduction."""
    made = {"reproduction.md": _page(folder, artefacts).encode()}
    made |= {f"{FIGURES}/{drawing.name}.svg": svg_bytes(drawing.figure) for drawing in artefacts.drawings}
    measured = load(folder)
    if measured is not None:
        made[READINGS_PAGE.name] = filled_in(READINGS_PAGE.read_text(encoding="utf-8"), measured).encode()
    return made


def _page(folder: Folder, artefacts: Artefacts) -> str:
    table1, claims, _, tuning = artefacts.tables
    return TEMPLATE.read_text(encoding="utf-8").format(
        runs=_runs(folder.records_of(artefacts.protocols), artefacts),
        tables="\n\n".join([f"## {table1.title}\n\n{table1.note}", *_by_protocol(table1, artefacts)]),
        figures="\n\n".join(map(_figure, artefacts.drawings)),
        claims=as_markdown(claims).strip(),
        tuning=as_markdown(tuning).strip(),
    )


def _runs(records: Sequence[Record], artefacts: Artefacts) -> str:
    """A row for each protocol, and what it was run with."""
    rows = []
    for protocol in artefacts.protocols:
        of = [record for record in records if record.spec.protocol == protocol.name]
        minutes = sum(record.seconds for record in of) / MINUTE
        length = "the paper's" if protocol.as_in_paper else "not the paper's"
        rows.append((protocol.words, length, len(of), f"{minutes:.0f} min"))
    versions = sorted({f"{name} {version}" for record in records for name, version in record.versions.items()})
    verdicts = ", ".join(f"{verdict}: {count}" for verdict, count in artefacts.verdicts.items())
    made = table(("protocol", "sizes and length", "runs", "time in training"), rows)
    return (
        f"{made}\n\nWith {', '.join(versions)}. Trials of the search come on top. Of the paper's sentences "
        f"and printed figures, each judged at every protocol and in every variant: {verdicts}."
    )


def _by_protocol(whole: Table, artefacts: Artefacts) -> list[str]:
    """Table 1 in parts, one for each protocol, without the column that then says the same in every row."""
    parts = []
    for protocol in artefacts.protocols:
        rows = tuple(row[1:] for row in whole.rows if row[0] == protocol.name)
        part = replace(whole, header=whole.header[1:], rows=rows)
        body = as_markdown(part).split("\n\n", 2)[2]
        parts.append(f"### {protocol.dataset.upper()} ({protocol.name})\n\n{body.strip()}")
    return parts


def _figure(drawing: Drawing) -> str:
    return f"### {drawing.title}\n\n![{drawing.title}]({FIGURES}/{drawing.name}.svg)\n\n{drawing.caption}"


if __name__ == "__main__":
    main()
