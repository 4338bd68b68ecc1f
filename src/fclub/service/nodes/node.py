"""What both kinds of nodes are: a server with a journal of its steps and sessions with its peers.

Whatever changes a server is an `Entry`. Live it is applied and then logged; a replay applies the same
object, read from the log. What has to be stored gathers in the journal's `changes`; the node's owner
commits them, and only then answers and sends.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sized
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np

from fclub.cohorts.members import MemberList
from fclub.cohorts.messages import Step
from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.errors import InvalidFile
from fclub.privacy.ledger import CostOf
from fclub.privacy.noise import DiscreteNoise, NoiseSource, NoNoise
from fclub.protocol.interfaces.learner import State
from fclub.service.link.channel import Channel
from fclub.service.store.backup import INCARNATION_BYTES
from fclub.service.store.snapshots import ROWS_AT_ONCE, Snapshot, drop_unfinished, read_snapshot
from fclub.service.store.store import Changes, Store

SNAPSHOT_EVERY = 20_000
"""Log entries between snapshots, which a restart has to replay."""


class RecordedNoise:
    """Draws from a source and remembers; during a replay it only gives back what was remembered.

    To draw again for the same data would be a second release of it.
    """

    def __init__(self, source: NoiseSource) -> None:
        self.source, self.seeded = source, source.seeded
        self.cost: CostOf | None = source.cost if isinstance(source, DiscreteNoise) else None
        self._drawn: list[bytes] = []
        self._replayed: bytes | None = None

    def integers(self, deviations: Floats) -> Whole:
        if isinstance(self.source, NoNoise):
            return self.source.integers(deviations)
        if self._replayed is not None:
            return self._again(np.shape(deviations))
        drawn = self.source.integers(deviations)
        self._drawn.append(drawn.tobytes())
        return drawn

    def _again(self, shape: tuple[int, ...]) -> Whole:
        size = 8 * prod(shape)
        data, self._replayed = self._replayed[:size], self._replayed[size:]  # type: ignore[index]
        if len(data) != size:
            raise InvalidFile("the log does not hold the noise that its entries have drawn")
        return np.frombuffer(data, dtype=np.int64).reshape(shape).copy()

    def take(self) -> bytes:
        """What was drawn since the last call."""
        drawn, self._drawn = b"".join(self._drawn), []
        return drawn

    def replay(self, noise: bytes | None) -> None:
        """Give these draws back; None ends the replay."""
        if self._replayed:
            raise InvalidFile("the log holds noise that no entry has drawn")
        self._replayed = noise


class Entry(ABC):
    """One step of a node, as the log holds it: its kind, where it comes from, and bytes."""

    kind: ClassVar[str]

    @property
    def source(self) -> str:
        return ""

    def body(self) -> bytes:
        return b""

    @classmethod
    @abstractmethod
    def read(cls, source: str, body: bytes) -> Entry:
        """The entry that was logged as this."""

    @abstractmethod
    def apply(self, node: Any) -> Any:
        """Do it to the node; nothing is logged or sent by this."""

    def replay(self, node: Any) -> None:
        """Do all of it again: what `apply` leaves to its caller as well."""
        self.apply(node)


class Empty(Entry):
    """An entry that its kind says all about."""

    @classmethod
    def read(cls, source: str, body: bytes) -> Entry:
        return cls()


class Recorded(Protocol):
    """What a journal needs of its node: a state, and the channels whose frames a replay makes again."""

    @property
    def by_user(self) -> tuple[str, ...]:
        """Arrays of the state of which only the rows in `touched` have changed."""

    @property
    def channels(self) -> list[Channel]: ...

    def state(self) -> State: ...

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None: ...

    def take(self) -> Changes: ...


class Journal:
    """Applies and logs entries, writes snapshots little by little, and leads back to the last state.

    `touched` are rows of users that have changed since the last snapshot, `forgotten` those whose data
    has to leave the log; `working` tells that a part of the server's work was taken and is not done.
    """

    def __init__(self, node: Recorded, store: Store, noise: RecordedNoise) -> None:
        self._node, self.store, self.noise = node, store, noise
        self.changes = Changes()
        self.charge: Callable[[Changes], None] = lambda changes: None
        """Stores what an entry has charged to a ledger without a message."""
        self.entry = self.snapshot_entry = 0
        self.touched: set[int] = set()
        self.forgotten: set[int] = set()
        self.working = False
        self._kept: tuple[str, ...] = ()
        self._saving: Snapshot | None = None
        self._erasing: set[int] = set()

    def do(self, entry: Entry) -> Any:
        """Apply an entry and log it."""
        result = entry.apply(self._node)
        self.log(entry)
        return result

    def log(self, entry: Entry) -> None:
        """Log an entry that was applied, with the noise that it drew and what it charged."""
        self.charge(self.changes)
        self.entry += 1
        columns = entry.kind, entry.source, entry.body(), self.noise.take()
        self.changes.log(self.entry, self.snapshot_entry, *columns)
        self.save_if_due()

    def take(self) -> Changes:
        """What has to be committed now."""
        changes, self.changes = self.changes, Changes()
        return changes

    def send_again(self, channel: Channel) -> None:
        """All frames that are not confirmed, as they are stored."""
        for sequence, frame in self.store.outbox(channel.peer):
            if sequence > channel.confirmed:
                self.changes.frames.append((channel.peer, frame))

    def save(self) -> None:
        """Begin a snapshot, unless one is being written or the state lacks a part that was taken."""
        if self._saving is None and not self.working:
            self.begin_saving()
            self.save_some()

    def save_if_due(self) -> None:
        """Begin one when a restart would have much to replay."""
        if self.entry - self.snapshot_entry >= SNAPSHOT_EVERY:
            self.save()

    def begin_saving(self) -> None:
        """Copy the state, to be written little by little."""
        state, by_user = self._node.state(), self._node.by_user
        users = len(state[0][by_user[0]]) if by_user else 0
        rows = self.touched if by_user == self._kept else range(users)
        changed = np.array(sorted(rows), dtype=np.int64)
        self._saving = Snapshot(self.entry, self.snapshot_entry, state, by_user, changed)
        self._kept, self.touched = by_user, set()
        self._erasing, self.forgotten = self.forgotten, set()

    def save_some(self, most: int | None = ROWS_AT_ONCE) -> bool:
        """Put the next rows of a snapshot among the changes; whether there are more to come."""
        if self._saving is None and self.forgotten:
            self.save()
        elif self._saving is not None and self._saving.write(self.changes, most):
            self.snapshot_entry, self._saving = self._saving.entry, None
            if self._erasing:
                self.changes.forget_rows(self._erasing, self.snapshot_entry)
                self._erasing = set()
        return self._saving is not None

    @property
    def saving(self) -> bool:
        return self._saving is not None

    @property
    def erasing(self) -> bool:
        """Whether a forgotten user is still in the log or in a snapshot."""
        return bool(self.forgotten or self._erasing)

    def snapshot(self) -> None:
        """Write the whole state now, so that the log before it is not needed any more."""
        while self.save_some(None):
            pass
        self.begin_saving()
        self.save_some(None)

    def recover(self, kinds: Mapping[str, type[Entry]]) -> Changes:
        """Snapshot, then the log on top of it; nothing that this produces is sent or stored again.

        Returns what the replay has produced, which has to be what is stored.
        """
        saved = read_snapshot(self.store)
        if saved is not None:
            self.entry = self.snapshot_entry = saved.entry
            self._kept = saved.by_user
            self._node.restore(saved.arrays, saved.values)
        for number, kind, source, body, noise in self.store.entries(self.entry):
            if kind not in kinds:
                raise InvalidFile(f"{self.store.path} has a log entry of kind {kind!r}")
            self.noise.replay(noise)
            kinds[kind].read(source, body).replay(self._node)
            self.charge(self.changes)
            self.entry = number
        self.noise.replay(None)
        changes = self._node.take()
        if saved is not None and saved.unfinished:
            drop_unfinished(saved.entry, self.changes)
        for channel in self._node.channels:
            made = [frame for peer, frame in changes.frames if peer == channel.peer]
            if channel.ordinal:
                channel.recover(*self.store.compare_outbox(channel.peer, channel.sent, made))
        return changes


Work = Callable[[], None]

Clock = Callable[[], float]
"""Tells seconds since 1970; one for a whole node, so that tests need not wait."""


class Sessions(Protocol):
    """How a node agrees with its peers on where both stand."""

    def connected(self) -> None:
        """The wire is there, at last or again: find out where the other side stands."""

    def tick(self) -> bool:
        """Say again what has not been answered; whether there is something to send."""

    def stuck(self, channel: Channel) -> bool:
        """Messages of this channel were not confirmed for a while; whether that leads to anything."""


class Cohorts(Protocol):
    """A node's part in secure sums."""

    @property
    def waiting(self) -> Sized:
        """Messages that were not looked at yet."""

    def accept(self, members: MemberList) -> None:
        """Go on with another member list."""

    def next(self) -> Callable[[], Step] | None:
        """What is to be computed now; it may run in another thread, before `done`."""

    def done(self, step: Step) -> None:
        """Store what it has led to, and send after that."""


