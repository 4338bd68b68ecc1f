"""A node that runs: group commit, sending after commit, sending again what was not confirmed."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b

from fclub.errors import FclubError, NoiseFailed, NotStored
from fclub.service.link.channel import bundled, unbundled
from fclub.service.link.wire import Arrival, Wire, end
from fclub.service.monitoring import ClockWatch, Monitor
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.node import Node, Work
from fclub.service.nodes.patience import Patience

DEADLINE_CHECKS = 10
"""How often the deadline of a phase is looked at while it runs."""

PAUSE_SECONDS = 0.002
"""How long a commit waits at most for requests that are about to come.

A client that was answered asks again. Without a wait the first of them would have a commit alone, and
all others would wait for that one and for their own.
"""

PART = 0.5
"""The commit waits for this part of the requests of a moment; the others are worked on meanwhile."""

KEPT = 0.95
"""Requests of a moment are the most that lately waited; after a commit so much of that number stays."""

TURNS = 2
"""Turns of the event loop that the commit leaves to requests which are being read."""

MANY = 64
"""Requests that fill a commit: it does not wait for more."""

NICE = 10
"""A thread so nice gets a tenth of a core that another one wants."""


def give_way() -> None:
    """Let this thread have the cores that nobody else wants.

    Linux alone has priorities of threads; elsewhere this would be the process.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


NO_MORE = "nothing is stored any more"

Stored = Callable[[NotStored | None], None]
"""Called when everything up to some point is on disk, or cannot get there any more."""


