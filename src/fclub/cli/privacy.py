"""`fclub privacy`: what noise for this budget, what did this ledger spend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fclub.privacy.calibration import STRICT_DELTA, epsilon_of
from fclub.privacy.ledger import read_ledger
from fclub.privacy.levels import LEVELS, Level
from fclub.privacy.mechanisms import plan_stream
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.service.store.books import read_books
from fclub.service.store.store import is_store

app = typer.Typer(add_completion=False)


def _show(rows: dict[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, _words(value))
    Console().print(table)


def _words(value: object) -> str:
    """A value for people: pairs of numbers are an ε and a δ."""
    match value:
        case [float() | int() as epsilon, float() | int() as delta]:
            return f"ε = {epsilon:.6g} at δ = {delta:g}"
        case list() | tuple():
            return "\n".join(map(_words, value)) or "nothing"
        case dict():
            return "\n".join(f"{key}: {_words(entry)}" for key, entry in value.items())
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
    return str(value)


def _spent(path: Path, delta: float | None) -> dict[str, object]:
    ledger = read_books(path) if is_store(path) else read_ledger(path)
    deltas = (ledger.claimed[1] if delta is None else delta, STRICT_DELTA)
    return {
        "level": ledger.level.name,
        "protects": ledger.level.protects,
        "given": ledger.level.given,
        "claimed": list(ledger.claimed),
        "mu": ledger.mu,
        "distance": ledger.distance,
        **ledger.account(deltas),
        "unaccounted": sorted(str(flag) for flag in ledger.flags),
        "seeded": ledger.seeded,
        "streams": len({event.stream for event in ledger.events}),
        "releases": sum(event.releases for event in ledger.events),
        "observations": sum(event.observations for event in ledger.events),
    }


def _explain(level: Level) -> str:
    forbids = ", ".join(sorted(level.forbids)) or "nothing"
    return f"protects {level.protects}\ngiven {level.given}\nfor {level.qualifies}\nrefuses {forbids}"


@app.command("privacy", epilog="Example: fclub privacy --epsilon 1 --delta 0.1 --constant 0.7071")
def privacy(
    epsilon: float = typer.Option(1.0, help="Budget ε."),
    delta: float | None = typer.Option(None, help="Budget δ (default 0.1), or δ to read a ledger at."),
    mechanism: str = typer.Option("increments", help="increments or tree."),
    constant: float | None = typer.Option(
        None, help="Value of the last feature if all items share it; rewards are then centred."
    ),
    dim: int = typer.Option(10, help="Length of the features."),
    relief: float = typer.Option(2.0, help="How much more noise the constant's own entries get."),
    first: int = typer.Option(16, help="Observations before the first release."),
    ratio: float = typer.Option(2.0, help="Growth of the count from release to release."),
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger file or a local server's store.")
    ] = None,
    levels: bool = typer.Option(False, "--levels", help="Explain the guarantee levels."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Noise for a budget, or the budget that a ledger has spent."""
    if levels:
        _show({level.name: _explain(level) for level in LEVELS.values()}, as_json)
        return
    if ledger is not None:
        _show(_spent(ledger, delta), as_json)
        return
    domain = Domain()
    if constant is not None:
        domain = Domain(1.0, -CENTRE, 1.0 - CENTRE, constant, relief)
    at = 0.1 if delta is None else delta
    plan = plan_stream(epsilon, at, domain, dim, mechanism, first, ratio)
    answer: dict[str, object] = {
        "mechanism": mechanism,
        "budget": [epsilon, at],
        "mu": plan.mu,
        "epsilon_at_1e-5": epsilon_of(plan.mu, STRICT_DELTA, plan.distance),
        "distance": plan.distance,
        "sensitivity": plan.sensitivity,
        "releases": len(plan.schedule),
        "std": plan.mechanism.std,
        "last_std": plan.last_std,
    }
    _show(answer, as_json)
