"""`fclub plan`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from fclub.cli.screen import screen
from fclub.config import require
from fclub.core.population.model import PublicModel, clip_norm
from fclub.errors import InvalidSetting
from fclub.experiments.run.progress import rounds_bar
from fclub.experiments.study.planning import Expectation, dates, expect, total_visits
from fclub.privacy.ledger import read_ledger
from fclub.privacy.plan import FEWEST, Plan, make_plan, slot_visits

app = typer.Typer(add_completion=False)

MONTH = 365.25 * 86_400.0 / 12.0
HALF = 0.5**0.5
"""The constant feature of items that clip norms are shown for."""


@app.command(
    "plan", epilog="Example: fclub plan --servers 100 --users 5000 --visits-per-month 4 --months 5"
)
def plan(
    servers: Annotated[int, typer.Option(help="Members of the federation.")],
    users: Annotated[int, typer.Option(help="Users that they expect together.")],
    visits_per_month: Annotated[float, typer.Option(help="Visits that a user is expected to make.")],
    months: Annotated[float, typer.Option(help="Months that the plan is for.")] = 12.0,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε of the whole plan.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Privacy budget δ of the whole plan.")] = 1e-5,
    colluders: Annotated[
        int | None, typer.Option(help="Members that may collude. A third of the others, at least 1.")
    ] = None,
    per_server: Annotated[
        bool, typer.Option("--per-server", help="Noise for each server, without secure sums.")
    ] = False,
    level: Annotated[str, typer.Option(help="transcript or interactive.")] = "transcript",
    past_visits: Annotated[float, typer.Option(help="Ratings per user imported before.")] = 0.0,
    dim: Annotated[int, typer.Option(help="Features of an item.")] = 10,
    start: Annotated[str, typer.Option(help="First day, as 2026-01-31. Tomorrow.")] = "",
    seeds: Annotated[int, typer.Option(help="Trials of what to expect; 0: none.")] = 3,
    out: Annotated[str, typer.Option(help="File for the plan.")] = "",
    features_ledger: Annotated[
        str, typer.Option(help="Ledger of features made under a budget of their own.")
    ] = "",
    public: Annotated[
        bool, typer.Option("--features-are-public", help="Features follow from no user's data.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan releases of a federation: dates, noise, and what to expect."""
    require(visits_per_month > 0.0, "visits-per-month must be above 0", visits_per_month)
    require(seeds == 0 or seeds >= 2, "seeds must be 0, or at least 2 for an interval", seeds)
    features = _features(features_ledger, public, needed=bool(out))
    visits = visits_per_month * months
    made = make_plan(
        epsilon=epsilon,
        delta=delta,
        dim=dim,
        users=users,
        members=servers,
        visits=slot_visits(visits),
        level=_level(level),
        secure=not per_server and servers >= FEWEST,
        colluders=colluders,
        start=_first_day(start).timestamp(),
        seconds_per_visit=MONTH / visits_per_month,
        past=past_visits,
    )
    expected: list[Expectation] = []
    if seeds:
        with rounds_bar(total_visits(made, visits, servers, seeds), "visits") as tell:
            expected = expect(made, visits, servers, seeds, tell)
    if out:
        made.write(Path(out))
    if as_json:
        typer.echo(json.dumps(_as_dict(made, expected) | {"features": features}))
    else:
        _show(made, expected, months, out)
        typer.echo(f"Features: {features}")


def _level(name: str) -> Literal["transcript", "interactive"]:
    if name == "transcript":
        return "transcript"
    require(name == "interactive", "level must be transcript or interactive", name)
    return "interactive"


def _first_day(text: str) -> datetime:
    if not text:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        return tomorrow.replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidSetting(f"start must be a day such as 2026-01-31, got {text!r}", text) from None


def _as_dict(made: Plan, expected: list[Expectation]) -> dict[str, Any]:
    return {
        "hash": made.digest,
        "slots": [
            {"date": date.isoformat(), "visits": visits, "clip": clip}
            for date, visits, clip in zip(dates(made), made.visits, _clips(made), strict=True)
        ],
        "secure": made.secure,
        "colluders": made.colluders,
        "noise": made.total(made.members) / made.deviation,
        "expected": [{"users": e.users, "ratio": e.ratio, "half": e.half} for e in expected],
    }


def _clips(made: Plan) -> list[float]:
    model = PublicModel(made.dim, HALF)
    return [clip_norm(model, number, made.past) for number in made.visits]


def _show(made: Plan, expected: list[Expectation], months: float, out: str) -> None:
    console, table = screen(), Table("slot", "date", "visits per user", "clip norm")
    for slot, date in enumerate(dates(made)):
        row = f"{made.visits[slot]:.1f}", f"{_clips(made)[slot]:.3f}"
        table.add_row(str(slot + 1), f"{date:%Y-%m-%d %H:%M}", *row)
    console.print(table)
    factor = made.total(made.members) / made.deviation
    kind = f"shared out among {made.members} members, of whom {made.colluders} may collude"
    if not made.secure:
        kind = f"whole for each of {made.members} servers"
    console.print(f"Noise {kind}: the sum has {factor:.2f} times the noise of one trusted server.")
    for one in expected:
        gain = 100.0 * (1.0 - one.ratio)
        console.print(
            f"{one.users:,} users: {gain:.0f} % less regret than alone (± {100.0 * one.half:.0f})"
            if one.pays
            else f"{one.users:,} users: no certain gain (ratio {one.ratio:.3f} ± {one.half:.3f})"
        )
    paying = [one.users for one in expected if one.pays]
    if expected:
        pays = f"It pays from about {min(paying):,} users on." if paying else "It does not pay so far."
        console.print(pays)
    console.print(
        f"After the last slot nothing more is released: the learned population stays. A new period of "
        f"{months:g} months costs ε={made.epsilon:g} again."
    )
    if out:
        console.print(f"Plan {made.digest[:16]} in {out}; all members compare this hash.")


def _features(ledger: str, public: bool, needed: bool) -> str:
    """What the plan takes for granted of items' features; one that is written has to know."""
    if ledger:
        spent = read_ledger(Path(ledger))
        epsilon, delta = spent.claimed
        return f"released for ε = {epsilon:g} at δ = {delta:g} of each user's ratings, beside this plan"
    if public:
        return "public: they follow from no user's data"
    if needed:
        raise InvalidSetting(
            "a plan that is used needs a word on items' features, which its guarantee takes for "
            "public: --features-are-public, or --features-ledger FILE of fclub features --epsilon"
        )
    return "taken for public; a plan that is written needs --features-are-public or --features-ledger"
