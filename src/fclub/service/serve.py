"""Puts the parts together and runs them until a signal or a failure ends them."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from starlette.routing import Router

from fclub.errors import InvalidSetting, ServiceFailed
from fclub.service.http.gate import Routes
from fclub.service.http.global_app import GlobalService
from fclub.service.http.local_app import LocalService
from fclub.service.http.server import HttpServer, Limits
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import NatsWire, broker_of
from fclub.service.link.signed import SignedWire
from fclub.service.link.wire import DirectWire, Wire, end
from fclub.service.monitoring import Monitor
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import (
    caution,
    family_of,
    global_node,
    identity_of,
    is_warm,
    join_cohorts,
    lead_cohorts,
    local_node,
    rehearse,
    signers_of,
    stock,
)
from fclub.service.nodes.runner import Deadline, Runner
from fclub.service.reread import Reread, unusable
from fclub.service.settings import GlobalSettings, Http, LocalSettings, Model, Settings
from fclub.service.starting import check_start

Application = tuple[Routes, Runner]

SWITCH_SECONDS = 0.0005
"""Seconds that a finished commit waits at most for the interpreter's lock."""

GARBAGE_AFTER = 50_000
"""New objects after which garbage is looked for: a request makes dozens, all gone with its answer."""

OTHER_FILES = 64
"""Files that a server has open beside its connections, at most."""

MOST_FILES = 65_536
"""Files that a server wants to have open at most; every connection is one."""

KEYS_HINT = "fclub keys add STORE NAME --scopes recommend,feedback"

DAY = 86_400.0
FORGET_EVERY = 60.0


@asynccontextmanager
async def running(runner: Runner, *extra: Any) -> AsyncIterator[None]:
    """A runner and what belongs to it, from start to stop."""
    await runner.start()
    tasks = [asyncio.create_task(work) for work in extra]
    for task in tasks:
        task.add_done_callback(runner.ended)
    try:
        yield
    finally:
        await end(*tasks)
        await runner.stop()


async def _forget_old(node: LocalNode, runner: Runner, days: float) -> None:
    while True:
        before = time.time() - days * DAY
        while node.forget(before):
            await runner.commit()
        await asyncio.sleep(FORGET_EVERY)


async def _assume_missing(node: LocalNode, runner: Runner, settings: LocalSettings) -> None:
    """Rewards that do not come in time count as declared."""
    after, reward = settings.feedback.none_after, settings.model.rewards.to_model(settings.none_is)
    while after is not None:
        await runner.commit()
        while node.rewards.assume(time.time() - after, reward):
            await runner.commit()
        await asyncio.sleep(min(after / 10.0, FORGET_EVERY))


def _warn(model: Model, monitor: Monitor) -> None:
    text = caution(model)
    if text is not None:
        monitor.event(text, logging.WARNING)


def local_app(settings: LocalSettings) -> Application:
    """The application of a local server; without a broker it carries its own global server."""
    check_start(settings)
    monitor, node = Monitor("local"), local_node(settings)
    if not is_warm(settings.model):
        monitor.event("compiling, once per machine and version")
    rehearse(settings.model)
    _warn(settings.model, monitor)
    if settings.catalogue is not None:
        stock(node, settings)
    join_cohorts(node, settings)
    board: dict[str, DirectWire] = {}
    wire: Wire
    if settings.nats.url:
        if family_of(settings.model).privacy is None:
            monitor.event("exact statistics leave this server", logging.WARNING)
        dialled = NatsWire(settings.name, broker_of(settings.nats), monitor)
        wire = SignedWire(dialled, identity_of(settings).secret)
    else:
        wire = DirectWire(settings.name, board)
    runner = Runner(node, wire, monitor, settings.resend_seconds)
    service = LocalService(settings, node, runner, monitor)

    @asynccontextmanager
    async def lifespan(app: Router) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            hub = None
            if not settings.nats.url:
                hub = await stack.enter_async_context(_embedded(settings, board))
            keep = _forget_old(node, runner, settings.keep_decisions_days)
            chores = [keep, service.recorder.run(), service.gate.keys.watch(monitor)]
            if settings.feedback.none_after is not None:
                chores.append(_assume_missing(node, runner, settings))
            await stack.enter_async_context(running(runner, *chores))
            if hub is not None:
                hub.add_done_callback(runner.ended)
            yield

    return service.app(lifespan), runner


