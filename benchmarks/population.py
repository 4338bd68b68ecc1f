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
    """A world, the mean visits of a user in it, and the goal for private / alone.

    The plan expects `planned` times as many visits as there are. Every policy learns `past` ratings of
    each user, of random items, before the first visit. With `ratings`, a data set by name or path,
    users are real people of the environment `liked`.
    """

    users: int
    servers: int
    visits: float
    goal: float
    world: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    planned: float = 1.0
    past: int = 0
    ratings: str = ""

    def environment(self) -> fclub.Environment:
        if self.ratings:
            told = {"servers": self.servers, "placement": "spread", "users": None}
            return fclub.make_environment("liked", path=self.ratings, **told)
        world = {"clusters": 10, "dim": 10, "items": 10, "placement": "spread"} | self.world
        return fclub.make_environment("synthetic", users=self.users, servers=self.servers, **world)

    def private(self) -> dict[str, Any]:
        """Parameters; a wrong plan is a file of its own, whose slots come too early or too late."""
        if self.planned == 1.0:
            past = {"past_visits": float(self.past)} if self.past else {}
            return {"visits": self.visits} | past | self.parameters
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


class WithPast:
    """Imports ratings of random items once a policy is started, beside its clock."""

    def __init__(self, policy: Any, world: Any, ratings: int, seed: int) -> None:
        self.policy, self.world, self.ratings, self.start = policy, world, ratings, policy.start
        self.rng = np.random.default_rng([seed, 1])
        policy.start = self

    def __call__(self, *told: Any, **seeded: Any) -> None:
        self.start(*told, **seeded)
        theta = self.world.theta
        users, d = theta.shape
        for user in np.repeat(np.arange(users), self.ratings):
            x = self.rng.standard_normal(d - 1)
            x = np.append(x / np.linalg.norm(x), 1.0) * np.sqrt(0.5)
            self._learn(int(user), x, float(self.rng.random() < x @ theta[user]))
        self.policy.observations = 0

    def _learn(self, user: int, x: Any, y: float) -> None:
        if hasattr(self.policy, "_locate"):
            server, row = self.policy._locate(user)
            getattr(server, "learner", server).observe(row, x, y)
        else:
            self.policy.update(user, x, y)


MOVIELENS = "movielens-latest-small"
PER_SERVER = {"secure": False}
CASES = {
    "a": Case(5_000, 100, 20, 0.88),
    "a5": Case(5_000, 100, 5, 0.90),
    "a-past": Case(5_000, 100, 20, 0.80, past=20),
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
    **{
        f"movielens{visits}": Case(547, 20, visits, goal, ratings=MOVIELENS)
        for visits, goal in ((5, 0.99), (20, 0.97), (60, 0.98))
    },
    **{
        f"a-epsilon-{e}": Case(5_000, 100, 20, 1.0, parameters={"epsilon": e})
        for e in (0.5, 2.0, 4.0, 8.0)
    },
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
            world = case.environment()
            if case.past:
                WithPast(made, world, case.past, seed)
            trace = fclub.simulate(made, world, rounds, seed=seed)
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


PAGE = Path("docs/howto/does-it-pay.md")


def draw(picture: Path) -> None:
    """The table of the page as a picture."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fclub"
    from matplotlib.figure import Figure

    lines = PAGE.read_text().split("## Measured")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "±" in line]
    rows = [row for row in rows if len(row) == 5][::-1]
    figure = Figure(figsize=(7.5, 0.3 * len(rows) + 1.0), layout="constrained")
    axes = figure.subplots()
    for place, (*_, noise, told) in enumerate(rows):
        ratio, half = map(float, told.split("±"))
        color, mark = ("#0b6e4f", "o") if noise == "secure" else ("#b45309", "s")
        axes.errorbar(ratio, place, xerr=half, capsize=3, color=color, fmt=mark)
    names = [
        f"{users} users × {servers} servers, {visits} visits, {noise} noise"
        for users, servers, visits, noise, _ in rows
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.axvline(1.0, color="grey", linewidth=1, linestyle="--")
    axes.set_xlabel("regret relative to servers alone, 95 % intervals")
    figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=[*CASES], default=None)
    parser.add_argument("--alone", action="append", choices=[*ALONE], default=None)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("population.jsonl"))
    parser.add_argument("--picture", type=Path, help=f"only draw the table of {PAGE}")
    chosen = parser.parse_args()
    if chosen.picture:
        draw(chosen.picture)
        return
    results, seeds = Results(chosen.out), list(range(chosen.seed, chosen.seed + chosen.seeds))
    for name in chosen.case or CASES:
        print(json.dumps(compare(results, name, seeds, chosen.alone or [*ALONE])), flush=True)


if __name__ == "__main__":
    main()
