"""Regret with seeded doubles and with the exact noise of a live server, seed by seed.

    python benchmarks/exact_noise.py cdp-fclub-plus 10000 0.1

Everything but the noise is the same for both. Prints means, standard errors, and the mean difference
with two of its standard errors.
"""

from __future__ import annotations

import sys
from math import sqrt
from typing import Any

import numpy as np

import fclub
from fclub.privacy.noise import DiscreteNoise, NoiseSource
from fclub.protocol.federation import Federation

SEEDS, USERS = 10, 40


class ExactFederation(Federation):
    def _noise(self) -> NoiseSource:
        return DiscreteNoise()


def regret(name: str, rounds: int, delta: float, seed: int, kind: type[Federation]) -> float:
    environment = fclub.make_environment("synthetic", users=USERS, placement="spread")
    streams = {"unit": "event", "level": "cdp"} if name == "cdp-fclub-plus" else {}
    policy: Any = fclub.make_policy(name, epsilon=1.0, delta=delta, **streams)
    policy._federation = lambda root, seeded: kind(
        policy.family, policy.rows.row_of, policy.rows.first, root, seeded
    )
    return float(fclub.simulate(policy, environment, rounds, seed=seed).regret[-1])


def main() -> None:
    name, rounds, delta = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    both = np.array(
        [
            [regret(name, rounds, delta, seed, kind) for kind in (Federation, ExactFederation)]
            for seed in range(SEEDS)
        ]
    )
    errors = both.std(axis=0, ddof=1) / sqrt(SEEDS)
    difference = both[:, 1] - both[:, 0]
    error = difference.std(ddof=1) / sqrt(SEEDS)
    for label, mean, deviation in zip(("seeded", "exact"), both.mean(axis=0), errors, strict=True):
        print(f"{label}: {mean:.1f} ± {deviation:.1f}")
    print(f"exact − seeded: {difference.mean():.1f}, two standard errors {2.0 * error:.1f}")


if __name__ == "__main__":
    main()
