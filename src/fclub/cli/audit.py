"""`fclub audit`: attack running servers; exit 1 when one leaks more than it claims."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fclub.attack.everything import BUDGETS, SURFACES, Result, attack_live, attack_processes
from fclub.attack.live import NUMBERS
from fclub.attack.pairs import Pair, live_pairs
from fclub.attack.search import HISTORIES, Searched, search_all
from fclub.cli.main import EXIT_FAILURE
from fclub.cli.screen import screen
from fclub.errors import UnknownName
from fclub.privacy.audit import Finding

app = typer.Typer(add_completion=False)

Budgets = tuple[tuple[float, float], ...]


def _as_dict(epsilon: float, delta: float, finding: Finding, **of: str) -> dict[str, object]:
    return {
        **of,
        "epsilon": epsilon,
        "delta": delta,
        "canary": finding.canary,
        "test": finding.test,
        "value": finding.interval.value,
        "low": finding.interval.low,
        "high": finding.interval.high,
        "passed": finding.passed,
    }


def _pairs(policy: str | None) -> list[Pair]:
    pairs = [pair for pair in live_pairs() if policy in (None, pair.policy)]
    if not pairs:
        raise UnknownName("private policy", str(policy), {pair.policy for pair in live_pairs()})
    return pairs


def _long(policy: str | None, budgets: Budgets, seconds: float, as_json: bool) -> int:
    """Search for so long; returns how many promises are broken."""
    found: list[Searched] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("searching", total=None)
        for one in search_all(_pairs(policy), budgets, 0, seconds):
            found.append(one)
            tried = sum(searched.tried for searched in found)
            progress.update(task, description=f"{tried} histories")
    if as_json:
        typer.echo(json.dumps(_searched(found)))
    else:
        _print_searched(screen(), found)
    return sum(one.history is not None for one in found)


def _searched(found: list[Searched]) -> dict[str, Any]:
    failed = [one for one in found if one.history is not None]
    return {
        "histories": sum(one.tried for one in found),
        "failed": [
            {
                "policy": one.pair.policy,
                "unit": one.pair.unit,
                "level": one.pair.means,
                "epsilon": one.epsilon,
                "tests": [finding.test for finding in one.failures],
                "history": str(one.history),
            }
            for one in failed
        ],
    }


def _print_searched(console: Console, found: list[Searched]) -> None:
    tried = sum(one.tried for one in found)
    failed = [one for one in found if one.history is not None]
    outcome = f"{len(failed)} FAIL" if failed else "no two neighbours can be told apart"
    console.print(f"{tried} generated histories: {outcome}", highlight=False)
    for one in failed:
        for finding in one.failures:
            _print_failure(console, f"{one.pair} at {one.epsilon:g}", finding)
        console.print(f"  {one.history}", highlight=False, soft_wrap=True, markup=False)


def _live(policy: str | None, budgets: Budgets, numbers: int, histories: int, as_json: bool) -> int:
    """Attack every promise, or those of one policy; returns how many tests failed."""
    pairs = _pairs(policy)
    results: list[Result] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("attacking", total=len(pairs) * len(budgets))

        def tell(pair: str) -> None:
            progress.update(task, description=f"attacking {pair}")

        for result in attack_live(pairs, budgets, numbers, tell):
            results.append(result)
            progress.advance(task)
        searched = list(search_all(pairs, budgets, histories, progress=tell)) if histories else []
        progress.update(task, description="comparing two processes")
        twice = attack_processes()
    failures = sum(len(result.failures) for result in results) + (not twice.passed)
    failures += sum(one.history is not None for one in searched)
    if as_json:
        rows = [
            _as_dict(r.epsilon, r.delta, f, policy=r.pair.policy, unit=r.pair.unit, level=r.pair.means)
            for r in results
            for f in r.findings
        ]
        rows.append(_as_dict(1.0, 1e-5, twice, policy="all", unit="all", level="all"))
        found: dict[str, Any] = {"target": policy or "all", "numbers": numbers, "leaks": failures}
        found |= {"search": _searched(searched), "surfaces": SURFACES, "findings": rows}
        typer.echo(json.dumps(found))
    else:
        _print_live(results, searched, twice)
    return failures


def _print_live(results: list[Result], searched: list[Searched], twice: Finding) -> None:
    console = screen()
    columns = ("policy", "unit", "level", "ε, δ", "tests", "of the bound", "outcome")
    table = Table(*columns, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for pair, epsilon, delta, findings in ((r.pair, r.epsilon, r.delta, r.findings) for r in results):
        failed = sum(not finding.passed for finding in findings)
        moved = [f.interval for f in findings if f.test == "distance of exact twins"]
        part = f"{max(i.value / i.high for i in moved):.1%}" if moved else "no twins"
        outcome = f"[bold red]{failed} FAIL[/]" if failed else "[green]ok[/]"
        budget = f"{epsilon:g}, {delta:g}"
        table.add_row(pair.policy, pair.unit, pair.means, budget, str(len(findings)), part, outcome)
    console.print(table)
    for result in results:
        for finding in result.failures:
            _print_failure(console, f"{result.pair} at {result.epsilon:g}", finding)
    _print_searched(console, searched)
    if not twice.passed:
        _print_failure(console, "all policies", twice)
    console.print("Covered:")
    for name, text in SURFACES.items():
        console.print(f"  {name}: {text}", highlight=False, soft_wrap=True)


def _print_failure(console: Console, where: str, finding: Finding) -> None:
    value, low, high = finding.interval.value, finding.interval.low, finding.interval.high
    text = (
        f"{where}: {finding.canary}: {finding.test} is {value:.6g}, must lie in {low:.6g} … {high:.6g}"
    )
    console.print(f"[bold red]FAILS[/] {text}", highlight=False, soft_wrap=True)


@app.command("audit", epilog="Example: fclub audit --policy cdp-homo --epsilon 1")
def audit_command(
    everything: bool = typer.Option(
        False,
        "--all",
        help="Attack all live policies, units and levels (the default without --policy).",
    ),
    policy: str | None = typer.Option(None, help="Only running servers of this policy."),
    epsilon: float | None = typer.Option(None, help="Claimed ε; two budgets are tried without it."),
    delta: float = typer.Option(1e-5, help="Claimed δ."),
    numbers: int = typer.Option(NUMBERS, min=100, help="Noised numbers of each neighbour."),
    histories: int = typer.Option(HISTORIES, min=0, help="Generated histories, over all promises."),
    long: float | None = typer.Option(None, help="Only generate histories, for so many seconds."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Run servers on neighbouring data, read what they send, and try to tell the neighbours apart."""
    budgets: Budgets = BUDGETS if epsilon is None else ((epsilon, delta),)
    chosen = None if everything else policy
    if long is not None:
        leaks = _long(chosen, budgets, long, as_json)
    else:
        leaks = _live(chosen, budgets, numbers, histories, as_json)
    if leaks:
        raise typer.Exit(EXIT_FAILURE)
