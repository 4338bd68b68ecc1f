"""Looks at a server once a second: keeps a history, notices changes, feeds the open pages.

The history holds numbers over time in bounded space: all the time since the start, finer where it is
short.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from fclub.service.dashboard.partition import Change
from fclub.service.monitoring import Monitor
from fclub.service.nodes.runner import Runner

LIMIT = 600
STEP = 1.0
JITTER = 0.1
"""Part of a step by which a sample may come early."""

Sample = dict[str, float]
"""Numbers by name; `t` is when, in seconds since 1970."""


class History:
    """At most `limit` samples. When it is full every second one goes, and the step doubles."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.step = limit, STEP
        self.samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Keep the sample, unless the last one is too recent for the step."""
        if self.samples and sample["t"] - self.samples[-1]["t"] < self.step * (1.0 - JITTER):
            return
        self.samples.append(sample)
        if len(self.samples) > self.limit:
            self.samples, self.step = self.samples[::2], 2.0 * self.step

    def dump(self) -> str:
        return msgspec.json.encode({"step": self.step, "samples": self.samples}).decode()

    @classmethod
    def load(cls, text: str | None, limit: int = LIMIT) -> History:
        """What `dump` wrote, or an empty history."""
        history = cls(limit)
        if text is not None:
            saved: dict[str, Any] = msgspec.json.decode(text)
            history.step, history.samples = float(saved["step"]), list(saved["samples"])
        return history


SAVE_EVERY = 30.0
KEPT_CHANGES = 50
SHOWN_EVENTS = 20
_KEY = "history"

_encoder = msgspec.json.Encoder()


class View(Protocol):
    """What a page shows of a node."""

    page: str

    def changes(self) -> list[Change]: ...

    def sample(self) -> Sample: ...

    def state(self) -> dict[str, Any]: ...


class Totals(msgspec.Struct, frozen=True):
    """What a policy has earned so far."""

    reward: float
    regret: float


class Visitors(msgspec.Struct, frozen=True):
    """Simulated visitors tell what several policies have earned on the same visits."""

    visits: Annotated[int, Meta(ge=0)]
    policies: Annotated[dict[str, Totals], Meta(max_length=8)]


class Recorder:
    """The history is a row of the store's `meta` table, written now and then and at the end."""

    def __init__(self, view: View, runner: Runner, monitor: Monitor) -> None:
        self.view, self.runner, self.monitor = view, runner, monitor
        self.history = History.load(runner.node.store.get(_KEY))
        self.changes: deque[dict[str, Any]] = deque(maxlen=KEPT_CHANGES)
        self.visitors: Visitors | None = None
        self._latest: Sample = {}
        self._frame: bytes | None = None
        self._tick = asyncio.Event()

    def sample(self) -> Sample:
        """The view's numbers, and those of the visitors."""
        found = {"t": round(time.time(), 3), **self.view.sample()}
        if self.visitors is not None:
            found["visits"] = self.visitors.visits
            for name, totals in self.visitors.policies.items():
                found[f"reward of {name}"] = totals.reward
                found[f"regret of {name}"] = totals.regret
        return found

    def look(self) -> None:
        """One step: notice, remember, wake the open pages."""
        for change in self.view.changes():
            self.changes.append({"at": time.time(), **change._asdict()})
            self.monitor.event(change.kind, what=change.text)
        self._latest, self._frame = self.sample(), None
        self.history.add(self._latest)
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    async def run(self) -> None:
        saved = time.monotonic()
        try:
            while True:
                self.look()
                if time.monotonic() - saved >= SAVE_EVERY:
                    saved = time.monotonic()
                    self.save()
                    await self.runner.commit()
                await asyncio.sleep(STEP)
        finally:
            self.save()

    def save(self) -> None:
        """Put the history among the changes that are committed next."""
        self.runner.node.changes.note(_KEY, self.history.dump())

    def frame(self) -> bytes:
        """The event of the current step; made once, however many pages are open."""
        if self._frame is None:
            body = {
                "sample": self._latest,
                "state": self.view.state(),
                "started": self.monitor.started,
                "connected": self.runner.wire.connected,
                "changes": list(self.changes),
                "events": list(self.monitor.recent)[-SHOWN_EVENTS:],
                "visitors": self.visitors,
            }
            self._frame = _event("now", body)
        return self._frame

    async def stream(self) -> AsyncIterator[bytes]:
        """The history, then an event a step until the process is about to stop."""
        yield _event("history", self.history.samples)
        while not self.monitor.stopping:
            yield self.frame()
            await self._tick.wait()


def _event(name: str, body: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(body) + b"\n\n"