@asynccontextmanager
async def _embedded(
    settings: LocalSettings, board: dict[str, DirectWire]
) -> AsyncIterator[asyncio.Future[None]]:
    """The global server of a federation of one; yields what tells of its failure."""
    alone = GlobalSettings(
        model=settings.model, store=f"{settings.store}.global", servers=[settings.name]
    )
    node = global_node(alone)
    runner = Runner(node, DirectWire(GLOBAL, board), Monitor("global"), settings.resend_seconds)
    async with running(runner, Deadline(node, runner, alone.phase_seconds).run()):
        assert runner.failure is not None
        yield runner.failure


def global_app(settings: GlobalSettings) -> Application:
    if not settings.nats.url:
        raise InvalidSetting("nats.url: the global server needs a broker")
    check_start(settings)
    monitor, node = Monitor("global"), global_node(settings)
    lead_cohorts(node, settings)
    _warn(settings.model, monitor)
    broker, replicas = broker_of(settings.nats), settings.nats.replicas
    wire = SignedWire(NatsWire(GLOBAL, broker, monitor, settings.servers, replicas))
    wire.follow(settings.servers, settings.retired, signers_of(settings))
    runner = Runner(node, wire, monitor, settings.resend_seconds)
    service = GlobalService(settings, node, runner, monitor)

    @asynccontextmanager
    async def lifespan(app: Router) -> AsyncIterator[None]:
        deadline = Deadline(node, runner, settings.phase_seconds)
        chores = deadline.run(), service.recorder.run(), service.gate.keys.watch(monitor)
        async with running(runner, *chores):
            yield

    return service.app(lifespan), runner


def serve(
    settings: Settings, make: Callable[[Settings], Application], load: Callable[[], Settings]
) -> None:
    """Run until SIGINT or SIGTERM; SIGHUP reads certificates again through `load`.

    A store that fails ends the process. The address is taken first: if it is not free, nothing is done.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to read again
    http = settings.http
    limits = Limits(_allow_files(http.max_connections))
    listeners = _listen(http)
    app, runner = make(settings)
    context = None if http.socket else _tls(http)
    reread = Reread(settings, load, app.gate, runner)
    reread.context = context
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(_serve(app, limits, runner, listeners, context, reread))


def _tls(http: Http) -> ssl.SSLContext | None:
    if http.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(http.tls_certificate, http.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise unusable(http, error) from None
    return context


def _allow_files(connections: int) -> int:
    """Open as many files as the operator allows, if the soft limit is less.

    Returns how many connections there may be: some files are for the store, the log and the broker.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return (
        connections if soft == resource.RLIM_INFINITY else min(connections, max(1, soft - OTHER_FILES))
    )


def _listen(http: Http) -> list[socket.socket]:
    """Sockets on all addresses of the host; they answer when the server is ready."""
    if http.socket is not None:
        return [_listen_behind(http.socket)]
    found: list[socket.socket] = []
    try:
        for family, kind, _, _, address in socket.getaddrinfo(
            http.host, http.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            if http.port or not found:
                listener = socket.socket(family, kind)
                found.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
    except OSError as error:
        for listener in found:
            listener.close()
        place = f"{http.host}:{http.port}"
        raise InvalidSetting(f"http.port: cannot listen on {place}: {error.strerror}", place) from None
    return found


def _listen_behind(path: str) -> socket.socket:
    """A Unix socket; one that an earlier process left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise InvalidSetting(f"http.socket: cannot listen on {path}: {error.strerror}", path) from None
    return listener


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"


async def _serve(
    app: Routes,
    limits: Limits,
    runner: Runner,
    listeners: list[socket.socket],
    context: ssl.SSLContext | None,
    reread: Reread,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with app.lifespan_context(app):
        server = HttpServer(app, limits, runner.monitor)
        await server.start(listeners, context)
        # What has been imported and loaded stays: to look through it again and again for garbage
        # would stop every request for a tenth of a second.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        loop.add_signal_handler(signal.SIGHUP, reread)
        for listener in listeners:
            runner.monitor.event("listening", address=_address(listener))
        if not app.gate.keys:
            runner.monitor.event(f"nobody has a key yet: {KEYS_HINT}", logging.WARNING)
        assert runner.failure is not None
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopped, runner.failure], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        runner.monitor.stopping = True  # live streams end, which would keep connections open
        await server.stop()
    if runner.failure is not None and runner.failure.done():
        raise ServiceFailed(f"stopped: {runner.failure.exception()}")
