"""`fclub reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import joblib
import typer

from fclub.cli.console import claims_table
from fclub.cli.screen import screen
from fclub.config import require
from fclub.errors import DataMissing
from fclub.experiments.report.claims import to_row
from fclub.experiments.report.pages import build_report
from fclub.experiments.run.progress import rounds_bar
from fclub.experiments.study.figures import ORDER, ROUNDS, SEEDS, VARIED, Scale, make_figures
from fclub.experiments.study.study import run_study, total_rounds

app = typer.Typer(add_completion=False)
TITLE = "Federated Online Clustering of Bandits, reproduced"


@app.command("reproduce", epilog="Example: fclub reproduce parameters --only d --seeds 2 --rounds 5000")
def reproduce(
    figure: Annotated[str, typer.Argument(help=f"One of {', '.join(ORDER)}; or all.")],
    only: Annotated[str | None, typer.Option(help=f"One parameter: {', '.join(VARIED)}.")] = None,
    rounds: Annotated[int, typer.Option(help="Visits per simulation.")] = ROUNDS,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0.")] = SEEDS,
    data: Annotated[
        str | None, typer.Option(help="Folder of the published arrays. FCLUB_DATA_DIR.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Simulations at a time. One per core.")] = None,
    out: Annotated[str, typer.Option(help="Folder; what is in it already is not run again.")] = (
        "out/reproduce"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Regenerate a figure or table of the paper, or one of ours, and say what holds.

    Ends with 1 where data is missing, and names it; what can be shown without it is made all the same.
    """
    require(seeds >= 1, "seeds must be at least 1", seeds)
    figures = make_figures(figure, Scale(rounds, tuple(range(seeds)), data), only)
    if not any(figure.panels for figure in figures):
        raise DataMissing("; ".join(line for figure in figures for line in figure.skipped))
    part = "" if only is None else f" --only {only}"
    place = "" if data is None else f" --data {data}"
    command = f"fclub reproduce {figure}{part} --rounds {rounds} --seeds {seeds}{place}"
    with rounds_bar(total_rounds(figures)) as tell:
        study = run_study(TITLE, command, figures, Path(out), jobs or joblib.cpu_count(), tell)
    with rounds_bar(len(study.figures), "figures") as tell:
        built = build_report(Path(out), tell)
    claims = [claim for section in built.sections for claim in section.claims]
    skipped = [line for figure in figures for line in figure.skipped]
    if as_json:
        typer.echo(
            json.dumps(
                {"report": str(built.page), "claims": [to_row(c) for c in claims], "skipped": skipped}
            )
        )
    else:
        console = screen()
        console.print(claims_table(claims))
        for line in skipped:
            console.print(f"Left out: {line}", highlight=False)
        if study.left_out:
            names = ", ".join(study.left_out)
            console.print(f"No longer in the report, since made with other settings: {names}")
        console.print(f"Report: {built.page}")
    if skipped:
        raise typer.Exit(1)
