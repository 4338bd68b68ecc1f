"""Tune every policy's constants and write benchmarks/baselines.toml.

    python benchmarks/tune.py [--jobs N] [--policy NAME ...]

Seeds 1000–1004, T = 100,000, both placements of the authors' synthetic environment; about fifteen
minutes of CPU time. With --policy only those are tuned again and the others' entries are kept.

Parameters are searched one at a time over a stated grid, in sweeps that go on until nothing changes.
One setting serves both placements: the criterion is the mean over placements of the regret relative to
the best regret that any tried setting of the policy reached in that placement.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable
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

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "linucb": REGRESSION,
    "club": CLUSTERING,
    "sclub": CLUSTERING | {"frequency": (1.0, 2.0, 4.0)},
    "fclub-dc": {"deletion": DELETION, "merging": DELETION} | REGRESSION,
    "homo-dc": REGRESSION,
    "oracle-local": REGRESSION,
    "oracle-pooled": REGRESSION,
}
"""What is tuned, parameter by parameter in this order."""

SHARED: dict[str, tuple[str, ...]] = {"fclub-dc": ("fclub", "cdp-fclub-dc"), "homo-dc": ("homo",)}
"""Policies that use the constants of another, being the same algorithm with other switches."""

Point = tuple[tuple[str, float], ...]
Regrets = dict[str, float]


@dataclass
class Search:
    """All settings tried for one policy, with their mean regret in every placement."""

    policy: str
    grid: dict[str, tuple[float, ...]]
    rounds: int = ROUNDS
    seeds: tuple[int, ...] = SEEDS
    jobs: int = 1
    tried: dict[Point, Regrets] = field(default_factory=dict)

    def criterion(self, point: Point) -> float:
        """1 would be the best of both placements at once."""
        best = {place: min(r[place] for r in self.tried.values()) for place in PLACEMENTS}
        return float(np.mean([self.tried[point][place] / best[place] for place in PLACEMENTS]))

    def best(self) -> Point:
        """The least criterion; of equals the first that was tried."""
        return min(self.tried, key=self.criterion)

    def evaluate(self, points: list[Point]) -> None:
        """Play the points that were not tried yet, in both placements."""
        new = {str(k): p for k, p in enumerate(dict.fromkeys(points)) if p not in self.tried}
        if not new:
            return
        policies = {label: Setting(self.policy, _parameters(p)) for label, p in new.items()}
        for place in PLACEMENTS:
            environment = Setting("synthetic", {"placement": place})
            experiment = Experiment(policies, environment, self.rounds, self.seeds)
            for label, traces in run(experiment, jobs=self.jobs).items():
                mean = float(np.mean([trace.regret[-1] for trace in traces]))
                self.tried.setdefault(new[label], {})[place] = mean

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


def tune(policy: str, tell: Callable[[str], None], jobs: int = 1) -> dict[str, Any]:
    """The outcome of a search over the policy's grid."""
    search = Search(policy, GRIDS[policy], jobs=jobs)
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


def to_toml(outcomes: dict[str, dict[str, Any]]) -> str:
    """The outcomes as benchmarks/baselines.toml."""
    lines = [
        "# Written by benchmarks/tune.py: the best constants of every policy on the authors' synthetic",
        "# environment, one setting for both placements. Criterion: mean over placements of the regret",
        "# relative to the best regret of any setting tried there.",
        f"rounds = {ROUNDS}",
        f"seeds = {list(SEEDS)}",
    ]
    for policy, values in outcomes.items():
        lines += ["", f"[policies.{policy}]"]
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value)


TARGET = Path(__file__).with_name("baselines.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--policy", nargs="*", choices=list(GRIDS))
    options = parser.parse_args()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    kept = tomllib.loads(TARGET.read_text())["policies"] if TARGET.exists() else {}
    for policy in options.policy or GRIDS:
        kept[policy] = tune(policy, tell, options.jobs)
        TARGET.write_text(to_toml({name: kept[name] for name in GRIDS if name in kept}))


if __name__ == "__main__":
    main()
