"""`fclub store`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fclub.service.nodes.parts import forget_user

app = typer.Typer(add_completion=False, help="Look after the store of a local server.")

STORE = typer.Argument(help="SQLite file of a local server.")


@app.callback()
def store() -> None:
    """Look after the store of a local server."""


@app.command("forget")
def forget(
    path: Annotated[Path, STORE],
    user: Annotated[str, typer.Argument(help="The user's name, as the application knows it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove all that is stored of a user; the server must not run (a running one is asked by HTTP)."""
    gone, ledger = forget_user(path, user)
    promise, under = None, "exactly"
    if ledger is not None:
        (epsilon, delta), level = ledger.claimed, ledger.level.name
        promise = {"epsilon": epsilon, "delta": delta, "level": level}
        under = f"under (ε={epsilon:g}, δ={delta:g}), level {level}"
    if as_json:
        told = {"observations": gone.observations, "released": gone.released, "promise": promise}
        typer.echo(json.dumps(told))
        return
    typer.echo(
        f"forgotten, with {gone.observations} observations; at most {gone.released} of them are in "
        f"sums that have left {under} and cannot be taken back"
    )
