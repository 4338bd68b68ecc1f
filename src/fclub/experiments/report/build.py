"""The report of a study: one page that opens offline, and every plot and table as files beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fclub.errors import InvalidFile
from fclub.experiments.report.charts import Chart, Drawn
from fclub.experiments.report.drawing import save_chart
from fclub.experiments.report.kinds import show
from fclub.experiments.report.measured import measure
from fclub.experiments.report.pages import Section, findings, render
from fclub.experiments.report.tables import Cell, Table, Value, escape_latex, to_csv, to_latex
from fclub.experiments.run.results import Results
from fclub.experiments.study.study import Figure, Panel, Study, has_results, load_study

PAGE, FILES, FINDINGS = "report.html", "figures", "findings.md"
Tell = Callable[[int], None]


@dataclass(frozen=True)
class Built:
    """Where the page is, and what it shows."""

    page: Path
    sections: list[Section]


def open_study(folder: Path) -> Study:
    """The study in the folder, or one of the single experiment that `fclub run --out` left there."""
    study = load_study(folder)
    if study is not None:
        return study
    if not has_results(folder):
        raise InvalidFile(f"{folder} holds no finished run; make one with fclub run --out {folder}")
    results = Results(folder)
    experiment = results.experiment()
    panel = Panel("run", f"{experiment.environment.name} environment", experiment)
    figure = Figure("run", "comparison", "Comparison", "The run in this folder.", (panel,))
    version = results.versions(experiment.tasks())
    return Study("Comparison", version, [figure], ["fclub run"], results=".")


def build_report(folder: Path, tell: Tell = lambda _: None) -> Built:
    """Measure, draw and write everything; `tell` is called with the number of figures that are done."""
    study = open_study(folder)
    results = Results(folder / study.results)
    files = folder / FILES
    files.mkdir(exist_ok=True)
    sections = []
    for done, figure in enumerate(study.figures, 1):
        section = _section(figure, results)
        _write_files(section.drawn, files)
        sections.append(section)
        tell(done)
    (folder / FINDINGS).write_text(findings(study, sections), encoding="utf-8")
    page = folder / PAGE
    page.write_text(render(study, sections), encoding="utf-8")
    return Built(page, sections)


def _section(figure: Figure, results: Results) -> Section:
    measured = [measure(panel, panel.experiment.traces(results.load)) for panel in figure.panels]
    return Section(figure, measured, *show(figure, measured))


def _write_files(drawn: Drawn, folder: Path) -> None:
    for chart in drawn.charts:
        save_chart(chart, folder)
        _write(folder / f"{chart.name}.csv", to_csv(chart_table(chart)))
        _write(folder / f"{chart.name}.tex", chart_latex(chart))
    for table in drawn.tables:
        _write(folder / f"{table.name}-table.csv", to_csv(table))
        _write(folder / f"{table.name}-table.tex", to_latex(table))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def chart_table(chart: Chart) -> Table:
    """The points of all lines, one row each."""
    rows: list[tuple[Cell, ...]] = [
        (
            line.label,
            Value(float(x)),
            Value(float(line.mean[k]), None if line.std is None else float(line.std[k])),
        )
        for line in chart.lines
        for k, x in enumerate(line.x)
    ]
    return Table(chart.name, chart.title, ("line", chart.x_label, chart.y_label), rows)


def chart_latex(chart: Chart) -> str:
    """A figure environment that includes the PDF."""
    return "\n".join(
        [
            r"\begin{figure}[ht]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{{chart.name}.pdf}}",
            rf"\caption{{{escape_latex(f'{chart.title}. {chart.caption}')}}}",
            rf"\label{{fig:{chart.name}}}",
            r"\end{figure}",
            "",
        ]
    )
