"""A local server with its names, decisions and channel; no input or output but reads of its store."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fclub.core.types import Matrix, Vector
from fclub.errors import FclubError, InvalidFile, NotFound, OtherReward, UnknownDecision
from fclub.protocol.messages import Message, encode
from fclub.protocol.overview import LocalOverview
from fclub.protocol.seam import Bound, Family, LocalServer, Place, Slotted
from fclub.service.link.channel import GLOBAL, Channel, Receipt, decode_frame
from fclub.service.nodes.node import Node, RecordedNoise
from fclub.service.store.books import Books
from fclub.service.store.catalogue import Catalogue
from fclub.service.store.decisions import Decisions, Shown
from fclub.service.store.past import Past
from fclub.service.store.store import Changes, Store


@dataclass(frozen=True)
class Decision:
    """What was shown; `id` names it in the feedback."""

    id: str
    index: int


@dataclass(frozen=True)
class Forgotten:
    """A user is gone with these observations, of which `released` at most had left before."""

    observations: int
    released: int


class LocalNode(Node):
    """One local server as a state machine: users, decisions, feedback, frames in, changes out."""

    server: LocalServer

    def __init__(
        self,
        name: str,
        family: Family,
        noise: RecordedNoise,
        rng: np.random.Generator,
        store: Store,
    ) -> None:
        super().__init__(store, noise)
        self.name, self.family = name, family
        ledger = family.ledger(seeded=False, keep=False)
        place = Place(name, self, noise, ledger, rng)
        self.server = family.local_server(place, family.users(0), live=True)
        self.books = Books(ledger, store)
        self.channel = Channel(name, GLOBAL)
        self.feedbacks = 0
        self.decisions = Decisions(store)
        self.past = Past(store)
        self.catalogue = Catalogue(store, family.shape.dim)
        self._gone: set[int] = set()
        self.books.compare(self._recover())
        self.rows = store.users()

    def to_global(self, message: Message) -> None:
        """The link of the local server: everything that it sends is numbered and stored."""
        self.books.post(message, self.channel.sent + 1, self.changes)
        self.channel.send(encode(message), self.changes)

    def recommend(self, user: str, items: Matrix, ids: Sequence[str]) -> Decision:
        """Choose an item and remember what was shown to whom."""
        self.family.domain.check_items(items)
        row = self._visit(user)
        index = self.server.recommend(row, items)
        shown = Shown(row, items[index].tobytes())
        return Decision(self.decisions.add(shown, ids[index], self.changes).hex(), index)

    def bound(self, user: str) -> Bound:
        """What items are scored with for this user, who visits now and may be new."""
        return self.server.bound(self._visit(user))

    def _visit(self, user: str) -> int:
        """The row of a user who asks for something."""
        row = self.rows.get(user)
        if row is None:
            row = self._add_user(user)
        if isinstance(self.server, Slotted):
            self._arrive(self.server)
            self._log("visit", "", b"")
        return row

    def show(self, user: str, item: str, features: Vector) -> str:
        """Remember that an item was chosen for this user; returns the decision."""
        row = self.rows.get(user)
        shown = Shown(self._add_user(user) if row is None else row, features.tobytes())
        return self.decisions.add(shown, item, self.changes).hex()

    def learn_past(self, key: str, user: str, x: Vector, reward: float) -> bool:
        """Learn from an observation made elsewhere; False if that of this id is known already."""
        known, row = self.past.find(key), self.rows.get(user)
        if known is not None and known[0] not in self._gone:
            if known != (row, reward):
                raise OtherReward(f"observation {key!r} is known with another user or reward")
            return False
        self.family.domain.check_items(x[None, :])
        if row is None:
            row = self._add_user(user)
        self._learn(row, x, reward)
        self.past.add(key, row, reward, self.changes)
        return True

    def _learn(self, row: int, x: Vector, reward: float) -> None:
        try:
            self._observe(row, x, reward)
        except FclubError as error:
            raise RuntimeError("an observation was learned in part") from error
        self.feedbacks += 1
        self._log("observe", "", struct.pack("<qd", row, reward) + x.tobytes())

    def put_items(self, ids: list[str], items: Matrix) -> int:
        """Insert or replace items of the catalogue; returns how many are new."""
        self.family.domain.check_items(items)
        return self.catalogue.put(ids, items, self.changes)

    def delete_item(self, key: str) -> None:
        if not self.catalogue.delete(key, self.changes):
            raise NotFound(f"there is no item {key!r}")

    def _add_user(self, user: str) -> int:
        row = self.server.add_user()
        self.rows[user] = row
        self.changes.add_user(row, user)
        self._log("user", "", b"")
        return row

    def _arrive(self, server: Slotted) -> None:
        """Count a visit, and compute the slot that it makes due: one entry of the log."""
        server.arrive()
        slot = server.due_slot()
        if slot is not None:
            server.release(slot)

    def feedback(self, decision: str, reward: float) -> bool:
        """Learn from a reward; False if it is known already."""
        try:
            key = bytes.fromhex(decision)
        except ValueError:
            key = b""
        shown = self.decisions.find(key)
        if shown is None or shown.row in self._gone:
            raise UnknownDecision(f"there is no decision {decision!r}")
        if shown.reward is not None:
            if shown.reward != reward:
                raise OtherReward(f"decision {decision!r} already has another reward")
            return False
        self._learn(shown.row, np.frombuffer(shown.features).copy(), reward)
        self.decisions.reward(key, reward, self.changes)
        return True

    def _observe(self, row: int, x: Vector, reward: float) -> None:
        """Learn, and do at once what that makes due: one entry of the log."""
        self.server.observe(row, x, reward)
        work = self.server.due()
        if work is not None:
            work()

    def receive(self, sender: str, data: bytes) -> None:
        """A frame of the global server; one that was applied before only gets its receipt again."""
        frame = decode_frame(data, sender)
        if isinstance(frame, Receipt):
            self.channel.confirm(frame, self.changes)
            return
        if self.channel.is_next(frame):
            self._apply(frame.payload)
            self._log("message", GLOBAL, frame.payload)
        self.changes.receipts[GLOBAL] = self.channel.receipt()

    def _apply(self, payload: bytes) -> None:
        self.server.receive(self.family.decode(payload))
        self.channel.received += 1

    def _values(self) -> dict[str, Any]:
        values = {"channel": self.channel.counters(), "feedbacks": self.feedbacks}
        return values | {"entries": self.books.entries}

    def _take_up(self, values: dict[str, Any]) -> None:
        self.feedbacks = int(values.pop("feedbacks"))
        self.channel = Channel(self.name, GLOBAL, **values.pop("channel"))
        self.books.recover(values.pop("entries"))

    def forget_user(self, user: str) -> Forgotten:
        """Remove all that is stored of a user; a name that returns is a new account.

        A snapshot replaces the log, in which the user's observations are.
        """
        row = self.row_of(user)
        observations = int(self.server.counts[row])
        released = self.server.forget(row)
        del self.rows[user]
        self._gone.add(row)
        self.decisions.drop_user(row)
        self.feedbacks -= observations
        self.snapshot()
        self.changes.forget_user(row, self.entry)
        return Forgotten(observations, released)

    def row_of(self, user: str) -> int:
        """The row of a known user."""
        row = self.rows.get(user)
        if row is None:
            raise NotFound(f"there is no user {user!r}")
        return row

    def overview(self) -> list[LocalOverview]:
        """The clusters, without the rows of forgotten users, which stay empty."""
        here = np.fromiter(self.rows.values(), dtype=np.int64, count=len(self.rows))
        clusters = self.server.overview()
        users = np.bincount(self.server.served_by[here], minlength=len(clusters)).tolist()
        return [replace(one, users=n) for one, n in zip(clusters, users, strict=True)]

    def forget(self, before: float) -> bool:
        """Drop some decisions made before a time; False if there are none. Feedback is unknown then."""
        return self.decisions.forget(before, self.changes)

    @property
    def channels(self) -> list[Channel]:
        return [self.channel]

    def take(self) -> Changes:
        changes = super().take()
        changes.notices += self.books.news()
        return changes

    def commit(self) -> None:
        """Write everything; for a node that nothing runs. What it sends waits in the store."""
        changes = self.take()
        self.store.write(changes.statements)
        if changes.erase:
            self.store.erase()
        self.committed(changes)

    def committed(self, changes: Changes) -> None:
        self.decisions.committed(changes)
        self.past.committed(changes)

    def _replay(self, kind: str, source: str, body: bytes) -> None:
        match kind:
            case "user":
                self.server.add_user()
            case "visit" if isinstance(self.server, Slotted):
                self._arrive(self.server)
            case "observe":
                row, reward = struct.unpack_from("<qd", body)
                x: Vector = np.frombuffer(body, offset=16).copy()
                self._observe(row, x, reward)
                self.feedbacks += 1
            case "message":
                self._apply(body)
            case _:
                raise InvalidFile(f"{self.store.path} has a log entry of kind {kind!r}")

    def summary(self) -> dict[str, Any]:
        """Numbers for people: counts that must agree, and the channel."""
        own = int(self.server.counts.sum())
        return {"users": len(self.rows), "observations": own, "feedbacks": self.feedbacks} | (
            self.channel.counters() | {"entry": self.entry}
        )
