"""`fclub report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fclub.cli.console import claims_table
from fclub.cli.screen import screen
from fclub.experiments.report.claims import to_row
from fclub.experiments.report.pages import build_report, open_study
from fclub.experiments.run.progress import rounds_bar

app = typer.Typer(add_completion=False)


@app.command("report", epilog="Example: fclub report out/demo")
def report(
    folder: Annotated[str, typer.Argument(help="The --out of a run, demo or reproduction.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build the report of a finished run again: page, plots, tables."""
    with rounds_bar(len(open_study(Path(folder)).figures), "figures") as tell:
        built = build_report(Path(folder), tell)
    claims = [claim for section in built.sections for claim in section.claims]
    if as_json:
        typer.echo(json.dumps({"report": str(built.page), "claims": [to_row(c) for c in claims]}))
        return
    console = screen()
    if claims:
        console.print(claims_table(claims))
    console.print(f"Report: {built.page}")
