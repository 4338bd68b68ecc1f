"""Benchmarks as ratios measured in one run: nothing here is a promise about another machine.

Times are CPU times without compilation, the environment included. The unit is the plain NumPy LinUCB of
`yardstick.py`, played in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from fclub.environments.registry import make_environment
from fclub.experiments.bench.population import measure_population
from fclub.experiments.bench.yardstick import microseconds_per_round
from fclub.experiments.study.machine import describe_machine
from fclub.policies.registry import POLICIES
from fclub.simulation.loop import simulate

Tell = Callable[[str], None]
REPEATS, LONG = 3, 10**6
"""How often a time is taken, unless it is of so many rounds that once is enough."""
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
