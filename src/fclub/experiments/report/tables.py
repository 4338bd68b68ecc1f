"""One kind of table, written as CSV, LaTeX, Markdown and HTML."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from html import escape

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "±": r"$\pm$",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "µ": r"$\mu$",
    "√": r"$\surd$",
    "≤": r"$\le$",
    "θ": r"$\theta$",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "₀": "$_0$",
}


@dataclass(frozen=True)
class Value:
    """A mean with its standard deviation over seeds, if there were several."""

    mean: float
    std: float | None = None
    digits: int = 0

    def __str__(self) -> str:
        mean = f"{self.mean:,.{self.digits}f}"
        return mean if self.std is None else f"{mean} ± {self.std:,.{self.digits}f}"


Cell = str | Value


@dataclass(frozen=True)
class Table:
    """The first column names the row; `name` is the name of its files."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


def escape_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def to_csv(table: Table) -> str:
    """Plain numbers; a column of values with a spread is followed by a column of the spread."""
    spread = [
        any(isinstance(row[k], Value) and row[k].std is not None for row in table.rows)  # type: ignore[union-attr]
        for k in range(len(table.columns))
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = [
        [name, f"{name} std"] if two else [name]
        for name, two in zip(table.columns, spread, strict=True)
    ]
    writer.writerow([name for part in header for name in part])
    for row in table.rows:
        cells: list[str | float | None] = []
        for cell, two in zip(row, spread, strict=True):
            value = cell if isinstance(cell, Value) else None
            cells.append(value.mean if value else str(cell))
            if two:
                cells.append(value.std if value else None)
        writer.writerow(cells)
    return text.getvalue()


def to_latex(table: Table) -> str:
    """A table environment of plain LaTeX, numbers to the right."""
    lines = [" & ".join(escape_latex(str(cell)) for cell in row) + r" \\" for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}[ht]",
            r"\centering",
            rf"\caption{{{escape_latex(table.title)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{''.join('r' if k else 'l' for k in range(len(table.columns)))}}}",
            r"\hline",
            " & ".join(map(escape_latex, table.columns)) + r" \\",
            r"\hline",
            *lines,
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_markdown(table: Table) -> str:
    rule = "|---" + "|--:" * (len(table.columns) - 1) + "|"
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(["| " + " | ".join(table.columns) + " |", rule, *lines, ""])


def to_html(table: Table) -> str:
    """In a frame that scrolls by itself, so that a narrow screen does not."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    body = ""
    for row in table.rows:
        first, *rest = (escape(str(cell)) for cell in row)
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        body += f'<tr><th scope="row">{first}</th>{cells}</tr>\n'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><caption>{escape(table.title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n"
    )
