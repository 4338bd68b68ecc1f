"""`fclub privacy`: what noise for this budget, what did this ledger spend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fclub.cli.screen import screen
from fclub.config import Delta, Dim, Epsilon
from fclub.core.population.model import PublicModel, clip_norm
from fclub.errors import UnknownName
from fclub.parameters import check_value
from fclub.privacy.calibration import STRICT_DELTA, epsilon_of
from fclub.privacy.events import dp_events
from fclub.privacy.ledger import Ledger, read_ledger
from fclub.privacy.levels import EVENT, USER
from fclub.privacy.plan import Plan
from fclub.protocol.interfaces.family import Shape
from fclub.protocol.rows.population import PopulationFamily
from fclub.protocol.rows.private import PrivatePlusConstants, StreamFamily
from fclub.service.store.books import read_books
from fclub.service.store.store import is_store

app = typer.Typer(add_completion=False)

EXAMPLES = """Examples: fclub privacy --epsilon 4 · fclub privacy --ledger shop.db ·
fclub privacy --unit event --delta 0.1 --constant 0.7071 ·
fclub privacy --ledger shop.db --events"""


def _show(rows: dict[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, _words(value))
    screen().print(table)


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


def _read(path: Path) -> Ledger:
    return read_books(path) if is_store(path) else read_ledger(path)


def _events(path: Path) -> dict[str, object]:
    ledger = _read(path)
    told = {"unit": ledger.unit, "claimed": list(ledger.claimed), "distance": ledger.distance}
    return told | {"events": dp_events(ledger)}


def _spent(path: Path, delta: float | None) -> dict[str, object]:
    ledger = _read(path)
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


def _slots(epsilon: float, delta: float, dim: int, visits: float) -> dict[str, object]:
    """What one server releases in the slots of a plan for so many visits, with noise of its own."""
    constants = PrivatePlusConstants(epsilon=epsilon, delta=delta, visits=visits)
    plan = PopulationFamily(constants, Shape(dim, clusters=1)).plan
    distance = plan.mechanism.distance(plan.releases)
    return {
        "unit": USER,
        "budget": [epsilon, delta],
        "mu": plan.mu,
        "epsilon_at_1e-5": epsilon_of(plan.mu, STRICT_DELTA, distance),
        "distance": distance,
        "releases": plan.releases,
        "first_release": _release(plan, 0),
        "last_release": _release(plan, plan.releases - 1),
        "live": "servers release in the slots of a plan, which `fclub plan` writes",
    }


def _release(plan: Plan, slot: int) -> dict[str, object]:
    """The longest vector that a user adds, and the noise of each entry."""
    clip = clip_norm(PublicModel(plan.dim, None), plan.visits[slot], plan.past)
    step = clip / plan.steps
    return {
        "visits_per_user": plan.visits[slot],
        "clip_norm": step * plan.bound,
        "std": step * plan.deviation,
    }


def _stream(epsilon: float, delta: float, dim: int, constant: float | None) -> dict[str, object]:
    """What the stream of one user releases."""
    constants = PrivatePlusConstants(epsilon=epsilon, delta=delta, unit="event")
    plan = StreamFamily(constants, Shape(dim, clusters=1, constant=constant)).plan
    return {
        "unit": EVENT,
        "mechanism": plan.mechanism.name,
        "budget": [epsilon, delta],
        "mu": plan.mu,
        "epsilon_at_1e-5": epsilon_of(plan.mu, STRICT_DELTA, plan.distance),
        "distance": plan.distance,
        "sensitivity": plan.sensitivity,
        "releases": len(plan.schedule),
        "std": plan.mechanism.std,
        "last_std": plan.last_std,
    }


@app.command("privacy", epilog=EXAMPLES)
def privacy(
    epsilon: float = typer.Option(1.0, help="Budget ε."),
    delta: float | None = typer.Option(None, help="Budget δ (default 1e-5), or δ to read a ledger at."),
    unit: str = typer.Option(
        USER,
        help="Whose data the promise is about: user (all data of one, as cdp-fclub-plus has it by "
        "default) or event (one observation, as the paper has it).",
    ),
    dim: int = typer.Option(10, help="Length of the features."),
    visits: float = typer.Option(75.0, help="Unit user: visits of a user that a plan is for."),
    constant: float | None = typer.Option(
        None,
        help="Unit event: value of the last feature if all items share it; rewards are then centred.",
    ),
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger file or a local server's store.")
    ] = None,
    events: bool = typer.Option(
        False, "--events", help="With --ledger: print the ledger as events of dp-accounting, in JSON."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Noise for a budget, or the budget that a ledger has spent."""
    at = STRICT_DELTA if delta is None else delta
    for name, value, kind in (("epsilon", epsilon, Epsilon), ("delta", at, Delta), ("dim", dim, Dim)):
        check_value(f"--{name}", value, kind)
    if events and ledger is None:
        raise typer.BadParameter("--events needs --ledger")
    if ledger is not None and events:
        _show(_events(ledger), True)
    elif ledger is not None:
        _show(_spent(ledger, delta), as_json)
    elif unit == USER:
        _show(_slots(epsilon, at, dim, visits), as_json)
    elif unit == EVENT:
        _show(_stream(epsilon, at, dim, constant), as_json)
    else:
        raise UnknownName("unit", unit, [EVENT, USER])
