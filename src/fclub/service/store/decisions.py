"""What was shown to whom, and what was observed elsewhere.

All of it is in the store; the latest decisions without a reward are also at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from fclub.service.store.store import Changes, Store

RECENT = 10_000
"""Decisions at hand: a few megabytes."""

FORGOTTEN_AT_ONCE = 500
"""Old decisions that are dropped in one go, in a few milliseconds."""

RANDOM_BYTES = 10


class Shown(NamedTuple):
    """A decision: the user's row, the features of the item, and the reward once there is one.

    `era` counts how often the store had turned out to be old when the decision was made.
    """

    row: int
    features: bytes
    reward: float | None = None
    era: int = 0


def _moment(seconds: float) -> bytes:
    """How the id of a decision made then begins."""
    return int(seconds * 1000).to_bytes(6, "big")


def _random_ends() -> Iterator[bytes]:
    """How ids end; the operating system is asked for many at once."""
    while True:
        pool = os.urandom(RANDOM_BYTES * 256)
        for start in range(0, len(pool), RANDOM_BYTES):
            yield pool[start : start + RANDOM_BYTES]


class Decisions:
    """The decisions of one local server.

    Most rewards come soon, so the latest decisions are kept; others are read. A reward that is on the
    way to the disk cannot be read yet: it is kept until its changes are committed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ends = _random_ends()
        self._recent: dict[bytes, Shown] = {}
        self._fresh: dict[bytes, float] = {}

    def add(self, shown: Shown, item: str, changes: Changes) -> bytes:
        """Remember a decision made now; returns its key."""
        made = time.time()
        key = _moment(made) + next(self._ends)
        sql = "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, NULL, ?)"
        changes.write(sql, key, shown.row, item, shown.features, made, shown.era)
        self._recent[key] = shown
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        return key

    def find(self, key: bytes) -> Shown | None:
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        sql = "SELECT row, features, reward, era FROM decisions WHERE id = ?"
        found = self._store.reader.execute(sql, (key,)).fetchone()
        if found is None:
            return None
        shown = Shown(*found)
        return shown._replace(reward=self._fresh.get(key, shown.reward))

    def rewarded(self) -> int:
        """How many stored decisions have a reward."""
        sql = "SELECT count(*) FROM decisions WHERE reward IS NOT NULL"
        return int(self._store.reader.execute(sql).fetchone()[0])

    def reward(self, key: bytes, reward: float, changes: Changes) -> None:
        """Enter the reward of a decision that had none."""
        self._recent.pop(key, None)
        self._fresh[key] = reward
        changes.rewards.append(key)
        changes.write("UPDATE decisions SET reward = ? WHERE id = ?", reward, key)

    def committed(self, changes: Changes) -> None:
        """The rewards among these changes can be read from the store from now on."""
        for key in changes.rewards:
            del self._fresh[key]

    def of_user(self, row: int) -> list[tuple[bytes, str, bytes, float, float | None]]:
        """Id, item, features, time and reward of the user's stored decisions, oldest first."""
        sql = "SELECT id, item, features, made, reward FROM decisions WHERE row = ? ORDER BY id"
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
        sql = f"DELETE FROM decisions WHERE id IN (SELECT id {old} ORDER BY id LIMIT ?)"
        changes.write(sql, first, FORGOTTEN_AT_ONCE)
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
