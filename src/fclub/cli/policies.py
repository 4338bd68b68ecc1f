"""`fclub policies`."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table

from fclub.policies.registry import POLICIES

app = typer.Typer(add_completion=False)


@app.command("policies", epilog="Example: fclub policies --json")
def policies(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """List the policies, their switches and parameters."""
    if as_json:
        listing = {
            name: {"summary": e.summary, "switches": e.switches, "parameters": e.defaults}
            for name, e in POLICIES.items()
        }
        typer.echo(json.dumps(listing))
        return
    table = Table("policy", "what it is", "switches", "parameters (defaults)")
    for name, entry in POLICIES.items():
        switches = "\n".join(f"{k}: {v}" for k, v in entry.switches.items())
        defaults = ", ".join(f"{k}={v}" for k, v in entry.defaults.items())
        table.add_row(name, entry.summary, switches, defaults)
    Console().print(table)
