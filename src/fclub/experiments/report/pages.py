"""The report of a study: one page that opens offline, and every plot and table as files beside it.

One HTML page has plotly's script once, the style sheet and the data inside. The findings are Markdown,
so that a document can hold them without retyping a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import fill
from typing import Any

import msgspec

from fclub.errors import InvalidFile
from fclub.experiments.report.charts import Chart, Drawn
from fclub.experiments.report.claims import (
    FAILS,
    FEWEST,
    HOLDS,
    LEVEL,
    Claim,
    PairedTest,
    Summary,
    settle,
    sum_up,
)
from fclub.experiments.report.drawing import save_chart, to_plotly, views
from fclub.experiments.report.kinds import show
from fclub.experiments.report.measured import Measured, measure
from fclub.experiments.report.tables import (
    Cell,
    Table,
    Value,
    escape_latex,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
)
from fclub.experiments.run.results import Results
from fclub.experiments.study.study import Figure, Panel, Study, has_results, load_study

FEW_SEEDS = f"Fewer than {FEWEST} seeds settle no claim"
SYMBOLS = {HOLDS: ("yes", "✓"), FAILS: ("no", "✗")}


@dataclass(frozen=True)
class Section:
    """A figure with everything that is said about it."""

    figure: Figure
    measured: list[Measured]
    drawn: Drawn
    claims: list[Claim]


def render(study: Study, sections: list[Section]) -> str:
    from plotly.offline import get_plotlyjs

    claims = [claim for section in sections for claim in section.claims]
    charts = {c.name: to_plotly(c) for section in sections for c in section.drawn.charts}
    return Template(_asset("report.html")).substitute(
        title=escape(study.title),
        style=_asset("report.css"),
        facts=escape(_facts(study, sections)),
        links="".join(
            f'<li><a href="#{s.figure.name}">{escape(s.figure.title)}</a></li>' for s in sections
        ),
        counted=escape(_counted(claims)),
        summary="".join(map(_summary, sum_up(claims))),
        claims="".join(map(_claim, claims)),
        sections="".join(map(_section, sections)),
        settings="".join(map(to_html, setting_tables(study, sections))),
        charts=_json(charts),
        plotly=get_plotlyjs(),
        script=_asset("report.js"),
    )


def _asset(name: str) -> str:
    return (files("fclub.experiments.report") / "assets" / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """Safe inside a script element: no end tag can occur in it."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _facts(study: Study, sections: list[Section]) -> str:
    experiments = [panel.experiment for s in sections for panel in s.figure.panels]
    sizes = sorted({(e.rounds, len(e.seeds)) for e in experiments}, reverse=True)
    text = "; ".join(f"{rounds:,} rounds, seeds: {seeds}" for rounds, seeds in sizes)
    fewest = min((seeds for _, seeds in sizes), default=0)
    shown = "Mean ± one standard deviation over seeds. " if fewest > 1 else ""
    if fewest < FEWEST:
        shown += f"{FEW_SEEDS}. "
    return f"{text}. {shown}Made by fclub {study.version}."


def _counted(claims: list[Claim]) -> str:
    numbers = Counter(claim.verdict for claim in claims).most_common()
    counts = [f"{verdict} {number}" for verdict, number in numbers]
    total = f"{len(claims)} claims, counted in every place: {', '.join(counts)}."
    return total if claims else "No claim is about this run."


def _mark(verdict: str) -> str:
    kind, symbol = SYMBOLS.get(verdict, ("open", "~"))
    return f'<span class="verdict {kind}">{symbol} {escape(verdict)}</span>'


def _summary(line: Summary) -> str:
    return (
        f'<tr><th scope="row">{escape(line.claim)}</th><td>{_mark(line.verdict)}</td>'
        f"<td>{escape(line.places)}</td><td>{escape(line.measured)}</td></tr>\n"
    )


def _claim(claim: Claim) -> str:
    return (
        f'<tr><th scope="row">{escape(claim.claim)}</th><td>{escape(claim.where)}</td>'
        f"<td>{escape(claim.measured)}</td>"
        f"<td>{_mark(claim.verdict)}</td></tr>\n"
    )


def _section(section: Section) -> str:
    figure = section.figure
    skipped = "".join(f'<p class="skipped">Left out: {escape(line)}</p>\n' for line in figure.skipped)
    charts = "".join(map(_chart, section.drawn.charts))
    tables = "".join(
        to_html(table) + _files(f"{table.name}-table", "csv", "tex") for table in section.drawn.tables
    )
    return (
        f'<section id="{figure.name}" aria-labelledby="{figure.name}-title">\n'
        f'<h2 id="{figure.name}-title">{escape(figure.title)}</h2>\n'
        f"<p>{escape(figure.about)}</p>\n{skipped}"
        f'<div class="charts">\n{charts}</div>\n{tables}</section>\n'
    )