class Node(ABC):
    """Frames in, changes out.

    Every method that changes something applies it to the server at once and puts what has to be stored
    into the journal's changes. A node is of use after `recover`.
    """

    name: str
    """What it is called on the wire."""

    sessions: Sessions

    cohort: Cohorts | None = None
    """Its part in secure sums, if its plan has them."""

    rules = b""
    """A hash of the model and the plan, which peers compare."""

    def __init__(self, store: Store, noise: RecordedNoise, clock: Clock = time.time) -> None:
        self.store, self.journal = store, Journal(self, store, noise)
        self._clock = clock
        self.began = self._latest = clock()
        first = os.urandom(INCARNATION_BYTES).hex()
        self.incarnation = bytes.fromhex(store.remember("incarnation", first))

    @abstractmethod
    def recover(self) -> None:
        """Take up what the store holds."""

    @property
    def now(self) -> float:
        """Seconds since 1970; they never go back."""
        self._latest = max(self._latest, self._clock())
        return self._latest

    @abstractmethod
    def tick(self) -> bool:
        """Do and log what the time calls for; whether there was anything."""

    @property
    @abstractmethod
    def channels(self) -> list[Channel]:
        """One for every peer."""

    @abstractmethod
    def receive(self, sender: str, data: bytes) -> None:
        """Take a frame in, or raise what is wrong with it."""

    @abstractmethod
    def state(self) -> State:
        """The state of the server, with what the node itself has to keep."""

    @abstractmethod
    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None: ...

    @property
    def by_user(self) -> tuple[str, ...]:
        """Arrays of the state with a row for every user that changes only when that user does."""
        return ()

    @property
    def busy(self) -> bool:
        """Whether there is work beside serving."""
        return False

    def part(self) -> Work | None:
        """Take the next part of that work, after the last one is done; it may run in another thread."""
        return None

    def take(self) -> Changes:
        """What has to be committed now."""
        return self.journal.take()

    def committed(self, changes: Changes) -> None:  # noqa: B027 - most nodes wait for no commit
        """These changes are on disk."""

    def commit(self) -> None:
        """Do and write everything; for a node that nothing runs. What it sends waits in the store."""
        while (part := self.part()) is not None:
            part()
        while self.journal.erasing or self.journal.saving:
            self.journal.save_some(None)
        changes = self.take()
        self.store.write(changes.statements)
        if changes.erase:
            self.store.erase()
        self.committed(changes)
