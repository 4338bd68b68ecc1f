"""Does an export tell what another policy would have earned live? Serve, export, evaluate, compare.

    python benchmarks/offline.py --repetitions 40

In every repetition a local server with a store serves visitors of a new world with `cdp-fclub-plus` and
`model.uniform`. Its store is exported, `fclub replay`'s estimates of the other policy are made from the
export, and that policy is run live in the same world, many times, over the number of rounds that the
estimates are about. Counted is how often an interval of 95 % holds the live value. With `--trained N`
the other policy has learned from N rounds of its own before, and is evaluated as it then is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fclub
from fclub.core.types import Floats, Indices, Matrix
from fclub.environments.base import place
from fclub.environments.logs import read_log
from fclub.environments.replay import Estimate, evaluate_replay
from fclub.policies.base import Policy
from fclub.service.http.api import Recommended, RecommendRequest
from fclub.service.http.choosing import Chooser
from fclub.service.link.wire import DirectWire
from fclub.service.monitoring import Monitor
from fclub.service.nodes.parts import local_node
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings, Model
from fclub.service.store.export import export_log

DIM, USERS, TYPES, ITEMS, STOCK, STARS = 5, 20, 3, 5, 40, 5
HALF = 0.5**0.5
COMMIT_EVERY = 1000
POLICY = "cdp-fclub-plus"


class World:
    """Users of a few types; each visitor is offered some items of a stock.

    Rewards are clicks (0 or 1), or stars: graded, with the same mean.
    """

    def __init__(self, seed: int, stars: bool = False) -> None:
        self.stars = stars
        rng = np.random.default_rng([seed, 0])
        directions = rng.standard_normal((TYPES + STOCK, DIM - 1))
        directions *= HALF / np.linalg.norm(directions, axis=1, keepdims=True)
        vectors = np.hstack([directions, np.full((TYPES + STOCK, 1), HALF)])
        self.items: Matrix = vectors[TYPES:]
        self.chance: Floats = vectors[np.arange(USERS) % TYPES] @ self.items.T

    def visit(self, rng: np.random.Generator) -> tuple[int, Indices]:
        """A user, and the items on offer."""
        return int(rng.integers(USERS)), rng.choice(STOCK, ITEMS, replace=False)

    def reward(self, rng: np.random.Generator, user: int, item: int) -> float:
        mean = self.chance[user, item]
        if not self.stars:
            return float(rng.random() < mean)
        steps = STARS - 1
        return float(rng.binomial(steps, mean)) / steps


async def serve(world: World, store: Path, rounds: int, uniform: float, seed: int) -> None:
    """Visits of a server that keeps what was on offer and how likely its choices were."""
    rng = np.random.default_rng([seed, 1])
    model = Model(policy=POLICY, dim=DIM, constant=HALF, uniform=uniform)
    settings = LocalSettings(model=model, store=str(store))
    node = local_node(settings, rng=rng)
    chooser = Chooser(settings, node, Runner(node, DirectWire(settings.name, {}), Monitor("local")))
    ids = [f"item-{k}" for k in range(STOCK)]
    node.put_items(ids, world.items)
    for user in range(USERS):  # so that the export's numbers of users are the world's
        node.bound(f"user-{user}")
    for t in range(rounds):
        user, offer = world.visit(rng)
        asked = RecommendRequest(f"user-{user}", [ids[k] for k in offer], exclude_seen=False)
        shown = await chooser.choose(asked)
        assert isinstance(shown, Recommended)
        node.rewards.feedback(shown.decision, world.reward(rng, user, int(offer[shown.index])))
        if t % COMMIT_EVERY == COMMIT_EVERY - 1:
            node.commit()
    node.commit()
    node.store.close()


def started(policy: str, seed: int) -> Policy:
    learner = fclub.make_policy(policy)
    problem = fclub.Problem(USERS, 1, DIM, HALF)
    learner.start(problem, place(USERS, 1, "spread"), seed=seed)
    return learner


def live(world: World, policy: Policy, rounds: int, seed: int, learn: bool = True) -> float:
    """The mean expected reward of the policy's choices in a run of its own."""
    rng = np.random.default_rng([seed, 2])
    earned = 0.0
    for _ in range(rounds):
        user, offer = world.visit(rng)
        item = int(offer[policy.recommend(user, world.items[offer])])
        earned += world.chance[user, item]
        if learn:
            policy.update(user, world.items[item], world.reward(rng, user, item))
    return earned / rounds


@dataclass(frozen=True)
class Repetition:
    """What the estimates say, and what the policy earns live."""

    live: float
    estimates: dict[str, Estimate]
    kept: int

    def holds(self, name: str) -> bool:
        estimate = self.estimates[name]
        return estimate.low <= self.live <= estimate.high

    def width(self, name: str) -> float:
        return self.estimates[name].high - self.estimates[name].low


@dataclass(frozen=True)
class Plan:
    """What is repeated: rounds served, share of uniform choices, the other policy, its live runs."""

    rounds: int = 10_000
    uniform: float = 0.05
    policy: str = "linucb"
    runs: int = 40
    stars: bool = False
    trained: int = 0


def repeat(seed: int, plan: Plan) -> Repetition:
    """One world: serve, export, evaluate, and run the other policy live."""
    world, memory = World(seed, plan.stars), Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        asyncio.run(serve(world, folder / "s.db", plan.rounds, plan.uniform, seed))
        export_log(folder / "s.db", folder / "log.jsonl", folder / "items.csv")
        log = read_log(folder / "log.jsonl", folder / "items.csv")
    log = replace(log, users=np.array(log.names, dtype=np.int64)[log.users])
    least, learn = plan.uniform / ITEMS, not plan.trained
    policy = started(plan.policy, seed)
    if plan.trained:
        live(world, policy, plan.trained, 1000 * seed)
    found = evaluate_replay(policy, log, seed=seed, least=least, learn=learn)
    earned = [
        live(
            world,
            started(plan.policy, run) if learn else policy,
            round(least * plan.rounds),
            1000 * seed + run,
            learn,
        )
        for run in range(1, plan.runs + 1)
    ]
    names = ("replay", "importance", "doubly_robust")
    estimates = {name: getattr(found, name) for name in names}
    return Repetition(float(np.mean(earned)), estimates, found.kept)


def summary(repetitions: list[Repetition]) -> dict[str, Any]:
    """How often intervals hold the live value, how wide they are, and how far off estimates are."""
    found: dict[str, Any] = {"repetitions": len(repetitions)}
    found["kept"] = float(np.mean([one.kept for one in repetitions]))
    for name in repetitions[0].estimates:
        errors = [one.estimates[name].value - one.live for one in repetitions]
        found[name] = {
            "holds": float(np.mean([one.holds(name) for one in repetitions])),
            "width": float(np.mean([one.width(name) for one in repetitions])),
            "bias": float(np.mean(errors)),
            "rmse": float(np.sqrt(np.mean(np.square(errors)))),
        }
    found["ratio"] = found["doubly_robust"]["width"] / found["replay"]["width"]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    parser.add_argument("--uniform", type=float, default=Plan.uniform)
    parser.add_argument("--policy", default=Plan.policy)
    parser.add_argument("--runs", type=int, default=Plan.runs)
    parser.add_argument("--stars", action="store_true")
    parser.add_argument("--trained", type=int, default=0)
    given = vars(parser.parse_args())
    repetitions = given.pop("repetitions")
    done = []
    for seed in range(repetitions):
        done.append(repeat(seed, Plan(**given)))
        print(json.dumps(summary(done)), flush=True)
