"""Real people and what they liked: fclub-plus beside its rivals, by visits per user.

    python -m benchmarks.real_people [--jobs N] [--only ROW ...] [--first SEED] [--seeds N]
        [--without-quality] [--without-effects] [--json FILE]

The environment is `liked`: people are offered films that they rated, and a reward says whether they
liked the film. One feature of a film is how well it is liked in the training ratings; an ablation
does without. In the rows "half new" half of the films have no training ratings. Policies of this
package also learn at home what a film is worth beyond its features; another ablation does without.
"Alone" is the same policy with `share=no`. Ratios are paired by seed, with 90 % intervals; the best
rival is that of the lowest mean regret. No constant was tuned on these data. Traces are kept in
out/real-people, so an interrupted run continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.many_users import Goal, Outcome, record, total

from fclub import Trace
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.experiments.study.advice import interval

EXACT, PRIVATE, LINUCB, SHRUNK = "fclub-plus", "cdp-fclub-plus", "linucb", "shrunk"
ALONE, PRIVATE_ALONE = "fclub-plus alone", "cdp-fclub-plus alone"
RIVALS = (LINUCB, "homo-dc", "club", "popular")


def policies(effects: bool) -> dict[str, Setting]:
    """Ours as they are, or without effects of items."""
    own: dict[str, Any] = {} if effects else {"item_effects": False}
    return {
        **{name: Setting(name) for name in (*RIVALS, SHRUNK)},
        **{name: Setting(name, own) for name in (EXACT, PRIVATE)},
        ALONE: Setting(EXACT, own | {"share": False}),
        PRIVATE_ALONE: Setting(PRIVATE, own | {"share": False}),
    }


FEW, FEW_VISITS = 20, 0.95
"""Up to so many visits per user, the best rival is to be beaten by so much."""


@dataclass(frozen=True)
class Row:
    """A file of ratings (None: all users who rated enough), and visits per user."""

    path: str
    users: int | None
    people: int
    visits: int
    fresh: float = 0.0

    def experiment(self, seeds: tuple[int, ...], quality: bool, effects: bool) -> Experiment:
        told = {"path": self.path, "users": self.users, "quality": quality, "fresh": self.fresh}
        return Experiment(policies(effects), Setting("liked", told), self.people * self.visits, seeds)


MOVIELENS, TWEETINGS = "movielens-latest-small", "movietweetings"
FULL = {
    **{f"MovieLens x {visits}": Row(MOVIELENS, 300, 300, visits) for visits in (5, 20, 100, 500)},
    **{f"MovieTweetings x {visits}": Row(TWEETINGS, None, 763, visits) for visits in (5, 20, 100)},
}
ROWS = FULL | {f"{name}, half new": replace(row, fresh=0.5) for name, row in FULL.items()}


def judge(name: str, traces: Mapping[str, list[Trace]]) -> list[Outcome]:
    """Every goal of a row, as a ratio of regrets."""
    regret = {label: np.array([total(trace) for trace in runs]) for label, runs in traces.items()}
    best = min(RIVALS, key=lambda label: float(regret[label].mean()))
    few = ROWS[name].visits <= FEW and not ROWS[name].fresh
    goals = [
        Goal(EXACT, best, FEW_VISITS if few else 1.0),
        Goal(EXACT, SHRUNK, 1.0),
        Goal(EXACT, ALONE, 1.0),
        Goal(PRIVATE, PRIVATE_ALONE, 1.0),
    ]
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
    parser.add_argument("--without-quality", action="store_true", help="the ablation")
    parser.add_argument("--without-effects", action="store_true", help="another one")
    parser.add_argument("--out", type=Path, default=Path("out/real-people"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = tuple(range(options.first, options.first + options.seeds))

    def played(name: str) -> tuple[list[Outcome], dict[str, list[Trace]]]:
        without = options.without_quality, options.without_effects
        experiment = ROWS[name].experiment(seeds, not without[0], not without[1])
        folder = (
            name.replace(" ", "-") + "-without-quality" * without[0] + "-without-effects" * without[1]
        )
        kept = Results.create(options.out / folder, experiment, resume=True)
        traces = run(experiment, jobs=options.jobs, results=kept)
        return judge(name, traces), traces

    record("people x visits", options.only or ROWS, played, options.json)


if __name__ == "__main__":
    main()
