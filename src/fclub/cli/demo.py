"""`fclub demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import joblib
import typer
from rich.console import Console

from fclub.cli.console import rounds_bar, summary_table
from fclub.experiments.demo import PICTURE, demo_experiment, run_demo

app = typer.Typer(add_completion=False)


@app.command("demo", epilog="Example: fclub demo --rounds 20000")
def demo(
    rounds: Annotated[int, typer.Option(help="Visits per simulation.")] = 100_000,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 3,
    jobs: Annotated[int | None, typer.Option(help="Simulations at a time. One per core.")] = None,
    out: Annotated[str, typer.Option(help="Folder for results and pictures.")] = "out/demo",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The paper's synthetic comparison: all policies, a few seeds, a table and a picture."""
    experiment = demo_experiment(rounds, seeds)
    with rounds_bar(rounds * seeds * len(experiment.policies)) as report:
        summary = run_demo(experiment, Path(out), jobs or joblib.cpu_count(), report)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    console = Console()
    console.print(summary_table(summary))
    console.print(f"Curves: {Path(out) / PICTURE}")
