"""What was shown to whom, of which offer.

All of it is in the store; the latest decisions without a reward are also at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from fclub.buckets import bucket_of_user
from fclub.service.store.store import Changes, Store

RECENT = 10_000
"""Decisions at hand: a few megabytes."""

FORGOTTEN_AT_ONCE = 500
"""Old decisions that are dropped in one go, in a few milliseconds."""

ASSUMED_AT_ONCE = 50
"""Decisions without a reward that are looked at in one go, since each is learned from."""

_ADD = (
    "INSERT INTO decisions (id, row, item, features, made, era, expected) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_REWARD = "UPDATE decisions SET reward = ?, assumed = ?, events = ? WHERE id = ?"

RANDOM_BYTES = 7

COUNTED = 1 << 16
"""Decisions of one millisecond that their ids number."""

AHEAD_SECONDS = 60
"""How far ids may be ahead of a clock that was set back; further, they go back as well."""

BEGINNING_BYTES = 8
"""How much of an id is its time and number."""

BATCH = 8192
"""Decisions that are put into the table by user together."""

EVERY, PORTION = 16, 32
"""Decisions between two portions of a batch, and the size of one: a batch is done before the next."""

UNTIL = "by_user_until"
"""All decisions whose ids are not above this are in the table by user."""

ASSUMED = "assumed"
"""All decisions whose ids are not above this have a reward, or were looked at for want of one."""

CHUNK = 500
"""Decisions that are selected at a time."""

_WRITE = "INSERT OR IGNORE INTO by_user VALUES (?, ?)"
_MINE = "(SELECT decision FROM by_user WHERE row = ?)"
_MISSING = (
    "FROM decisions WHERE NOT EXISTS "
    "(SELECT 1 FROM by_user WHERE by_user.row = decisions.row AND decision = id) AND id"
)


class Offered(NamedTuple):
    """How likely it was that a decision showed its item, and what was on offer, as `offers` encodes it.

    `version` is the catalogue's, so that the features of its items can be looked up as they were.
    """

    chance: float
    version: int
    body: bytes


class Shown(NamedTuple):
    """A decision: the user's row, the features of the item, and the reward once there is one.

    `era` counts how often the store had turned out to be old when the decision was made. A reward that
    was `assumed`, since none had come, or that events made and more of them may change, has one more
    than the number of messages sent until then. `events` are encoded by `encode_events`. `expected` is
    the reward that was expected, in units of `core.items`, if that is compared.
    """

    row: int
    features: bytes
    reward: float | None = None
    era: int = 0
    assumed: int = 0
    events: bytes | None = None
    item: str = ""
    expected: int | None = None


Events = list[tuple[str, float]]
"""Kinds and values of what happened to a decision, in the order in which it was told."""

Old = tuple[int, bytes, str, float | None, int | None]
"""A decision's row, id, item, reward and what was expected of it."""

encode_events = msgspec.msgpack.Encoder().encode
_decode_events = msgspec.msgpack.Decoder(Events).decode


def decode_events(data: bytes | None) -> Events:
    return [] if data is None else _decode_events(data)


def time_of(key: bytes) -> float:
    """When the decision of this id was made."""
    return int.from_bytes(key[:6], "big") / 1000.0


def coin_of(key: bytes) -> float:
    """A number from [0, 1) that follows from the random bytes of a decision's id.

    So a choice by chance needs no state of its own, and can be recomputed from what is stored.
    """
    random = key[BEGINNING_BYTES : BEGINNING_BYTES + RANDOM_BYTES]
    return (int.from_bytes(random, "big") >> 3) * 2.0**-53


def _moment(seconds: float) -> bytes:
    """How the id of a decision made then begins."""
    return int(seconds * 1000).to_bytes(6, "big")


def _beginnings() -> Iterator[bytes]:
    """How ids begin: with the time in milliseconds and a number within one.

    They ascend, unless the clock was set back by more than a moment: then they follow it, since old
    decisions are known by their ids.
    """
    last = 0
    while True:
        now = int(time.time() * 1000) * COUNTED
        if last > now + AHEAD_SECONDS * 1000 * COUNTED:
            last = now
        last = max(now, last + 1)
        yield last.to_bytes(BEGINNING_BYTES, "big")


def _random() -> Iterator[bytes]:
    """Random bytes of an id; the operating system is asked for many at once."""
    while True:
        pool = os.urandom(RANDOM_BYTES * 256)
        for start in range(0, len(pool), RANDOM_BYTES):
            yield pool[start : start + RANDOM_BYTES]


