"""Large catalogues: how long a server loads one, its memory, how fast it chooses from all of it.

    python benchmarks/catalogue.py --items 100000 --rate 40 --seconds 20
    python benchmarks/catalogue.py --items 1000000 --rate 0

Every request offers the whole catalogue, and comes when it is due, come what may.
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

from fclub.service.http.gate import hash_token
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


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def start(folder: Path, items: Path, port: int, token: str) -> tuple[subprocess.Popen[bytes], float]:
    """A server and the seconds until it was ready."""
    tokens = f'http.tokens=["{hash_token(token)}"]'
    options = ["--store", str(folder / "s.db"), "--dim", str(DIM), "--catalogue", str(items)]
    command = [sys.executable, "-m", "fclub", "local", *options, "--port", str(port), "--set", tokens]
    began = time.monotonic()
    process = subprocess.Popen(command)
    while not is_ready(port):
        if process.poll() is not None or time.monotonic() - began > PATIENCE:
            raise SystemExit("the server did not start")
        time.sleep(0.05)
    return process, time.monotonic() - began


def measure(count: int, rate: float, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, port, token = Path(name), free_port(), secrets.token_hex()
        write_items(folder / "items.csv", count)
        found: dict[str, Any] = {"items": count}
        for kind in ("first", "again"):
            process, found[f"{kind}_start_seconds"] = start(folder, folder / "items.csv", port, token)
            try:
                found[f"{kind}_start_cpu_seconds"] = cpu_seconds(process.pid)
                if rate and kind == "again":
                    asyncio.run(latencies(port, token, choose, CONNECTIONS, 3.0, rate))
                    times = asyncio.run(latencies(port, token, choose, CONNECTIONS, seconds, rate))
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
    given = parser.parse_args()
    print(json.dumps(measure(given.items, given.rate, given.seconds)))