def _files(name: str, *kinds: str) -> str:
    links = " ".join(f'<a href="figures/{name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    return f'<p class="files">{links}</p>\n'


def _chart(chart: Chart) -> str:
    buttons = "".join(
        f'<button type="button" data-chart="{chart.name}" data-view="{escape(_json(change))}">'
        f"{escape(name)}</button>"
        for name, change in views(chart).items()
    )
    return (
        f"<figure>\n<h3>{escape(chart.title)}</h3>\n"
        f'<p class="views" role="group" aria-label="Vertical axis">{buttons}</p>\n'
        f'<div class="chart" id="chart-{chart.name}" data-chart="{chart.name}" role="img" '
        f'aria-label="{escape(chart.alt)}"></div>\n'
        f"<figcaption>{escape(chart.caption)}</figcaption>\n"
        f"{_files(chart.name, 'png', 'pdf', 'csv', 'tex')}</figure>\n"
    )


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def setting_tables(study: Study, sections: list[Section]) -> list[Table]:
    """How it was made, every experiment, every policy with all its parameters."""
    facts: list[tuple[Cell, ...]] = [
        ("command", "; ".join(study.commands)),
        ("fclub", study.version),
    ]
    if study.sittings:
        facts.append(("started", study.started))
        facts.append(("simulations took", f"{study.seconds:,.0f} s in {study.sittings} sittings"))
    if study.left_out:
        facts.append(("left out, made with other settings", ", ".join(study.left_out)))
    facts += study.machine().items()
    panels = {m.panel.key: m for section in sections for m in section.measured}
    experiments: list[tuple[Cell, ...]] = []
    used: dict[tuple[str, str], list[str]] = {}
    for m in panels.values():
        experiment = m.panel.experiment
        seeds = ", ".join(map(str, experiment.seeds))
        experiments.append((m.panel.title, f"{experiment.rounds:,}", seeds, _listed(m.environment)))
        for label, parameters in m.settings.items():
            used.setdefault((label, _listed(parameters)), []).append(m.panel.title)
    policies: list[tuple[Cell, ...]] = [
        (label, text, "all" if len(where) == len(panels) else "; ".join(where))
        for (label, text), where in used.items()
    ]
    return [
        Table("machine", "How it was made", ("what", "value"), facts),
        Table("experiments", "Experiments", ("experiment", "rounds", "seeds", "setting"), experiments),
        Table("policies", "Policies", ("policy", "parameters", "in"), policies),
    ]


WIDTH = 110
HEAD = """# {title}

{made}

`fclub reproduce all` makes the full report, with ten seeds and 100,000 rounds, in `out/reproduce`.
Point FCLUB_DATA_DIR, or `--data`, at the published arrays; run the command again to go on where it was
interrupted. To record a run here, copy its `findings.md` over this file.

Values are mean ± one standard deviation over seeds at the last round. A difference counts when it
is significant by Student's t on the paired differences over seeds, at {level:.0%} after Holm's
correction for all {tests} comparisons of this page; fewer than {fewest} seeds settle nothing. Claims
that begin with “ours” are not the paper's. `cdp-fclub-dc` appears with its noise really applied.

## At a glance

"""


def findings(study: Study, sections: list[Section]) -> str:
    """Claims first, then every table, then the sizes of the experiments."""
    claims = [claim for section in sections for claim in section.claims]
    tests = sum(isinstance(answer, PairedTest) for claim in claims for answer in claim.answers)
    text = HEAD.format(title=study.title, made=_made(study), level=LEVEL, tests=tests, fewest=FEWEST)
    text += "| claim | verdict | where | example |\n|---|---|---|---|\n"
    for line in sum_up(claims):
        text += f"| {line.claim} | **{line.verdict}** | {line.places} | {line.measured} |\n"
    text += (
        "\n## Every claim in every place\n\n| claim | where | measured | verdict |\n|---|---|---|---|\n"
    )
    for c in claims:
        text += f"| {c.claim} | {c.where} | {c.measured} | {c.verdict} |\n"
    return text + "".join(_figure(section) for section in sections)


def _made(study: Study) -> str:
    commands = " and ".join(f"`{command}`" for command in study.commands)
    text = f"Written by {commands} with fclub {study.version}, not by hand"
    if study.sittings:
        machine = study.machine()
        text += f": started {study.started}, {study.seconds:,.0f} s of simulation"
        text += f" on {machine['processor']}, {machine['cores']} cores"
    return _paragraph(f"{text}.")


def _paragraph(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _figure(section: Section) -> str:
    figure = section.figure
    parts = [f"\n## {figure.title}\n\n{_paragraph(figure.about)}\n"]
    sizes = {(p.experiment.rounds, len(p.experiment.seeds)) for p in figure.panels}
    parts += [f"\n{rounds:,} rounds, {seeds} seeds.\n" for rounds, seeds in sorted(sizes)]
    parts += [f"\n{_paragraph(f'Left out: {line}')}\n" for line in figure.skipped]
    parts += [f"\n{table.title}\n\n{to_markdown(table)}" for table in section.drawn.tables]
    return "".join(parts)


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
        section = _measured(figure, results)
        _write_files(section.drawn, files)
        sections.append(section)
        tell(done)
    sections = _settled(sections)
    (folder / FINDINGS).write_text(findings(study, sections), encoding="utf-8")
    page = folder / PAGE
    page.write_text(render(study, sections), encoding="utf-8")
    return Built(page, sections)


def _settled(sections: list[Section]) -> list[Section]:
    """Claims of all figures are one family of comparisons."""
    claims = iter(settle([claim for section in sections for claim in section.claims]))
    return [replace(section, claims=[next(claims) for _ in section.claims]) for section in sections]


def _measured(figure: Figure, results: Results) -> Section:
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
