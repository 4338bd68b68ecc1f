"""`fclub bench`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from fclub.cli.screen import screen
from fclub.experiments.bench import bench as run_bench

app = typer.Typer(add_completion=False)


@app.command("bench", epilog="Example: fclub bench --json")
def bench(
    rounds: Annotated[int, typer.Option(help="Rounds per measurement.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the speed of every policy, as ratios within one run."""
    measured = run_bench(rounds, _tell)
    if as_json:
        typer.echo(json.dumps(measured))
        return
    screen().print(_speed(measured["speed"]))
    typer.echo(", ".join(f"{key}: {value}" for key, value in measured["machine"].items()))


def _tell(what: str) -> None:
    """Progress as lines: a bar that redraws itself would be measured too."""
    typer.echo(f"measuring {what}", err=True)


def _speed(speed: dict[str, Any]) -> Table:
    table = Table(title=f"µs of CPU per round at T={speed['rounds']:,}")
    for column in ("policy", "fast", "readable", "readable/fast", "yardstick/fast"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, row in speed["policies"].items():
        times = f"{row['fast']:.2f}", f"{row['readable']:.0f}"
        ratios = f"{row['readable_over_fast']:.0f} ×", f"{row['yardstick_over_fast']:.1f} ×"
        table.add_row(name, *times, *ratios)
    table.add_row("NumPy LinUCB (yardstick)", "", f"{speed['yardstick']:.1f}", "", "1 ×")
    return table
