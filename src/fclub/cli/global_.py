"""`fclub global`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fclub.cli.serving import run_server
from fclub.service.kits.folder import Folder
from fclub.service.serve import global_app, serve
from fclub.service.settings import GlobalSettings, parse_assignments

app = typer.Typer(add_completion=False)


@app.command("global", epilog="Example: fclub global --config global.toml")
def global_(
    config: Annotated[Path | None, typer.Option(help="TOML file with the settings.")] = None,
    federation: Annotated[
        Path | None, typer.Option(help="Folder of fclub federation: model, broker, members.")
    ] = None,
    store: Annotated[str | None, typer.Option(help="SQLite file.")] = None,
    dim: Annotated[int | None, typer.Option(help="Number of features of an item.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="Any key=value.")] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Take results of simulated visitors, and say so.")
    ] = False,
) -> None:
    """Run the global server of a federation."""
    own = {"store": store, "model.dim": dim, "http.host": host, "http.port": port}
    own |= {"http.simulated": simulated or None}
    given = parse_assignments(setting or [], **own)
    if federation is not None and config is None:
        config = federation / "global.toml"

    def options() -> dict[str, Any]:
        return given if federation is None else Folder(federation).global_settings() | given

    run_server(
        GlobalSettings, config, options, lambda settings, load: serve(settings, global_app, load)
    )
