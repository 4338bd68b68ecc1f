"""Pages that were committed are copied into the store's file beside serving.

SQLite appends commits to a log that it writes ahead, and now and then copies the log's pages to their
places, at random all over the file. By default the commit that finds the log long does so: everybody
who waits for it waits for the disk a hundred times as long as usual.
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor

EVERY = 128
"""Commits after which the log is copied: each has a few pages."""

LAST, PASSES = 8, 8
"""So few commits, or what is left after so many passes, the next commit copies itself: SQLite begins
the log anew only when nothing is left of it."""


def copy_pages(connection: sqlite3.Connection) -> None:
    """Copy all pages that were committed before, but for those that somebody reads."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


class Tidier:
    """Copies with a connection and a thread of its own; told of every commit by whoever commits.

    While a pass copies pages, others are committed. The next pass has fewer, and takes less time.
    """

    def __init__(self, own: sqlite3.Connection, writer: sqlite3.Connection) -> None:
        self._own, self._writer = own, writer
        self._thread = ThreadPoolExecutor(1)
        self._copying: Future[None] | None = None
        self._commits = self._passes = 0

    def committed(self) -> None:
        self._commits += 1
        if self._copying is None:
            if self._commits >= EVERY:
                self._begin()
        elif self._copying.done():
            self._copying.result()
            if self._commits > LAST and self._passes < PASSES:
                self._begin()
            else:
                copy_pages(self._writer)
                self._copying, self._commits, self._passes = None, 0, 0

    def _begin(self) -> None:
        self._commits, self._passes = 0, self._passes + 1
        self._copying = self._thread.submit(copy_pages, self._own)

    def rest(self) -> None:
        """Return when no pass is running."""
        if self._copying is not None:
            self._copying.result()

    def close(self) -> None:
        self._thread.shutdown()
