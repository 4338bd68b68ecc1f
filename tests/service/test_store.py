"""A store refuses what is not its own, and a replay that would not lead to what was sent."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Command

import fclub
from fclub.errors import FclubError, InvalidFile, NotStored, OtherStoreVersion, StoreInUse
from fclub.service.link.channel import GLOBAL
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import check_store, local_node
from fclub.service.settings import Model
from fclub.service.store.backup import describe
from fclub.service.store.store import DROP_EVERY, VERSION, Changes, Store

from .conftest import DIM, local_settings
from .federation import Pump


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database, but long enough to be looked at" * 40)
    with pytest.raises(InvalidFile, match="not a store"):
        Store(garbage, "local")
    path = tmp_path / "global.db"
    Store(path, "global").close()
    with pytest.raises(InvalidFile, match="global server"):
        Store(path, "local")
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(OtherStoreVersion, match=f"version {VERSION + 1}, expected {VERSION}: run the"):
        Store(path, "global")


def test_stores_from_before_the_first_release_are_refused_and_left_alone(tmp_path: Path) -> None:
    """They had versions up to 10, and nothing that tells whose file it is."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        connection.execute("CREATE TABLE log (entry INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO meta VALUES ('kind', 'local')")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.close()
    with pytest.raises(OtherStoreVersion, match="begin with a new store, which spends a budget"):
        Store(path, "local")
    with pytest.raises(OtherStoreVersion, match="before its first release"):
        describe(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT * FROM meta").fetchall() == [("kind", "local")]
    connection.close()


HOLD = """
import sys
from fclub.service.store.store import Store
store = Store(sys.argv[1], "local")
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    """The lock dies with its holder, also by kill -9, and a link to a store is the store."""
    path, link = tmp_path / "a.db", tmp_path / "link.db"
    link.symlink_to(path)
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"
        for name in (path, link):
            with pytest.raises(StoreInUse, match=rf"process {first.pid} on {socket.gethostname()}$"):
                Store(name, "local")
        first.kill()
    Store(path, "local").close()
    Store(link, "local").close()


def test_a_store_that_was_refused_is_free_for_the_next(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    local_node(settings).store.close()
    for _ in range(2):
        with pytest.raises(InvalidFile, match="name"):
            local_node(local_settings(tmp_path, name="other"))
    node = local_node(settings)
    with pytest.raises(StoreInUse, match=str(os.getpid())):
        local_node(settings)
    node.store.close()


def test_only_the_owner_may_read_a_store(tmp_path: Path) -> None:
    """Whatever the mask of the process, and whatever the modes were before."""
    mask = os.umask(0)
    try:
        for _ in range(2):
            store = Store(tmp_path / "a.db", "local")
            store.write([("INSERT OR IGNORE INTO users VALUES (0, 'ann')", ())])
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
            assert modes == dict.fromkeys(["a.db", "a.db-wal", "a.db-shm", "a.db.lock"], 0o600)
            store.close()
            for file in tmp_path.iterdir():
                file.chmod(0o644)
    finally:
        os.umask(mask)


@pytest.mark.parametrize("content", [None, b"", b"a letter"])
def test_a_check_of_what_is_no_store_is_an_error_and_makes_none(
    tmp_path: Path, command: Command, content: bytes | None
) -> None:
    path = tmp_path / "folder" / "shop.db"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    done = command("local", "--check", "--dim", 2, "--store", path)
    assert done.returncode == 1
    assert str(path) in done.stderr
    assert path.parent.exists() == (content is not None)
    assert content is None or path.read_bytes() == content


@pytest.mark.parametrize("policy", ["fclub-plus", "fclub-dc"])
def test_every_store_has_its_own_generator_and_keeps_it(tmp_path: Path, policy: str) -> None:
    def generator(name: str) -> str:
        model = Model(policy=policy, dim=DIM)
        node = local_node(local_settings(tmp_path, model=model, store=str(tmp_path / name)))
        first = node.store.get("generator")
        assert first is not None
        node.store.close()
        return first

    assert generator("a.db") == generator("a.db") != generator("b.db")


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db", "local")
    good = ("INSERT INTO users VALUES (?, ?)", (0, "ann"))
    with pytest.raises(NotStored, match="cannot be written: no such table"):
        store.write([good, ("INSERT INTO nowhere VALUES (1)", ())])
    assert store.reader.execute("SELECT count(*) FROM users").fetchone() == (0,)
    store.write([good])
    assert store.reader.execute("SELECT count(*) FROM users").fetchone() == (1,)
    store.close()


@pytest.mark.parametrize("snapshot", [0, 1, 7 * DROP_EVERY, 10 * DROP_EVERY])
def test_the_log_before_a_snapshot_is_dropped_little_by_little(tmp_path: Path, snapshot: int) -> None:
    store = Store(tmp_path / "a.db", "local")
    sizes = []
    for entry in range(1, 20 * DROP_EVERY):
        known = snapshot if entry > snapshot else 0
        changes = Changes()
        changes.log(entry, known, "user", "", b"", b"")
        store.write(changes.statements)
        sizes.append(store.reader.execute("SELECT count(*) FROM log").fetchone()[0])
        newer = store.reader.execute("SELECT count(*) FROM log WHERE entry > ?", (known,)).fetchone()
        assert newer == (entry - known,)
    assert sizes[-1] == 20 * DROP_EVERY - 1 - snapshot
    assert min(np.diff(sizes), default=0) >= -2 * DROP_EVERY
    store.close()


def visited(path: Path) -> str:
    """A private server cut off after a few visits, so that its messages wait in the outbox."""
    pump = Pump(path, Model(policy="cdp-fclub-dc", dim=3), 1)
    node = pump.locals["s0"]
    rng = np.random.default_rng(0)
    for k in range(5):
        shown = node.recommend(f"user-{k % 2}", rng.standard_normal((2, 3)) / 10, ["a", "b"])
        pump.away.add("s0")
        pump.run()
        node.rewards.feedback(shown.id, 1.0)
        pump.run()
    assert node.store.outbox(GLOBAL)
    pump.close()
    return str(path / "s0.db")


def reopen(path: Path) -> LocalNode:
    pump = Pump.__new__(Pump)
    pump.path, pump.model, pump.noise = path, Model(policy="cdp-fclub-dc", dim=3), None
    pump.time = 0.0
    return pump.open_local("s0")


def change(store: str, sql: str) -> None:
    with sqlite3.connect(store) as connection:
        connection.execute(sql)
    connection.close()


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("UPDATE log SET noise = x'' WHERE length(noise) > 0", "noise"),
        ("UPDATE log SET noise = CAST(noise || zeroblob(8) AS BLOB)", "noise"),
        ("UPDATE log SET noise = noise || zeroblob(8) WHERE length(noise) > 0", "whole state"),
        ("UPDATE log SET body = x'00' WHERE kind = 'observe'", "whole state"),
        ("UPDATE log SET noise = zeroblob(length(noise))", "messages"),
        ("UPDATE outbox SET frame = zeroblob(9)", "messages"),
        ("UPDATE log SET kind = 'surprise'", "surprise"),
    ],
)
def test_a_changed_log_is_noticed_at_start(tmp_path: Path, sql: str, reason: str) -> None:
    store = visited(tmp_path)
    reopen(tmp_path).store.close()
    change(store, sql)
    with pytest.raises(InvalidFile, match=reason):
        reopen(tmp_path)


def test_check_finds_lost_observations(tmp_path: Path) -> None:
    store = visited(tmp_path)
    model = Model(policy="cdp-fclub-dc", dim=3)
    settings = local_settings(tmp_path, model=model, name="s0", store=store)
    assert check_store(settings)["observations"] == 5
    change(store, "DELETE FROM log WHERE kind = 'observe'")
    with pytest.raises(FclubError):
        check_store(settings)


def test_check_finds_decisions_that_are_not_known_by_their_users(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    node = local_node(settings)
    for _ in range(3):
        node.recommend("ann", np.eye(DIM), list("abcd"))
    node.commit()
    node.store.close()
    assert check_store(settings)["users"] == 1
    change(settings.store, "INSERT INTO meta SELECT 'by_user_until', hex(max(id)) FROM decisions")
    with pytest.raises(FclubError, match="3 decisions are not known by their users"):
        check_store(settings)


def test_only_the_store_speaks_sql() -> None:
    package = Path(fclub.__file__).parent
    speaking = {
        path.relative_to(package).parent.as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\b(SELECT|INSERT|UPDATE|DELETE) ", path.read_text())
    }
    assert speaking == {"service/store"}
