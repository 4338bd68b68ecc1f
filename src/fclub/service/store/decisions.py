"""What was shown to whom, of which offer, and what was observed elsewhere.

All of it is in the store; the latest decisions without a reward are also at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
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


class Decisions:
    """The decisions of one local server.

    Most rewards come soon, so the latest decisions are kept; others are read. A reward that is on the
    way to the disk cannot be read yet: it is kept until its changes are committed.
    """

    def __init__(self, store: Store, shard: int = 0) -> None:
        self._store = store
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
        sql = (
            "SELECT id, item, features, made, reward, assumed, chance, version, body "
            "FROM decisions LEFT JOIN offers ON decision = id WHERE row = ? ORDER BY id"
        )
        return self._store.reader.execute(sql, (row,)).fetchall()

    def items_of(self, row: int) -> list[str]:
        """What the user was shown, as far as decisions are kept and on disk."""
        sql = "SELECT DISTINCT item FROM decisions WHERE row = ?"
        return [item for (item,) in self._store.reader.execute(sql, (row,))]

    def drop_user(self, row: int) -> None:
        """The user's decisions are about to be deleted from the store."""
        self._recent = {key: shown for key, shown in self._recent.items() if shown.row != row}

    def forget(self, before: float, changes: Changes) -> bool:
        """Drop some decisions made before a time; False if there are none.

        Not all at once: requests wait meanwhile. Ids begin with the time, so nothing is searched.
        """
        first = _moment(before)
        while self._recent and (oldest := next(iter(self._recent))) < first:
            del self._recent[oldest]
        old = "FROM decisions WHERE id < ?"
        if self._store.reader.execute(f"SELECT 1 {old} LIMIT 1", (first,)).fetchone() is None:
            return False
        gone = f"SELECT id {old} ORDER BY id LIMIT ?"
        for table, name in (("offers", "decision"), ("decisions", "id")):
            changes.write(f"DELETE FROM {table} WHERE {name} IN ({gone})", first, FORGOTTEN_AT_ONCE)
        least = "(SELECT version FROM offers ORDER BY decision LIMIT 1)"
        changes.write(f"DELETE FROM former WHERE until <= coalesce({least}, until)")
        return True


class Past:
    """Observations made elsewhere: ids that the application gave, the user's row and the reward.

    An id on its way to the disk cannot be read yet: it is kept until its changes are committed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fresh: dict[str, tuple[int, float]] = {}

    def find(self, key: str) -> tuple[int, float] | None:
        """Row and reward of a known observation."""
        if key in self._fresh:
            return self._fresh[key]
        sql = "SELECT row, reward FROM past WHERE id = ?"
        found: tuple[int, float] | None = self._store.reader.execute(sql, (key,)).fetchone()
        return found

    def add(self, key: str, row: int, reward: float, changes: Changes) -> None:
        self._fresh[key] = row, reward
        changes.past.append(key)
        changes.write("INSERT OR REPLACE INTO past VALUES (?, ?, ?)", key, row, reward)

    def of_user(self, row: int) -> list[tuple[str, float]]:
        """Ids and rewards of a user's observations."""
        sql = "SELECT id, reward FROM past WHERE row = ? ORDER BY id"
        return self._store.reader.execute(sql, (row,)).fetchall()

    def committed(self, changes: Changes) -> None:
        """The ids among these changes can be read from the store from now on."""
        for key in changes.past:
            self._fresh.pop(key, None)
