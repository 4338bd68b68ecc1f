"""Tune every policy's constants and write benchmarks/baselines.toml, or those of rivals.

    python benchmarks/tune.py [--rivals | --suite] [--jobs N] [--policy NAME ...]

Seeds 1000–1004, T = 100,000, both placements of the authors' synthetic environment; about fifteen
minutes of CPU time. With --policy only those are tuned again and the others' entries are kept.

Parameters are searched one at a time over a stated grid, in sweeps that go on until nothing changes.
One setting serves both placements: the criterion is the mean over placements of the regret relative to
the best regret that any tried setting of the policy reached in that placement.

Rivals of other papers (`--rivals`, benchmarks/rivals.toml, five minutes) are tuned in the same way on
two worlds, both `spread`: 40 users of 4 clusters on 5 servers, and 1,000 users of 10 clusters on 10
servers; 20,000 rounds, seeds 1000–1002. The leaderboard plays rivals at these constants, and the
other policies at those that the same rule gives them (`--suite`, benchmarks/suite.toml).
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fclub.environments.base import PLACEMENTS
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.runner import run
from fclub.parameters import Parameter

ROUNDS, SEEDS = 100_000, tuple(range(1000, 1005))

EXPLORATION = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
RIDGE = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SIGMA = (0.25, 0.5, 1.0)
DELETION = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
REGRESSION: dict[str, tuple[float, ...]] = {
    "exploration": EXPLORATION,
    "ridge": RIDGE,
    "sigma_0": SIGMA,
}
CLUSTERING: dict[str, tuple[float, ...]] = {
    "deletion": DELETION,
    "exploration": EXPLORATION,
    "ridge": RIDGE,
}

Grids = dict[str, dict[str, tuple[float, ...]]]

GRIDS: Grids = {
    "linucb": REGRESSION,
    "club": CLUSTERING,
    "sclub": CLUSTERING | {"frequency": (1.0, 2.0, 4.0)},
    "fclub-dc": {"deletion": DELETION, "merging": DELETION} | REGRESSION,
    "homo-dc": REGRESSION,
    "oracle-local": REGRESSION,
    "oracle-pooled": REGRESSION,
}
"""What is tuned, parameter by parameter in this order."""

RIVALS: Grids = {
    "greedy": {"ridge": (0.5, 1.0, 2.0, 4.0, 8.0)},
    "lin-ts": {"scale": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2), "ridge": (0.25, 0.5, 1.0, 2.0, 4.0)},
    "rclumb": {
        "deletion": (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0),
        "exploration": (0.0, 0.05, 0.1, 0.2, 0.4),
        "ridge": (0.5, 1.0, 2.0, 4.0),
        "misspecification": (0.0, 0.01, 0.05),
    },
    "locb": {
        "deletion": (1.0, 1.5, 2.0, 2.5, 3.0),
        "exploration": (0.0, 0.05, 0.1, 0.2, 0.4),
        "seeds": (5, 10, 20),
        "gap": (0.2, 0.5, 1.0, 2.0),
    },
    "heto-fedbandit": {
        "visits": (4.0, 8.0, 16.0, 32.0),
        "level": (0.01, 0.1, 0.3, 0.5, 0.7, 0.9),
        "exploration": (0.0, 0.05, 0.1, 0.2, 0.4, 0.8),
        "threshold": (0.1, 1.0, 10.0, 100.0),
    },
    "dis-linucb": {
        "exploration": (0.0, 0.05, 0.1, 0.2, 0.4),
        "threshold": (0.1, 0.3, 1.0, 3.0, 10.0),
    },
    "async-linucb": {
        "exploration": (0.0, 0.05, 0.1, 0.2, 0.4),
        "upload_ratio": (1.05, 1.1, 1.5, 3.0),
        "download_ratio": (1.1, 1.5, 3.0, 6.0),
    },
    "fed-linucb": {
        "exploration": (0.0, 0.05, 0.1, 0.2, 0.4),
        "growth": (0.02, 0.05, 0.1, 0.5, 2.0),
    },
}
"""The same for rivals of other papers.

Those that learn one vector for all (`dis-linucb`, `async-linucb`, `fed-linucb`) gain less than 2 % of
regret from triggers below these grids, at many times the messages.
"""

SUITE: Grids = {
    "linucb": {"exploration": EXPLORATION, "ridge": RIDGE},
    "shrunk": {"ridge": (0.5, 1.0, 2.0, 4.0, 8.0), "exploration": (0.0, 0.1, 0.2, 0.4)},
    "club": CLUSTERING,
    "sclub": CLUSTERING,
    "fclub-dc": {"deletion": DELETION, "merging": DELETION} | REGRESSION,
}
"""What the leaderboard's suite plays at constants of its own, found by the rule for rivals."""

SHARED: dict[str, tuple[str, ...]] = {"fclub-dc": ("fclub", "cdp-fclub-dc"), "homo-dc": ("homo",)}
"""Policies that use the constants of another, being the same algorithm with other switches."""

PLACED = {place: Setting("synthetic", {"placement": place}) for place in PLACEMENTS}
SPREAD: dict[str, Parameter] = {"placement": "spread"}
RIVAL_WORLDS = {
    "few": Setting("synthetic", SPREAD),
    "many": Setting("synthetic", {**SPREAD, "users": 1000, "clusters": 10, "servers": 10}),
}
RIVAL_ROUNDS, RIVAL_SEEDS = 20_000, (1000, 1001, 1002)

