"""`fclub import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fclub.client import Client
from fclub.config import require
from fclub.errors import FclubError
from fclub.service.nodes.importing import learn_offline, read_past

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: fclub import log.csv --store shop.db"


@app.command("import", epilog=EXAMPLE)
def import_(
    log: Annotated[Path, typer.Argument(help="CSV: user, item of the catalogue, reward, perhaps id.")],
    url: Annotated[str | None, typer.Option(help="Address of a running local server.")] = None,
    token: Annotated[str, typer.Option(help="With --url: the application's token.")] = "",
    store: Annotated[Path | None, typer.Option(help="Store of a server that does not run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let a local server learn from what was shown elsewhere; the same id counts once."""
    require((url is None) != (store is None), "import needs either --url or --store", url)
    results: list[bool | FclubError] = []
    if store is not None:
        results += learn_offline(store, read_past(log))
    else:
        with Client(str(url), token) as client:
            results += client.observe(list(read_past(log)))
    refused = [str(one) for one in results if isinstance(one, FclubError)]
    told = {"learned": results.count(True), "known": results.count(False), "refused": len(refused)}
    typer.echo(json.dumps(told) if as_json else ", ".join(f"{n} {what}" for what, n in told.items()))
    if refused:
        typer.echo(f"the first that was refused: {refused[0]}", err=True)
        raise typer.Exit(1)
