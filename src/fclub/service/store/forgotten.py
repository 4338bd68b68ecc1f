"""Names of users who were forgotten, as keyed hashes: no import brings them back unseen."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from typing import NamedTuple

from fclub.service.store.store import Changes, Store

KEY_BYTES = 16
PREFIX = "forgotten "
DAY = 86_400.0


class Remembered(NamedTuple):
    """Imports of this name are refused until a time (seconds since 1970), and never released."""

    refused_until: float
    never_released: bool


class ForgottenNames:
    """The key is the store's own: without it a hash says nothing, with it a name can be tried."""

    def __init__(self, store: Store, now: float) -> None:
        self._store = store
        self._key = bytes.fromhex(store.remember("forgetting", os.urandom(KEY_BYTES).hex()))
        self._fresh: dict[str, Remembered] = {}
        sql = "SELECT key, value FROM meta WHERE key LIKE ?"
        changes = Changes()
        for key, value in store.reader.execute(sql, (f"{PREFIX}%",)).fetchall():
            known = Remembered(*json.loads(value))
            if not known.never_released and known.refused_until <= now:
                changes.write("DELETE FROM meta WHERE key = ?", key)
        if changes.statements:
            store.write(changes.statements)

    def _hash(self, name: str) -> str:
        return PREFIX + blake2b(name.encode(), digest_size=16, key=self._key).hexdigest()

    def add(self, name: str, remembered: Remembered, changes: Changes) -> None:
        """A name that is forgotten again keeps what was decided before, where that is stricter."""
        before = self.find(name) or Remembered(0.0, False)
        both = Remembered(
            max(before.refused_until, remembered.refused_until),
            before.never_released or remembered.never_released,
        )
        if any(both):
            self._fresh[self._hash(name)] = both
            changes.note(self._hash(name), json.dumps(list(both)))

    def find(self, name: str) -> Remembered | None:
        key = self._hash(name)
        if key in self._fresh:
            return self._fresh[key]
        row = self._store.reader.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else Remembered(*json.loads(row[0]))
