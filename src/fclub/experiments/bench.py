"""Benchmarks as ratios measured in one run: nothing here is a promise about another machine.

Times are CPU times without compilation, the environment included. They are compared with the time of
what a careful researcher would write in plain NumPy, played in the same run: LinUCB per user in the
authors' environment, Sherman–Morrison updates and vectorised scoring, nothing compiled.

One local server with very many users is measured in a process of its own for every number of users,
because the peak of a process's memory never falls.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Mapping
from math import inf, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from fclub.core.clustering import UserGraph
from fclub.core.statistics import Packed
from fclub.core.types import Floats
from fclub.environments.registry import make_environment
from fclub.experiments.study.study import describe_machine
from fclub.policies.registry import POLICIES, make_policy
from fclub.protocol.learners.edges import EdgeDeletion
from fclub.simulation.loop import Late, Tally, loop_for, simulate

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
SCALED = ("linucb", "fclub-dc")
"""Policies whose scaling is shown: no federation, and the whole of it."""

SIZES: dict[str, tuple[int, ...]] = {
    "users": (40, 400, 4_000),
    "dim": (5, 10, 20),
    "items": (5, 10, 20, 40),
    "servers": (2, 5, 10, 20),
}


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


def bench_scaling(rounds: int, longest: int, tell: Tell) -> dict[str, Any]:
    """µs per round as one size grows and the others stay at the paper's."""
    table: dict[str, Any] = {}
    for name in SCALED:
        table[name] = {}
        for size, values in SIZES.items():
            tell(f"{name}: {size}")
            table[name][size] = {value: measure(name, rounds, {size: value}) for value in values}
        tell(f"{name}: rounds")
        lengths = [10**k for k in range(4, 8) if 10**k <= longest]
        table[name]["rounds"] = {length: measure(name, length) for length in lengths}
    return table


def bench(rounds: int, longest: int, populations: list[int], tell: Tell) -> dict[str, Any]:
    """Everything `fclub bench` prints."""
    return {
        "machine": describe_machine(),
        "speed": bench_policies(rounds, tell),
        "scaling": bench_scaling(rounds, longest, tell),
        "population": measure_population(populations, tell),
    }


DIM, ROUNDS, OBSERVATIONS = 10, 50_000, 20
"""Features; rounds that are timed; observations that every user has when detection is timed."""


def _peak_bytes() -> int:
    """Most memory this process ever had.

    On Linux `getrusage` would also remember the process that started this one.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _observed(users: int, rng: np.random.Generator) -> Packed:
    """Statistics of users of four clusters who have all been seen a few times."""
    packed = Packed.zeros(users, DIM)
    centres = rng.standard_normal((4, DIM)) / np.sqrt(DIM)
    for start in range(0, users, 10_000):
        rows = slice(start, min(users, start + 10_000))
        size = rows.stop - rows.start
        x = rng.standard_normal((size, OBSERVATIONS, DIM)) / np.sqrt(DIM)
        y = np.einsum("nod,nd->no", x, centres[np.arange(rows.start, rows.stop) % 4])
        packed.gram[rows] = np.einsum("noi,noj->nij", x, x)
        packed.moment[rows] = np.einsum("no,nod->nd", y, x)
        packed.counts[rows] = OBSERVATIONS
    return packed


def detection(users: int) -> dict[str, Any]:
    """Seconds of CPU and peak memory of one detection, beside the statistics and the graph."""
    rng = np.random.default_rng(0)
    EdgeDeletion(UserGraph(8, rng), 0.5, 1.0).detect(_observed(8, rng))
    idle = _peak_bytes()
    packed = _observed(users, rng)
    graph = UserGraph(users, rng)
    edges = len(graph)
    kept = sum(array.nbytes for array in (*packed, graph.first, graph.second))
    before = time.process_time()
    labels = EdgeDeletion(graph, 0.5, 1.0).detect(packed)
    seconds = time.process_time() - before
    return {
        "detection_seconds": seconds,
        "edges": edges,
        "clusters": int(labels.max()) + 1,
        "bytes_per_user": (_peak_bytes() - idle) / users,
        "peak_over_kept": (_peak_bytes() - idle) / kept,
    }


def rounds(users: int) -> dict[str, Any]:
    """µs of CPU of a compiled round of `fclub-dc` on one server, drawing of items included."""
    environment = make_environment("synthetic", users=users, servers=1)
    environment.start(0)
    policy = make_policy("fclub-dc")
    policy.start(environment.problem, environment.server_of, seed=0)
    assert policy.compiled is not None
    played = policy.compiled.pack(), environment.pack(), np.empty((10, DIM)), ROUNDS
    late, choices = Late.start(0, DIM), np.zeros(0, dtype=np.int64)
    told = np.zeros(2), Tally.start(environment.is_newcomer), late, choices
    play = loop_for(policy.compiled.kernels, *played, *told)
    play(*played, *told)
    before = time.process_time()
    play(*played, *told)
    return {"microseconds_per_round": 1e6 * (time.process_time() - before) / ROUNDS}


def _work(measure: Callable[[int], dict[str, Any]], users: int, answer: Any) -> None:
    answer.send(measure(users))


def alone(measure: Callable[[int], dict[str, Any]], users: int) -> dict[str, Any]:
    """The measurement in a fresh process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(measure, users, sender))
    process.start()
    sender.close()
    try:
        measured: dict[str, Any] = receiver.recv()
    finally:
        process.join()
    return measured


def measure_population(sizes: list[int], tell: Callable[[str], None]) -> dict[int, dict[str, Any]]:
    """Both measurements for every number of users."""
    table = {}
    for users in sizes:
        tell(f"{users:,} users")
        table[users] = alone(rounds, users) | alone(detection, users)
    return table