Point = tuple[tuple[str, float], ...]
Regrets = dict[str, float]


@dataclass
class Search:
    """All settings tried for one policy, with their mean regret in every world."""

    policy: str
    grid: dict[str, tuple[float, ...]]
    rounds: int = ROUNDS
    seeds: tuple[int, ...] = SEEDS
    jobs: int = 1
    worlds: Mapping[str, Setting] = field(default_factory=lambda: PLACED)
    tried: dict[Point, Regrets] = field(default_factory=dict)

    def criterion(self, point: Point) -> float:
        """1 would be the best of both worlds at once."""
        best = {world: min(r[world] for r in self.tried.values()) for world in self.worlds}
        return float(np.mean([self.tried[point][world] / best[world] for world in self.worlds]))

    def best(self) -> Point:
        """The least criterion; of equals the first that was tried."""
        return min(self.tried, key=self.criterion)

    def evaluate(self, points: list[Point]) -> None:
        """Play the points that were not tried yet, in both worlds."""
        new = {str(k): p for k, p in enumerate(dict.fromkeys(points)) if p not in self.tried}
        if not new:
            return
        policies = {label: Setting(self.policy, _parameters(p)) for label, p in new.items()}
        for world, environment in self.worlds.items():
            experiment = Experiment(policies, environment, self.rounds, self.seeds)
            for label, traces in run(experiment, jobs=self.jobs).items():
                mean = float(np.mean([trace.regret[-1] for trace in traces]))
                self.tried.setdefault(new[label], {})[world] = mean

    def search(self, start: Point, tell: Callable[[str], None], sweeps: int = 3) -> Point:
        """Improve one parameter at a time until a sweep over all of them changes nothing."""
        current = start
        for _ in range(sweeps):
            before = current
            for name, values in self.grid.items():
                self.evaluate([_with(current, name, value) for value in values])
                current = self.best()
                tell(f"{self.policy}: {name} → {dict(current)} {self.tried[current]}")
            if current == before:
                break
        return current


def _parameters(point: Point) -> dict[str, Parameter]:
    return dict(point)


def _with(point: Point, name: str, value: float) -> Point:
    return tuple((key, value if key == name else old) for key, old in point)


def start_point(grid: dict[str, tuple[float, ...]]) -> Point:
    """The middle of every parameter's values."""
    return tuple((name, values[len(values) // 2]) for name, values in grid.items())


def tune(policy: str, grids: Grids, tell: Callable[[str], None], jobs: int = 1) -> dict[str, Any]:
    """The outcome of a search over the policy's grid."""
    if grids is GRIDS:
        search = Search(policy, grids[policy], jobs=jobs)
    else:
        search = Search(policy, grids[policy], RIVAL_ROUNDS, RIVAL_SEEDS, jobs, RIVAL_WORLDS)
    search.search(start_point(search.grid), tell)
    return outcome(search)


def outcome(search: Search) -> dict[str, Any]:
    """What is kept of a search."""
    best = search.best()
    return {
        "shared_by": list(SHARED.get(search.policy, ())),
        "settings_tried": len(search.tried),
        "criterion": round(search.criterion(best), 4),
        "constants": dict(best),
        "regret": {place: round(mean, 1) for place, mean in search.tried[best].items()},
        "grid": {name: list(values) for name, values in search.grid.items()},
    }


def to_toml(
    outcomes: dict[str, dict[str, Any]], rounds: int = ROUNDS, seeds: tuple[int, ...] = SEEDS
) -> str:
    """The outcomes as benchmarks/baselines.toml."""
    lines = [
        "# Written by benchmarks/tune.py: the best constants of every policy on the authors' synthetic",
        "# environment, one setting for both worlds. Criterion: mean over worlds of the regret",
        "# relative to the best regret of any setting tried there.",
        f"rounds = {rounds}",
        f"seeds = {list(seeds)}",
    ]
    for policy, values in outcomes.items():
        lines += ["", f"[policies.{policy}]"]
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value)


TARGET, RIVAL_TARGET, SUITE_TARGET = (
    Path(__file__).with_name(f"{name}.toml") for name in ("baselines", "rivals", "suite")
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rivals", action="store_true", help="tune rivals of other papers")
    parser.add_argument("--suite", action="store_true", help="tune the others for the leaderboard")
    parser.add_argument("--policy", nargs="*", choices=sorted({*GRIDS, *RIVALS, *SUITE}))
    options = parser.parse_args()
    grids, target, rounds, seeds = GRIDS, TARGET, ROUNDS, SEEDS
    if options.rivals or options.suite:
        grids, target = (RIVALS, RIVAL_TARGET) if options.rivals else (SUITE, SUITE_TARGET)
        rounds, seeds = RIVAL_ROUNDS, RIVAL_SEEDS

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    kept = tomllib.loads(target.read_text())["policies"] if target.exists() else {}
    for policy in options.policy or grids:
        kept[policy] = tune(policy, grids, tell, options.jobs)
        target.write_text(to_toml({name: kept[name] for name in grids if name in kept}, rounds, seeds))


if __name__ == "__main__":
    main()
