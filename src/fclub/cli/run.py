"""`fclub run`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import joblib
import typer

from fclub.cli import parameters
from fclub.cli.console import compile_first, summary_table
from fclub.cli.screen import screen
from fclub.config import require
from fclub.experiments.report.measured import summarise
from fclub.experiments.run.experiment import Experiment, Setting, combinations, policy_setting
from fclub.experiments.run.progress import rounds_bar
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import BACKENDS
from fclub.experiments.run.runner import run as run_experiment
from fclub.policies.base import is_compared
from fclub.policies.registry import POLICIES

app = typer.Typer(add_completion=False)


def build(
    names: list[str],
    environment: Setting,
    rounds: int,
    seeds: tuple[int, ...],
    shared: dict[str, Any],
    own: dict[str, dict[str, Any]],
    grids: dict[str, dict[str, list[Any]]],
) -> Experiment:
    """The experiment of these options; `shared` parameters go to every policy that has them.

    A policy with a grid is one for each combination of its values.
    """
    policies = {}
    for name in names:
        setting = policy_setting(name, rounds, shared)
        for label, chosen in combinations(name, grids.get(name, {})):
            given = setting.parameters | own.get(name, {}) | chosen
            policies[label] = Setting.of(setting.name, given)
    return Experiment(policies, environment, rounds, seeds)


@app.command(
    "run", epilog="Example: fclub run --policy fclub-dc --policy linucb --rounds 20000 --seeds 3"
)
def run(
    policy: Annotated[list[str] | None, parameters.policy_option("All that are no oracles.")] = None,
    env: Annotated[str, parameters.environment_option()] = "synthetic",
    rounds: Annotated[int, typer.Option(help="Visits per simulation.")] = 100_000,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 10,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    users: Annotated[int | None, parameters.WORLD["users"]] = None,
    clusters: Annotated[int | None, parameters.WORLD["clusters"]] = None,
    servers: Annotated[int | None, parameters.WORLD["servers"]] = None,
    dim: Annotated[int | None, parameters.WORLD["dim"]] = None,
    items: Annotated[int | None, parameters.WORLD["items"]] = None,
    placement: Annotated[str | None, parameters.WORLD["placement"]] = None,
    epsilon: Annotated[float | None, parameters.PROMISE["epsilon"]] = None,
    delta: Annotated[float | None, parameters.PROMISE["delta"]] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help=parameters.HELP)] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="POLICY.NAME=VALUE,VALUE,...: every combination is played; repeatable."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Simulations at a time. One per core.")] = None,
    backend: Annotated[str, typer.Option(help=f"Where they run: {', '.join(BACKENDS)}.")] = "loky",
    address: Annotated[str | None, typer.Option(help="Scheduler of a dask or ray cluster.")] = None,
    out: Annotated[str | None, typer.Option(help="Keep results in this folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run policies in an environment, seed by seed, and compare them."""
    require(seeds >= 1, "seeds must be at least 1", seeds)
    require(out is not None or not resume, "--resume needs --out", out)
    sizes = {"users": users, "clusters": clusters, "servers": servers, "dim": dim, "items": items}
    given: dict[str, Any] = {
        k: v for k, v in (sizes | {"placement": placement}).items() if v is not None
    }
    budget = {k: v for k, v in (("epsilon", epsilon), ("delta", delta)) if v is not None}
    names = policy or [name for name, entry in POLICIES.items() if is_compared(entry)]
    world, own = parameters.parse_parameters(set_, names, env)
    grids = parameters.parse_grids(grid, names)
    twice = [f"{one}.{key}" for one in grids for key in grids[one].keys() & own.get(one, {}).keys()]
    require(not twice, "--set and --grid cannot both give a parameter", ", ".join(twice))
    environment = Setting.of(env, given | world)
    experiment = build(names, environment, rounds, tuple(range(seed, seed + seeds)), budget, own, grids)
    experiment.check()
    results = None if out is None else Results.create(out, experiment, resume)
    jobs = jobs or joblib.cpu_count()
    if backend == "loky":
        compile_first(experiment.policies, jobs)
    with rounds_bar(rounds * seeds * len(experiment.policies)) as report:
        traces = run_experiment(
            experiment,
            jobs=jobs,
            backend=backend,
            address=address,
            results=results,
            report=report,
        )
    summary = summarise(experiment, traces)
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        screen().print(summary_table(summary))
