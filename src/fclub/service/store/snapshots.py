"""Snapshots of a node's state: what changes with a user is kept row by row, and only written then.

A snapshot is of one moment, but its rows are written little by little, while others are served: a row
is kept with the number of the log entry that it is of, beside the one of the snapshot before. Only when
all rows are there does the rest follow, and with it the snapshot counts. Whatever happens before that,
the last whole snapshot and the log since then are still there.
"""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

import numpy as np

from fclub.core.types import Indices
from fclub.service.store.store import Changes, Store

ROWS_AT_ONCE = 20
"""Rows that are written in one transaction. Each is on a page of its own, for which everybody waits who
waits for that commit."""

READ_AT_ONCE = 4096
_ROWS = "rows of users"
_KEEP = "INSERT OR REPLACE INTO user_rows VALUES (?, ?, ?)"
_DROP = (
    "DELETE FROM user_rows WHERE row = ?1 AND entry < "
    "(SELECT max(entry) FROM user_rows WHERE row = ?1 AND entry <= ?2)"
)


class Kept(NamedTuple):
    """A snapshot that was read: its log entry, the state, and which arrays are kept by user.

    `unfinished` tells whether there are rows of a later snapshot that was never finished.
    """

    entry: int
    arrays: dict[str, Any]
    values: dict[str, Any]
    by_user: tuple[str, ...]
    unfinished: bool


class Snapshot:
    """The state of a node after a log entry, on its way to the disk.

    Of the arrays `by_user` only the `changed` rows are written; `before` is the entry of the last whole
    snapshot. All is copied here: the server may go on.
    """

    def __init__(
        self,
        entry: int,
        before: int,
        state: tuple[dict[str, Any], dict[str, Any]],
        by_user: tuple[str, ...],
        changed: Indices,
    ) -> None:
        arrays, values = state
        self.entry, self.before, self.changed = entry, before, changed
        rows = {name: arrays[name] for name in by_user}
        kinds = [(name, array.dtype.str, array.shape[1:]) for name, array in rows.items()]
        self._records = np.empty(len(changed) if rows else 0, dtype=kinds)
        for name, array in rows.items():
            self._records[name] = array[changed]
        if rows:
            values = values | {_ROWS: [len(next(iter(rows.values()))), kinds]}
        file = io.BytesIO()
        text = np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)
        rest = {name: array for name, array in arrays.items() if name not in rows}
        np.savez(file, values=text, **rest)
        self._rest = file.getvalue()
        self._written = 0

    def write(self, changes: Changes, most: int | None = None) -> bool:
        """Write some more rows, or all; True with the last of them, and then also the rest."""
        start, rows = self._written, len(self._records)
        self._written = stop = rows if most is None else min(start + most, rows)
        if stop > start:
            states = (self._records[place : place + 1].tobytes() for place in range(start, stop))
            changed = self.changed[start:stop].tolist()
            kept = [(row, self.entry, state) for row, state in zip(changed, states, strict=True)]
            changes.write_each(_KEEP, kept)
            changes.write_each(_DROP, [(row, self.before) for row in changed])
        if stop < rows:
            return False
        changes.write("INSERT OR REPLACE INTO snapshot VALUES (?, ?)", self.entry, self._rest)
        changes.write("DELETE FROM snapshot WHERE entry < ?", self.entry)
        return True


def drop_unfinished(entry: int, changes: Changes) -> None:
    """Rows that are newer than the last whole snapshot will never be needed."""
    changes.write("DELETE FROM user_rows WHERE entry > ?", entry)


def read_snapshot(store: Store) -> Kept | None:
    row = store.reader.execute("SELECT entry, state FROM snapshot ORDER BY entry DESC").fetchone()
    if row is None:
        return None
    entry = int(row[0])
    with np.load(io.BytesIO(row[1]), allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    values = json.loads(arrays.pop("values").tobytes())
    users, kinds = values.pop(_ROWS, (0, []))
    kind = np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in kinds])
    rows = {name: np.zeros((users, *kind[name].shape), kind[name].base) for name in kind.names or ()}
    unfinished = _read_rows(store, entry, kind, rows) if rows else False
    return Kept(entry, arrays | rows, values, tuple(rows), unfinished)


def _read_rows(store: Store, entry: int, kind: Any, rows: dict[str, Any]) -> bool:
    """Fill the arrays with what is not newer than the entry; whether something is."""
    sql, newer = "SELECT row, entry, state FROM user_rows ORDER BY row, entry", False
    found = store.reader.execute(sql)
    while portion := found.fetchmany(READ_AT_ONCE):
        kept = [(row, state) for row, of, state in portion if of <= entry]
        newer |= len(kept) < len(portion)
        places = np.array([row for row, _ in kept], dtype=np.int64)
        records = np.frombuffer(b"".join(state for _, state in kept), dtype=kind)
        for name, array in rows.items():
            array[places] = records[name]
    return newer
