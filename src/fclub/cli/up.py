"""`fclub up`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fclub.cli import parameters
from fclub.cli.console import COMPILING
from fclub.environments.base import Environment
from fclub.environments.registry import make_environment
from fclub.errors import RequestFailed
from fclub.parameters import Parameter
from fclub.privacy.levels import USER
from fclub.privacy.plan import FEWEST, make_plan, slot_visits
from fclub.protocol.families import FAMILIES
from fclub.service.fleet import Fleet
from fclub.service.nodes.parts import family_of, is_warm, warm
from fclub.service.settings import POLICY, Model
from fclub.service.store.items_file import shape_of_items
from fclub.visitors import Diary, Earnings, Venue, make_rivals, visit

app = typer.Typer(add_completion=False)


def _table(tally: Earnings) -> Table:
    table = Table("visitors", "", title="Ctrl-C stops everything")
    table.add_row("visits", f"{tally.visits}")
    for name, earned in tally.policies.items():
        per_visit = earned.regret / max(tally.visits, 1)
        table.add_row(f"regret of {name}", f"{earned.regret:.1f} ({per_visit:.4f} a visit)")
    return table


def _has_screen() -> bool:
    """Without a display a browser would take over the terminal."""
    return sys.platform != "linux" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


def _stop_when_told() -> None:
    """SIGTERM ends everything as Ctrl-C does, also where a shell has put us into the background.

    So does SIGHUP, that of a terminal that was closed: the servers would read it as something else.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def compile_live(model: Model, console: Console) -> None:
    """Compile what servers of this model need, and say so: it takes a minute."""
    if not is_warm(model):
        console.print(f"{COMPILING}: servers of {model.policy} …")
        warm(model)


def start_environment(env: str, given: dict[str, Any], seed: int) -> Environment:
    environment = make_environment(env, **given)
    environment.start(seed)
    return environment


NOT_COMPARED = (
    "These servers have learned from visits of another setting, so no other policy is compared."
)


def _show_pages(fleet: Fleet, console: Console, browser: bool) -> None:
    if browser and console.is_terminal and _has_screen():
        webbrowser.open(fleet.hub.page)
    for server in fleet.servers:
        console.print(f"{server.name}: {server.page}", soft_wrap=True, highlight=False)


def _wait(fleet: Fleet, console: Console) -> None:
    """Until Ctrl-C: an application visits."""
    try:
        while True:
            fleet.check()
            time.sleep(1.0)
    except KeyboardInterrupt:
        console.print("stopping …")


PLAN = "plan.json"


def lacks_plan(model: Model) -> bool:
    """Does this policy release in slots, of which it has been told none?"""
    told = dict(FAMILIES[model.policy].defaults) | model.parameters
    return told.get("plan") == "" and told["unit"] == USER and bool(told["share"])


def with_plan(model: Model, home: Path, servers: int, users: int, rate: float, visits: float) -> Model:
    """A plan for so many visits of each user at that rate, written once, where the policy needs one.

    One operator runs all servers, on one clock: slots may be seconds apart.
    """
    if not lacks_plan(model):
        return model
    told = dict(FAMILIES[model.policy].defaults) | model.parameters
    path, seconds = home / PLAN, users / rate
    secure = bool(told["secure"]) and servers >= FEWEST
    if not path.exists():
        make_plan(
            epsilon=float(told["epsilon"] or 0.0),
            delta=float(told["delta"] or 0.0),
            level="interactive" if told["level"] == "interactive" else "transcript",
            dim=model.dim,
            users=users,
            members=servers,
            visits=apart(slot_visits(visits), LEAST_GAP / seconds),
            secure=secure,
            start=time.time() + STARTING,
            seconds_per_visit=seconds,
            tolerance=0.0,
        ).write(path)
    return msgspec.structs.replace(model, parameters=model.parameters | {"plan": str(path)})


def apart(visits: tuple[float, ...], least: float) -> tuple[float, ...]:
    """Those slots that are at least so far apart."""
    found = [max(visits[0], least)]
    for one in visits:
        if one >= found[-1] + least:
            found.append(one)
    return tuple(found)


LEAST_GAP = 12.0
"""Seconds between slots: half of them is the window in which a secure sum has to be ready."""

