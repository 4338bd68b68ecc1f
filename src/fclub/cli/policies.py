"""`fclub policies`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from fclub.cli.parameters import complete_policy
from fclub.cli.screen import screen
from fclub.policies.base import Policy, summary_of
from fclub.policies.registry import POLICIES, find_policy

app = typer.Typer(add_completion=False)


def _described(kind: type[Policy]) -> dict[str, Any]:
    rows = kind.parameters.values()
    return {
        "summary": summary_of(kind),
        "switches": dict(kind.switches),
        "parameters": dict(kind.defaults),
        "meanings": {r.name: {"meaning": r.meaning, "unit": r.unit, "values": r.allowed} for r in rows},
    }


def _all() -> Table:
    """Every word has room, so that no value is cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), leading=1)
    rows = [(name, _in_words(kind), _defaults(kind)) for name, kind in POLICIES.items()]
    for header, *cells in zip(("policy", "what it is", "parameters"), *rows, strict=True):
        table.add_column(header, min_width=max(len(word) for cell in cells for word in cell.split()))
    for row in rows:
        table.add_row(*row)
    return table


def _in_words(kind: type[Policy]) -> str:
    switches = ", ".join(f"{key} {value}" for key, value in kind.switches.items())
    return f"{summary_of(kind)}\n{switches}".rstrip()


def _defaults(kind: type[Policy]) -> str:
    return ", ".join(f"{key}={value}" for key, value in kind.defaults.items())


def _one(kind: type[Policy]) -> Table:
    table = Table(title=summary_of(kind), box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in ("parameter", "default", "values", "meaning"):
        table.add_column(column, no_wrap=column in ("parameter", "default"))
    for row in kind.parameters.values():
        unit = f", in {row.unit}" if row.unit else ""
        table.add_row(row.name, str(row.default), row.allowed + unit, row.meaning)
    return table


@app.command("policies", epilog="Example: fclub policies cdp-fclub-plus")
def policies(
    name: Annotated[
        str | None,
        typer.Argument(help="One of them: what each parameter means.", autocompletion=complete_policy),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the policies, their switches and parameters."""
    chosen = POLICIES if name is None else {name: find_policy(name)}
    if as_json:
        typer.echo(json.dumps({key: _described(kind) for key, kind in chosen.items()}))
    else:
        screen().print(_all() if name is None else _one(chosen[name]))
