"""`fclub up`."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fclub.environments.registry import make_environment
from fclub.service.fleet import Fleet
from fclub.service.visitors import Tally, visit

app = typer.Typer(add_completion=False)


def _table(fleet: Fleet, tally: Tally) -> Table:
    table = Table("", "address", title="Ctrl-C stops everything")
    for server in fleet.servers:
        table.add_row(server.name, server.url)
    table.add_row("broker", fleet.broker.url)
    table.add_row("token", fleet.token)
    table.add_section()
    per_visit = tally.regret / tally.visits if tally.visits else 0.0
    table.add_row("visits", f"{tally.visits}")
    table.add_row("regret", f"{tally.regret:.1f} ({per_visit:.4f} a visit)")
    return table


@app.command("up", epilog="Example: fclub up --servers 3 --rate 20 --visits 1000 --json")
def up(
    policy: Annotated[str, typer.Option(help="A federated policy.")] = "fclub-dc",
    env: Annotated[str, typer.Option(help="Where visitors come from.")] = "synthetic",
    servers: Annotated[int, typer.Option(min=1, help="Number of local servers.")] = 5,
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 40,
    rate: Annotated[float, typer.Option(min=0.1, help="Visits per second, at most.")] = 50.0,
    visits: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the visitors.")] = 0,
    folder: Annotated[Path | None, typer.Option("--dir", help="Keep stores and logs here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Run broker, global server and local servers on this machine, with simulated visitors."""
    world = make_environment(env, users=users, servers=servers)
    world.start(seed)
    console = Console(stderr=True)
    tally = Tally()
    with ExitStack() as stack:
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fclub-")))
        fleet = Fleet(home, servers, world.problem.dim, policy)
        with console.status(f"starting {servers + 1} servers …"):
            stack.enter_context(fleet)
        live = stack.enter_context(Live(_table(fleet, tally), console=console, refresh_per_second=4))

        def show(now: Tally) -> None:
            nonlocal tally
            tally = now
            live.update(_table(fleet, tally))

        addresses = [(server.url, server.token) for server in fleet.locals]
        try:
            asyncio.run(visit(world, addresses, rate, visits, show))
        except KeyboardInterrupt:
            console.print("stopping …")
    if as_json:
        typer.echo(json.dumps(tally.as_dict()))
