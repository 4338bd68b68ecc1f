"""`fclub import`."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Annotated
from zlib import crc32

import typer

from fclub.client import Client, Observation
from fclub.errors import FclubError, InvalidSetting
from fclub.service.fleet import read_addresses
from fclub.service.link.channel import GLOBAL
from fclub.service.nodes.importing import learn_offline, read_past

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: fclub import log.csv --store shop.db"


def _spread(folder: Path, past: list[Observation]) -> list[bool | FclubError]:
    """Every user to one of the local servers that run in this folder."""
    servers = [at for name, at in read_addresses(folder).items() if name != GLOBAL]
    results: list[bool | FclubError] = []
    for number, at in enumerate(servers):
        own = [one for one in past if crc32(one.user.encode()) % len(servers) == number]
        with Client(at["url"], at["token"]) as client:
            results += client.observe(own)
    return results


def _token(file: Path | None) -> str:
    """Not an option: everybody on the machine sees those."""
    found = os.environ.get("FCLUB_TOKEN", "") if file is None else file.read_text().strip()
    if not found:
        raise InvalidSetting("expected the token of a key in FCLUB_TOKEN or in --token-file, got none")
    return found


@app.command("import", epilog=EXAMPLE)
def import_(
    log: Annotated[Path, typer.Argument(help="CSV: user, item of the catalogue, reward, perhaps id.")],
    url: Annotated[str | None, typer.Option(help="Address of a running local server.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="With --url: file with the token of a key; else it is FCLUB_TOKEN."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With --url: who has signed its certificate, if not the system.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Store of a server that does not run.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder of fclub up: its servers share the users."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let a local server learn from what was shown elsewhere; the same id counts once."""
    places = [place for place in (url, store, folder) if place is not None]
    if len(places) != 1:
        raise InvalidSetting("import needs one of --url, --store and --dir", places)
    results: list[bool | FclubError] = []
    if store is not None:
        results += learn_offline(store, read_past(log))
    elif folder is not None:
        results += _spread(folder, list(read_past(log)))
    else:
        trust = ssl.create_default_context(cafile=ca)
        with Client(str(url), _token(token_file), split=True, verify=trust) as client:
            results += client.observe(list(read_past(log)))
    refused = [str(one) for one in results if isinstance(one, FclubError)]
    told = {"learned": results.count(True), "known": results.count(False), "refused": len(refused)}
    typer.echo(json.dumps(told) if as_json else ", ".join(f"{n} {what}" for what, n in told.items()))
    if refused:
        typer.echo(f"the first that was refused: {refused[0]}", err=True)
        raise typer.Exit(1)
