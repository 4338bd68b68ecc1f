"""Benchmarks as ratios measured in one run: nothing here is a promise about another machine.

Times are CPU times without compilation, the environment included. They are compared with the time of
what a careful researcher would write in plain NumPy, played in the same run: LinUCB per user in the
authors' environment, Sherman–Morrison updates and vectorised scoring, nothing compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf, log, sqrt
from typing import Any

import numpy as np

from fclub.core.types import Floats
from fclub.environments.registry import make_environment
from fclub.experiments.study.study import describe_machine
from fclub.policies.registry import POLICIES
from fclub.simulation.loop import simulate

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


Tell = Callable[[str], None]
REPEATS, LONG = 3, 10**6
"""How often a time is taken; a run of many rounds is timed once."""


def measure(
    policy: str, rounds: int, sizes: Mapping[str, int] | None = None, fast: bool = True
) -> float:
    """µs of CPU per round of a whole `simulate`, the best of a few after one to compile."""
    environment = make_environment("synthetic", **(sizes or {}))
    simulate(policy, environment, 100, fast=fast)
    times = []
    for seed in range(REPEATS if rounds < LONG else 1):
        before = time.process_time()
        simulate(policy, environment, rounds, seed, fast=fast)
        times.append(time.process_time() - before)
    return 1e6 * min(times) / rounds


def bench_policies(rounds: int, tell: Tell) -> dict[str, Any]:
    """Every policy by the readable and the compiled loop, against the yardstick.

    The yardstick runs before each of them and its best time counts, so that a disturbance cannot
    flatter us.
    """
    unit, rows = inf, {}
    for seed, name in enumerate(POLICIES):
        tell(name)
        unit = min(unit, microseconds_per_round(rounds // 10, seed))
        fast = measure(name, rounds)
        readable = measure(name, max(100, rounds // 50), fast=False)
        rows[name] = {"fast": fast, "readable": readable, "readable_over_fast": readable / fast}
    for row in rows.values():
        row["yardstick_over_fast"] = unit / row["fast"]
    return {"rounds": rounds, "yardstick": unit, "policies": rows}


def bench(rounds: int, tell: Tell) -> dict[str, Any]:
    return {"machine": describe_machine(), "speed": bench_policies(rounds, tell)}
