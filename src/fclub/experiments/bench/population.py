"""One local server with very many users: time of a round, of a detection, and memory.

Every size is measured in a process of its own, because the peak of a process's memory never falls.
"""

from __future__ import annotations

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
from fclub.policies.registry import make_policy
from fclub.protocol.paper.detection import EdgeDeletion
from fclub.simulation.blocks import loop_for
from fclub.simulation.by_visit import Tally

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
    played = policy.pack(), environment.pack(), np.empty((10, DIM)), ROUNDS
    told = np.zeros(2), Tally.start(environment.is_newcomer), np.zeros(0, dtype=np.int64)
    assert policy.kernels is not None
    play = loop_for(policy.kernels, *played, *told)
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
