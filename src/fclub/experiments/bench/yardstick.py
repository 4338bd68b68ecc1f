"""What a careful researcher would write in plain NumPy: LinUCB per user, the authors' environment.

Sherman–Morrison updates and vectorised scoring, nothing compiled. Times are compared with its time, so
that a benchmark is a ratio and not a promise about somebody's machine.
"""

from __future__ import annotations

import time
from math import log, sqrt

import numpy as np

from fclub.core.types import Floats

HALF = sqrt(0.5)


def draw_users(rng: np.random.Generator, users: int, clusters: int, dim: int) -> Floats:
    """θ of every user: a random direction per cluster beside a constant."""
    centres = rng.standard_normal((clusters, dim - 1))
    centres *= HALF / np.linalg.norm(centres, axis=1, keepdims=True)
    theta = np.full((users, dim), HALF)
    theta[:, :-1] = centres[np.arange(users) * clusters // users]
    return theta


def play_linucb(
    rounds: int,
    seed: int = 0,
    users: int = 40,
    clusters: int = 4,
    dim: int = 10,
    items: int = 10,
    exploration: float = 0.15,
    ridge: float = 0.2,
) -> float:
    """Cumulative regret after `rounds` visits."""
    rng = np.random.default_rng(seed)
    theta = draw_users(rng, users, clusters, dim)
    inverse = np.tile(np.eye(dim) / ridge, (users, 1, 1))
    moment, estimate = np.zeros((users, dim)), np.zeros((users, dim))
    counts = np.zeros(users)
    x = np.full((items, dim), HALF)
    regret = 0.0
    for _ in range(rounds):
        user = rng.integers(users)
        raw = rng.standard_normal((items, dim - 1))
        x[:, :-1] = raw * (HALF / np.sqrt(np.einsum("kd,kd->k", raw, raw)))[:, None]
        growth = 2.0 * log(100.0 * users) + dim * log(1.0 + counts[user] / (dim * ridge))
        radius = exploration * (0.5 * sqrt(growth) + sqrt(ridge))
        bonus = np.sqrt(np.einsum("kd,kd->k", x @ inverse[user], x))
        chosen = x[np.argmax(x @ estimate[user] + radius * bonus)]
        expected = x @ theta[user]
        mean = chosen @ theta[user]
        regret += expected.max() - mean
        reward = float(rng.random() < mean)
        column = inverse[user] @ chosen
        inverse[user] -= np.outer(column, column) / (1.0 + chosen @ column)
        moment[user] += reward * chosen
        estimate[user] = inverse[user] @ moment[user]
        counts[user] += 1
    return float(regret)


def microseconds_per_round(rounds: int, seed: int = 0) -> float:
    """CPU time of the yardstick at the paper's sizes, environment included."""
    play_linucb(100, seed)
    before = time.process_time()
    play_linucb(rounds, seed)
    return 1e6 * (time.process_time() - before) / rounds
