"""`fclub demo`."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import joblib
import typer

from fclub.cli.console import compile_first, summary_table
from fclub.cli.screen import screen
from fclub.config import require
from fclub.experiments.report.measured import summarise
from fclub.experiments.report.pages import build_report
from fclub.experiments.run.progress import rounds_bar
from fclub.experiments.run.results import Results
from fclub.experiments.study.figures import Scale, demo_figures
from fclub.experiments.study.study import run_study, total_rounds

app = typer.Typer(add_completion=False)
TITLE = "Federated clustering of bandits: a short comparison"


def someone_watches() -> bool:
    """A browser is only opened for a person at a terminal."""
    return sys.stdout.isatty() and "CI" not in os.environ


@app.command("demo", epilog="Example: fclub demo --rounds 20000 --no-open")
def demo(
    rounds: Annotated[int, typer.Option(help="Visits per simulation.")] = 100_000,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
    jobs: Annotated[int | None, typer.Option(help="Simulations at a time. One per core.")] = None,
    out: Annotated[str, typer.Option(help="Folder for results and the report.")] = "out/demo",
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The paper's synthetic comparison, and many small servers: a few seeds, a table and a report."""
    require(seeds >= 1, "seeds must be at least 1", seeds)
    figures = demo_figures(Scale(rounds, tuple(range(seeds))))
    command = f"fclub demo --rounds {rounds} --seeds {seeds}"
    jobs = jobs or joblib.cpu_count()
    small, first = figures[1].panels[0].experiment, figures[0].panels[0].experiment
    others = {f"{label}, small servers": setting for label, setting in small.policies.items()}
    compile_first(first.policies | others, jobs)
    with rounds_bar(total_rounds(figures)) as tell:
        study = run_study(TITLE, command, figures, Path(out), jobs, tell)
    with rounds_bar(len(study.figures), "figures") as tell:
        built = build_report(Path(out), tell)
    summary = summarise(first, first.traces(Results(Path(out) / study.results).load))
    if as_json:
        typer.echo(json.dumps(summary))
        return
    console = screen()
    console.print(summary_table(summary))
    console.print(f"Report: {built.page}")
    if show and someone_watches():
        webbrowser.open(built.page.resolve().as_uri())
