"""What both kinds of nodes are: a server whose steps are logged, so that a replay leads to it again.

Every method that changes something applies it to the server at once and puts what has to be stored into
`changes`; its owner commits them, and only then answers and sends.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import numpy as np

from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.errors import InvalidFile
from fclub.privacy.noise import NoiseSource, NoNoise
from fclub.protocol.seam import State
from fclub.service.link.channel import Channel
from fclub.service.store.backup import INCARNATION_BYTES
from fclub.service.store.snapshots import ROWS_AT_ONCE, Snapshot, drop_unfinished, read_snapshot
from fclub.service.store.store import Changes, Store

SNAPSHOT_EVERY = 20_000
"""Log entries between snapshots, which a restart has to replay."""

Work = Callable[[], None]


class RecordedNoise:
    """Draws from a source and remembers; during a replay it only gives back what was remembered.

    To draw again for the same data would be a second release of it.
    """

    def __init__(self, source: NoiseSource) -> None:
        self.source, self.seeded = source, source.seeded
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


class Stateful(Protocol):
    """What a snapshot needs of a server."""

    def state(self) -> State: ...

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None: ...


class Node(ABC):
    """Frames in, changes out."""

    server: Stateful
    name: str
    """What it is called on the wire."""

    def __init__(self, store: Store, noise: RecordedNoise) -> None:
        self.store, self.noise = store, noise
        self.changes = Changes()
        self.entry = self.snapshot_entry = 0
        self.touched: set[int] = set()
        self.forgotten: set[int] = set()
        self.working = False
        self._kept: tuple[str, ...] = ()
        self._saving: Snapshot | None = None
        self._erasing: set[int] = set()
        first = os.urandom(INCARNATION_BYTES).hex()
        self.incarnation = bytes.fromhex(store.remember("incarnation", first))

    @property
    @abstractmethod
    def channels(self) -> list[Channel]:
        """One for every peer."""

    @abstractmethod
    def receive(self, sender: str, data: bytes) -> None:
        """Take a frame in, or raise what is wrong with it."""

    def _settle(self) -> None:  # noqa: B027 - most nodes leave nothing
        """Do and log what all frames since the last call make due together, if that was left."""

    @abstractmethod
    def connected(self) -> None:
        """The wire is there, at last or again: find out where the other side stands."""

    @abstractmethod
    def tick(self) -> bool:
        """Say again what has not been answered; whether there is something to send."""

    @abstractmethod
    def stuck(self, channel: Channel) -> bool:
        """Messages of this channel were not confirmed for a while; whether that leads to anything."""

    def _send_again(self, channel: Channel) -> None:
        """All frames that are not confirmed, as they are stored."""
        for sequence, frame in self.store.outbox(channel.peer):
            if sequence > channel.confirmed:
                self.changes.frames.append((channel.peer, frame))

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """What a snapshot has to keep beside the state of the server."""

    @abstractmethod
    def _take_up(self, values: dict[str, Any]) -> None:
        """Take these values out again, before the server gets its own."""

    @abstractmethod
    def _replay(self, kind: str, source: str, body: bytes) -> None:
        """Do again what a log entry says."""

    def _log(self, kind: str, source: str, body: bytes) -> None:
        self.entry += 1
        noise = self.noise.take()
        self.changes.log(self.entry, self.snapshot_entry, kind, source, body, noise)
        if self.entry - self.snapshot_entry >= SNAPSHOT_EVERY:
            self._save()

    @property
    def busy(self) -> bool:
        """Whether there is work beside serving."""
        return False

    def part(self) -> Work | None:
        """Take the next part of that work, after the last one is done; it may run in another thread."""
        return None

    def _by_user(self) -> tuple[str, ...]:
        """Arrays of the server's state of which only the rows in `touched` have changed."""
        return ()

    def _save(self) -> None:
        """Begin a snapshot, unless one is being written or the state lacks a part that was taken."""
        if self._saving is None and not self.working:
            self._begin_saving()
            self.save_some()

    def _begin_saving(self) -> None:
        arrays, values = self.server.state()
        by_user = self._by_user()
        users = len(arrays[by_user[0]]) if by_user else 0
        rows = self.touched if by_user == self._kept else range(users)
        changed = np.array(sorted(rows), dtype=np.int64)
        state = arrays, values | self._values()
        self._saving = Snapshot(self.entry, self.snapshot_entry, state, by_user, changed)
        self._kept, self.touched = by_user, set()
        self._erasing, self.forgotten = self.forgotten, set()

    def save_some(self, most: int | None = ROWS_AT_ONCE) -> bool:
        """Put the next rows of a snapshot among the changes; whether there are more to come."""
        if self._saving is None and self.forgotten:
            self._save()
        elif self._saving is not None and self._saving.write(self.changes, most):
            self.snapshot_entry, self._saving = self._saving.entry, None
            if self._erasing:
                self.changes.forget_rows(self._erasing, self.snapshot_entry)
                self._erasing = set()
        return self._saving is not None

    @property
    def erasing(self) -> bool:
        """Whether a forgotten user is still in the log or in a snapshot."""
        return bool(self.forgotten or self._erasing)

    def snapshot(self) -> None:
        """Write the whole state now, so that the log before it is not needed any more."""
        self._settle()
        while self.save_some(None):
            pass
        self._begin_saving()
        self.save_some(None)

    def take(self) -> Changes:
        """What has to be committed now."""
        self._settle()
        changes, self.changes = self.changes, Changes()
        return changes

    def commit(self) -> None:
        """Do and write everything; for a node that nothing runs. What it sends waits in the store."""
        while (part := self.part()) is not None:
            part()
        while self.erasing or self._saving is not None:
            self.save_some(None)
        changes = self.take()
        self.store.write(changes.statements)
        if changes.erase:
            self.store.erase()
        self.committed(changes)

    @abstractmethod
    def committed(self, changes: Changes) -> None:
        """These changes are on disk."""

    def _recover(self) -> Changes:
        """Snapshot, then the log on top of it; nothing that this produces is sent or stored again.

        Returns what the replay has produced, which has to be what is stored.
        """
        saved = read_snapshot(self.store)
        if saved is not None:
            self.entry = self.snapshot_entry = saved.entry
            self._kept = saved.by_user
            self._take_up(saved.values)
            self.server.restore(saved.arrays, saved.values)
        for number, kind, source, body, noise in self.store.entries(self.entry):
            self.noise.replay(noise)
            self._replay(kind, source, body)
            self.entry = number
        self.noise.replay(None)
        changes = self.take()
        if saved is not None and saved.unfinished:
            drop_unfinished(saved.entry, self.changes)
        for channel in self.channels:
            made = [frame for peer, frame in changes.frames if peer == channel.peer]
            if channel.ordinal:
                channel.recover(*self.store.compare_outbox(channel.peer, channel.sent, made))
        return changes
