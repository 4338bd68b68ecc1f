"""`fclub local`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fclub.cli.serving import run_server
from fclub.service.kits.kit import read_kit
from fclub.service.nodes.parts import check_store
from fclub.service.serve import local_app, serve
from fclub.service.settings import LocalSettings, load_settings, parse_assignments

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: fclub local --store shop.db --dim 10; its clients need keys: fclub keys --help"


@app.command("local", epilog=EXAMPLE)
def local(
    config: Annotated[Path | None, typer.Option(help="TOML file with the settings.")] = None,
    kit: Annotated[
        Path | None, typer.Option(help="Kit of fclub federation: name, model, broker, certificate.")
    ] = None,
    identity: Annotated[
        str | None, typer.Option(help="File of fclub identity: in a federation a server signs.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this server in the federation.")] = None,
    store: Annotated[str | None, typer.Option(help="SQLite file.")] = None,
    dim: Annotated[int | None, typer.Option(help="Number of features of an item.")] = None,
    catalogue: Annotated[str | None, typer.Option(help="CSV of items: id, features.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="Any key=value.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Verify the store and leave.")] = False,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Take results of simulated visitors, and say so.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print JSON.")] = False,
) -> None:
    """Run a local server: it recommends, learns, and sends sums to the global server.

    A private policy, whose name begins with cdp-, adds noise to them. Any other sends exact sums, and
    the sum of a single visit is that visit.
    """
    own = {
        "catalogue": catalogue,
        "name": name,
        "secure.identity": identity,
        "store": store,
        "model.dim": dim,
        "http.host": host,
        "http.port": port,
        "http.simulated": simulated or None,
    }
    given = parse_assignments(setting or [], **own)

    def options() -> dict[str, Any]:
        return given if kit is None else dict(read_kit(kit).settings(kit)) | given

    if check:
        summary = check_store(load_settings(LocalSettings, config, options()))
        lines = json.dumps(summary) if as_json else "\n".join(f"{k}: {v}" for k, v in summary.items())
        typer.echo(lines)
        return
    run_server(LocalSettings, config, options, lambda settings, load: serve(settings, local_app, load))
