"""How time and memory grow: rounds as one size changes, and one server with very many users.

    python -m benchmarks.scaling [--rounds N] [--full]

With --full also 10⁷ rounds and a million users: several minutes. A server with many users is measured
in a process of its own for every number of users, since the peak of a process's memory never falls.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fclub.core.clustering import UserGraph
from fclub.core.statistics import Packed
from fclub.environments.registry import make_environment
from fclub.experiments.bench import measure
from fclub.policies.registry import make_policy
from fclub.protocol.learners.edges import EdgeDeletion
from fclub.simulation.loop import Late, Tally, loop_for

SCALED = ("linucb", "fclub-dc")
"""Policies whose scaling is shown: no federation, and the whole of it."""

SIZES: dict[str, tuple[int, ...]] = {
    "users": (40, 400, 4_000),
    "dim": (5, 10, 20),
    "items": (5, 10, 20, 40),
    "servers": (2, 5, 10, 20),
}


def show_scaling(rounds: int, longest: int) -> None:
    """µs per round as one size grows and the others stay at the paper's."""
    lengths = tuple(10**k for k in range(4, 8) if 10**k <= longest)
    for name in SCALED:
        for size, values in SIZES.items():
            times = {value: measure(name, rounds, {size: value}) for value in values}
            print(f"{name}, {size}: {_in_words(times)}", flush=True)
        times = {length: measure(name, length) for length in lengths}
        print(f"{name}, rounds: {_in_words(times)}", flush=True)


def _in_words(times: dict[int, float]) -> str:
    return ", ".join(f"{value:,}: {us:.2f} µs" for value, us in times.items())


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


def show_population(sizes: list[int]) -> None:
    for users in sizes:
        measured = alone(rounds, users) | alone(detection, users)
        print(f"{users:,} users:", ", ".join(f"{k} {v:,.4g}" for k, v in measured.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    show_scaling(options.rounds, 10**7 if options.full else 10**5)
    show_population([40, 10_000, 100_000, 1_000_000] if options.full else [40, 10_000])


if __name__ == "__main__":
    main()
