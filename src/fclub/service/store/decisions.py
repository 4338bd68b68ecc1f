"""What was shown to whom, of which offer.

All of it is in the store; the latest decisions without a reward are also at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fclub.service.store.store import Changes, Store

RECENT = 10_000
"""Decisions at hand: a few megabytes."""

FORGOTTEN_AT_ONCE = 500
"""Old decisions that are dropped in one go, in a few milliseconds."""

ASSUMED_AT_ONCE = 50
"""Decisions without a reward that are looked at in one go, since each is learned from."""

_ADD = "INSERT INTO decisions (id, row, item, features, made, era) VALUES (?, ?, ?, ?, ?, ?)"
_REWARD = "UPDATE decisions SET reward = ?, assumed = ? WHERE id = ?"

RANDOM_BYTES = COIN_BYTES = 7

COUNTED = 1 << 16
"""Decisions of one millisecond that their ids number."""

BATCH = 8192
"""Decisions that are put into the table by user together."""

EVERY, PORTION = 16, 32
"""Decisions between two portions of a batch, and the size of one: a batch is done before the next."""

UNTIL = "by_user_until"
"""All decisions whose ids are not above this one are in the table."""

_WRITE = "INSERT OR IGNORE INTO by_user VALUES (?, ?)"
_MINE = "(SELECT decision FROM by_user WHERE row = ?)"


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
    was `assumed`, since none had come, has one more than the number of messages sent until then.
    """

    row: int
    features: bytes
    reward: float | None = None
    era: int = 0
    assumed: int = 0


def coin_of(key: bytes) -> float:
    """A number from [0, 1) that follows from the random bytes of a decision's id.

    So a choice by chance needs no state of its own, and can be recomputed from what is stored.
    """
    return (int.from_bytes(key[-COIN_BYTES - 1 : -1], "big") >> 3) * 2.0**-53


def _moment(seconds: float) -> bytes:
    """How the id of a decision made then begins."""
    return int(seconds * 1000).to_bytes(6, "big")


def _beginnings() -> Iterator[bytes]:
    """How ids begin: with the time in milliseconds and a number within one, so that they ascend."""
    last = 0
    while True:
        last = max(int(time.time() * 1000) * COUNTED, last + 1)
        yield last.to_bytes(8, "big")


def _ends(shard: int) -> Iterator[bytes]:
    """How ids end, with the server's number; the operating system is asked for many at once."""
    last = bytes([shard])
    while True:
        pool = os.urandom(RANDOM_BYTES * 256)
        for start in range(0, len(pool), RANDOM_BYTES):
            yield pool[start : start + RANDOM_BYTES] + last


class ByUser:
    """Which decisions are whose, in a table that is written batch by batch.

    With an index of all decisions by user every visit would change a page of its own of the file, which
    was a quarter of what a request cost. So the latest decisions are at hand, and when there are many
    they are written in the order of users, a few with every so many visits: those of a user share a
    page.

    A crash leaves a part of a batch in the table; a restart takes up all that came after the last whole
    batch. If the clock was set back meanwhile, new ids come before that: then all from `now` on, which
    is how ids of this moment begin, are taken up.
    """

    def __init__(self, store: Store, now: bytes) -> None:
        self._reader = store.reader
        self._new: dict[int, list[bytes]] = {}
        self._count = 0
        self._batch: dict[int, list[bytes]] = {}
        self._left: list[tuple[int, bytes]] = []
        self._until = b""
        after = min(bytes.fromhex(store.get(UNTIL) or ""), now)
        for row, key in self._reader.execute("SELECT row, id FROM decisions WHERE id > ?", (after,)):
            self._keep(row, key)

    def _keep(self, row: int, key: bytes) -> None:
        self._new.setdefault(row, []).append(key)
        self._count += 1

    def add(self, row: int, key: bytes, changes: Changes) -> None:
        """A decision whose id is above all that were made by this process."""
        self._keep(row, key)
        if self._count >= BATCH and not self._left:
            self._batch, self._new, self._count, self._until = self._new, {}, 0, key
            every = ((row, key) for row, keys in self._batch.items() for key in keys)
            self._left = sorted(every, reverse=True)
        elif self._left and self._count % EVERY == 0:
            changes.write_each(_WRITE, self._left[-PORTION:])
            del self._left[-PORTION:]
            if not self._left:
                changes.note(UNTIL, self._until.hex())

    def select(self, columns: str, row: int) -> list[tuple[Any, ...]]:
        """Columns of a user's decisions on disk and of what was on offer; some may come twice."""
        sql = f"SELECT {columns} FROM decisions LEFT JOIN offers ON decision = id WHERE id "
        found = self._reader.execute(f"{sql} IN {_MINE}", (row,)).fetchall()
        for key in self._at_hand(row):
            found += self._reader.execute(f"{sql} = ?", (key,))
        return found

    def _at_hand(self, row: int) -> list[bytes]:
        return self._batch.get(row, []) + self._new.get(row, [])

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
        """Delete these decisions of these users."""
        gone = set(entries)
        keys = [(key,) for _, key in gone]
        changes.write_each("DELETE FROM offers WHERE decision = ?", keys)
        changes.write_each("DELETE FROM decisions WHERE id = ?", keys)
        changes.write_each("DELETE FROM by_user WHERE row = ? AND decision = ?", list(gone))
        for row, key in gone:
            for kept in (self._new, self._batch):
                if key in kept.get(row, ()):
                    kept[row].remove(key)
        self._left = [entry for entry in self._left if entry not in gone]


