"""`fclub keys`."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fclub.cli.screen import screen
from fclub.service.http.keys import SCOPES, SIMULATE, Key, KeyFile, keys_of

app = typer.Typer(add_completion=False, help="Look after the keys with which a server is asked.")

STORE = typer.Argument(help="Store of a server, which need not be there yet, or a file *.keys.")
NAME = typer.Argument(help="Who has the key, such as an application.")
DAY, MOST_DAYS = 86_400.0, 36_500.0


@app.callback()
def keys() -> None:
    """Make, list and revoke keys; a running server follows within a second or two."""


@app.command(
    "add", epilog="Example: fclub keys add shop.db shop --scopes recommend,feedback --days 365"
)
def add(
    store: Annotated[Path, STORE],
    name: Annotated[str, NAME],
    scopes: Annotated[
        str, typer.Option(help=f"With commas between them: {', '.join(SCOPES)}; or {SIMULATE}.")
    ],
    days: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=MOST_DAYS, help="Days until it ends, at most 36,500; never if unset."
        ),
    ] = None,
) -> None:
    """Make a key and print its token, which is written down nowhere else."""
    expires = None if days is None else time.time() + days * DAY
    file = KeyFile(keys_of(store))
    token = file.add(name, [scope.strip() for scope in scopes.split(",")], expires)
    typer.echo(
        f"{file.path}: a key for {name}; this is its token, to be sent as a bearer token", err=True
    )
    typer.echo(token)


@app.command("list", epilog="Example: fclub keys list shop.db")
def list_(
    store: Annotated[Path, STORE],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Names, scopes, when a key ends and when it was used last (to a minute); never a token."""
    found = KeyFile(keys_of(store)).read()
    if as_json:
        typer.echo(json.dumps([_facts(key) for key in found.values()]))
        return
    table = Table("name", "scopes", "made", "ends", "last used")
    for key in found.values():
        table.add_row(
            key.name, ", ".join(sorted(key.scopes)), *map(_date, (key.made, key.expires, key.used))
        )
    screen().print(table)


@app.command("revoke", epilog="Example: fclub keys revoke shop.db shop")
def revoke(store: Annotated[Path, STORE], name: Annotated[str, NAME]) -> None:
    """End a key for good."""
    file = KeyFile(keys_of(store))
    file.revoke(name)
    typer.echo(f"{file.path}: {name} has no key any more")


def _facts(key: Key) -> dict[str, object]:
    return {
        "name": key.name,
        "scopes": sorted(key.scopes),
        "made": key.made,
        "expires": key.expires,
        "used": key.used,
    }


def _date(moment: float | None) -> str:
    if moment is None:
        return "never"
    try:
        return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
    except (OSError, OverflowError, ValueError):
        return f"{moment:g} seconds after 1970"