STARTING = 15.0
"""Seconds that servers need to start; a slot that comes earlier is left out."""

NO_PLAN = (
    "These servers share nothing yet: {0} releases in the slots of a plan. "
    "Make one with fclub plan, then start them with --set {0}.plan=FILE."
)

EXAMPLE = "Example: fclub up --env ratings --set env.path=ratings.csv --servers 3 --visits 1000"


def _serve(
    catalogue: Path,
    servers: int,
    policy: str,
    given: Mapping[str, Parameter],
    folder: Path | None,
    browser: bool,
) -> None:
    dim, constant = shape_of_items(catalogue)
    model = Model(policy=policy, dim=dim, constant=constant, parameters=dict(given))
    family_of(model)
    _stop_when_told()
    console = Console(stderr=True)
    with ExitStack() as stack:
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fclub-")))
        fleet = Fleet(home, servers, model, catalogue=catalogue)
        compile_live(model, console)
        with console.status(f"starting {len(fleet.servers)} servers …"):
            stack.enter_context(fleet)
        if servers > 1 and lacks_plan(model):
            console.print(NO_PLAN.format(policy), highlight=False)
        _show_pages(fleet, console, browser)
        _wait(fleet, console)


@app.command("up", epilog=EXAMPLE)
def up(
    policy: Annotated[str, typer.Option(help="A federated policy.")] = POLICY,
    env: Annotated[str, typer.Option(help="Where visitors come from.")] = "synthetic",
    servers: Annotated[int, parameters.WORLD["servers"]] = 5,
    users: Annotated[int, parameters.WORLD["users"]] = 400,
    rate: Annotated[float, typer.Option(min=0.1, help="Visits per second, at most.")] = 50.0,
    visits: Annotated[int | None, typer.Option(min=1, help="Stop after this number.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the visitors.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help=parameters.HELP)] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(help="Serve these items (CSV) to your application; no simulated visitors."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Keep stores, logs and servers.json (addresses) here; go on from them."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the global server's page.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Run broker, global server and local servers on this machine, with simulated visitors."""
    given, own = parameters.parse_parameters(set_, [policy], env)
    if catalogue is not None:
        _serve(catalogue, servers, policy, own.get(policy, {}), folder, browser)
        return
    make_twin = partial(start_environment, env, {"users": users, "servers": servers} | given, seed)
    environment = make_twin()
    problem = environment.problem
    model = Model(
        policy=policy, dim=problem.dim, constant=problem.constant, parameters=own.get(policy, {})
    )
    family_of(model)
    _stop_when_told()
    console = Console(stderr=True)
    setting = {"policy": policy, "parameters": own.get(policy, {}), "seed": seed}
    setting |= {"environment": env, **environment.get_params()}
    with ExitStack() as stack:
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fclub-")))
        home.mkdir(exist_ok=True)
        each = float(own.get(policy, {}).get("visits") or 75.0)
        if visits is not None:
            each = visits / problem.users
        compile_live(model, console)
        model = with_plan(model, home, problem.servers, problem.users, rate, each)
        fleet = Fleet(home, problem.servers, model)
        diary = Diary.open(home, setting, problem.servers, fleet.learned)
        hub, *local = [(server.url, server.token) for server in fleet.servers]
        rivals = make_rivals(make_twin, seed) if diary.compared else []
        stage = Venue(policy, environment, rivals, hub, local)
        with console.status(f"starting {len(fleet.servers)} servers …"):
            stack.enter_context(fleet)
            stage.catch_up(diary.tally.visits)
        if not diary.compared:
            console.print(NOT_COMPARED)
        _show_pages(fleet, console, browser)
        if not console.is_terminal:  # there, the last table ends without a new line
            stack.callback(console.line)
        live = stack.enter_context(Live(_table(diary.tally), console=console, refresh_per_second=4))

        def show() -> None:
            fleet.check()
            live.update(_table(diary.tally))

        try:
            asyncio.run(visit(stage, diary, home, rate, visits, show))
        except KeyboardInterrupt:
            console.print("stopping …")
        except RequestFailed:
            fleet.check()  # a server that is gone is a better reason than a request without answer
            raise
    if as_json:
        typer.echo(json.dumps(diary.tally.as_dict()))