class ByUser:
    """Which decisions are whose, in a table that is written batch by batch.

    With an index of all decisions by user every visit would change a page of its own of the file, which
    was a quarter of what a request cost. So the latest decisions are at hand, and when there are many
    they are written in the order of users, a few with every so many visits: those of a user share a
    page.

    A crash leaves a part of a batch in the table; a restart takes up all above `UNTIL` that is missing
    there. Where the clock was set back ids are below it: the first of them takes it along, in the same
    transaction.
    """

    def __init__(self, store: Store) -> None:
        self._reader = store.reader
        self._new: dict[int, dict[bytes, None]] = {}
        self._count = 0
        self._batch: dict[int, dict[bytes, None]] = {}
        self._left: list[tuple[int, bytes]] = []
        self._until = self._until_batch = bytes.fromhex(store.get(UNTIL) or "")
        for row, key in self._reader.execute(f"SELECT row, id {_MISSING} > ?", (self._until,)):
            self._keep(row, key)

    def _keep(self, row: int, key: bytes) -> None:
        self._new.setdefault(row, {})[key] = None
        self._count += 1

    def add(self, row: int, key: bytes, changes: Changes) -> None:
        """A decision that is made now."""
        self._keep(row, key)
        below = key[:BEGINNING_BYTES]
        self._until_batch = min(self._until_batch, below)
        if below < self._until:
            self._note(below, changes)
        if self._count >= BATCH and not self._left:
            self._batch, self._new, self._count = self._new, {}, 0
            every = ((row, key) for row, keys in self._batch.items() for key in keys)
            self._left = sorted(every, reverse=True)
            self._until_batch = below + b"\xff" * (len(key) - BEGINNING_BYTES)
        elif self._left and self._count % EVERY == 0:
            changes.write_each(_WRITE, self._left[-PORTION:])
            del self._left[-PORTION:]
            if not self._left:
                self._note(self._until_batch, changes)

    def _note(self, until: bytes, changes: Changes) -> None:
        self._until = until
        changes.note(UNTIL, until.hex())

    def select(self, columns: str, row: int) -> list[tuple[Any, ...]]:
        """Columns of a user's decisions on disk and of what was on offer; some may come twice."""
        sql = f"SELECT {columns} FROM decisions LEFT JOIN offers ON decision = id WHERE id "
        found = self._reader.execute(f"{sql} IN {_MINE}", (row,)).fetchall()
        keys = self._at_hand(row)
        for start in range(0, len(keys), CHUNK):
            some = keys[start : start + CHUNK]
            found += self._reader.execute(f"{sql} IN ({', '.join('?' * len(some))})", some)
        return found

    def _at_hand(self, row: int) -> list[bytes]:
        return [*self._batch.get(row, ()), *self._new.get(row, ())]

    def delete_user(self, row: int, changes: Changes) -> None:
        """Delete all decisions of a user, those on their way to the disk as well."""
        keys = [(key,) for key in self._at_hand(row)]
        for table, name in (("offers", "decision"), ("decisions", "id")):
            changes.write(f"DELETE FROM {table} WHERE {name} IN {_MINE}", row)
            changes.write_each(f"DELETE FROM {table} WHERE {name} = ?", keys)
        changes.write("DELETE FROM by_user WHERE row = ?", row)
        self._new.pop(row, None)
        self._batch.pop(row, None)
        self._left = [entry for entry in self._left if entry[0] != row]

    def delete(self, entries: Iterable[tuple[int, bytes]], changes: Changes) -> None:
        gone = set(entries)
        keys = [(key,) for _, key in gone]
        changes.write_each("DELETE FROM offers WHERE decision = ?", keys)
        changes.write_each("DELETE FROM decisions WHERE id = ?", keys)
        changes.write_each("DELETE FROM by_user WHERE row = ? AND decision = ?", list(gone))
        for row, key in gone:
            for kept in (self._new, self._batch):
                kept.get(row, {}).pop(key, None)
        self._left = [entry for entry in self._left if entry not in gone]


