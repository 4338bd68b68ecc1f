"""How the shards of one site, each a process with a store of its own, learn from each other's sums.

Each leaves its sums in a file beside its store, which the same owner alone may read, and looks at those
of the others before it goes on learning, and once a second. They are raw data: they take no other way,
least of all that of messages to the global server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fclub.errors import InvalidMessage
from fclub.paths import write_atomically
from fclub.service.monitoring import Monitor
from fclub.service.nodes.local_node import LocalNode
from fclub.service.settings import LocalSettings
from fclub.service.store.backup import drop_sums, sums_file
from fclub.service.store.lock import PRIVATE


class Siblings:
    """The other shards of a node's site; a server without any leaves nothing and forgets theirs."""

    def __init__(self, node: LocalNode, settings: LocalSettings, monitor: Monitor) -> None:
        self.node, self.monitor, self._store = node, monitor, settings.store
        files = map(sums_file, settings.shard_stores)
        self._others = {shard: file for shard, file in enumerate(files) if shard != settings.shard}
        self._left: bytes | None = None
        self._seen: dict[int, bytes] = {}
        self._trouble: set[str] = set()

    def exchange(self) -> bool:
        """Leave what is new here, and learn what is new there; False if something old is still here."""
        server = self.node.server.slotted
        told = None if server is None else server.told
        left = self._try(self._leave, told if told and self._others else b"")
        if server is not None and told is not None:
            for shard in self._others.keys() | server.heard:
                self._try(self._look, shard)
        return left

    def _try(self, do: Callable[[Any], None], what: Any) -> bool:
        """Shards learn without each other if they must; each trouble is told once."""
        try:
            do(what)
            return True
        except (OSError, InvalidMessage) as error:
            reason = str(error.strerror if isinstance(error, OSError) else error)
            if reason not in self._trouble:
                self._trouble.add(reason)
                self.monitor.event("sums of shards not exchanged", logging.WARNING, error=reason)
            return False

    def _leave(self, told: bytes) -> None:
        if told == self._left:
            return
        if told:
            with write_atomically(sums_file(self._store), PRIVATE) as file:
                file.write(told)
        else:
            drop_sums(self._store)
        self._left = told

    def _look(self, shard: int) -> None:
        """A file that is gone was taken back; so is what came from a shard that is none any more."""
        found = _bytes_of(self._others.get(shard))
        if found != self._seen.get(shard):
            self.node.hear(shard, found)
            self._seen[shard] = found


def _bytes_of(file: Path | None) -> bytes:
    try:
        return b"" if file is None else file.read_bytes()
    except FileNotFoundError:
        return b""
