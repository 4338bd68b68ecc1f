"""The items that a local server knows by id: all of them in the store and, packed, at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fclub.core.types import Flags, Floats, Matrix
from fclub.service.store.store import Changes, Store

LEAST_ROOM = 64


class Offer(NamedTuple):
    """Items by place, with their ids; only those that are `there` are on offer.

    `version` is the catalogue's. `known` tells whether the items are of the catalogue, `whole` whether
    they are all of it.
    """

    items: Matrix
    there: Flags
    ids: Sequence[str]
    version: int
    known: bool = True
    whole: bool = False


class Catalogue:
    """Items in rows, which never change while somebody may be scoring them.

    A new item takes the next row, a replaced one too, and its old row is marked. When there is no row
    left, all that are not marked move to new arrays. So an offer can be looked at without a lock.

    Every change has a number, the catalogue's `version`. With `keep`, or once offers are stored, the
    store also keeps what was replaced or deleted, and from which version to which it was there.
    """

    def __init__(self, store: Store, dim: int, keep: bool = False) -> None:
        self._store, self._dim = store, dim
        self.version = int(store.get("catalogue") or 0)
        stored = store.reader.execute("SELECT EXISTS (SELECT 1 FROM offers)").fetchone()[0]
        self._keep = keep or bool(stored)
        ids, features = [], bytearray()
        for key, row in store.reader.execute("SELECT id, features FROM items ORDER BY id"):
            ids.append(key)
            features += row
        self._arrange(ids, np.frombuffer(features).reshape(-1, dim))

    def _arrange(self, ids: list[str], features: Matrix, more: int = 0) -> None:
        """New arrays of these items, with room for more."""
        count = len(ids)
        room = max(LEAST_ROOM, (count + more) * 5 // 4)
        self._items, self._there = np.zeros((room, self._dim)), np.zeros(room, dtype=np.bool_)
        self._items[:count], self._there[:count] = features, True
        self._ids, self._row_of = ids, {key: row for row, key in enumerate(ids)}

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, key: object) -> bool:
        return key in self._row_of

    def place(self, key: str) -> int:
        """The place of a known item in `offer`."""
        return self._row_of[key]

    def features(self, key: str) -> Floats | None:
        row = self._row_of.get(key)
        return None if row is None else self._items[row]

    def offer(self) -> Offer:
        """Everything that there is now."""
        count = len(self._ids)
        items, there = self._items[:count], self._there[:count]
        return Offer(items, there, self._ids, self.version, whole=True)

    def news(self, ids: Sequence[str], features: Matrix) -> tuple[list[str], Matrix]:
        """Those of the items that are not known with the same features."""
        places = np.array([self._row_of.get(key, -1) for key in ids])
        known = (self._items[places] == features).all(axis=1) & (places >= 0)
        return [ids[k] for k in np.flatnonzero(~known).tolist()], features[~known]

    def put(self, ids: Sequence[str], features: Matrix, changes: Changes) -> int:
        """Insert or replace items; returns how many are new."""
        known = len(self)
        self._change([key for key in ids if self._remove(key)], changes)
        rows = [(key, row.tobytes(), self.version) for key, row in zip(ids, features, strict=True)]
        changes.write_each("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", rows)
        self._make_room(len(ids))
        first, last = len(self._ids), len(self._ids) + len(ids)
        self._items[first:last], self._there[first:last] = features, True
        self._row_of |= zip(ids, range(first, last), strict=True)
        self._ids.extend(ids)
        return len(self) - known

    def delete(self, key: str, changes: Changes) -> bool:
        """Whether there was such an item."""
        if not self._remove(key):
            return False
        self._change([key], changes)
        changes.write("DELETE FROM items WHERE id = ?", key)
        return True

    def _change(self, gone: list[str], changes: Changes) -> None:
        """A new version, in which these are not there any more as they were."""
        self.version += 1
        changes.note("catalogue", str(self.version))
        if self._keep:
            sql = "INSERT INTO former SELECT id, since, ?, features FROM items WHERE id = ?"
            changes.write_each(sql, [(self.version, key) for key in gone])

    def _remove(self, key: str) -> bool:
        row = self._row_of.pop(key, None)
        if row is None:
            return False
        self._there[row] = False
        return True

    def _make_room(self, more: int) -> None:
        """Marked rows are left out when everything moves."""
        if len(self._ids) + more > len(self._items):
            rows = np.fromiter(self._row_of.values(), dtype=np.int64, count=len(self))
            self._arrange(list(self._row_of), self._items[rows], more)

    def stored(self, after: str, most: int) -> list[tuple[str, bytes]]:
        """Ids and features of the next items on disk, in the order of their ids."""
        sql = "SELECT id, features FROM items WHERE id > ? ORDER BY id LIMIT ?"
        return self._store.reader.execute(sql, (after, most)).fetchall()
