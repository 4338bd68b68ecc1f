"""Many users with few visits: every goal of docs/plus.md as a ratio of regrets, beside its bound.

    python benchmarks/many_users.py [--jobs N] [--only ROW ...] [--first SEED] [--seeds N]
        [--policies exact|private] [--json FILE]

Ratios are paired by seed; the first table shows their mean and a 90 % interval, the second what each
policy lost and its CPU time. Seeds 0-9 (0-4 from 20,000 users on) were never used for tuning. Traces
are kept in out/many-users, so an interrupted run continues. Events of 2,000 users take minutes a seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fclub import Trace
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.experiments.study.advice import interval
from fclub.parameters import Parameter

EXACT, PRIVATE = "fclub-plus", "cdp-fclub-plus"
LINUCB, TYPES, HOMO = "linucb", "oracle-types", "homo-dc"
ALONE, DEFAULT, EASY = "alone", "default", "user ε=4"
NOT_WORSE = 1.005


def private(epsilon: float) -> Setting:
    """`cdp-fclub-plus` with its default guarantee at this ε."""
    return Setting(PRIVATE, {"epsilon": epsilon})


SETTINGS: dict[str, Setting] = {
    **{name: Setting(name) for name in (EXACT, LINUCB, TYPES, HOMO)},
    ALONE: Setting(EXACT, {"share": False}),
    DEFAULT: private(1.0),
    EASY: private(4.0),
}


def total(trace: Trace) -> float:
    """The regret of all visits."""
    return float(trace.regret[-1])


def first_ten(trace: Trace) -> float:
    """The mean regret of a newcomer's first ten visits."""
    return float(np.mean(trace.newcomers_by_visit[:10]))


@dataclass(frozen=True)
class Goal:
    """The regret of `policy` is to be at most `bound` times that of `rival`."""

    policy: str
    rival: str
    bound: float


@dataclass(frozen=True)
class Row:
    """A world, how often each user visits it on average, and what is to be reached there."""

    users: int
    visits: int
    goals: tuple[Goal, ...]
    world: Mapping[str, Parameter]
    measure: Callable[[Trace], float] = total

    def experiment(self, seeds: tuple[int, ...], wanted: Callable[[Goal], bool]) -> Experiment:
        """All policies of the goals that are wanted."""
        goals = [goal for goal in self.goals if wanted(goal)]
        names = dict.fromkeys(name for goal in goals for name in (goal.rival, goal.policy))
        parameters = {
            "users": self.users,
            "clusters": 10,
            "servers": 10,
            "placement": "spread",
            **self.world,
        }
        world = Setting("synthetic", parameters)
        policies = {name: SETTINGS[name] for name in names}
        return Experiment(policies, world, self.users * self.visits, seeds)


def similar(visits: int, spread: float) -> Row:
    """Tastes within a cluster are alike, not equal."""
    goals = (Goal(EXACT, LINUCB, 1.0), Goal(EXACT, HOMO, 1.0), Goal(DEFAULT, ALONE, NOT_WORSE))
    return Row(2_000, visits, goals, {"spread": spread})


NO_LOSS = Goal(DEFAULT, ALONE, NOT_WORSE)
ROWS: dict[str, Row] = {
    "2,000 x 5": Row(2_000, 5, (Goal(EXACT, LINUCB, 0.88), NO_LOSS), {}),
    "2,000 x 20": Row(
        2_000,
        20,
        (
            Goal(EXACT, LINUCB, 0.82),
            Goal(EXACT, TYPES, 1.25),
            Goal(DEFAULT, LINUCB, 0.93),
            NO_LOSS,
        ),
        {},
    ),
    "2,000 x 100": Row(
        2_000,
        100,
        (Goal(EXACT, LINUCB, 0.52), Goal(EXACT, TYPES, 1.36), NO_LOSS),
        {},
    ),
    "2,000 Zipf": Row(2_000, 20, (Goal(EXACT, LINUCB, 0.75), NO_LOSS), {"visits": "zipf"}),
    "newcomers": Row(
        2_000,
        100,
        (Goal(EXACT, TYPES, 1.10), Goal(DEFAULT, LINUCB, 0.85)),
        {"newcomers": 0.2},
        first_ten,
    ),
    "spread 0.3 x 20": similar(20, 0.3),
    "spread 0.3 x 100": similar(100, 0.3),
    "spread 0.6 x 20": similar(20, 0.6),
    "spread 0.6 x 100": similar(100, 0.6),
    "20,000 x 20": Row(
        20_000,
        20,
        (
            Goal(EXACT, LINUCB, 0.74),
            Goal(EXACT, TYPES, 1.14),
            Goal(EASY, ALONE, 0.98),
            NO_LOSS,
        ),
        {},
    ),
    "100,000 x 10": Row(100_000, 10, (Goal(EXACT, LINUCB, 0.79), NO_LOSS), {}),
}


