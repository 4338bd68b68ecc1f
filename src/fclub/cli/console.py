"""What commands share: a progress bar over rounds, the tables of an experiment and of claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fclub.experiments.report.claims import Claim, sum_up
from fclub.experiments.run.experiment import Setting
from fclub.experiments.run.progress import rounds_bar
from fclub.experiments.run.runner import cold, compile_kernels

COMPILING = "compiling, once per machine and version"


def compile_first(policies: Mapping[str, Setting], jobs: int) -> None:
    """Have the kernels of these policies compiled, and say so: it takes a minute or two."""
    missing = cold(policies)
    if not missing:
        return
    if not Console(stderr=True).is_terminal:  # there, the bar shows at its end only
        typer.echo(f"{COMPILING}: {', '.join(missing)}", err=True)
    with rounds_bar(len(missing), COMPILING) as tell:
        compile_kernels(missing, jobs, tell)


def with_spread(value: dict[str, Any]) -> str:
    """mean ± std; the mean alone when there is one seed."""
    mean, std = value["mean"], value["std"]
    return f"{mean:,.0f}" if std is None else f"{mean:,.0f} ± {std:,.0f}"


def summary_table(summary: dict[str, Any]) -> Table:
    """One row per policy, lowest regret first."""
    environment = summary["environment"]
    seeds, rounds = summary["seeds"], summary["rounds"]
    told = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    table = Table(
        title=f"{environment['name']}, {rounds:,} rounds, {told} from {seeds[0]}",
        caption=_caption(summary),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("policy", no_wrap=True)
    agreement = ["ARI"] if _knows_clusters(summary) else []
    for column in ("regret", "messages", "clusters", *agreement, "ε spent", "µs/round"):
        table.add_column(column, justify="right", no_wrap=True)
    ranked = sorted(summary["policies"].items(), key=lambda item: item[1]["regret"]["mean"])
    for name, entry in ranked:
        clusters = entry["clusters"]
        table.add_row(
            name,
            with_spread(entry["regret"]),
            f"{entry['communications']['total']:,.0f}",
            f"{clusters['found']:.1f}" + (f" of {clusters['true']:.0f}" if agreement else ""),
            *([f"{clusters['ari']:.2f}"] if agreement else []),
            _spent(entry["privacy"]),
            f"{entry['microseconds_per_round']:.2f}",
        )
    return table


def _caption(summary: dict[str, Any]) -> str:
    """What the columns mean; ε is told at the claimed δ, so the table fits on 80 columns."""
    ari = "; ARI: agreement with the true clusters, at most 1" if _knows_clusters(summary) else ""
    told: dict[str, list[str]] = {}
    for name, entry in summary["policies"].items():
        if privacy := entry["privacy"]:
            promise = f"{privacy['unit']}, {privacy['notion']}, δ={privacy['spent'][0][1]:g}"
            told.setdefault(promise, []).append(name)
    promises = "".join(f"; ε of {' and '.join(names)}: {promise}" for promise, names in told.items())
    return f"mean ± one standard deviation{ari}{promises}"


def _knows_clusters(summary: dict[str, Any]) -> bool:
    return all(entry["clusters"]["ari"] is not None for entry in summary["policies"].values())


def _spent(privacy: dict[str, Any] | None) -> str:
    return "–" if privacy is None else f"{privacy['spent'][0][0]:.2f}"


def claims_table(claims: list[Claim]) -> Table:
    """Every claim once with its verdict; the report has the measurements."""
    table = Table(title="What is claimed, and whether it holds")
    for column in ("claim", "verdict", "where"):
        table.add_column(column)
    for line in sum_up(claims):
        table.add_row(line.claim, line.verdict, line.places)
    return table
