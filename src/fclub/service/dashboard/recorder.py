"""Looks at a server once a second: keeps a history, notices changes, feeds the open pages.

The history holds numbers over time in bounded space: all the time since the start, finer where it is
short. A change of the partition is told in the words that the page shows.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from fclub.service.monitoring import Monitor
from fclub.service.nodes.runner import Runner

Member = tuple[str, int]
"""A local cluster: its server and its id there."""

Partition = dict[Member, int]
"""The global cluster of every local cluster."""


class ClusterChange(NamedTuple):
    """`kind` is split, joined, merged or parted; `text` says what happened."""

    kind: str
    text: str


def compare(old: Partition, new: Partition) -> list[ClusterChange]:
    """Splits and joins inside servers, then merges and partings of clusters of different servers.

    A local cluster whose users change gets a new id, so the global server sees a split only as a
    change of numbers; local clusters are merged when they share a global cluster and did not before.
    """
    return _inside(old, new) + _between(_continued(old, new), new)


def _continued(old: Partition, new: Partition) -> Partition:
    """The only local cluster of a server stays the same to people, also under a new id."""
    before, after = Counter(server for server, _ in old), Counter(server for server, _ in new)
    alone = {member[0]: member for member in new if before[member[0]] == after[member[0]] == 1}
    return {alone.get(member[0], member): group for member, group in old.items()}


def _inside(old: Partition, new: Partition) -> list[ClusterChange]:
    before = Counter(server for server, _ in old)
    after = Counter(server for server, _ in new)
    changes = []
    for server in sorted(before.keys() | after.keys()):
        a, b = before[server], after[server]
        if a and b > a:
            changes.append(ClusterChange("split", f"{server}: {_count(a)} became {b}"))
        elif b < a:
            changes.append(ClusterChange("joined", f"{server}: {_count(a)} became {b}"))
    return changes


def _between(old: Partition, new: Partition) -> list[ClusterChange]:
    changes = []
    for group, members in _groups(new).items():
        together = {old.get(member, member) for member in members}
        if len(members) > 1 and len(together) > 1:
            servers = ", ".join(sorted({server for server, _ in members}))
            text = f"{_count(len(members))} of {servers} share global cluster {group}"
            changes.append(ClusterChange("merged", text))
    for members in _groups(old).values():
        kept = [member for member in members if member in new]
        apart = {new[member] for member in kept}
        if len(apart) > 1:
            text = f"{_count(len(kept))} went to {len(apart)} global clusters"
            changes.append(ClusterChange("parted", text))
    return changes


def _groups(partition: Partition) -> dict[int, list[Member]]:
    groups: dict[int, list[Member]] = {}
    for member, group in partition.items():
        groups.setdefault(group, []).append(member)
    return groups


def _count(number: int) -> str:
    return f"{number} local cluster{'' if number == 1 else 's'}"


LIMIT = 600
STEP = 1.0
JITTER = 0.1
"""Part of a step by which a sample may come early."""

Sample = dict[str, float]
"""Numbers by name; `t` is when, in seconds since 1970."""


class Samples:
    """At most `limit` samples. When it is full every second one goes, and the step doubles."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.step = limit, STEP
        self.samples: list[Sample] = []
        self.last: Sample = {}

    def add(self, sample: Sample) -> None:
        """Keep the sample, unless the last one is too recent for the step.

        Where the clock was set back, what came before moves with it: time on a chart only goes on.
        """
        if self.samples and (ahead := self.samples[-1]["t"] - sample["t"]) > 0.0:
            self.samples = [{**one, "t": round(one["t"] - ahead, 3)} for one in self.samples]
        self.last = sample
        if self.samples and sample["t"] - self.samples[-1]["t"] < self.step * (1.0 - JITTER):
            return
        self.samples.append(sample)
        if len(self.samples) > self.limit:
            self.samples, self.step = self.samples[::2], 2.0 * self.step

    def dump(self) -> str:
        kept = {"step": self.step, "samples": self.samples, "last": self.last}
        return msgspec.json.encode(kept).decode()

    @classmethod
    def load(cls, text: str | None, limit: int = LIMIT) -> Samples:
        """What `dump` wrote, or an empty history."""
        history = cls(limit)
        if text is not None:
            saved: dict[str, Any] = msgspec.json.decode(text)
            history.step, history.samples = float(saved["step"]), list(saved["samples"])
            history.last = saved.get("last", {})
        return history


SAVE_EVERY = 30.0
KEPT_CHANGES = 50
SHOWN_EVENTS = 20
_KEY = "history"
CONTINUED = ("feedback", "reward", "squares")
"""Numbers of a process that go on in the history where the last process ended."""

_encoder = msgspec.json.Encoder()


class View(Protocol):
    """What a page shows of a node."""

    page: str

    def changes(self) -> list[ClusterChange]: ...

    def sample(self) -> Sample: ...

    def state(self) -> dict[str, Any]: ...


class Totals(msgspec.Struct, frozen=True):
    """What a policy has earned so far; `squares` are those of the regret of every visit."""

    reward: float
    regret: float
    squares: float = 0.0


class SimulatedVisitors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Simulated visitors tell what several policies have earned on the same visits."""

    visits: Annotated[int, Meta(ge=0)]
    policies: Annotated[dict[str, Totals], Meta(max_length=8)]


class Recorder:
    """The history is a row of the store's `meta` table, written now and then and at the end."""

    def __init__(self, view: View, runner: Runner, monitor: Monitor) -> None:
        self.view, self.runner, self.monitor = view, runner, monitor
        self.history = Samples.load(runner.node.store.get(_KEY))
        self._before = {key: self.history.last.get(key, 0.0) for key in CONTINUED}
        self.changes: deque[dict[str, Any]] = deque(maxlen=KEPT_CHANGES)
        self.visitors: SimulatedVisitors | None = None
        self._latest: Sample = {}
        self._frame: bytes | None = None
        self._tick = asyncio.Event()

    def sample(self) -> Sample:
        """The view's numbers, and those of the visitors."""
        found = {"t": round(time.time(), 3), **self.view.sample()}
        found |= {key: found[key] + more for key, more in self._before.items() if key in found}
        if self.visitors is not None:
            found["visits"] = self.visitors.visits
            for name, totals in self.visitors.policies.items():
                found[f"reward of {name}"] = totals.reward
                found[f"regret of {name}"] = totals.regret
                found[f"squares of {name}"] = totals.squares
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
        """Put the history, up to now, among the changes that are committed next."""
        self.runner.node.journal.changes.note(_KEY, self.history.dump())

    def frame(self) -> bytes:
        """The event of the current step; made once, however many pages are open."""
        if self._frame is None:
            body = {
                "sample": self._latest,
                "state": self.view.state(),
                "uptime": self.monitor.uptime,
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
