"""Copies of a store that hold a whole state, and the way back.

A plain copy of the file of a running server may miss what is still in the file beside it (`-wal`), and
may hold half of a transaction; SQLite's own backup does neither.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from fclub.errors import InvalidFile
from fclub.service.store.lock import PRIVATE, Lock
from fclub.service.store.store import SCHEMAS, VERSION, is_store, require_version

INCARNATION_BYTES = 16

PAGES = 1000
"""Pages that are copied at a time; the server may write in between."""


def backup_store(store: Path, target: Path) -> dict[str, object]:
    """Copy a store, also while its server runs; returns what the copy holds."""
    require_store(store)
    if target.exists():
        raise InvalidFile(f"{target} exists already")
    with written_whole(target) as unfinished:
        _copy(store, unfinished)
        found = describe(unfinished)
    return found | {"store": str(store), "file": str(target)}


def restore_store(file: Path, store: Path, replace: bool = False) -> dict[str, object]:
    """Put a backup back as the store of a server that is stopped.

    The copy gets a new incarnation and a mark: whatever was released since the backup was made is not
    released again, also if the global server cannot tell that this store is behind.
    """
    require_store(file)
    if store.exists() and not replace:
        raise InvalidFile(f"{store} exists already: stop its server, and say --replace")
    with ExitStack() as held:
        try:
            held.callback(Lock(store).release)
        except OSError as error:
            raise InvalidFile(f"{store}: {error.strerror}") from None
        with written_whole(store) as unfinished:
            _copy(file, unfinished)
            found = describe(unfinished)
            _mark(unfinished)
            for rest in ("-wal", "-shm"):
                Path(f"{store}{rest}").unlink(missing_ok=True)
    return found | {"store": str(store), "file": str(file)}


def describe(path: Path) -> dict[str, object]:
    """What a store is, or what is wrong with it: kind, version, size, and whether it is whole."""
    require_store(path)
    try:
        with closing(read_only(path)) as connection:
            kind = connection.execute("SELECT value FROM meta WHERE key = 'kind'").fetchone()
            (integrity,) = connection.execute("PRAGMA integrity_check").fetchone()
            (entry,) = connection.execute("SELECT coalesce(max(entry), 0) FROM log").fetchone()
            require_version(connection, path)
    except sqlite3.Error as error:
        raise InvalidFile(f"{path} is not a store: {error}") from None
    if kind is None or kind[0] not in SCHEMAS:
        raise InvalidFile(f"{path} is not a store of fclub")
    if integrity != "ok":
        raise InvalidFile(f"{path} is damaged: {integrity}")
    return {"kind": kind[0], "version": VERSION, "entry": entry, "bytes": path.stat().st_size}


def require_store(path: Path) -> None:
    if not is_store(path):
        raise InvalidFile(f"there is no store {path}")


def read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A file beside the target that takes its place when it is complete and on disk."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC, PRIVATE))
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise InvalidFile(f"{target}: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    """Names that came or went in a folder are on disk when this returns."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy(source: Path, target: Path) -> None:
    try:
        with closing(read_only(source)) as found, closing(sqlite3.connect(target)) as copy:
            found.backup(copy, pages=PAGES)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise InvalidFile(f"{source} cannot be copied: {error}") from None


def _mark(path: Path) -> None:
    values = {"incarnation": json.dumps(os.urandom(INCARNATION_BYTES).hex()), "marked": "true"}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
