"""Settings, tokens and items that the tests of the service share."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvloop

from fclub.service.http.gate import Routes
from fclub.service.http.keys import ADMIN as ADMIN_SCOPE
from fclub.service.http.keys import METRICS, SCOPES, SIMULATE, KeyFile, keys_of
from fclub.service.http.server import HttpServer, Limits
from fclub.service.serve import local_app
from fclub.service.settings import Http, LocalSettings, Model

DIM = 4
TOKEN, ADMIN_TOKEN, METRICS_TOKEN = "application-token", "admin-token", "metrics-token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
ITEMS = [{"id": str(k), "features": [0.1 * k] + [0.0] * (DIM - 1)} for k in range(3)]
LIMITS = Limits(stop_seconds=3.0)
HTTP = Http(
    simulated=True,
    max_items=20,
    max_batch=10,
    max_body_bytes=20_000,
)


def with_keys(store: str | Path) -> str:
    """Make the keys of all tests for a store."""
    file = KeyFile(keys_of(store))
    everything = (*SCOPES, SIMULATE)
    file.add("application", [one for one in everything if one != ADMIN_SCOPE], token=TOKEN)
    file.add("admin", everything, token=ADMIN_TOKEN)
    file.add("prometheus", [METRICS], token=METRICS_TOKEN)
    return str(store)


def local_settings(path: Path, **changes: Any) -> LocalSettings:
    given: dict[str, Any] = {"model": Model(dim=DIM), "store": str(path / "local.db"), "http": HTTP}
    found = LocalSettings(**(given | changes))
    with_keys(found.store)
    return found


def offer(rng: np.random.Generator, count: int = 5, dim: int = DIM) -> list[dict[str, Any]]:
    rows = rng.standard_normal((count, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return [{"id": f"item-{k}", "features": row.tolist()} for k, row in enumerate(rows)]


class Wire:
    """A transport that remembers what it was told."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed, self.reading = False, True

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def fclub(*words: str, **options: Any) -> subprocess.Popen[str]:
    """A command that runs; the options are those of a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "fclub", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Return as soon as it holds; the limit is for machines that are busy with other things."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {seconds:g} s"
        time.sleep(0.005)


def visit(client: httpx.Client, seed: int, reward: float = 1.0) -> None:
    """One of three users is offered items, and what it is shown earns the reward."""
    items = offer(np.random.default_rng(seed))
    shown = client.post("/v1/recommend", json={"user": f"u{seed % 3}", "items": items}).json()
    client.post("/v1/feedback", json={"decision": shown["decision"], "reward": reward})


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where the system has such a place: these tests commit often, and disks are slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@contextmanager
def serving(
    app: Routes,
    limits: Limits = LIMITS,
    context: ssl.SSLContext | None = None,
    verify: ssl.SSLContext | bool = True,
) -> Iterator[httpx.Client]:
    """The application on a real port, in a thread, with its start and stop."""
    listener = socket.create_server(("127.0.0.1", 0))
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with app.lifespan_context(app):
            server = HttpServer(app, limits, app.gate.monitor)
            await server.start([listener], context)
            started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()
            app.gate.monitor.stopping = True
            await server.stop()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    loop, stop = started.result()
    try:
        scheme = "http" if context is None else "https"
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, headers=HEADERS, timeout=120, verify=verify) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        listener.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    """A local server that carries its own global server."""
    with serving(local_app(local_settings(tmp_path))[0]) as client:
        yield client
