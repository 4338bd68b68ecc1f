"""`fclub bench`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from fclub.cli.screen import screen
from fclub.experiments.bench import bench as run_bench

app = typer.Typer(add_completion=False)


@app.command("bench", epilog="Example: fclub bench --full --json")
def bench(
    rounds: Annotated[int, typer.Option(help="Rounds per measurement.")] = 100_000,
    full: Annotated[
        bool, typer.Option("--full", help="Also 10⁷ rounds and a million users: several minutes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure speed and memory, as ratios within one run."""
    longest = 10**7 if full else 10**5
    populations = [40, 10_000, 100_000, 1_000_000] if full else [40, 10_000]
    measured = run_bench(rounds, longest, populations, _tell)
    if as_json:
        typer.echo(json.dumps(measured))
        return
    for table in (_speed(measured["speed"]), *_scaling(measured["scaling"])):
        screen().print(table)
    screen().print(_population(measured["population"]))
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


def _scaling(scaling: dict[str, Any]) -> list[Table]:
    tables = []
    for name, sizes in scaling.items():
        table = Table(title=f"{name}: µs per round as one size changes")
        table.add_column("size")
        table.add_column("value: µs (relative to the first)")
        for size, times in sizes.items():
            first = next(iter(times.values()))
            cells = (f"{value:,}: {us:.2f} ({us / first:.2f} ×)" for value, us in times.items())
            table.add_row(size, "   ".join(cells))
        tables.append(table)
    return tables


def _population(population: dict[int, dict[str, Any]]) -> Table:
    table = Table(title="one local server, d=10")
    columns = ("users", "µs/round", "detection (s)", "edges", "bytes/user", "peak/(statistics+graph)")
    for column in columns:
        table.add_column(column, justify="right")
    for users, row in population.items():
        table.add_row(
            f"{users:,}",
            f"{row['microseconds_per_round']:.2f}",
            f"{row['detection_seconds']:.2f}",
            f"{row['edges']:,}",
            f"{row['bytes_per_user']:,.0f}",
            f"{row['peak_over_kept']:.2f}",
        )
    return table
