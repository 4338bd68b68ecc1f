"""The items that a local server knows by id: all of them in the store and, packed, at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fclub.core.items import NO_SUMS, ItemBook, ItemSums, Residuals
from fclub.core.types import Flags, Floats, Indices, Matrix
from fclub.service.store.attributes import (
    NONE,
    Attributes,
    Columns,
    Filter,
    decode_attributes,
    encode_attributes,
)
from fclub.service.store.ids import Ids
from fclub.service.store.store import Changes, Store

LEAST_ROOM = 64
READ_AT_ONCE = 4096
"""Stored items that are objects at a time."""

MASKS = 16
"""Filters whose masks are kept, each for one version of the catalogue."""


RESIDUAL = "CAST(reward * 65536 + 0.5 AS INTEGER) - expected"
"""Of a reward, in whole multiples of `core.items.UNIT`, as `residual_of` has it."""

_SUMS = (
    "SELECT item, count(*), sum(residual), sum(residual * residual) FROM ("
    f"SELECT item, {RESIDUAL} AS residual FROM decisions WHERE reward + expected IS NOT NULL "
    f"UNION ALL SELECT item, {RESIDUAL} FROM past WHERE expected IS NOT NULL) GROUP BY item"
)


class Offer(NamedTuple):
    """Items by place, with their ids; only those that are `there` are on offer.

    `version` is the catalogue's. `known` tells whether the items are of the catalogue, `whole` whether
    they are all of it. `effects` are what is known of items of the catalogue beyond their features.
    """

    items: Matrix
    there: Flags
    ids: Sequence[str]
    version: int
    known: bool = True
    whole: bool = False
    effects: ItemSums = NO_SUMS


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
        offered = store.reader.execute("SELECT EXISTS (SELECT 1 FROM offers)").fetchone()[0]
        self._keep = keep or bool(offered)
        read = store.reader.execute
        (count,) = read("SELECT count(*) FROM items").fetchone()
        self._ids, self._columns, self._count = Ids(), Columns(), 0
        self._masks: dict[Filter, Flags] = {}
        self._items, self._there = self._room(count)
        self.book: ItemBook | None = None
        stored = read("SELECT id, features, attributes FROM items ORDER BY id")
        while some := stored.fetchmany(READ_AT_ONCE):
            rows = np.frombuffer(b"".join([row for _, row, _ in some])).reshape(-1, dim)
            attributes = [NONE if text is None else decode_attributes(text) for _, _, text in some]
            self._add([key for key, _, _ in some], rows, attributes)

    def _room(self, count: int) -> tuple[Matrix, Flags]:
        """Arrays for so many items and a few more."""
        room = max(LEAST_ROOM, count * 9 // 8)
        return np.zeros((room, self._dim)), np.zeros(room, dtype=np.bool_)

    def _add(self, ids: Sequence[str], features: Matrix, attributes: list[Attributes]) -> None:
        """New rows, for which there is room."""
        self._columns.extend(attributes)
        rows = slice(len(self._ids), len(self._ids) + len(ids))
        self._items[rows], self._there[rows] = features, True
        self._ids.extend(ids)
        self._count += len(ids)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.places([key])[0] >= 0)

    def places(self, ids: Sequence[str]) -> Indices:
        """The places of items in `offer`, −1 for those that there are not."""
        return self._ids.find(ids, self._there)

    def features(self, key: str) -> Floats | None:
        (row,) = self.places([key])
        return None if row < 0 else self._items[row]

    def filtered(self, condition: Filter) -> Flags:
        """For which items a filter holds: looked up once for a version of the catalogue."""
        mask = self._masks.pop(condition, None)
        if mask is None:
            mask = self._columns.mask(condition)
            if len(self._masks) >= MASKS:
                del self._masks[next(iter(self._masks))]
        self._masks[condition] = mask
        return mask

    def available(self, now: float) -> Flags | None:
        """Which items are available at a time; None: all are."""
        return self._columns.available(now)

    def in_category(self, name: str) -> Flags:
        return self.filtered(Filter(category=name))

    @property
    def columns(self) -> Columns:
        """The attributes of items by place, of which rows never change."""
        return self._columns

    def offer(self) -> Offer:
        """Everything that there is now."""
        count = len(self._ids)
        items, there = self._items[:count], self._there[:count]
        effects = NO_SUMS if self.book is None else self.book.first(count)
        return Offer(items, there, self._ids, self.version, whole=True, effects=effects)

    def effects_at(self, places: Indices) -> ItemSums:
        """What is known of some items beyond their features."""
        return NO_SUMS if self.book is None else self.book.first(len(self._ids)).at(places)

    def learn_effects(self) -> None:
        """Learn effects of items from now on, and from all rewards that are kept."""
        self.book = ItemBook(len(self._items))
        stored = self._store.reader.execute(_SUMS)
        while some := stored.fetchmany(READ_AT_ONCE):
            places = self.places([key for key, *_ in some]).tolist()
            for place, (key, *residuals) in zip(places, some, strict=True):
                self.book.add(place, key, Residuals(*residuals))
        self.fit_effects()

    def fit_effects(self) -> None:
        """How much effects differ is a matter of all residuals that are kept."""
        if self.book is not None:
            self.book.fit()

    def add_residuals(self, key: str, residuals: Residuals) -> None:
        if self.book is not None:
            self.book.add(int(self.places([key])[0]), key, residuals)

    def news(self, ids: Sequence[str], features: Matrix) -> tuple[list[str], Matrix]:
        """Those of the items that are not known with the same features."""
        places = self.places(ids)
        known = (self._items[places] == features).all(axis=1) & (places >= 0)
        return [ids[k] for k in np.flatnonzero(~known).tolist()], features[~known]

    def put(
        self,
        ids: Sequence[str],
        features: Matrix,
        changes: Changes,
        attributes: list[Attributes] | None = None,
    ) -> int:
        """Insert or replace items, which have no attributes unless given; returns how many are new."""
        attributes = attributes or [NONE] * len(ids)
        places = self.places(ids)
        replaced = places >= 0
        self._change([ids[k] for k in np.flatnonzero(replaced).tolist()], changes)
        self._remove(places[replaced], [ids[k] for k in np.flatnonzero(replaced).tolist()])
        rows = [
            (key, row.tobytes(), self.version, None if one == NONE else encode_attributes(one))
            for key, row, one in zip(ids, features, attributes, strict=True)
        ]
        changes.write_each("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", rows)
        self._make_room(len(ids))
        first = len(self._ids)
        self._add(ids, features, attributes)
        for place, key in enumerate(ids if self.book is not None else (), first):
            self.book.enter(place, key)  # type: ignore[union-attr]
        return len(ids) - int(replaced.sum())

    def delete(self, key: str, changes: Changes) -> bool:
        """Whether there was such an item."""
        places = self.places([key])
        if places[0] < 0:
            return False
        self._remove(places, [key])
        self._change([key], changes)
        changes.write("DELETE FROM items WHERE id = ?", key)
        return True

    def _remove(self, places: Indices, ids: list[str]) -> None:
        self._there[places] = False
        if self.book is not None:
            for place, key in zip(places.tolist(), ids, strict=True):
                self.book.leave(place, key)
        self._count -= len(places)

    def _change(self, gone: list[str], changes: Changes) -> None:
        """A new version, in which these are not there any more as they were."""
        self.version += 1
        self._masks = {}
        changes.note("catalogue", str(self.version))
        if self._keep:
            sql = "INSERT INTO former SELECT id, since, ?, features FROM items WHERE id = ?"
            changes.write_each(sql, [(self.version, key) for key in gone])

    def reserve(self, more: int) -> None:
        """Make room for many items at once, which will be put in portions."""
        self._make_room(more)

    def _make_room(self, more: int) -> None:
        """Marked rows are left out when everything moves."""
        if len(self._ids) + more <= len(self._items):
            return
        count, rows = len(self._ids), np.flatnonzero(self._there)
        items, there = self._room(self._count + more)
        if self._count < count:
            items[: len(rows)], self._ids = self._items[rows], self._ids.keep(rows)
            self._columns = self._columns.keep(rows)
        else:
            items[:count] = self._items[:count]
        if self.book is not None:
            self.book.move(rows, len(items))
        there[: len(rows)] = True
        self._items, self._there = items, there

    def stored(self, after: str, most: int) -> list[tuple[str, Floats, Attributes]]:
        """Ids, features and attributes of the next items on disk, in the order of their ids."""
        sql = "SELECT id, features, attributes FROM items WHERE id > ? ORDER BY id LIMIT ?"
        found = self._store.reader.execute(sql, (after, most))
        return [_read(*row) for row in found]

    def find(self, key: str) -> tuple[str, Floats, Attributes] | None:
        """The same of one item on disk."""
        sql = "SELECT id, features, attributes FROM items WHERE id = ?"
        found = self._store.reader.execute(sql, (key,)).fetchone()
        return None if found is None else _read(*found)


def _read(key: str, features: bytes, text: bytes | None) -> tuple[str, Floats, Attributes]:
    return key, np.frombuffer(features), NONE if text is None else decode_attributes(text)