@dataclass(frozen=True)
class Outcome:
    """A ratio of regrets with the half width of its 90 % interval."""

    row: str
    goal: Goal
    mean: float
    half: float | None

    @property
    def met(self) -> bool:
        """The mean counts, not the interval."""
        return self.mean <= self.goal.bound

    def line(self) -> str:
        """A row of the table in Markdown."""
        goal = self.goal
        ratio = f"{goal.policy} / {goal.rival}"
        found = f"{self.mean:.3f}" + ("" if self.half is None else f" ± {self.half:.3f}")
        return (
            f"| {self.row} | {ratio} | {found} | {goal.bound:g} | {'met' if self.met else 'missed'} |"
        )

    def document(self) -> dict[str, Any]:
        """The same for a program."""
        goal = self.goal
        parts = {"policy": goal.policy, "rival": goal.rival, "bound": goal.bound}
        return {"row": self.row, **parts, "mean": self.mean, "half": self.half, "met": self.met}


def judge(name: str, traces: Mapping[str, list[Trace]]) -> list[Outcome]:
    """Every goal of the row whose two policies were run."""
    row = ROWS[name]
    regret = {label: np.array([row.measure(t) for t in runs]) for label, runs in traces.items()}
    outcomes = []
    for goal in row.goals:
        if goal.policy in regret and goal.rival in regret:
            ratios = regret[goal.policy] / regret[goal.rival]
            outcomes.append(Outcome(name, goal, float(ratios.mean()), interval(ratios)))
    return outcomes


def cost(name: str, label: str, runs: list[Trace]) -> str:
    """What a policy lost and needed, means over seeds, as a row in Markdown."""
    regret = np.mean([total(trace) for trace in runs])
    messages = np.mean([trace.communications["total"][-1] for trace in runs])
    time = np.mean([trace.microseconds_per_round for trace in runs])
    return f"| {name} | {label} | {regret:,.0f} | {messages:,.0f} | {time:.1f} |"


def play(
    name: str, seeds: tuple[int, ...], wanted: Callable[[Goal], bool], jobs: int, folder: Path | None
) -> dict[str, list[Trace]]:
    """The traces of one row."""
    experiment = ROWS[name].experiment(seeds, wanted)
    results = None
    if folder is not None:
        kept = folder / name.replace(" ", "-").replace(",", "")
        results = Results.create(kept, experiment, resume=True)
    return run(experiment, jobs=jobs, results=results)


def record(
    world: str,
    names: Iterable[str],
    play: Callable[[str], tuple[list[Outcome], dict[str, list[Trace]]]],
    path: Path | None,
) -> None:
    """Print both tables row by row, and write the goals to a file if one is named."""
    print(f"| {world} | regret of | ratio, 90 % | bound | |\n|---|---|---|---|---|")
    outcomes, costs = [], []
    for name in names:
        found, traces = play(name)
        outcomes += found
        print("\n".join(outcome.line() for outcome in found), flush=True)
        costs += [cost(name, label, runs) for label, runs in traces.items()]
    print(f"\n| {world} | policy | regret | messages | µs a round |\n|---|---|---|---|---|")
    print("\n".join(costs))
    if path is not None:
        path.write_text(json.dumps([outcome.document() for outcome in outcomes], indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument(
        "--seeds", type=int, default=10, help="seeds; half of them from 20,000 users on"
    )
    parser.add_argument("--only", nargs="*", choices=list(ROWS))
    parser.add_argument("--policies", choices=("exact", "private"), help="only these goals")
    parser.add_argument("--out", type=Path, default=Path("out/many-users"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    def wanted(goal: Goal) -> bool:
        return options.policies is None or (options.policies == "exact") == (goal.policy == EXACT)

    def played(name: str) -> tuple[list[Outcome], dict[str, list[Trace]]]:
        count = options.seeds if ROWS[name].users < 20_000 else max(options.seeds // 2, 1)
        seeds = tuple(range(options.first, options.first + count))
        traces = play(name, seeds, wanted, options.jobs, options.out)
        return judge(name, traces), traces

    names = [name for name in options.only or ROWS if any(map(wanted, ROWS[name].goals))]
    record("users x visits", names, played, options.json)


if __name__ == "__main__":
    main()