class Runner:
    """Runs one node on this event loop.

    What fails unexpectedly is fatal, since memory may then be ahead of the disk: `failure` says so, and
    nothing is acknowledged any more.
    """

    def __init__(self, node: Node, wire: Wire, monitor: Monitor, resend_seconds: float = 1.0) -> None:
        self.node, self.wire, self.monitor = node, wire, monitor
        self.resend_seconds = resend_seconds
        self.failure: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._sums = ThreadPoolExecutor(1, thread_name_prefix="sums", initializer=give_way)
        self._told = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="work", initializer=give_way)
        self._wake, self._busy = asyncio.Event(), asyncio.Event()
        self._stopping = False
        self._work: asyncio.Task[None] | None = None
        self._waiting: list[Stored] = []
        self._enough, self._lately = asyncio.Event(), 0.0
        self._storing: list[Stored] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._attempt = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.failure = loop.create_future()
        for work in (self._commit_forever(), self._resend_forever(), self._add_up_forever()):
            task = asyncio.create_task(work)
            task.add_done_callback(self.ended)
            self._tasks.append(task)
        self._work = asyncio.create_task(self._work_on())
        self._work.add_done_callback(self._worked)
        await self.commit()
        await self.wire.start(self._deliver, self._connected)

    def _connected(self) -> None:
        self.node.sessions.connected()
        self._wake.set()

    def wake(self) -> None:
        """Store and send what the node has done so far."""
        self._wake.set()

    def ended(self, task: asyncio.Future[None]) -> None:
        """Note the end of a task that should never end: unless it was cancelled, it has failed."""
        if not task.cancelled():
            self.fail(task.exception() or RuntimeError("a loop has ended"))

    def _worked(self, task: asyncio.Future[None]) -> None:
        error = task.exception()
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Store and send nothing more, as something may be half done; end the waits of all requests."""
        assert self.failure is not None
        if not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # looked at: asyncio would log its words, which may be data
            reason = error.__cause__ if isinstance(error.__cause__, NoiseFailed) else error
            facts = self.node.store.describe(reason)
            self.monitor.event("failed", logging.ERROR, error=type(reason).__name__, **facts)
        waiting, self._storing, self._waiting = self._storing + self._waiting, [], []
        for stored in waiting:
            self.failure.get_loop().call_soon(stored, NotStored(NO_MORE))

    @property
    def _failed(self) -> bool:
        return self.failure is not None and self.failure.done()

    def when_stored(self, stored: Stored) -> None:
        """Have this called when everything that the node has done so far is on disk."""
        if self._failed:
            stored(NotStored(NO_MORE))
            return
        self._waiting.append(stored)
        self._wake.set()
        if len(self._waiting) >= PART * self._lately:
            self._enough.set()

    async def commit(self) -> None:
        """Return when everything that the node has done so far is on disk."""
        waiter = asyncio.get_running_loop().create_future()

        def stored(error: NotStored | None) -> None:
            if waiter.done():
                return
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        self.when_stored(stored)
        await waiter

    async def erased(self) -> None:
        """Return when no forgotten user is left in the log or a snapshot."""
        left = True
        while left:
            left = self.node.journal.erasing
            await self.commit()

    async def _work_on(self) -> None:
        """Long work beside serving: compiled code, during which the interpreter's lock is free.

        Each part is an entry of the log. It is computed from a copy and need not wait for the disk: if
        the entry is not stored, nothing that came after it is.
        """
        loop = asyncio.get_running_loop()
        while not self._stopping:
            await self._busy.wait()
            self._busy.clear()
            while (part := self._next_part()) is not None:
                self._wake.set()
                await loop.run_in_executor(self._worker, part)

    def _next_part(self) -> Work | None:
        if self._stopping or self._failed:
            return None
        return self.node.part()

    async def _commit_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            await self._gather()
            self._wake.clear()
            if self._failed:
                return
            if self.node.journal.save_some():
                self._wake.set()
            if self.node.busy or self.node.journal.erasing:
                self._busy.set()
            changes = self.node.take()
            self._storing, self._waiting = self._waiting, []
            if changes.statements:
                # Statements run here, since in another thread each would wait for the interpreter's
                # lock; only the wait for the disk is worth a thread.
                self.node.store.stage(changes.statements)
                await loop.run_in_executor(self._thread, self.node.store.commit)
                if changes.erase:
                    await loop.run_in_executor(self._thread, self.node.store.erase)
            self.node.committed(changes)
            storing, self._storing = self._storing, []
            self._lately = max(len(storing) + len(self._waiting), KEPT * self._lately)
            for stored in storing:
                loop.call_soon(stored, None)
            for notice in changes.notices:
                self.monitor.event(notice, logging.WARNING)
            for peer, frames in changes.frames_by_peer().items():
                for message in bundled(self.node.name, frames):
                    await self._send(peer, message)
            for peer, letter in changes.letters + list(changes.receipts.items()):
                await self.wire.send(peer, letter, None)

    async def _gather(self) -> None:
        """Let everybody who is here by now share a commit, and wait a moment for others."""
        there = 0
        while there < len(self._waiting) < MANY:
            there = len(self._waiting)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        if 0 < len(self._waiting) < PART * self._lately:
            self._enough.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._enough.wait()

    async def _resend_forever(self) -> None:
        """Say again what was not answered; see after a channel that has not moved for a while."""
        patience: dict[str, Patience] = {}
        watch = ClockWatch()
        while True:
            await asyncio.sleep(self.resend_seconds)
            if jump := watch.jump():
                self.monitor.event("the clock was set", logging.WARNING, by_seconds=round(jump))
            if self.node.tick():
                self._wake.set()
            if not self.wire.connected:
                continue
            again = self.node.sessions.tick()
            for channel in self.node.channels:
                place, waiting = (channel.ordinal, channel.confirmed), channel.sent - channel.confirmed
                over = patience.setdefault(channel.peer, Patience()).ends(place, waiting)
                if over and self.node.sessions.stuck(channel):
                    self.monitor.resent(channel.peer, waiting)
                    again = True
            if again:
                self._attempt += 1
                self._wake.set()

    async def _add_up_forever(self) -> None:
        """Take part in secure sums: what they compute runs beside serving, one step at a time."""
        side = self.node.cohort
        while side is not None:
            compute = side.next()
            if compute is not None:
                side.done(await asyncio.get_running_loop().run_in_executor(self._sums, compute))
            self._wake.set()
            if not side.waiting or compute is None:
                self._told.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.resend_seconds / 4.0):
                        await self._told.wait()
        await asyncio.Event().wait()

    async def _send(self, peer: str, message: bytes) -> None:
        """The message id lets a broker drop what a reconnecting client repeats, not a new attempt."""
        digest = blake2b(message, digest_size=12).hexdigest()
        await self.wire.send(peer, message, f"{digest}-{self._attempt}")

    async def _deliver(self, arrivals: list[Arrival]) -> None:
        """Apply what arrived in one transaction and return when it is on disk."""
        for sender, data in arrivals:
            for frame in unbundled(data, sender):
                self._receive(sender, frame)
        self._told.set()
        await self.commit()

    def _receive(self, sender: str, frame: bytes) -> None:
        try:
            self.node.receive(sender, frame)
        except NoiseFailed as error:
            self.fail(error)
            raise
        except FclubError as error:
            self.monitor.refused(sender, error)
        except Exception as error:
            self.fail(error)
            raise

    async def _end_work(self) -> None:
        """After the part that is being computed: a snapshot has to know its result."""
        self._stopping = True
        self._busy.set()
        if self._work is not None:
            await asyncio.wait({self._work})

    async def stop(self) -> None:
        """Leave a snapshot behind and close everything."""
        try:
            await self.wire.stop()
            await self._end_work()
            if not self._failed:
                self.node.journal.snapshot()
                with suppress(NotStored):
                    await self.commit()
        finally:
            await self._end_work()
            await end(*self._tasks)
            self._thread.shutdown()
            self._worker.shutdown()
            self._sums.shutdown()
            self.node.store.close()


class Deadline:
    """Closes a phase that has waited long enough, so that an absent server does not stop the others."""

    def __init__(self, node: GlobalNode, runner: Runner, seconds: float) -> None:
        self.node, self.runner, self.seconds = node, runner, seconds

    async def run(self) -> None:
        phase, since = 0, time.monotonic()
        while True:
            await asyncio.sleep(self.seconds / DEADLINE_CHECKS)
            server = self.node.server
            if not server.missing or server.phase != phase:
                phase, since = server.phase, time.monotonic()
            elif time.monotonic() - since >= self.seconds or not self.node.members.missing:
                absent = [self.node.names[number] for number in sorted(server.missing)]
                self.runner.monitor.event("phase closed", phase=phase, absent=absent)
                self.node.close_phase()
                await self.runner.commit()
