"""What was observed elsewhere."""

from __future__ import annotations

import time

from fclub.service.store.store import Changes, Store


class Past:
    """Observations made elsewhere: ids that the application gave, the user's row and the reward.

    Also which item of the catalogue it was, if one, when the observation was reported, and what reward
    was expected, in units of `core.items`, if that is compared.

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

    def add(
        self,
        key: str,
        row: int,
        reward: float,
        item: str | None,
        changes: Changes,
        expected: int | None = None,
    ) -> None:
        self._fresh[key] = row, reward
        changes.past.append(key)
        sql = "INSERT OR REPLACE INTO past VALUES (?, ?, ?, ?, ?, ?)"
        changes.write(sql, key, row, reward, item, time.time(), expected)

    def items_of(self, row: int, since: float) -> set[str]:
        """Items of the catalogue in observations of a user, on disk and reported since a time."""
        sql = "SELECT item FROM past WHERE row = ? AND told >= ? AND item IS NOT NULL"
        return {item for (item,) in self._store.reader.execute(sql, (row, since))}

    def effects_of(self, row: int) -> list[tuple[str, str, float, int]]:
        """Ids, items, rewards and what was expected of them, where effects of items were learned."""
        sql = "SELECT id, item, reward, expected FROM past WHERE row = ? AND expected IS NOT NULL"
        return self._store.reader.execute(sql, (row,)).fetchall()

    def of_user(self, row: int) -> list[tuple[str, float, str | None]]:
        """Ids, rewards and items of a user's observations."""
        sql = "SELECT id, reward, item FROM past WHERE row = ? ORDER BY id"
        return self._store.reader.execute(sql, (row,)).fetchall()

    def committed(self, changes: Changes) -> None:
        """The ids among these changes can be read from the store from now on."""
        for key in changes.past:
            self._fresh.pop(key, None)
