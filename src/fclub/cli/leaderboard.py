"""`fclub leaderboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import joblib
import typer
from rich import box
from rich.table import Table

from fclub.cli.console import compile_first
from fclub.cli.screen import screen
from fclub.config import require
from fclub.errors import UnknownName
from fclub.experiments.leaderboard.page import COLUMNS, cells_of, write_page
from fclub.experiments.leaderboard.ranks import ranks
from fclub.experiments.leaderboard.record import LeaderboardRecord, load, merge, play, save
from fclub.experiments.leaderboard.suite import BASE, POLICIES, ROUNDS, SEEDS, WORLDS, settings
from fclub.experiments.run.experiment import Setting, policy_setting
from fclub.experiments.run.progress import rounds_bar

app = typer.Typer(add_completion=False)


@app.command("leaderboard", epilog="Example: fclub leaderboard --policy mine.py:Mine --out out/board")
def leaderboard(
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Rank this policy, too: a name, or FILE.py:CLASS of your own. Repeatable."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Simulations at a time. One per core.")] = None,
    out: Annotated[str | None, typer.Option(help="Write the page and its pictures here.")] = None,
    record: Annotated[
        str | None,
        typer.Option(help="Play the suite (or those of --policy) again, and keep the result in FILE."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="With --record: how many of the suite's seeds to play.")
    ] = len(SEEDS),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Rank policies in the recorded suite of worlds; yours among them, if you name it."""
    require(1 <= seeds <= len(SEEDS), f"seeds must be from 1 to {len(SEEDS)}", seeds)
    require(record is not None or seeds == len(SEEDS), "--seeds is for --record", seeds)
    jobs = jobs or joblib.cpu_count()
    shown = load() if record is None else _record(Path(record), policy or [], SEEDS[:seeds], jobs)
    if policy and record is None:
        shown = merge(shown, _play(_chosen(policy), shown.seeds, jobs))
    if out is not None:
        page = write_page(shown, Path(out))
        typer.echo(f"{page}", err=True)
    if as_json:
        lines = [rank._asdict() | {"settled": rank.settled} for rank in ranks(shown)]
        typer.echo(json.dumps({"suite": shown.suite, "digest": shown.digest, "ranks": lines}))
    else:
        screen().print(_table(shown))


def _chosen(names: list[str]) -> dict[str, Setting]:
    """Policies as they come; those of the suite at its constants."""
    known = settings()
    return {name: known.get(name) or policy_setting(name, ROUNDS, {}) for name in names}


def _play(
    policies: dict[str, Setting], seeds: tuple[int, ...], jobs: int, keep: Path | None = None
) -> LeaderboardRecord:
    if jobs > 1:
        compile_first(policies, jobs)
    total = ROUNDS * len(WORLDS) * len(seeds) * len(policies)

    def tell(found: LeaderboardRecord) -> None:
        if keep is not None:
            save(found, keep)

    with rounds_bar(total) as report:
        return play(policies, seeds=seeds, jobs=jobs, report=report, tell=tell)


def _record(path: Path, names: list[str], seeds: tuple[int, ...], jobs: int) -> LeaderboardRecord:
    """Play into a file seed by seed; where the file exists, it gets the rows of the named policies."""
    for name in names:
        if name not in POLICIES:
            raise UnknownName("policy of the suite", name, POLICIES)
    if not (names and path.exists()):
        return _play(_chosen(names) if names else settings(), seeds, jobs, path)
    whole = merge(load(path), _play(_chosen(names), load(path).seeds, jobs))
    save(whole, path)
    return whole


def _table(record: LeaderboardRecord) -> Table:
    title = f"suite {record.suite} ({record.digest}): {len(record.cells)} worlds, "
    table = Table(
        title=f"{title}{len(record.seeds)} seeds, {ROUNDS:,} rounds",
        caption=f"regret relative to {BASE}, geometric mean over worlds, 95 % intervals over seeds; "
        "behind: regret over that of the rank before",
        box=box.SIMPLE_HEAD,
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    for rank in ranks(record):
        table.add_row(*cells_of(rank))
    return table
