"""Regret where tastes change, with and without fading of a user's old observations, seed by seed.

python benchmarks/drift.py --policy cdp-fclub-plus --half-life 40 --drift 0.01

With `--drift` a visitor takes over some user's taste for the rest of its visits. Prints the mean ratio
with a 90 % interval.
"""

from __future__ import annotations

import argparse
import json
from math import sqrt

import numpy as np

import fclub


def regret(policy: str, half_life: float, users: int, visits: int, drift: float, seed: int) -> float:
    world = {"users": users, "clusters": 10, "servers": 10, "placement": "spread"}
    environment = fclub.make_environment("synthetic", drift=drift, **world)
    fading = fclub.make_policy(policy, half_life=half_life)
    return float(fclub.simulate(fading, environment, users * visits, seed=seed).regret[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="cdp-fclub-plus")
    parser.add_argument("--half-life", type=float, default=40.0)
    parser.add_argument("--drift", type=float, default=0.01)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--visits", type=int, default=400, help="of each user, on average")
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    size = given.users, given.visits, given.drift
    found = np.array(
        [
            [regret(given.policy, half_life, *size, seed) for half_life in (0.0, given.half_life)]
            for seed in range(given.seeds)
        ]
    )
    ratios = found[:, 1] / found[:, 0]
    half = 1.645 * ratios.std(ddof=1) / sqrt(len(ratios)) if len(ratios) > 1 else float("nan")
    kept, fading = found.mean(axis=0).round().tolist()
    told = {"kept": kept, "fading": fading, "ratio": float(ratios.mean()), "half_interval": float(half)}
    print(json.dumps(vars(given) | told))
