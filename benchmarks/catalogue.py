"""Large catalogues: how long a server loads one, its memory, how fast it chooses from all of it.

    python benchmarks/catalogue.py --items 100000 --rate 40 --seconds 20
    python benchmarks/catalogue.py --items 100000 --rate 40 --seconds 20 --filter
    python benchmarks/catalogue.py --items 1000000 --rate 0

Every request offers the whole catalogue, and comes when it is due, come what may. With a filter every
item has a category and a price, and every request asks for ten items of one of five kinds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from fclub import Client
from fclub.service.http.keys import SCOPES, KeyFile, keys_of
from fclub.service.link.broker import free_port
from load import Connection, feedback_on, latencies  # type: ignore[import-not-found]
from service_http import cpu_seconds, resident_mb  # type: ignore[import-not-found]

DIM, USERS, CONNECTIONS = 10, 1000, 16
PATIENCE = 600.0


def write_items(path: Path, count: int) -> None:
    rows = np.random.default_rng(0).standard_normal((count, DIM))
    rows *= 0.999 / np.linalg.norm(rows, axis=1, keepdims=True)
    with path.open("w") as file:
        file.write(",".join(["id", *(f"x{k}" for k in range(DIM))]) + "\n")
        for k, row in enumerate(rows.tolist()):
            file.write(f"item-{k}," + ",".join(f"{value:.6f}" for value in row) + "\n")


async def choose(connection: Connection, due: float) -> list[float]:
    """A choice from all items, timed from when it was due; its feedback follows, untimed."""
    body = b'{"user": "user-%d"}' % random.randrange(USERS)
    shown = await connection.post(b"/v1/recommend", body)
    taken = time.monotonic() - due
    await connection.post(b"/v1/feedback", feedback_on(shown))
    return [taken]


async def choose_filtered(connection: Connection, due: float) -> list[float]:
    """The best ten items that one of five filters holds for; feedback on the first follows."""
    where = b'{"and": [{"category": "c%d"}, {"not": {"number": "price", "max": 20}}]}' % (
        random.randrange(5)
    )
    body = b'{"user": "user-%d", "count": 10, "filter": %s}' % (random.randrange(USERS), where)
    shown = await connection.post(b"/v1/recommend", body)
    taken = time.monotonic() - due
    (*_, first) = json.loads(shown)["shown"][:1]
    told = json.dumps({"decision": first["decision"], "reward": random.randrange(2)})
    await connection.post(b"/v1/feedback", told.encode())
    return [taken]


def describe_items(port: int, token: str, path: Path) -> None:
    """Give the items of a file a category and a price."""
    lines = path.read_text().splitlines()[1:]
    with Client(f"http://127.0.0.1:{port}", token) as client:
        for begin in range(0, len(lines), 500):
            rows = [line.split(",") for line in lines[begin : begin + 500]]
            items = {key: [float(value) for value in row] for key, *row in rows}
            numbers = range(begin, begin + len(items))
            attributes = {
                key: {"categories": [f"c{k % 7}"], "numbers": {"price": k % 100}}
                for key, k in zip(items, numbers, strict=True)
            }
            client.put_items(items, attributes)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def start(folder: Path, items: Path, port: int, token: str) -> tuple[subprocess.Popen[bytes], float]:
    """A server and the seconds until it was ready."""
    KeyFile(keys_of(folder / "s.db")).add("bench", SCOPES, token=token)
    options = ["--store", str(folder / "s.db"), "--dim", str(DIM), "--catalogue", str(items)]
    command = [sys.executable, "-m", "fclub", "local", *options, "--port", str(port)]
    began = time.monotonic()
    process = subprocess.Popen(command)
    while not is_ready(port):
        if process.poll() is not None or time.monotonic() - began > PATIENCE:
            raise SystemExit("the server did not start")
        time.sleep(0.05)
    return process, time.monotonic() - began


def measure(count: int, rate: float, seconds: float, filtered: bool) -> dict[str, Any]:
    visit = choose_filtered if filtered else choose
    with tempfile.TemporaryDirectory() as name:
        folder, port, token = Path(name), free_port(), secrets.token_hex()
        write_items(folder / "items.csv", count)
        found: dict[str, Any] = {"items": count}
        for kind in ("first", "again"):
            process, found[f"{kind}_start_seconds"] = start(folder, folder / "items.csv", port, token)
            try:
                found[f"{kind}_start_cpu_seconds"] = cpu_seconds(process.pid)
                if rate and kind == "again":
                    if filtered:
                        describe_items(port, token, folder / "items.csv")
                    asyncio.run(latencies(port, token, visit, CONNECTIONS, 3.0, rate))
                    times = asyncio.run(latencies(port, token, visit, CONNECTIONS, seconds, rate))
                    points = np.percentile(times, [50, 99]) * 1000.0
                    found |= {"requests": len(times), "p50_ms": points[0], "p99_ms": points[1]}
                found[f"{kind}_resident_mb"] = resident_mb(process.pid)
            finally:
                process.terminate()
                process.wait()
        return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--filter", action="store_true")
    given = parser.parse_args()
    print(json.dumps(measure(given.items, given.rate, given.seconds, given.filter)))
