"""`fclub audit`: attack a mechanism or a policy; exit 1 when it leaks more than it claims."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fclub.cli.main import EXIT_FAILURE
from fclub.privacy.audit import CANARIES, Finding, audit
from fclub.simulation.attack import TARGETS, make_target

app = typer.Typer(add_completion=False)

BUDGETS = ((8.0, 1e-5), (0.5, 1e-5))
"""Two by default: at one alone a wrong scale could hide where the deviation is near 1."""

Result = tuple[tuple[float, float], list[Finding]]


def _run(target: str, budgets: tuple[tuple[float, float], ...], trials: int) -> list[Result]:
    results = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"attacking {target}", total=len(budgets) * len(CANARIES))
        for budget in budgets:
            attacked = make_target(target, *budget)
            findings = audit(attacked, trials, progress=lambda done: progress.advance(task, done))
            results.append((budget, findings))
    return results


def _as_dict(budget: tuple[float, float], finding: Finding) -> dict[str, object]:
    return {
        "epsilon": budget[0],
        "delta": budget[1],
        "canary": finding.canary,
        "test": finding.test,
        "value": finding.interval.value,
        "low": finding.interval.low,
        "high": finding.interval.high,
        "passed": finding.passed,
    }


def _print(target: str, results: list[Result], leaks: int) -> None:
    """One row per budget and test, one column per canary."""
    table = Table("ε, δ", "test", *CANARIES, "must lie in")
    for (epsilon, delta), findings in results:
        for test in dict.fromkeys(finding.test for finding in findings):
            row = {finding.canary: finding for finding in findings if finding.test == test}
            limits = next(iter(row.values())).interval
            cells = [_cell(row.get(canary)) for canary in CANARIES]
            table.add_row(
                f"{epsilon:g}, {delta:g}", test, *cells, f"{limits.low:.4g} … {limits.high:.4g}"
            )
    console = Console()
    console.print(table)
    outcome = f"{leaks} tests failed: it does not keep its claim" if leaks else "no leakage found"
    console.print(f"{target}: {outcome}")


def _cell(finding: Finding | None) -> str:
    if finding is None:
        return ""
    value = f"{finding.interval.value:.4g}"
    return f"{value} [green]ok[/]" if finding.passed else f"{value} [bold red]FAILS[/]"


@app.command("audit", epilog="Example: fclub audit --target increments --epsilon 8 --delta 1e-5")
def audit_command(
    target: str = typer.Option("increments", help=f"What to attack: {', '.join(TARGETS)}."),
    epsilon: float | None = typer.Option(None, help="Claimed ε; two budgets are tried without it."),
    delta: float = typer.Option(1e-5, help="Claimed δ."),
    trials: int = typer.Option(3000, help="Releases of each neighbour."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Release worst-case neighbours many times, with real noise, and try to tell them apart."""
    results = _run(target, BUDGETS if epsilon is None else ((epsilon, delta),), trials)
    leaks = sum(not finding.passed for _, findings in results for finding in findings)
    if as_json:
        rows = [_as_dict(budget, finding) for budget, findings in results for finding in findings]
        typer.echo(json.dumps({"target": target, "trials": trials, "leaks": leaks, "findings": rows}))
    else:
        _print(target, results, leaks)
    if leaks:
        raise typer.Exit(EXIT_FAILURE)
