"""How often a central 95 % interval of an item's expected reward holds the truth.

    python -m benchmarks.intervals [--rounds T ...] [--policy NAME] [--first SEED] [--seeds N]

After so many visits, users are offered items as before, and every item's N(xᵀθ̂, xᵀCx) is compared with
its expected reward. Intervals that promise 95 % should hold it for 93 to 97 % of the items.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import fclub

VISITS = 400
NORMAL = 1.959964
"""The 97.5 % point of the normal distribution."""


def coverage(policy: str, placement: str, rounds: int, seed: int) -> float:
    """The share of offered items whose interval holds the expected reward."""
    learner: Any = fclub.make_policy(policy)
    world: Any = fclub.make_environment("synthetic", placement=placement)
    fclub.simulate(learner, world, rounds, seed=seed)
    truth = world.theta
    held: list[Any] = []
    for _ in range(VISITS):
        user, items = world.visit()
        server, row = learner._locate(user)
        bound = server.bound(row)
        expected = items @ truth[user] - bound.offset
        width = NORMAL * np.sqrt(np.einsum("ki,ij,kj->k", items, bound.inverse, items))
        held.append(abs(items @ bound.theta - expected) <= width)
    return float(np.mean(held))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, nargs="*", default=[3_000, 20_000])
    parser.add_argument("--policy", default="fclub-plus")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    print("| placement | visits | covered |\n|---|---|---|")
    for placement in ("blocks", "spread"):
        for rounds in options.rounds:
            found = [coverage(options.policy, placement, rounds, seed) for seed in seeds]
            error = np.std(found, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.inf
            print(f"| {placement} | {rounds:,} | {np.mean(found):.3f} ± {error:.3f} |", flush=True)


if __name__ == "__main__":
    main()
