"""`fclub advise`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import joblib
import numpy as np
import typer

from fclub.cli.screen import screen
from fclub.experiments.report.pages import build_report
from fclub.experiments.run.progress import rounds_bar
from fclub.experiments.run.results import Results
from fclub.experiments.study.advice import advice_figure, gains
from fclub.experiments.study.study import run_study, total_rounds

app = typer.Typer(add_completion=False)


@app.command("advise", epilog="Example: fclub advise ratings.csv --servers 5 --visits 20")
def advise(
    ratings: Annotated[str, typer.Argument(help="A file of user, item, rating; or a known data set.")],
    servers: Annotated[int, typer.Option(help="Local servers over which users are spread.")] = 5,
    visits: Annotated[int, typer.Option(help="Visits per user.")] = 20,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Privacy budget δ.")] = 1e-5,
    jobs: Annotated[int | None, typer.Option(help="Simulations at a time. One per core.")] = None,
    out: Annotated[str, typer.Option(help="Folder for results and the report.")] = "out/advice",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play your ratings and say whether federating would pay, with and without noise."""
    figure = advice_figure(ratings, servers, visits, seeds, {"epsilon": epsilon, "delta": delta})
    command = f"fclub advise {ratings} --servers {servers} --visits {visits} --seeds {seeds}"
    with rounds_bar(total_rounds([figure])) as tell:
        study = run_study(figure.title, command, [figure], Path(out), jobs or joblib.cpu_count(), tell)
    built = build_report(Path(out))
    (panel,) = figure.panels
    traces = panel.experiment.traces(Results(Path(out) / study.results).load)
    regret = {label: np.array([run.regret[-1] for run in runs]) for label, runs in traces.items()}
    found = gains(regret)
    if as_json:
        answers = [{"policy": g.policy, "ratio": g.ratio, "half": g.half} for g in found]
        typer.echo(json.dumps({"world": panel.title, "visits": visits, "gains": answers}))
        return
    console = screen()
    console.print(f"{panel.title}, {visits} visits each, {seeds} seeds.")
    for gain in found:
        console.print(gain.sentence())
    console.print(f"Table and picture, visit by visit: {built.page}")
