"""Does private federation of the population pay? Regret beside that of servers alone, paired by seed.

    python -m benchmarks.population --case a --case a5 --seed 1000 --seeds 10 --out FILE

*alone* is the policy with the least mean regret over the seeds of those that send nothing. A run's
regrets are added to a file of JSON lines as they come, and read from it again, so that an interrupted
run goes on; the table is printed from all of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

import fclub
from fclub.privacy.plan import make_plan, slot_visits

ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "linucb": ("linucb", {}),
    "club": ("club", {}),
    "shrunk": ("shrunk", {}),
    "types": ("fclub-plus", {"share": False}),
    "own data": ("cdp-fclub-plus", {"share": False, "level": "interactive"}),
    "types at home": ("cdp-fclub-plus", {"share": False}),
}
PRIVATE = "cdp-fclub-plus"


@dataclass(frozen=True)
class Case:
    """A synthetic world, the mean visits of a user in it, and the goal for private / alone.

    The plan expects `planned` times as many visits as there are.
    """

    users: int
    servers: int
    visits: float
    goal: float
    world: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    planned: float = 1.0

    def environment(self) -> fclub.Environment:
        world = {"clusters": 10, "dim": 10, "items": 10, "placement": "spread"} | self.world
        return fclub.make_environment("synthetic", users=self.users, servers=self.servers, **world)

    def private(self) -> dict[str, Any]:
        """Parameters; a wrong plan is a file of its own, whose slots come too early or too late."""
        if self.planned == 1.0:
            return {"visits": self.visits} | self.parameters
        plan = make_plan(
            epsilon=1.0,
            delta=1e-5,
            dim=10,
            users=round(self.users / self.planned),
            members=self.servers,
            visits=slot_visits(self.planned * self.visits),
        )
        path = Path(tempfile.mkdtemp()) / "plan.json"
        plan.write(path)
        return {"plan": str(path)} | self.parameters


PER_SERVER = {"secure": False}
CASES = {
    "a": Case(5_000, 100, 20, 0.88),
    "a5": Case(5_000, 100, 5, 0.90),
    "a100": Case(5_000, 100, 100, 0.73),
    "a-thrice": Case(5_000, 100, 20, 0.92, planned=3.0),
    "a-third": Case(5_000, 100, 20, 0.92, planned=1.0 / 3.0),
    "b": Case(1_000, 20, 20, 0.95),
    "c": Case(2_000, 10, 20, 0.98),
    "g": Case(2_000, 100, 20, 0.93),
    "e": Case(20_000, 100, 20, 0.87),
    "f": Case(20_000, 10, 20, 0.98),
    "similar": Case(5_000, 100, 20, 0.87, {"spread": 0.3}),
    "zipf": Case(5_000, 100, 20, 0.93, {"visits": "zipf"}),
    "newcomers": Case(5_000, 100, 20, 0.85, {"newcomers": 0.2}),
    "unlike": Case(5_000, 100, 20, 1.01, {"clusters": 5_000}),
    "unlike-few": Case(500, 10, 20, 1.015, {"clusters": 500}),
    "c100": Case(2_000, 10, 100, 1.01),
    "one100": Case(2_000, 1, 100, 1.01),
    "three": Case(3_000, 3, 20, 1.005),
    "a-per-server": Case(5_000, 100, 20, 0.97, parameters=PER_SERVER),
    "g-per-server": Case(2_000, 100, 20, 1.01, parameters=PER_SERVER),
    "c-per-server": Case(2_000, 10, 20, 1.01, parameters=PER_SERVER),
    "unlike-per-server": Case(5_000, 100, 20, 1.01, {"clusters": 5_000}, PER_SERVER),
    "a-interactive": Case(5_000, 100, 20, 0.90, parameters={"level": "interactive"}),
    "a-unplanned": Case(5_000, 100, 20, 0.90, parameters={"visits": 75.0}),
    **{f"a-epsilon-{e}": Case(5_000, 100, 20, 1.0, parameters={"epsilon": e}) for e in (0.5, 2.0, 4.0)},
}


@dataclass
class Results:
    """Regrets by case, policy and seed, in a file that only grows."""

    path: Path
    regrets: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                one = json.loads(line)
                self.regrets[one["case"], one["policy"], one["seed"]] = one["regret"]

    def run(self, name: str, label: str, seed: int) -> float:
        """The regret of one run; of newcomers' first ten visits where they are what is asked about."""
        key = (name, label, seed)
        if key not in self.regrets:
            case = CASES[name]
            policy, parameters = (PRIVATE, case.private()) if label == PRIVATE else ALONE[label]
            made = fclub.make_policy(policy, **parameters)
            rounds = int(case.users * case.visits)
            trace = fclub.simulate(made, case.environment(), rounds, seed=seed)
            regret = float(trace.regret[-1])
            if name == "newcomers":
                regret = float(np.sum(trace.newcomers_by_visit[:10]))
            self.regrets[key] = regret
            told = {"case": name, "policy": label, "seed": seed, "regret": regret}
            told["microseconds"] = round(trace.microseconds_per_round, 2)
            with self.path.open("a") as file:
                file.write(json.dumps(told) + "\n")
        return self.regrets[key]


def compare(results: Results, name: str, seeds: list[int], alone: list[str]) -> dict[str, Any]:
    """Private beside the best that sends nothing, paired by seed, with a 95 % interval."""
    regrets = {label: [results.run(name, label, seed) for seed in seeds] for label in alone}
    private = np.array([results.run(name, PRIVATE, seed) for seed in seeds])
    best = min(regrets, key=lambda label: float(np.mean(regrets[label])))
    ratios = private / np.array(regrets[best])
    half = 0.0
    if len(seeds) > 1:
        error = float(np.std(ratios, ddof=1)) / np.sqrt(len(seeds))
        half = float(student.ppf(0.975, len(seeds) - 1)) * error
    return {
        "case": name,
        "alone": best,
        "ratio": round(float(ratios.mean()), 4),
        "half width": round(half, 4),
        "worst": round(float(ratios.max()), 4),
        "goal": CASES[name].goal,
        "seeds": seeds,
        "means": {label: round(float(np.mean(values)), 1) for label, values in regrets.items()}
        | {PRIVATE: round(float(private.mean()), 1)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=[*CASES], default=None)
    parser.add_argument("--alone", action="append", choices=[*ALONE], default=None)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("population.jsonl"))
    chosen = parser.parse_args()
    results, seeds = Results(chosen.out), list(range(chosen.seed, chosen.seed + chosen.seeds))
    for name in chosen.case or CASES:
        print(json.dumps(compare(results, name, seeds, chosen.alone or [*ALONE])), flush=True)


if __name__ == "__main__":
    main()
