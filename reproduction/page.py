"""Write the documentation of the reproduction from its records: ``python -m
reproduction.page``.

Redraws tables and figures in ``reproduction/``, writes ``docs/reproduction.md`` with its figures,
and fills in what was measured in ``docs/how-we-read-the-paper.md``. Runs nothing; equal records
give equal bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dpvd.experiments import (
    Artefacts,
    Experiment,
    ExperimentProtocol,
    ExperimentResult,
    Folder,
    Spec,
    runs_of,
    tuning_cells,
    write_artefacts,
)
from dpvd.experiments.figures import Drawing
from dpvd.experiments.table_formats import Table, as_markdown, markdown_table
from dpvd.experiments.verdicts import Verdict
from dpvd.files import write_atomically
from dpvd.report import svg_bytes
from reproduction.interpretations_page import PAGE as INTERPRETATIONS_PAGE
from reproduction.interpretations_page import filled_in, load

__all__ = ["FOLDER", "documents", "main"]

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
FOLDER = Folder(HERE)
FIGURES = "figures/reproduction"
TEMPLATE = HERE / "page.md"
MINUTE = 60
BEST_FIRST = (Verdict.REPRODUCED, Verdict.INCONCLUSIVE, Verdict.NOT_REPRODUCED)


def main() -> None:
    artefacts = Artefacts.of(FOLDER, FOLDER.protocols())
    write_artefacts(FOLDER, artefacts)
    for path, content in documents(FOLDER, artefacts).items():
        write_atomically(DOCS / path, content)


def documents(folder: Folder, artefacts: Artefacts) -> Mapping[str, bytes]:
    """By their place in the documentation, the files that are made from a reproduction."""
    made = {"reproduction.md": _page(folder, artefacts).encode()}
    made |= {
        f"{FIGURES}/{drawing.name}.svg": svg_bytes(drawing.figure) for drawing in artefacts.drawings
    }
    measured = load(folder)
    if measured is not None:
        made[INTERPRETATIONS_PAGE.name] = filled_in(
            INTERPRETATIONS_PAGE.read_text(encoding="utf-8"), measured
        ).encode()
    return made


def _page(folder: Folder, artefacts: Artefacts) -> str:
    summary, table1, claims, numbers, tuning = artefacts.tables
    return TEMPLATE.read_text(encoding="utf-8").format(
        claims_in_short=_claims_in_short(summary),
        answer=artefacts.answer.short,
        dropout=artefacts.answer,
        summary=_body(summary),
        summary_note=summary.note,
        runs=_runs(folder.records_of(artefacts.protocols), artefacts),
        tables="\n\n".join(
            [f"## {table1.title}\n\n{table1.note}", *_by_protocol(table1, artefacts)]
        ),
        figures="\n\n".join(map(_figure, artefacts.drawings)),
        claims=as_markdown(claims).strip(),
        numbers=as_markdown(numbers).strip(),
        tuning=as_markdown(tuning).strip(),
    )


def _claims_in_short(summary: Table) -> str:
    """How many rows of the summary came to each verdict."""
    verdict_column = summary.header.index("verdict")
    counts = Counter(row[verdict_column] for row in summary.rows)
    parts = [f"{counts[verdict]} {verdict}" for verdict in BEST_FIRST]
    return f"Of {len(summary.rows)} claims of the paper: {', '.join(parts)}."


def _runs(records: Sequence[ExperimentResult], artefacts: Artefacts) -> str:
    """A row for each protocol, and what it was run with."""
    rows = []
    for protocol in artefacts.protocols:
        of = [record for record in records if record.spec.protocol == protocol.name]
        minutes = sum(record.seconds for record in of) / MINUTE
        length = "the paper's" if protocol.as_in_paper else "not the paper's"
        cells, seeds = _done(protocol, of)
        rows.append((protocol.words, length, len(of), cells, seeds, f"{minutes:.0f} min"))
    versions = sorted(
        {f"{name} {version}" for record in records for name, version in record.versions.items()}
    )
    header = (
        "protocol",
        "sizes and length",
        "runs",
        "cells of Table 1 with a run",
        "with all seeds",
        "time in training",
    )
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"With {', '.join(versions)}. Search trials not included. {_checks_in_short(artefacts)}"
    )


def _checks_in_short(artefacts: Artefacts) -> str:
    """How many judgements came to each verdict, over all protocols and variants."""
    total = sum(artefacts.verdicts.values())
    counts = [f"{artefacts.verdicts.get(verdict, 0)} {verdict}" for verdict in BEST_FIRST]
    return (
        f"Of {total} checks of the paper's sentences and numbers, each at every protocol and in "
        f"every variant: {', '.join(counts)}."
    )


def _done(protocol: ExperimentProtocol, records: Sequence[ExperimentResult]) -> tuple[str, str]:
    """How many cells of Table 1, the varied δ among them, have a run, and how many all of theirs.

    A tuned cell is counted by its method and budget, so that one whose learning rate has not been
    chosen counts too.
    """
    chosen = dict.fromkeys(tuning_cells(Experiment.TABLE1, protocol), (1.0, 0.0))
    wanted = Counter(map(_cell, runs_of(Experiment.TABLE1, protocol, chosen)))
    made = Counter(cell for cell in (_cell(record.spec) for record in records) if cell in wanted)
    complete = [cell for cell, runs in wanted.items() if made[cell] >= runs]
    return f"{len(made)} of {len(wanted)}", f"{len(complete)} of {len(wanted)}"


def _cell(spec: Spec) -> tuple[object, ...]:
    """What runs of one cell have in common: all that Table 1 varies but the seed."""
    settings = (spec.hidden, spec.batch_size, spec.epochs, spec.clip_norm)
    return (spec.method, spec.variant, spec.epsilon, spec.delta, *settings)


def _by_protocol(whole: Table, artefacts: Artefacts) -> list[str]:
    """Table 1 in parts, one for each protocol, without the column that names it."""
    parts = []
    for protocol in artefacts.protocols:
        rows = tuple(row[1:] for row in whole.rows if row[0] == protocol.name)
        body = _body(replace(whole, header=whole.header[1:], rows=rows))
        parts.append(f"### {_heading(protocol)}\n\n{body}")
    return parts


def _heading(protocol: ExperimentProtocol) -> str:
    second = "" if protocol.as_in_paper else ", a second protocol: not the paper's length"
    return f"{protocol.dataset.upper()} ({protocol.name}{second})"


def _body(whole: Table) -> str:
    """A table without its title and note."""
    return as_markdown(whole).split("\n\n", 2)[2].strip()


def _figure(drawing: Drawing) -> str:
    picture = f"![{drawing.title}]({FIGURES}/{drawing.name}.svg)"
    return f"### {drawing.title}\n\n{picture}\n\n{drawing.caption}"


if __name__ == "__main__":
    main()
