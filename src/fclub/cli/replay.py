"""`fclub replay`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fclub.cli import parameters
from fclub.cli.screen import screen
from fclub.config import require
from fclub.environments.logs import read_log
from fclub.environments.replay import Estimate, ReplayResult, evaluate_replay
from fclub.experiments.run.experiment import Setting
from fclub.experiments.run.progress import rounds_bar

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: fclub replay log.csv --items items.csv --policy linucb --policy club"


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"


def _table(results: dict[str, ReplayResult], confidence: float) -> Table:
    first = next(iter(results.values()))
    table = Table(
        title=f"Reward per round, {first.rounds:,} rounds logged",
        caption=f"with intervals of {100 * confidence:g} % confidence; kept: rounds learned from",
    )
    table.add_column("policy", no_wrap=True)
    for column in ("by replay", "by importance", "doubly robust", "fitting", "kept"):
        table.add_column(column, justify="right")
    table.add_row("what was logged", _shown(first.logged), "", "", "", "")
    for name, found in results.items():
        estimates = map(_shown, (found.replay, found.importance, found.doubly_robust))
        table.add_row(name, *estimates, f"{found.fitting:,}", f"{found.kept:,}")
    return table


@app.command("replay", epilog=EXAMPLE)
def replay(
    log: Annotated[
        Path,
        typer.Argument(help="CSV (user, item, reward, propensity) or .jsonl of `fclub store export`."),
    ],
    items: Annotated[Path, typer.Option(help="CSV with the features of every item.")],
    policy: Annotated[list[str], parameters.policy_option()],
    position: Annotated[str | None, typer.Option(help="Only this position of the page.")] = None,
    servers: Annotated[int, typer.Option(min=1, help="Deal users out to this number of servers.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of policies and acceptance.")] = 0,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    set_: Annotated[list[str] | None, typer.Option("--set", help="POLICY.NAME=VALUE.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What policies would have earned on logged feedback, with confidence intervals."""
    environment, own = parameters.parse_parameters(set_, policy, None)
    require(not environment, "a log has no parameters to set", environment)
    logged, results = read_log(log, items, position), {}
    with rounds_bar(len(logged) * len(policy)) as tell:
        for done, name in enumerate(policy, start=1):
            walked = Setting.of(name, own.get(name, {})).make_policy()
            results[name] = evaluate_replay(
                walked, logged, servers=servers, seed=seed, confidence=confidence
            )
            tell(done * len(logged))
    if as_json:
        typer.echo(json.dumps({name: asdict(found) for name, found in results.items()}))
    else:
        screen().print(_table(results, confidence))
