"""A local server with its names, decisions and channel; no input or output but reads of its store."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fclub.core.offers import mix
from fclub.core.types import Matrix, Vector
from fclub.errors import (
    Conflict,
    FclubError,
    InvalidFile,
    InvalidMessage,
    NotFound,
    OtherReward,
    OtherSession,
    OtherVersion,
    UnknownDecision,
)
from fclub.protocol.messages import Message, encode
from fclub.protocol.seam import Bound, Family, LocalOverview, Place
from fclub.service.link.channel import (
    GLOBAL,
    VERSION,
    Ask,
    Grant,
    Knock,
    Numbered,
    Receipt,
    Welcome,
    decode_frame,
    encode_frame,
)
from fclub.service.nodes.agreeing import MOST_UNHEARD
from fclub.service.nodes.assuming import AssumingNode
from fclub.service.nodes.handshake import REFUSED, Standing
from fclub.service.nodes.node import SNAPSHOT_EVERY, RecordedNoise, Work
from fclub.service.store.backup import SILENT
from fclub.service.store.books import Books
from fclub.service.store.catalogue import Catalogue
from fclub.service.store.decisions import Offered, Shown, coin_of
from fclub.service.store.offers import Own, Part, encode_offer
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


class LocalNode(AssumingNode):
    """One local server as a state machine: users, decisions, feedback, frames in, changes out."""

    def __init__(
        self,
        name: str,
        family: Family,
        noise: RecordedNoise,
        rng: np.random.Generator,
        store: Store,
        uniform: float = 0.0,
    ) -> None:
        super().__init__(name, family, noise, store)
        self.uniform = uniform
        ledger = family.ledger(seeded=False, keep=False)
        place = Place(name, self, noise, ledger, rng)
        self.server = family.local_server(place, family.users(0), live=True)
        self.server.in_parts = True
        self.books = Books(ledger, store)
        self.feedbacks = 0
        self.catalogue = Catalogue(store, family.shape.dim, keep=uniform > 0.0)
        self.books.compare(self._recover())
        self.rows = store.users()
        if len(self.rows) < len(self.server.counts):
            self._gone = set(range(len(self.server.counts))) - set(self.rows.values())
        self._wait()
        self._forgo_unfinished()
        if store.get(SILENT) == "true":
            self._forgo_period()

    def _log(self, kind: str, source: str, body: bytes) -> None:
        """What was charged without a message is stored with the entry that has caused it."""
        self.books.enter(self.changes)
        super()._log(kind, source, body)

    def to_global(self, message: Message) -> None:
        """The link of the local server: everything that it sends is numbered and stored."""
        self.books.post(message, self.channel.ordinal, self.changes)
        self.channel.send(encode(message), self.changes)

    def recommend(self, user: str, items: Matrix, ids: Sequence[str], known: bool = False) -> Decision:
        """Choose an item and remember what was shown to whom; `known`: items are of the catalogue."""
        self.family.domain.check_items(items)
        row = self._visit(user)
        index, key, offered = self.server.recommend(row, items), self.decisions.new_key(user), None
        if self.uniform > 0.0:
            index, chance = mix(index, len(items), self.uniform, coin_of(key))
            offer = Part(list(ids)) if known else Own(list(ids), items.tobytes())
            offered = Offered(chance, self.catalogue.version, encode_offer(offer))
        shown = Shown(row, items[index].tobytes(), era=self.era)
        self.decisions.add(key, shown, ids[index], self.changes, offered)
        return Decision(key.hex(), index)

    def bound(self, user: str) -> Bound:
        """What items are scored with for this user, who visits now and may be new."""
        return self.server.bound(self._visit(user))

    def _visit(self, user: str) -> int:
        """The row of a user who asks for something."""
        row = self.rows.get(user)
        if row is None:
            row = self._add_user(user)
        server = self.server.slotted
        if server is not None:
            server.arrive()
            self._log("visit", "", b"")
            start = server.period_start(time.time())
            if start > server.used:
                self._forgo(server, start)
            self._ask_for_slot()
        return row

    def show(
        self,
        user: str,
        item: str,
        features: Vector,
        key: bytes | None = None,
        offered: Offered | None = None,
    ) -> str:
        """Remember that an item was chosen for this user; returns the decision.

        `key` is given where the choice has followed from it, with what was `offered`.
        """
        row = self.rows.get(user)
        row = self._add_user(user) if row is None else row
        key = self.decisions.new_key(user) if key is None else key
        shown = Shown(row, features.tobytes(), era=self.era)
        self.decisions.add(key, shown, item, self.changes, offered)
        return key.hex()

    def _learn(self, kind: str, row: int, x: Vector, reward: float, source: str = "") -> None:
        try:
            self._observe(kind, row, x, reward)
        except FclubError as error:
            raise RuntimeError("an observation was learned in part") from error
        self.feedbacks += 1
        self._log(kind, source, struct.pack("<qd", row, reward) + x.tobytes())

    def put_items(self, ids: list[str], items: Matrix) -> int:
        """Insert or replace items of the catalogue; returns how many are new."""
        self.family.domain.check_items(items)
        return self.catalogue.put(ids, items, self.changes)

    def delete_item(self, key: str) -> None:
        if not self.catalogue.delete(key, self.changes):
            raise NotFound(f"there is no item {key!r}")

    def _add_user(self, user: str) -> int:
        row = self.server.add_user()
        self.touched.add(row)
        self.rows[user] = row
        self.changes.add_user(row, user)
        self._log("user", "", b"")
        return row

    def _ask_for_slot(self) -> bool:
        """Ask whether this process may use the slot that is due, if one is and both sides agree."""
        server = self.server.slotted
        slot = None if server is None or self.paused else server.due_slot()
        if server is None or slot is None:
            return False
        number = server.slot_number(slot)
        ask = Ask(VERSION, self.name, self.channel.session, self.handshake.process, number)
        self.changes.letters.append((GLOBAL, encode_frame(ask)))
        return True

    def feedback(self, decision: str, reward: float) -> bool:
        """Learn from a reward; False if it is known already."""
        try:
            key = bytes.fromhex(decision)
        except ValueError:
            key = b""
        shown = self.decisions.find(key)
        if shown is None or shown.row in self._gone:
            raise UnknownDecision(f"there is no decision {decision!r}")
        if shown.assumed:
            self._replace_reward(key, shown, reward)
            return True
        if shown.reward is not None:
            if shown.reward != reward:
                raise OtherReward(f"decision {decision!r} already has another reward")
            return False
        kind = "observe" if shown.era == self.era else "withhold"
        self._learn(kind, shown.row, np.frombuffer(shown.features).copy(), reward)
        self.decisions.reward(key, reward, self.changes)
        return True

    def _observe(self, kind: str, row: int, x: Vector, reward: float) -> None:
        """Learn, and begin what that makes due: one entry of the log.

        What was shown before this store turned out to be old may have been released by another copy.
        """
        learn = self.server.withhold if kind == "withhold" else self.server.observe
        learn(row, x, reward)
        self.touched.add(row)
        work = self.server.due()
        if work is not None:
            work()

    def receive(self, sender: str, data: bytes) -> None:
        """A frame of the global server; a number that was applied only gets its receipt again."""
        try:
            frame = decode_frame(data, sender)
        except OtherVersion as error:
            self.handshake.standing = Standing(REFUSED, str(error))
            raise
        match frame:
            case Welcome():
                self._welcomed(frame)
            case Knock():
                self._knocked()
            case Grant():
                self._granted(frame)
            case Numbered() | Receipt():
                self._take_in(frame)
            case _:
                raise InvalidMessage(f"a local server does not take a {type(frame).__name__}")

    def _take_in(self, frame: Numbered | Receipt) -> None:
        """While the answer to a question is awaited nothing may move: messages are kept for later."""
        try:
            self.channel.check_session(frame.session)
            if isinstance(frame, Numbered):
                if self.paused:
                    self.handshake.keep(frame)
                else:
                    self._receive_numbered(frame)
            elif not self.paused:
                self.channel.confirm(frame.sequence, frame.chain, self.changes)
        except (OtherSession, Conflict):
            self.handshake.doubt = True
            raise

    def _receive_numbered(self, frame: Numbered) -> None:
        if self.channel.is_next(frame):
            self._apply(frame.payload)
            self._log("message", GLOBAL, frame.payload)
        self.changes.receipts[GLOBAL] = self.channel.receipt()

    def _apply(self, payload: bytes) -> None:
        self.server.receive(self.family.decode(payload))
        self.channel.applied(payload)

    def _values(self) -> dict[str, Any]:
        own = {"feedbacks": self.feedbacks, "paused": self.paused, "era": self.era}
        books = {"entries": self.books.entries, "messages": self.books.sent}
        return {"channel": self.channel.state()} | own | books

    def _take_up(self, values: dict[str, Any]) -> None:
        self.feedbacks, self.era = int(values.pop("feedbacks")), int(values.pop("era"))
        self.channel.restore(values.pop("channel"))
        self.books.recover(values.pop("entries"), values.pop("messages"))
        if values.pop("paused"):
            self._pause()

    def forget_user(self, user: str) -> Forgotten:
        """Remove all that is stored of a user; a name that returns is a new account.

        A snapshot replaces the log, in which the user's observations are; until it is whole the node is
        `erasing`.
        """
        row = self.row_of(user)
        observations = int(self.server.counts[row])
        released = self._forget(row)
        del self.rows[user]
        self._gone.add(row)
        self.decisions.delete_user(row, self.changes)
        self.changes.forget_user(row)
        self._log("forget", "", json.dumps(row).encode())
        self.working = False  # the part that was taken last is of no use any more
        self.save_some()
        return Forgotten(observations, released)

    def _forget(self, row: int) -> int:
        """The server begins its work anew, without the user."""
        self.feedbacks -= int(self.server.counts[row])
        self.touched.add(row)
        self.forgotten.add(row)
        return self.server.forget(row)

    @property
    def busy(self) -> bool:
        return self.server.busy

    def part(self) -> Work | None:
        self.working = False
        if self.forgotten or self.entry - self.snapshot_entry >= SNAPSHOT_EVERY:
            self._save()
        if not self.server.busy:
            return None
        part, self.working = self.server.part(), True
        self._log("part", "", b"")
        return part

    def _by_user(self) -> tuple[str, ...]:
        return self.server.by_user

    def row_of(self, user: str) -> int:
        """The row of a known user."""
        row = self.rows.get(user)
        if row is None:
            raise NotFound(f"there is no user {user!r}")
        return row

    def overview(self) -> list[LocalOverview]:
        """The clusters, without the rows of forgotten users, which stay empty."""
        clusters = self.server.overview()
        if not self._gone:
            return clusters
        gone = np.bincount(self.server.served_by[list(self._gone)], minlength=len(clusters)).tolist()
        return [replace(one, users=one.users - n) for one, n in zip(clusters, gone, strict=True)]

    def forget(self, before: float) -> bool:
        """Drop some decisions made before a time; False if there are none. Feedback is unknown then."""
        return self.decisions.forget(before, self.changes)

    @property
    def exhausted(self) -> bool:
        """Nothing more may leave: the budget has refused it, or all releases of the period are used."""
        outlook = self.server.outlook
        return self.books.exhausted or outlook.used == outlook.releases

    def take(self) -> Changes:
        if self.channel.sent - self.channel.confirmed >= MOST_UNHEARD:
            self._ask_in_time()
        changes = super().take()
        changes.notices += self.books.news(self.exhausted)
        return changes

    def committed(self, changes: Changes) -> None:
        self.decisions.committed(changes)
        if changes.past:
            self.past.committed(changes)

    def _replay(self, kind: str, source: str, body: bytes) -> None:
        match kind:
            case "user":
                self.touched.add(self.server.add_user())
            case "part":
                if not self.server.busy:
                    raise InvalidFile("the log holds a part of work that no entry has begun")
                self.server.part()()
            case "forget":
                self._forget(json.loads(body))
            case "observe" | "withhold":
                row, reward = struct.unpack_from("<qd", body)
                x: Vector = np.frombuffer(body, offset=16).copy()
                self._observe(kind, row, x, reward)
                self.feedbacks += 1
            case "replace":
                told = struct.unpack_from("<qdd", body)
                self._replace(np.frombuffer(body, offset=24).copy(), *told)
            case "message":
                self._apply(body)
            case _:
                super()._replay(kind, source, body)
        self.books.enter(self.changes)

    def summary(self) -> dict[str, Any]:
        """Numbers for people: counts that must agree, and the channel."""
        own = int(self.server.counts.sum())
        return {"users": len(self.rows), "observations": own, "feedbacks": self.feedbacks} | (
            self.channel.counters() | {"entry": self.entry}
        )
