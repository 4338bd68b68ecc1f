"""Latency of a local server while it detects and takes snapshots, by the number of its users.

python benchmarks/service_busy.py --users 1000 --policy cdp-fclub-plus
python benchmarks/service_busy.py --users 1000000 --policy fclub-plus --seconds 60

The store is filled before. Then a detection follows `--every` so many visits, or the one before, and a
snapshot 20,000 log entries; visits come at half of what the server can do, each when it is due and on
one of so many connections that none has to wait for one, in `--rounds` of `--seconds`. Told are the
medians over the rounds and each round, beside it what another process waited for the same disk
meanwhile: an answer is given when its log entry is on the disk, so it waits for that at least. Also
told: the time from the start of the process until it is ready, after a stop and after a kill, and
resident memory. At the end the same visits are played without HTTP, and what the main thread does at a
time is told in CPU time: that is how long a request would wait for it on a machine of its own.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fclub.service.fleet import Server
from fclub.service.nodes.local_node import Agree, LocalNode
from fclub.service.nodes.parts import local_node
from fclub.service.settings import LocalSettings, Model
from load import DIM, crowd_visit, latencies, throughput, timed_crowd_visit  # type: ignore[import-not-found]
from service_http import cpu_seconds, resident_mb, run, stolen  # type: ignore[import-not-found]

VISITS = 3
"""Of each user before the measurement."""

PORTION = 10_000

SATURATING, PACED = 64, 512
"""Connections. With 64 a visit would often wait for the answer to another one, not for the server: an
answer may take a commit of 40 ms, and 64 in 40 ms are fewer than come."""

PROBE = """
import json, os, sys, time
file, waits = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), []
print("ready", flush=True)
while os.getppid() == int(sys.argv[2]) and not os.path.exists(sys.argv[1] + ".stop"):
    os.write(file, bytes(8192))
    start = time.monotonic()
    os.fdatasync(file)
    waits.append(time.monotonic() - start)
    time.sleep(0.01)
print(json.dumps(waits))
"""


Told = dict[str, dict[str, float]]
"""Quantiles in milliseconds of several things."""


def model_of(policy: str, users: int, every: int) -> Model:
    return Model(policy=policy, dim=DIM, parameters={"ratio": 1.0 + every / (users * VISITS)})


def random_past(users: int, dim: int) -> dict[str, Any]:
    """What random rewards of random items leave of each user."""
    rng = np.random.default_rng(0)
    gram, moment = np.zeros((users, dim, dim)), np.zeros((users, dim))
    for start in range(0, users, PORTION):
        here = slice(start, min(start + PORTION, users))
        for _ in range(VISITS):
            items = rng.standard_normal((here.stop - start, dim))
            items /= np.linalg.norm(items, axis=1, keepdims=True)
            gram[here] += items[:, :, None] * items[:, None, :]
            moment[here] += rng.integers(2, size=(len(items), 1)) * items
    return {
        "crowd.users.gram": gram,
        "crowd.users.moment": moment,
        "crowd.users.counts": np.full(users, VISITS),
        "crowd.squares": np.full(users, 0.5 * VISITS),
        "labels": np.zeros(users, dtype=np.int32),
    }


def fill(path: Path, model: Model, users: int) -> None:
    """A store of a server that has met so many users."""
    node = local_node(LocalSettings(model=model, name="bench", store=str(path)))
    for number in range(65):
        node.show(f"user-{number}", "none", np.zeros(DIM))
    node.commit()
    names = [(row, f"user-{row}") for row in range(65, users)]
    for start in range(0, len(names), PORTION):
        node.store.write([("INSERT INTO users VALUES (?, ?)", one) for one in names[start:][:PORTION]])
    arrays, values = node.server.state()
    seen = users * VISITS
    values |= {"clock": [1, seen], "arrivals": seen}
    node.server.restore(arrays | random_past(users, DIM), values)
    node.feedbacks = seen
    _snapshot(node)
    node.store.close()


def _snapshot(node: LocalNode) -> None:
    """All rows, a portion in a transaction."""
    node.journal.begin_saving()
    more = True
    while more:
        more = node.journal.save_some(PORTION)
        node.store.write(node.take().statements)


def phases(path: Path) -> int:
    """Detections that were begun until the last snapshot."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        (state,) = connection.execute("SELECT state FROM snapshot ORDER BY entry DESC").fetchone()
    with np.load(io.BytesIO(state), allow_pickle=False) as file:
        return int(msgspec.json.decode(file["values"].tobytes())["clock"][0])


def started(server: Server) -> dict[str, float]:
    """Seconds until the server is ready, and of its CPU."""
    start = time.monotonic()
    server.start()
    server.wait_until_ready()
    seconds = time.monotonic() - start
    assert server.process is not None
    return {"seconds": round(seconds, 2), "cpu": round(cpu_seconds(server.process.pid), 2)}


def milliseconds(samples: list[float]) -> dict[str, float]:
    found = 1e3 * np.percentile(samples, [50, 99, 99.9, 100])
    return dict(zip(("p50", "p99", "p99.9", "max"), found.round(1).tolist(), strict=True))


