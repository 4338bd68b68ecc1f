"""Which relief serves estimation best (docs/privacy.md, sensitivity): error of θ̂ from one noisy stream.

    python benchmarks/relief.py [--draws N]

Authors' kind of items, ten a visit, chosen almost greedily; rewards centred. The estimate weighs the
noisy normal equations by their residual noise and subtracts what the noise adds to the precision.
"""

from __future__ import annotations

import argparse

import numpy as np

from fclub.core.types import Matrix, Vector
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.sensitivity import Domain

DIM, ITEMS, HALF = 10, 10, 0.5**0.5
BUDGETS = ((1.0, 0.1), (1.0, 1e-5))


def unit(rows: Matrix) -> Matrix:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def estimate(gram: Matrix, moment: Vector, exact: Matrix, variance: Matrix) -> Vector:
    """Precision ĜR⁻¹Ĝ without its noise part, on the directions where that is positive."""
    residual = HALF**2 * variance[:DIM, : DIM - 1].mean(axis=1) + variance[:DIM, DIM]
    weight = np.linalg.inv(0.25 * exact + np.diag(residual))
    noise = np.diag(variance[:DIM, :DIM] @ np.diag(weight)) + variance[:DIM, :DIM] * weight
    values, vectors = np.linalg.eigh(gram @ weight @ gram - noise)
    kept = vectors[:, values > 0]
    precision = (kept * values[values > 0]) @ kept.T + 4.0 * np.eye(DIM)
    return np.linalg.solve(precision, kept @ (kept.T @ (gram @ weight @ moment)))


def error(plan: StreamPlan, observations: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    theta = HALF * unit(rng.standard_normal(DIM - 1))
    offered = HALF * unit(rng.standard_normal((observations, ITEMS, DIM - 1)))
    scores = offered @ theta + 0.1 * rng.standard_normal((observations, ITEMS))
    chosen = offered[np.arange(observations), scores.argmax(axis=1)]
    x = np.column_stack([chosen, np.full(observations, HALF)])
    y = (rng.random(observations) < chosen @ theta + 0.5) - 0.5
    releases = int(np.searchsorted(plan.schedule, observations, side="right"))
    prefix = float(np.linalg.norm(plan.mechanism.factor(releases)[-1]))
    deviation = prefix * plan.entry_std
    draws = rng.standard_normal((DIM + 1, DIM + 1))
    noise = deviation * (draws + draws.T) / np.sqrt(2.0)
    exact = x.T @ x
    noisy_gram, noisy_moment = exact + noise[:DIM, :DIM], x.T @ y + noise[:DIM, DIM]
    found = estimate(noisy_gram, noisy_moment, exact, deviation**2)
    return float(np.linalg.norm(found[:-1] - theta))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=60)
    draws = parser.parse_args().draws
    for observations in (2_000, 8_000):
        for budget in BUDGETS:
            for relief in (1.0, 1.5, 2.0, 3.0, 4.0):
                plan = plan_stream(*budget, Domain(1.0, -0.5, 0.5, HALF, relief), DIM)
                errors = [error(plan, observations, seed) for seed in range(draws)]
                print(observations, budget, relief, f"{np.mean(errors):.3f}", flush=True)


if __name__ == "__main__":
    main()
