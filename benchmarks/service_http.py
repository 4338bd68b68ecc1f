"""Throughput and latency of a local server beside a bare endpoint of the same HTTP stack.

python benchmarks/service_http.py --seconds 10 --connections 64
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fclub.service.broker import free_port
from fclub.service.fleet import Server

HELLO = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def hello(request):
    await request.body()
    return Response(b'{"hello": "world"}', media_type="application/json")

app = Starlette(routes=[Route("/", hello, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""
DIM, ITEMS, USERS = 10, 10, 1000


class Connection:
    """One kept-alive connection that sends prepared bytes: the client must not be the bottleneck."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self.reader, self.writer, self.token = reader, writer, token

    async def post(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
        self.writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        data = await self.reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{answer!r} {data!r}")
        return data


Round = Callable[[Connection], Awaitable[int]]


async def say_hello(connection: Connection) -> int:
    await connection.post("/", BODIES[0])
    return 1


async def visit(connection: Connection) -> int:
    """A recommendation and its feedback: two requests."""
    shown = await connection.post("/v1/recommend", random.choice(BODIES))
    decision = shown[shown.index(b'"decision":"') + 12 :][:32]
    reward = b"1" if random.random() < 0.5 else b"0"
    await connection.post("/v1/feedback", b'{"decision":"%s","reward":%s}' % (decision, reward))
    return 2


def _body(rng: np.random.Generator) -> bytes:
    rows = rng.standard_normal((ITEMS, DIM))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    items = [
        {"id": str(k), "features": [round(v, 6) for v in 0.999 * row]} for k, row in enumerate(rows)
    ]
    return json.dumps({"user": f"user-{rng.integers(USERS)}", "items": items}).encode()


BODIES = [_body(np.random.default_rng(seed)) for seed in range(USERS)]


@asynccontextmanager
async def connections(port: int, count: int, token: str) -> AsyncIterator[list[Connection]]:
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    yield [Connection(*pair, token) for pair in pairs]
    for _, writer in pairs:
        writer.close()


async def warm_up(port: int, token: str, visits: int) -> None:
    """Visits in batches: a server in its first thousand visits uploads after nearly every one."""
    async with connections(port, 1, token) as (connection,):
        for _ in range(visits // 500):
            entries = [json.loads(body) for body in random.choices(BODIES, k=500)]
            shown = await connection.post(
                "/v1/recommend/batch", json.dumps({"requests": entries}).encode()
            )
            rewards = [
                {"decision": result["result"]["decision"], "reward": float(random.random() < 0.5)}
                for result in json.loads(shown)["results"]
            ]
            await connection.post("/v1/feedback/batch", json.dumps({"requests": rewards}).encode())


async def throughput(port: int, token: str, play: Round, count: int, seconds: float) -> float:
    """Requests per second with every connection always busy."""

    async def busy(connection: Connection) -> int:
        done = 0
        while time.monotonic() < end:
            done += await play(connection)
        return done

    async with connections(port, count, token) as found:
        start = time.monotonic()
        end = start + seconds
        done = sum(await asyncio.gather(*(busy(connection) for connection in found)))
        return done / (time.monotonic() - start)


async def latency(port: int, token: str, count: int, seconds: float, rate: float) -> dict[str, float]:
    """Seconds of a recommend+feedback request at `rate` requests per second, from its due time."""
    samples: list[float] = []

    async def paced(connection: Connection, offset: float) -> None:
        due, step = time.monotonic() + offset, 2 * count / rate
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await visit(connection)
            samples.append((time.monotonic() - due) / 2)
            due += step

    async with connections(port, count, token) as found:
        end = time.monotonic() + seconds
        await asyncio.gather(*(paced(c, k * 2 / rate) for k, c in enumerate(found)))
    p50, p99 = np.percentile(samples, [50, 99])
    return {"p50_ms": 1e3 * float(p50), "p99_ms": 1e3 * float(p99)}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def saturated(
    pid: int, port: int, token: str, play: Round, count: int, seconds: float
) -> tuple[float, float]:
    """Requests per second, and CPU microseconds of the server per request."""
    before = cpu_seconds(pid)
    rate = asyncio.run(throughput(port, token, play, count, seconds))
    return rate, 1e6 * (cpu_seconds(pid) - before) / (rate * seconds)


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(folder: Path, count: int, seconds: float, warm: int) -> dict[str, Any]:
    port = free_port()
    hello = subprocess.Popen([sys.executable, "-c", HELLO, str(port)])
    values = {
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
        asyncio.run(warm_up(server.port, server.token, warm))
        before = resident_mb(server.process.pid)
        bare, bare_cpu = saturated(hello.pid, port, "", say_hello, count, seconds)
        pid, token = server.process.pid, server.token
        ours, our_cpu = saturated(pid, server.port, token, visit, count, seconds)
        paced = asyncio.run(latency(server.port, server.token, count, seconds, ours / 2))
        after = resident_mb(server.process.pid)
    finally:
        server.stop()
        hello.terminate()
        hello.wait()
    return {
        "hello_per_second": bare,
        "requests_per_second": ours,
        "ratio": ours / bare,
        "cpu_us": [bare_cpu, our_cpu],
        **paced,
        "memory_mb": [before, after],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--warm", type=int, default=10_000, help="visits before the measurement")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps(measure(Path(home), given.connections, given.seconds, given.warm)))
