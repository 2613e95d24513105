"""A table as rows of words, and the rows as Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Table", "as_csv", "as_latex", "as_markdown", "markdown_table"]


@dataclass(frozen=True)
class Table:
    """Rows of words under a heading each, with a file name and what a reader must know."""

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def as_markdown(table: Table) -> str:
    """The table in GitHub's Markdown, under its title."""
    body = markdown_table(table.header, table.rows)
    parts = [f"## {table.title}", table.note, body]
    return "\n\n".join(parts) + "\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under a header in GitHub's Markdown, without a line break at the end.

    >>> print(markdown_table(("what", "ms"), [("plain", 1.2)]))
    | what | ms |
    |---|---|
    | plain | 1.2 |
    """
    lines = [_markdown_row(header), "|" + "---|" * len(header)]
    lines += [_markdown_row(row) for row in rows]
    return "\n".join(lines)


def as_csv(table: Table) -> str:
    """The table as comma-separated values, header first."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([table.header, *table.rows])
    return buffer.getvalue()


def as_latex(table: Table) -> str:
    """The table for LaTeX with the booktabs package."""
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in (table.header, *table.rows)]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_latex(table.title)}. {_latex(table.note)}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.header)}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _markdown_row(cells: Sequence[object]) -> str:
    escaped = [str(cell).replace("|", "\\|") for cell in cells]
    inside = " | ".join(escaped)
    return f"| {inside} |"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "γ": r"$\gamma$",
    "ν": r"$\nu$",
    "η₀": r"$\eta_0$",
    "∞": r"$\infty$",
    "±": r"$\pm$",
    "↓": r"$\downarrow$",
    "†": r"$\dagger$",
    "≤": r"$\leq$",
    "–": "--",
    **{character: "\\" + character for character in "&%$#_{}"},
}
_LATEX_PATTERN = re.compile(
    "|".join(re.escape(key) for key in sorted(_LATEX, key=len, reverse=True))
)


def _latex(text: str) -> str:
    r"""Text with what is special to LaTeX, and our Greek letters, written its way.

    >>> _latex("ε = 1 & 50 %")
    '$\\varepsilon$ = 1 \\& 50 \\%'
    """
    return _LATEX_PATTERN.sub(lambda match: _LATEX[match[0]], text)
