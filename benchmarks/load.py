"""A load generator that costs little: it shares the machine with the server that it measures.

Requests are prepared bytes on kept-alive connections of uvloop; of an answer only the status and the
length are read.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import numpy as np

DIM, ITEMS, USERS = 10, 10, 1000

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One request at a time; the answer to anything but success is an error."""

    def __init__(self, token: str) -> None:
        self._head = f" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n".encode()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and length is not None and len(body) == int(length[1]):
            self._received = b""
            if head.startswith(b"HTTP/1.1 200"):
                self._answer.set_result(body)
            else:
                self._answer.set_exception(RuntimeError(f"{head!r} {body!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server went away"))

    def post(self, path: bytes, body: bytes) -> asyncio.Future[bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        self._transport.write(b"POST " + path + self._head + length + body)
        return self._answer

    def close(self) -> None:
        self._transport.close()


Round = Callable[[Connection], Awaitable[int]]
"""Something to do again and again; returns the number of its requests."""

Timed = Callable[[Connection, float], Awaitable[list[float]]]
"""The same, but returns how long its requests took; it was due at the given time."""


def _body(rng: np.random.Generator) -> bytes:
    rows = rng.standard_normal((ITEMS, DIM))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    items = [
        {"id": str(k), "features": [round(v, 6) for v in 0.999 * row]} for k, row in enumerate(rows)
    ]
    return json.dumps({"user": f"user-{rng.integers(USERS)}", "items": items}).encode()


BODIES = [_body(np.random.default_rng(seed)) for seed in range(USERS)]


async def say_hello(connection: Connection) -> int:
    """The bytes of a recommendation to an endpoint that does nothing with them."""
    await connection.post(b"/", random.choice(BODIES))
    return 1


def feedback_on(shown: bytes) -> bytes:
    decision = shown[shown.index(b'"decision":"') + 12 :][:32]
    reward = b"1" if random.random() < 0.5 else b"0"
    return b'{"decision":"%s","reward":%s}' % (decision, reward)


async def visit(connection: Connection) -> int:
    """A recommendation and its feedback: two requests."""
    shown = await connection.post(b"/v1/recommend", random.choice(BODIES))
    await connection.post(b"/v1/feedback", feedback_on(shown))
    return 2


async def forgetful_visit(connection: Connection) -> int:
    """One recommendation in ten is never answered."""
    shown = await connection.post(b"/v1/recommend", random.choice(BODIES))
    if random.random() < 0.1:
        return 1
    await connection.post(b"/v1/feedback", feedback_on(shown))
    return 2


def _offer_to(users: int) -> bytes:
    """The bytes of a recommendation for any of so many users."""
    _, items = random.choice(BODIES).split(b",", 1)
    return b'{"user": "user-%d",%s' % (random.randrange(users), items)


def crowd_visit(users: int) -> Round:
    """A visit of any of so many users."""

    async def play(connection: Connection) -> int:
        shown = await connection.post(b"/v1/recommend", _offer_to(users))
        await connection.post(b"/v1/feedback", feedback_on(shown))
        return 2

    return play


def timed_crowd_visit(users: int) -> Timed:
    """The same with times: of the recommendation from when it was due, then of the feedback."""

    async def play(connection: Connection, due: float) -> list[float]:
        shown = await connection.post(b"/v1/recommend", _offer_to(users))
        answered = time.monotonic()
        await connection.post(b"/v1/feedback", feedback_on(shown))
        return [answered - due, time.monotonic() - answered]

    return play


@asynccontextmanager
async def connections(port: int, count: int, token: str) -> AsyncIterator[list[Connection]]:
    loop = asyncio.get_running_loop()
    found = [
        (await loop.create_connection(lambda: Connection(token), "127.0.0.1", port))[1]
        for _ in range(count)
    ]
    yield found
    for connection in found:
        connection.close()


async def warm_up(port: int, token: str, visits: int) -> None:
    """Visits in batches: a server in its first thousand visits uploads after nearly every one."""
    async with connections(port, 1, token) as (connection,):
        for _ in range(visits // 500):
            entries = b",".join(random.choices(BODIES, k=500))
            shown = await connection.post(b"/v1/recommend/batch", b'{"requests":[%s]}' % entries)
            rewards = [
                {"decision": result["result"]["decision"], "reward": float(random.random() < 0.5)}
                for result in json.loads(shown)["results"]
            ]
            await connection.post(b"/v1/feedback/batch", json.dumps({"requests": rewards}).encode())


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


async def timed_hello(connection: Connection, due: float) -> list[float]:
    await connection.post(b"/", random.choice(BODIES))
    return [time.monotonic() - due]


async def timed_visit(connection: Connection, due: float) -> list[float]:
    """A recommendation's time runs from when it was due, the feedback's from the answer before it."""
    shown = await connection.post(b"/v1/recommend", random.choice(BODIES))
    answered = time.monotonic()
    await connection.post(b"/v1/feedback", feedback_on(shown))
    return [answered - due, time.monotonic() - answered]


async def latencies(
    port: int, token: str, play: Timed, count: int, seconds: float, rate: float
) -> list[float]:
    """Seconds of each request; `rate` plays per second come when they are due, come what may."""
    samples: list[float] = []

    async def paced(connection: Connection, offset: float) -> None:
        due, step = time.monotonic() + offset, count / rate
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            samples.extend(await play(connection, due))
            due += step

    async with connections(port, count, token) as found:
        end = time.monotonic() + seconds
        await asyncio.gather(*(paced(c, k / rate) for k, c in enumerate(found)))
    return samples
