"""SQLite on disk: one file per node, one transaction per group of changes.

`log` holds what was applied, in order; replaying what is newer than the snapshot on it gives the state
bit for bit. Noise that an entry drew is stored with it, so that a replay never draws again.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fclub.errors import InvalidFile
from fclub.service.channel import Statement

VERSION = 2
DROP_EVERY = 50
"""How many log entries come between two portions of superfluous ones that are dropped."""

_COMMON = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE log (entry INTEGER PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL,
                  body BLOB NOT NULL, noise BLOB NOT NULL);
CREATE TABLE outbox (peer TEXT, sequence INTEGER, frame BLOB NOT NULL, PRIMARY KEY (peer, sequence));
CREATE TABLE snapshot (entry INTEGER PRIMARY KEY, state BLOB NOT NULL);
"""
_LOCAL = """
CREATE TABLE users (row INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE decisions (id BLOB PRIMARY KEY, row INTEGER NOT NULL, item TEXT NOT NULL,
                        features BLOB NOT NULL, made REAL NOT NULL, reward REAL) WITHOUT ROWID;
CREATE TABLE sent (sequence INTEGER PRIMARY KEY, made REAL NOT NULL, kind TEXT NOT NULL,
                   clusters INTEGER NOT NULL, observations INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE ledger (entry INTEGER PRIMARY KEY, made REAL NOT NULL, frame INTEGER NOT NULL,
                     event TEXT NOT NULL);
"""
SCHEMAS = {"local": _COMMON + _LOCAL, "global": _COMMON}

MIGRATIONS: dict[str, dict[int, str]] = {"local": {}, "global": {}}
"""Script v takes a store from version v to v+1; `SCHEMAS` is always the newest version.

Version 1 was never released. It did not account for what it sent, so nothing leads from it.
"""


class Store:
    """The file of one node. Writes come from one thread at a time; reads have their own connection."""

    def __init__(self, path: Path | str, kind: str) -> None:
        self.path, self.kind = Path(path), kind
        try:
            self._writer = self._connect()
            self._prepare()
            self.reader = self._connect()
        except sqlite3.DatabaseError as error:
            raise InvalidFile(f"{path} is not a store: {error}") from None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA busy_timeout = 5000")
        return connection

    def _prepare(self) -> None:
        """Create the schema in a new file, migrate an old one, refuse a foreign or newer one."""
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        tables = self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and tables == 0:
            self._script(
                SCHEMAS[self.kind] + f"INSERT INTO meta VALUES ('kind', '{self.kind}');", VERSION
            )
            return
        scripts = MIGRATIONS[self.kind]
        if version > VERSION or any(old not in scripts for old in range(version, VERSION)):
            raise InvalidFile(f"{self.path} has store version {version}, expected {VERSION}")
        for old in range(version, VERSION):
            self._script(scripts[old], old + 1)
        if self.get("kind") != self.kind:
            raise InvalidFile(f"{self.path} is the store of a {self.get('kind')} server")

    def _script(self, sql: str, version: int) -> None:
        self._writer.executescript(f"BEGIN; {sql} PRAGMA user_version = {version}; COMMIT;")

    def write(self, statements: list[Statement]) -> None:
        """All of them or none, on disk when this returns."""
        self.stage(statements)
        self.commit()

    def stage(self, statements: list[Statement]) -> None:
        """Open a transaction with these statements; nothing is visible before `commit`."""
        execute = self._writer.execute
        execute("BEGIN IMMEDIATE")
        try:
            for sql, parameters in statements:
                execute(sql, parameters)
        except BaseException:
            execute("ROLLBACK")
            raise

    def commit(self) -> None:
        """Wait for the disk."""
        self._writer.execute("COMMIT")

    def get(self, key: str) -> str | None:
        row = self._writer.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def fix(self, key: str, value: Any) -> None:
        """Remember a setting that must never change for this file."""
        text, stored = json.dumps(value, sort_keys=True), self.get(key)
        if stored is None:
            self.write([("INSERT INTO meta VALUES (?, ?)", (key, text))])
        elif stored != text:
            raise InvalidFile(f"{self.path} was made with {key} = {stored}, now it is {text}")

    def snapshot(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """Log entry, arrays and values of the last snapshot."""
        row = self.reader.execute("SELECT entry, state FROM snapshot ORDER BY entry DESC").fetchone()
        if row is None:
            return None
        with np.load(io.BytesIO(row[1]), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        return int(row[0]), arrays, json.loads(arrays.pop("values").tobytes())

    def entries(self, after: int) -> Iterator[tuple[int, str, str, bytes, bytes]]:
        """The log after an entry: number, kind, source, body, noise."""
        yield from self.reader.execute("SELECT * FROM log WHERE entry > ? ORDER BY entry", (after,))

    def outbox(self, peer: str) -> list[tuple[int, bytes]]:
        """Numbers and frames that the peer has not confirmed, in order."""
        sql = "SELECT sequence, frame FROM outbox WHERE peer = ? ORDER BY sequence"
        return self.reader.execute(sql, (peer,)).fetchall()

    def compare_outbox(self, peer: str, sent: int, made: list[bytes]) -> int:
        """Check that the frames a replay `made` are the stored ones; returns the last confirmed."""
        again = dict(enumerate(made, start=sent - len(made) + 1))
        stored = self.outbox(peer)
        for sequence, frame in stored:
            if sequence > sent or again.get(sequence, frame) != frame:
                raise InvalidFile(f"{self.path}: the log does not lead to the messages to {peer}")
        return stored[0][0] - 1 if stored else sent

    def integrity(self) -> str:
        return str(self.reader.execute("PRAGMA integrity_check").fetchone()[0])

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


def log_statements(entry: int, snapshot: int, *columns: str | bytes) -> list[Statement]:
    """A log entry; now and then also the end of some that the last snapshot has made superfluous.

    To drop all of them with the snapshot would stop every request for the time that it takes.
    """
    statements: list[Statement] = [("INSERT INTO log VALUES (?, ?, ?, ?, ?)", (entry, *columns))]
    if entry % DROP_EVERY == 0:
        sql = "DELETE FROM log WHERE entry <= min(?, (SELECT min(entry) FROM log) + ?)"
        statements.append((sql, (snapshot, 2 * DROP_EVERY)))
    return statements


def snapshot_statements(entry: int, arrays: dict[str, Any], values: dict[str, Any]) -> list[Statement]:
    """A new snapshot replaces the old one."""
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)
    np.savez(file, values=text, **arrays)
    return [
        ("DELETE FROM snapshot", ()),
        ("INSERT INTO snapshot VALUES (?, ?)", (entry, file.getvalue())),
    ]
