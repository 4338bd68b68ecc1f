"""`fclub local --shards N`: the shards as processes, and the router in front of them."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import signal
import ssl
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import uvloop

from fclub.errors import Gone, InvalidSetting, ServiceFailed
from fclub.service.monitoring import Monitor
from fclub.service.reread import renew
from fclub.service.settings import LocalSettings
from fclub.service.shards.front import Front
from fclub.service.shards.homes import homes_of, name_of, store_of
from fclub.service.shards.relay import Request, Server
from fclub.service.shards.router import Router
from fclub.service.starting import check_start

READY_SECONDS = 120.0
STOP_SECONDS = 20.0
PAUSES = (0.5, 2.0, 10.0, 30.0)
"""Seconds before a shard that ended is started again, growing as long as it ends soon."""

_PDEATHSIG = 1

Load = Callable[[], LocalSettings]


def run_site(site: LocalSettings, count: int, given: Sequence[str], load: Load) -> None:
    """Run until SIGINT or SIGTERM; `given` are the options that a shard shares with its site."""
    if not site.nats.url:
        raise InvalidSetting("nats.url: shards learn from each other through a broker")
    check_start(site)
    homes = homes_of(Path(site.store), count)
    with tempfile.TemporaryDirectory(prefix="fclub-") as folder:
        monitor = Monitor("site")
        stores = [str(store_of(Path(site.store), n)) for n in range(homes.shards)]
        shards = [Shard(site, n, stores, Path(folder), given, monitor) for n in range(homes.shards)]
        router = Router(homes, [Server(shard.name, shard.socket) for shard in shards], monitor)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            loop.run(_run(site, shards, router, load, monitor))


async def _run(
    site: LocalSettings, shards: list[Shard], router: Router, load: Load, monitor: Monitor
) -> None:
    loop, http, stopping = asyncio.get_running_loop(), site.http, asyncio.Event()
    context = _tls(site)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)

    def reread() -> None:
        """Every shard reads its tokens again; the certificate is the router's."""
        for shard in shards:
            shard.send(signal.SIGHUP)
        try:
            if context is not None:
                renew(context, load().http)
        except InvalidSetting as error:
            monitor.event("certificate not read again", logging.ERROR, error=str(error))

    keep = [asyncio.create_task(shard.keep_running()) for shard in shards]
    try:
        async with asyncio.timeout(READY_SECONDS):
            await asyncio.gather(*map(_ready, router.shards))
        server = await loop.create_server(
            lambda: Front(router, http.max_body_bytes),
            http.host,
            http.port,
            ssl=context,
        )
        loop.add_signal_handler(signal.SIGHUP, reread)
        monitor.event("listening", address=f"{http.host}:{http.port}", shards=len(shards))
        await stopping.wait()
        server.close()
    except TimeoutError:
        raise ServiceFailed("the shards did not get ready") from None
    except OSError as error:
        place = f"{http.host}:{http.port}"
        raise InvalidSetting(f"http.port: cannot listen on {place}: {error.strerror}", place) from None
    finally:
        for task in keep:
            task.cancel()
        await asyncio.gather(*keep, return_exceptions=True)
        await asyncio.gather(*(shard.stop() for shard in shards))


def _tls(site: LocalSettings) -> ssl.SSLContext | None:
    if site.http.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    renew(context, site.http)
    return context


async def _ready(shard: Server) -> None:
    while True:
        with suppress(Gone):
            if (await shard.ask(Request(b"GET", b"/readyz", [], b""))).status == 200:
                return
        await asyncio.sleep(0.05)


class Shard:
    """An ordinary local server with a store, a name and an account of its own, kept running."""

    def __init__(
        self,
        site: LocalSettings,
        number: int,
        stores: list[str],
        folder: Path,
        given: Sequence[str],
        monitor: Monitor,
    ) -> None:
        self._monitor = monitor
        self.name, self.socket = name_of(site.name, number), str(folder / f"{number}.socket")
        own = {
            "name": self.name,
            "store": stores[number],
            "shard": str(number),
            "shard_stores": json.dumps(stores),
            "http.socket": self.socket,
        }
        if site.nats.user:
            own["nats.user"] = name_of(site.nats.user, number)
        settings = [f"--set={key}={value}" for key, value in own.items()]
        self._command = [sys.executable, "-m", "fclub", "local", *given, *settings]
        self._process: asyncio.subprocess.Process | None = None

    async def keep_running(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            begun = loop.time()
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, preexec_fn=_end_with_parent
            )
            code = await self._process.wait()
            failures = 0 if loop.time() - begun > READY_SECONDS else failures + 1
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            facts = {"name": self.name, "code": code, "seconds": pause}
            self._monitor.event("a shard ended and is started again", logging.ERROR, **facts)
            await asyncio.sleep(pause)

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        self.send(signal.SIGTERM)
        if self._process is not None:
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def _end_with_parent() -> None:
    """A shard whose router was killed would keep its store locked: on Linux it ends as well."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
