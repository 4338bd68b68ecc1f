"""What was observed elsewhere."""

from __future__ import annotations

from fclub.service.store.store import Changes, Store


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