@contextmanager
def disk_waits(folder: Path) -> Iterator[list[float]]:
    """Seconds that another process waits for the same disk, 100 times a second; filled at the end."""
    waits: list[float] = []
    with tempfile.TemporaryDirectory(dir=folder) as home:
        file = Path(home) / "probe"
        arguments = [sys.executable, "-c", PROBE, str(file), str(os.getpid())]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as probe:
            assert probe.stdout is not None
            probe.stdout.readline()
            yield waits
            file.with_name("probe.stop").touch()
            waits += json.loads(probe.stdout.readline())


def load_round(folder: Path, address: tuple[int, str], users: int, seconds: float, rate: float) -> Told:
    with disk_waits(folder) as waits:
        samples = run(latencies(*address, timed_crowd_visit(users), PACED, seconds, rate))
    found = {"recommend": samples[::2], "feedback": samples[1::2], "disk": waits}
    return {name: milliseconds(values) for name, values in found.items()}


def medians(rounds: list[Told]) -> Told:
    return {
        name: {key: statistics.median(one[name][key] for one in rounds) for key in values}
        for name, values in rounds[0].items()
    }


def steps(path: Path, policy: str, users: int, visits: int, every: int) -> dict[str, Any]:
    """CPU milliseconds of what the main thread does at a time; other processes hardly change them.

    As under load, eight visits share a commit; a part of a detection is taken with each. `work` is what
    another thread would do meanwhile, and the wait for the disk is not in it.
    """
    model = model_of(policy, users, every)
    node = local_node(LocalSettings(model=model, name="bench", store=str(path)))
    Agree().apply(node)
    times: dict[str, list[float]] = {}

    def timed(name: str, do: Callable[..., Any], *arguments: Any) -> Any:
        start = time.thread_time()
        result = do(*arguments)
        times.setdefault(name, []).append(time.thread_time() - start)
        return result

    rng, ids = np.random.default_rng(0), [str(k) for k in range(10)]
    for visit in range(visits):
        items = rng.standard_normal((len(ids), DIM))
        items /= 1.001 * np.linalg.norm(items, axis=1, keepdims=True)
        user = f"user-{rng.integers(users)}"
        shown = timed("recommend", node.recommend, user, items, ids)
        timed("feedback", node.rewards.feedback, shown.id, float(rng.random() < 0.5))
        if visit % 8 == 0:
            part = timed("take a part", node.part)
            if part is not None:
                timed("work", part)
            timed("rows of a snapshot", node.journal.save_some)
            changes = node.take()
            timed("statements", node.store.stage, changes.statements)
            node.store.commit()
            node.committed(changes)
        if visit % 1000 == 0:
            timed("overview", node.overview)
    node.store.close()
    return {name: milliseconds(values) for name, values in times.items()}


def measure(
    folder: Path, policy: str, users: int, seconds: float, rounds: int, every: int
) -> dict[str, Any]:
    path, model = folder / "local.db", model_of(policy, users, every)
    values = {
        "model__policy": policy,
        "model__dim": DIM,
        "model__parameters": dict(model.parameters),
        "name": "bench",
        "http__max_body_bytes": 1 << 23,
        "store": str(path),
        "log_level": "warning",
    }
    server = Server("local", "bench", folder, values, "token")
    found: dict[str, Any] = {"policy": policy, "users": users, "stored_mb": path.stat().st_size >> 20}
    steal, ticks = stolen()
    try:
        found["ready"] = started(server)
        assert server.process is not None
        pid, address = server.process.pid, (server.port, server.token)
        found["resident_mb_idle"] = resident_mb(pid)
        rate = run(throughput(*address, crowd_visit(users), SATURATING, min(seconds, 8.0)))
        before, cpu = phases(path), cpu_seconds(pid)
        times = [load_round(folder, address, users, seconds, rate / 4) for _ in range(rounds)]
        found |= {
            "requests_per_second_saturated": round(rate),
            "median_ms": medians(times),
            "rounds_ms": times,
            "cpu_share": round((cpu_seconds(pid) - cpu) / (rounds * seconds), 2),
            "resident_mb": resident_mb(pid),
        }
        server.kill()
        found["ready_after_kill"] = started(server)
        server.stop()
        found["detections"] = phases(path) - before
        found["ready_after_stop"] = started(server)
    finally:
        server.stop()
    later, all_later = stolen()
    found["stolen"] = round((later - steal) / (all_later - ticks), 3)
    found["load_average"] = os.getloadavg()[0]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--policy", default="cdp-fclub-plus")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--every", type=int, default=1000, help="visits from detection to detection")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--visits", type=int, default=30_000, help="of which CPU times are taken")
    parser.add_argument("--fill", type=Path, help="only fill this store")
    given = parser.parse_args()
    if given.fill is not None:
        fill(given.fill, model_of(given.policy, given.users, given.every), given.users)
    else:
        with tempfile.TemporaryDirectory() as home:
            store = Path(home) / "local.db"
            size = ["--policy", given.policy, "--users", str(given.users), "--every", str(given.every)]
            subprocess.run([sys.executable, __file__, "--fill", str(store), *size], check=True)
            told = measure(
                Path(home), given.policy, given.users, given.seconds, given.rounds, given.every
            )
            told["steps_cpu_ms"] = steps(store, given.policy, given.users, given.visits, given.every)
        print(json.dumps(told))
