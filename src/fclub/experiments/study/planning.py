"""Plan before you federate: slots as dates, noise, and what to expect of them in a world of types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.stats import t as student

from fclub.environments.synthetic import Synthetic
from fclub.policies.registry import make_policy
from fclub.privacy.plan import Plan, make_plan
from fclub.simulation.loop import simulate

ALONE = {"shrunk": ("shrunk", {}), "types at home": ("cdp-fclub-plus", {"share": False})}
"""What servers that send nothing may do: the better one counts."""

TYPES, ITEMS = 10, 10
"""Of the world in which a plan is tried."""

MOST_VISITS = 400_000
"""Visits of a trial; of more users, as many as that allows, with the noise of all."""

CONFIDENCE = 0.9
Tell = Callable[[int], None]


@dataclass(frozen=True)
class Expectation:
    """Regret as a multiple of what the same servers reach alone, and half of its 90 % interval."""

    users: int
    ratio: float
    half: float

    @property
    def pays(self) -> bool:
        return self.ratio + self.half < 1.0


def dates(plan: Plan) -> list[datetime]:
    start = datetime.fromtimestamp(plan.start, UTC)
    return [start + timedelta(seconds=seconds) for seconds in plan.times]


def trial_users(users: int, visits: float) -> int:
    return max(1, min(users, int(MOST_VISITS / visits)))


def sizes(users: int, servers: int) -> list[int]:
    """Numbers of users to try: a quarter, half and all of them, at least one on each server."""
    return sorted({max(servers, users // part) for part in (4, 2, 1)})


def total_visits(plan: Plan, visits: float, servers: int, seeds: int) -> int:
    tried = (trial_users(users, visits) for users in sizes(plan.users, servers))
    return sum(int(users * visits) * seeds * (len(ALONE) + 1) for users in tried)


def expect(plan: Plan, visits: float, servers: int, seeds: int, tell: Tell) -> list[Expectation]:
    """Try a plan with fewer users and with all of them, `visits` each."""
    return [_try(plan, users, visits, servers, seeds, tell) for users in sizes(plan.users, servers)]


def _try(plan: Plan, users: int, visits: float, servers: int, seeds: int, tell: Tell) -> Expectation:
    users = trial_users(users, visits)
    regrets: dict[str, list[float]] = {name: [] for name in (*ALONE, "together")}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        tried = make_plan(
            epsilon=plan.epsilon,
            delta=plan.delta,
            dim=plan.dim,
            users=users,
            members=servers,
            visits=plan.visits,
            level=plan.level,
            secure=plan.secure,
            colluders=plan.colluders or None,
            epsilon_alone=plan.epsilon_alone,
        )
        tried.write(path)
        told = {"epsilon": plan.epsilon, "delta": plan.delta, "level": plan.level, "plan": str(path)}
        policies = ALONE | {"together": ("cdp-fclub-plus", told)}
        for seed in range(seeds):
            for name, (policy, parameters) in policies.items():
                world = Synthetic(
                    users=users,
                    clusters=min(TYPES, users),
                    servers=servers,
                    dim=plan.dim,
                    items=ITEMS,
                    placement="spread",
                )
                made = make_policy(policy, **parameters)
                trace = simulate(made, world, int(users * visits), seed=seed, progress=tell)
                regrets[name].append(float(trace.regret[-1]))
    best = min(ALONE, key=lambda name: float(np.mean(regrets[name])))
    ratios = np.array(regrets["together"]) / np.array(regrets[best])
    error = float(ratios.std(ddof=1)) / sqrt(seeds)
    half = float(student.ppf(0.5 + CONFIDENCE / 2, seeds - 1)) * error
    return Expectation(users, float(ratios.mean()), half)