class Decisions:
    """The decisions of one local server.

    Most rewards come soon, so the latest decisions are kept; others are read. A reward that is on the
    way to the disk cannot be read yet: it is kept until its changes are committed.
    """

    def __init__(self, store: Store, shard: int = 0) -> None:
        self._store = store
        self._by_user = ByUser(store, _moment(time.time()))
        self._beginnings, self._ends = _beginnings(), _ends(shard)
        self._recent: dict[bytes, Shown] = {}
        self._fresh: dict[bytes, tuple[float, int]] = {}

    def new_key(self) -> bytes:
        """The id of a decision that is made now: later than all before, also where the clock is not."""
        return next(self._beginnings) + next(self._ends)

    def add(
        self, key: bytes, shown: Shown, item: str, changes: Changes, offered: Offered | None = None
    ) -> None:
        """Remember a decision made now, and perhaps what was on offer."""
        changes.write(_ADD, key, shown.row, item, shown.features, time.time(), shown.era)
        if offered is not None:
            changes.write("INSERT INTO offers VALUES (?, ?, ?, ?)", key, *offered)
        self._by_user.add(shown.row, key, changes)
        self._recent[key] = shown
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def find(self, key: bytes) -> Shown | None:
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        sql = "SELECT row, features, reward, era, assumed FROM decisions WHERE id = ?"
        found = self._store.reader.execute(sql, (key,)).fetchone()
        if found is None:
            return None
        shown = Shown(*found)
        reward, assumed = self._fresh.get(key, (shown.reward, shown.assumed))
        return shown._replace(reward=reward, assumed=assumed)

    def open_before(self, after: bytes, before: float) -> list[bytes]:
        """Some decisions on disk without a reward, later than a key and made before a time."""
        sql = "SELECT id FROM decisions WHERE id > ? AND id < ? AND reward IS NULL ORDER BY id LIMIT ?"
        found = self._store.reader.execute(sql, (after, _moment(before), ASSUMED_AT_ONCE))
        return [key for (key,) in found]

    def rewarded(self) -> int:
        """How many stored decisions have a reward."""
        sql = "SELECT count(*) FROM decisions WHERE reward IS NOT NULL"
        return int(self._store.reader.execute(sql).fetchone()[0])

    def reward(self, key: bytes, reward: float, changes: Changes, assumed: int = 0) -> None:
        """Enter the reward of a decision that had none, or an assumed one."""
        self._recent.pop(key, None)
        self._fresh[key] = reward, assumed
        changes.rewards.append(key)
        changes.write(_REWARD, reward, assumed, key)

    def committed(self, changes: Changes) -> None:
        """The rewards among these changes can be read from the store from now on."""
        for key in changes.rewards:
            self._fresh.pop(key, None)

    def of_user(self, row: int) -> list[tuple[Any, ...]]:
        """Id, item, features, time, reward, whether that is assumed; then probability, version and
        body of the offer, all None where it was not kept. Oldest first."""
        columns = "id, item, features, made, reward, assumed, chance, version, body"
        found = {one[0]: one for one in self._by_user.select(columns, row)}
        return [found[key] for key in sorted(found)]

    def items_of(self, row: int) -> set[str]:
        """What the user was shown, as far as decisions are kept and on disk."""
        return {item for (item,) in self._by_user.select("item", row)}

    def delete_user(self, row: int, changes: Changes) -> None:
        """Forget all decisions of a user."""
        self._recent = {key: shown for key, shown in self._recent.items() if shown.row != row}
        self._by_user.delete_user(row, changes)

    def forget(self, before: float, changes: Changes) -> bool:
        """Drop some decisions made before a time; False if there are none.

        Not all at once: requests wait meanwhile. Ids begin with the time, so nothing is searched.
        """
        first = _moment(before)
        while self._recent and (oldest := next(iter(self._recent))) < first:
            del self._recent[oldest]
        sql = "SELECT row, id FROM decisions WHERE id < ? ORDER BY id LIMIT ?"
        old = self._store.reader.execute(sql, (first, FORGOTTEN_AT_ONCE)).fetchall()
        if not old:
            return False
        self._by_user.delete(old, changes)
        least = "(SELECT version FROM offers ORDER BY decision LIMIT 1)"
        changes.write(f"DELETE FROM former WHERE until <= coalesce({least}, until)")
        return True
