"""Throughput, latency and memory of a local server beside a bare endpoint of the same HTTP stack.

python benchmarks/service_http.py --rounds 5 --seconds 4
python benchmarks/service_http.py --policy cdp-fclub-dc
python benchmarks/service_http.py --memory 1000000

Rates are requests per second: a visit is a recommendation and its feedback, which are two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import uvloop

from fclub.service.fleet import Server
from fclub.service.link.broker import free_port
from load import (  # type: ignore[import-not-found]  # found when run as a script
    DIM,
    Round,
    forgetful_visit,
    latencies,
    say_hello,
    throughput,
    timed_hello,
    timed_visit,
    visit,
    warm_up,
)

HELLO = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def hello(request):
    await request.body()
    return Response(b'{"hello": "world"}', media_type="application/json")

app = Starlette(routes=[Route("/", hello, methods=["POST"])])
options = {"log_level": "error", "access_log": False, "server_header": False, "proxy_headers": False}
uvicorn.run(app, port=int(sys.argv[1]), **options)
"""
Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


@contextmanager
def bare_endpoint() -> Iterator[tuple[int, int]]:
    """Process and port of an endpoint that says hello."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", HELLO, str(port)])
    try:
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def local_server(folder: Path, policy: str, warm: int) -> Iterator[tuple[int, Server]]:
    """Process of a local server that carries its own global server, after so many visits."""
    values = {
        "model__policy": policy,
        "model__dim": DIM,
        "http__max_body_bytes": 1 << 23,
        "store": str(folder / "local.db"),
        "log_level": "warning",
    }
    server = Server("local", "bench", folder, values, "token")
    server.start()
    try:
        server.wait_until_ready()
        assert server.process is not None
        run(warm_up(server.port, server.token, warm))
        yield server.process.pid, server
    finally:
        server.stop()


def saturated(
    pid: int, port: int, token: str, play: Round, count: int, seconds: float
) -> dict[str, float]:
    """Requests per second, and CPU microseconds of the server and of the client per request."""
    server, client = cpu_seconds(pid), time.process_time()
    rate = run(throughput(port, token, play, count, seconds))
    requests = rate * seconds
    return {
        "per_second": rate,
        "server_us": 1e6 * (cpu_seconds(pid) - server) / requests,
        "client_us": 1e6 * (time.process_time() - client) / requests,
    }


def milliseconds(quantile: float, times: list[list[float]]) -> list[float]:
    return [1e3 * float(np.percentile(samples, quantile)) for samples in times]


def stolen() -> tuple[int, int]:
    """Ticks that other machines on the same host have taken from this one, and all ticks."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[7], sum(ticks)


def compare(
    folder: Path, policy: str, count: int, seconds: float, rounds: int, warm: int
) -> dict[str, Any]:
    """Both in turns, so that what else the machine does meets both; medians over the rounds.

    Both answer as many requests per second while their latency is taken: half of what ours can do.
    """
    bare, ours, bare_times, times = [], [], [], []
    steal, ticks = stolen()
    with bare_endpoint() as (hello, port), local_server(folder, policy, warm) as (pid, server):
        for _ in range(rounds):
            bare.append(saturated(hello, port, "", say_hello, count, seconds))
            ours.append(saturated(pid, server.port, server.token, visit, count, seconds))
            half = ours[-1]["per_second"] / 2
            bare_times.append(run(latencies(port, "", timed_hello, count, seconds, half)))
            address = server.port, server.token
            times.append(run(latencies(*address, timed_visit, count, seconds, half / 2)))
    ratios = [one["per_second"] / two["per_second"] for one, two in zip(ours, bare, strict=True)]
    later, all_later = stolen()
    p99, bare_p99 = milliseconds(99, times), milliseconds(99, bare_times)
    return {
        "policy": policy,
        "ratio": statistics.median(ratios),
        "p50_ms": statistics.median(milliseconds(50, times)),
        "p99_ms": statistics.median(p99),
        "hello_p99_ms": statistics.median(bare_p99),
        "hello": {key: statistics.median(one[key] for one in bare) for key in bare[0]},
        "fclub": {key: statistics.median(one[key] for one in ours) for key in ours[0]},
        "ratios": ratios,
        "p99s_ms": p99,
        "hello_p99s_ms": bare_p99,
        "stolen": (later - steal) / (all_later - ticks),
        "load_average": os.getloadavg()[0],
    }


def memory(
    folder: Path, policy: str, count: int, requests: int, warm: int, seconds: float = 5.0
) -> dict[str, Any]:
    """Resident memory of the server while it answers so many requests."""
    start, done = time.monotonic(), 0.0
    with local_server(folder, policy, warm) as (pid, server):
        seen = [(0, resident_mb(pid))]
        while done < requests:
            rate = run(throughput(server.port, server.token, forgetful_visit, count, seconds))
            done += rate * seconds
            seen.append((round(done), resident_mb(pid)))
    return {
        "requests": round(done),
        "seconds": time.monotonic() - start,
        "resident_mb": seen[:: max(1, len(seen) // 40)] + seen[-1:],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="cdp-fclub-plus")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each part of a round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--warm", type=int, default=10_000, help="visits before the measurement")
    parser.add_argument("--memory", type=int, help="requests to watch the memory for, instead")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        common = Path(home), given.policy, given.connections
        if given.memory:
            found = memory(*common, given.memory, given.warm)
        else:
            found = compare(*common, given.seconds, given.rounds, given.warm)
    print(json.dumps(found))
