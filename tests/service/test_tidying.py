"""Pages of the log that SQLite writes ahead reach the store's file, and the log stays short."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from fclub.service.store.store import Store
from fclub.service.store.tidying import EVERY

COMMITS = 20 * EVERY


def filled(store: Store, commits: int) -> None:
    for number in range(commits):
        store.write([("INSERT INTO users VALUES (?, ?)", (number, f"somebody {number}"))])


def test_the_log_begins_anew_again_and_again(tmp_path: Path) -> None:
    """Otherwise it would hold every commit, of one page of 4 kB at least."""
    path = tmp_path / "a.db"
    store = Store(path, "local")
    filled(store, COMMITS)
    assert Path(f"{path}-wal").stat().st_size < COMMITS * 4096
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM users").fetchone() == (COMMITS,)
    connection.close()


def test_everything_that_was_committed_is_read_while_pages_are_copied(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db", "local")
    for number in range(3 * EVERY):
        store.write([("INSERT INTO users VALUES (?, ?)", (number, f"somebody {number}"))])
        assert len(store.users()) == number + 1
    store.close()


def test_deleted_bytes_are_erased_while_a_pass_is_running(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = Store(path, "local")
    filled(store, EVERY)
    store.write([("DELETE FROM users", ())])
    assert store.erase()
    files = (file.read_bytes() for file in (path, Path(f"{path}-wal")))
    assert all(b"somebody" not in content for content in files)
    store.close()
