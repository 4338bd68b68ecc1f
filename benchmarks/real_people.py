"""Real people and what they liked: fclub-plus beside its rivals, by visits per user.

    python -m benchmarks.real_people [--jobs N] [--only ROW ...] [--first SEED] [--seeds N]
        [--json FILE]

The environment is `liked`: people are offered films that they rated, and a reward says whether they
liked the film. Ratios are paired by seed, with 90 % intervals; the best rival is that of the lowest
mean regret. No constant was tuned on these data. Traces are kept in out/real-people, so an
interrupted run continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.many_users import Goal, Outcome, record, total

from fclub import Trace
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.experiments.study.advice import interval

EXACT, PRIVATE, ALONE, LINUCB = "fclub-plus", "cdp-fclub-plus", "cdp-fclub-plus alone", "linucb"
RIVALS = (LINUCB, "homo-dc", "club", "popular")
POLICIES = {
    **{name: Setting(name) for name in (*RIVALS, EXACT, PRIVATE)},
    ALONE: Setting(PRIVATE, {"share": False}),
}
BEST = 1.02
FEW_VISITS = 0.87


@dataclass(frozen=True)
class Row:
    """A file of ratings (None: all users who rated enough), and visits per user."""

    path: str
    users: int | None
    people: int
    visits: int

    def experiment(self, seeds: tuple[int, ...]) -> Experiment:
        world = Setting("liked", {"path": self.path, "users": self.users})
        return Experiment(POLICIES, world, self.people * self.visits, seeds)


MOVIELENS, TWEETINGS = "movielens-latest-small", "movietweetings"
ROWS = {
    **{f"MovieLens x {visits}": Row(MOVIELENS, 300, 300, visits) for visits in (5, 20, 100, 500)},
    **{f"MovieTweetings x {visits}": Row(TWEETINGS, None, 763, visits) for visits in (5, 20, 100)},
}


def judge(name: str, traces: Mapping[str, list[Trace]]) -> list[Outcome]:
    """Every goal of a row, as a ratio of regrets."""
    regret = {label: np.array([total(trace) for trace in runs]) for label, runs in traces.items()}
    best = min(RIVALS, key=lambda label: float(regret[label].mean()))
    goals = [Goal(EXACT, best, BEST), Goal(PRIVATE, ALONE, BEST)]
    if ROWS[name].visits <= 20:
        goals.append(Goal(EXACT, LINUCB, FEW_VISITS))
    ratios = [regret[goal.policy] / regret[goal.rival] for goal in goals]
    return [
        Outcome(name, goal, float(ratio.mean()), interval(ratio))
        for goal, ratio in zip(goals, ratios, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=list(ROWS))
    parser.add_argument("--out", type=Path, default=Path("out/real-people"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = tuple(range(options.first, options.first + options.seeds))

    def played(name: str) -> tuple[list[Outcome], dict[str, list[Trace]]]:
        experiment = ROWS[name].experiment(seeds)
        kept = Results.create(options.out / name.replace(" ", "-"), experiment, resume=True)
        traces = run(experiment, jobs=options.jobs, results=kept)
        return judge(name, traces), traces

    record("people x visits", options.only or ROWS, played, options.json)


if __name__ == "__main__":
    main()