class Decisions:
    """The decisions of one local server.

    Most rewards come soon, so the latest decisions are kept; others are read. A reward that is on the
    way to the disk cannot be read yet: it is kept until its changes are committed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_user = ByUser(store)
        self._assumed = bytes.fromhex(store.get(ASSUMED) or "")
        self._beginnings, self._random = _beginnings(), _random()
        self._recent: dict[bytes, Shown] = {}
        self._fresh: dict[bytes, tuple[float, int, bytes | None]] = {}

    def new_key(self, user: str) -> bytes:
        """The id of a decision that is made now; it ends with the user's bucket."""
        return next(self._beginnings) + next(self._random) + bytes.fromhex(bucket_of_user(user))

    def add(
        self, key: bytes, shown: Shown, item: str, changes: Changes, offered: Offered | None = None
    ) -> None:
        """Remember a decision made now, and perhaps what was on offer."""
        told = shown.features, time.time(), shown.era, shown.expected
        changes.write(_ADD, key, shown.row, item, *told)
        if offered is not None:
            changes.write("INSERT INTO offers VALUES (?, ?, ?, ?)", key, *offered)
        self._by_user.add(shown.row, key, changes)
        if key <= self._assumed:  # the clock was set back
            self.looked_at(key[:BEGINNING_BYTES], changes)
        self._recent[key] = shown._replace(item=item)
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def find(self, key: bytes) -> Shown | None:
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        columns = "row, features, reward, era, assumed, events, item, expected"
        sql = f"SELECT {columns} FROM decisions WHERE id = ?"
        found = self._store.reader.execute(sql, (key,)).fetchone()
        if found is None:
            return None
        shown = Shown(*found)
        stored = shown.reward, shown.assumed, shown.events
        reward, assumed, events = self._fresh.get(key, stored)
        return shown._replace(reward=reward, assumed=assumed, events=events)

    def open_before(self, before: float) -> list[bytes]:
        """Some decisions on disk without a reward, made before a time and not `looked_at` yet."""
        sql = "SELECT id FROM decisions WHERE id > ? AND id < ? AND reward IS NULL ORDER BY id LIMIT ?"
        found = self._store.reader.execute(sql, (self._assumed, _moment(before), ASSUMED_AT_ONCE))
        return [key for (key,) in found]

    def looked_at(self, key: bytes, changes: Changes) -> None:
        """Nothing up to this id needs to be looked at for want of a reward any more."""
        self._assumed = key
        changes.note(ASSUMED, key.hex())

    def astray(self) -> int:
        """Decisions that are not found by user, and entries by user without a decision."""
        until = bytes.fromhex(self._store.get(UNTIL) or "")
        read = self._store.reader.execute
        (missing,) = read(f"SELECT count(*) {_MISSING} <= ?", (until,)).fetchone()
        sql = "SELECT count(*) FROM by_user WHERE decision NOT IN (SELECT id FROM decisions)"
        return int(missing + read(sql).fetchone()[0])

    def rewarded(self) -> int:
        """How many stored decisions have a reward."""
        sql = "SELECT count(*) FROM decisions WHERE reward IS NOT NULL"
        return int(self._store.reader.execute(sql).fetchone()[0])

    def reward(
        self,
        key: bytes,
        reward: float,
        changes: Changes,
        assumed: int = 0,
        events: bytes | None = None,
    ) -> None:
        """Enter the reward of a decision that had none, or one that may change."""
        self._recent.pop(key, None)
        self._fresh[key] = reward, assumed, events
        changes.rewards.append(key)
        changes.write(_REWARD, reward, assumed, events, key)

    def committed(self, changes: Changes) -> None:
        """The rewards among these changes can be read from the store from now on."""
        for key in changes.rewards:
            self._fresh.pop(key, None)

    def of_user(self, row: int) -> list[tuple[Any, ...]]:
        """Id, item, features, time, reward, whether that is assumed, events; then probability, version
        and body of the offer, all None where it was not kept. Oldest first."""
        columns = "id, item, features, made, reward, assumed, events, chance, version, body"
        found = {one[0]: one for one in self._by_user.select(columns, row)}
        return [found[key] for key in sorted(found)]

    def items_of(self, row: int, since: float) -> set[str]:
        """What the user was shown since a time, as far as decisions are kept and on disk."""
        return {item for item, made in self._by_user.select("item, made", row) if made >= since}

    def effects_of(self, row: int) -> list[tuple[bytes, str, float | None, int | None]]:
        """Ids, items, rewards and what was expected of them; some may come twice."""
        return self._by_user.select("id, item, reward, expected", row)

    def made_before(self, before: float) -> list[Old]:
        """Some decisions made before a time, oldest first.

        Not all at once: requests wait meanwhile. Ids begin with the time, so nothing is searched.
        """
        sql = "SELECT row, id, item, reward, expected FROM decisions WHERE id < ? ORDER BY id LIMIT ?"
        return self._store.reader.execute(sql, (_moment(before), FORGOTTEN_AT_ONCE)).fetchall()

    def delete_user(self, row: int, changes: Changes) -> None:
        """Forget all decisions of a user."""
        self._recent = {key: shown for key, shown in self._recent.items() if shown.row != row}
        self._by_user.delete_user(row, changes)

    def forget(self, old: list[Old], changes: Changes) -> None:
        for _, key, *_ in old:
            self._recent.pop(key, None)
        self._by_user.delete([(row, key) for row, key, *_ in old], changes)
        least = "(SELECT min(version) FROM offers)"
        changes.write(f"DELETE FROM former WHERE until <= coalesce({least}, until)")


class Whole(msgspec.Struct, tag="w", array_like=True, frozen=True):
    """All of the catalogue but these."""

    without: list[str]


class Part(msgspec.Struct, tag="p", array_like=True, frozen=True):
    """These items of the catalogue."""

    ids: list[str]


class Own(msgspec.Struct, tag="o", array_like=True, frozen=True):
    """Items that came with the request; `features` are their rows, one after the other."""

    ids: list[str]
    features: bytes


encode_offer = msgspec.msgpack.Encoder().encode
decode_offer = msgspec.msgpack.Decoder(Whole | Part | Own).decode
