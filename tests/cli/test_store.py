"""`fclub store`: copies that hold everything, the way back, and what left a server."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Command
from tests.service.federation import Pump, play

from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidFile, StoreInUse
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.parts import check_copy
from fclub.service.settings import Model
from fclub.service.store.backup import backup_store, restore_store
from fclub.service.store.books import in_words, read_sent
from fclub.service.store.store import VERSION, Store

PARAMETERS: dict[str, Any] = {"unit": "event", "first_release": 4, "release_ratio": 1.5}


def federation(path: Path, policy: str = "cdp-fclub-plus") -> tuple[Pump, Synthetic]:
    environment = Synthetic(users=4, clusters=2, servers=1, dim=3, items=4)
    environment.start(0)
    soon = PARAMETERS if policy == "cdp-fclub-plus" else {}
    pump = Pump(path, Model(policy=policy, dim=3, parameters=soon), 1)
    play(pump, environment, 60)
    return pump, environment


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, beside that of a server that runs."""
    command = [sys.executable, "-m", "fclub", "store", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_backup_of_a_running_server_is_whole_and_comes_back(tmp_path: Path) -> None:
    """A plain copy of the file would miss what is in the file beside it."""
    pump, environment = federation(tmp_path)
    store, copy = tmp_path / "s0.db", tmp_path / "s0.backup"
    observations = int(pump.locals["s0"].server.counts.sum())
    done = run("backup", store, copy, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "local"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not [file for file in tmp_path.iterdir() if "unfinished" in file.name]
    with pytest.raises(InvalidFile, match="exists already"):
        backup_store(store, copy)
    play(pump, environment, 40)
    with pytest.raises(InvalidFile, match="--replace"):
        restore_store(copy, store)
    with pytest.raises(StoreInUse):
        restore_store(copy, store, replace=True)
    before = pump.locals["s0"].incarnation
    pump.locals["s0"].store.close()
    done = run("restore", copy, store, "--replace")
    assert "marked as restored" in done.stdout, done.stderr
    pump.locals["s0"] = pump.open_local("s0")
    node = pump.locals["s0"]
    assert node.store.get("marked") == "true"
    assert node.incarnation != before
    assert int(node.server.counts.sum()) == observations
    pump.run()
    assert node.sessions.handshake.standing.state == AGREED
    assert not node.sessions.marked, "the new session takes the mark away"
    assert node.sessions.era == 1
    pump.close()


def test_a_restored_global_server_goes_on(tmp_path: Path) -> None:
    pump, environment = federation(tmp_path)
    store, copy = tmp_path / "global.db", tmp_path / "global.backup"
    backup_store(store, copy)
    pump.hub.store.close()
    restore_store(copy, store, replace=True)
    pump.hub = pump.open_hub()
    assert pump.hub.members.troubles().keys() == {"s0"}
    pump.run()
    assert not pump.hub.members.troubles()
    assert pump.locals["s0"].sessions.channel.ordinal == 2
    assert pump.locals["s0"].sessions.era == 0
    pump.hub.store.close()
    pump.hub = pump.open_hub()
    assert not pump.hub.members.troubles()
    play(pump, environment, 20)
    pump.close()


def test_check_says_what_a_store_holds_while_its_server_runs(tmp_path: Path) -> None:
    pump, _ = federation(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert check_copy(tmp_path / "s0.db")["observations"] == 60
    assert check_copy(tmp_path / "global.db")["servers"] == "s0"
    assert sorted(tmp_path.iterdir()) == files, "nothing is left behind"
    pump.close()


def test_check_finds_damage(tmp_path: Path, command: Command) -> None:
    pump, _ = federation(tmp_path)
    pump.close()
    with sqlite3.connect(tmp_path / "s0.db") as connection:
        connection.execute("DELETE FROM log WHERE kind = 'observe'")
    connection.close()
    done = command("store", "check", tmp_path / "s0.db")
    assert done.returncode == 1
    assert done.stderr.startswith("fclub: ")


@pytest.mark.parametrize("name", ["check", "sent", "backup", "restore"])
@pytest.mark.parametrize("content", [None, b"a letter"])
def test_what_is_no_store_is_an_error_and_nothing_is_made(
    tmp_path: Path, command: Command, name: str, content: bytes | None
) -> None:
    path = tmp_path / "folder" / "shop.db"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    other = [tmp_path / "other.db"] if name in ("backup", "restore") else []
    done = command("store", name, path, *other)
    assert done.returncode == 1
    assert f"there is no store {path}" in done.stderr
    assert path.parent.exists() == (content is not None)
    assert not (tmp_path / "other.db").exists()


def test_foreign_newer_and_damaged_files_are_no_backups(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE meta (key, value)")
        connection.execute("CREATE TABLE log (entry)")
    connection.close()
    with pytest.raises(InvalidFile, match="not a store of fclub"):
        backup_store(foreign, tmp_path / "copy.db")
    newer = tmp_path / "newer.db"
    Store(newer, "local").close()
    with sqlite3.connect(newer) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(InvalidFile, match=f"version {VERSION + 1}"):
        restore_store(newer, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    with pytest.raises(InvalidFile, match="No such file"):
        backup_store(_store(tmp_path), tmp_path / "nowhere" / "copy.db")


def _store(path: Path) -> Path:
    Store(path / "sound.db", "local").close()
    return path / "sound.db"


@pytest.mark.parametrize("policy", ["cdp-fclub-plus", "fclub-plus"])
def test_sent_tells_every_message_in_words(tmp_path: Path, policy: str, command: Command) -> None:
    pump, environment = federation(tmp_path, policy)
    pump.away.add("s0")
    play(pump, environment, 60)
    told = read_sent(tmp_path / "s0.db")
    assert len(told) == sum(pump.locals["s0"].books.messages().values())
    assert told[0].confirmed
    assert not told[-1].confirmed
    words = [in_words(message) for message in told]
    assert any("observations of" in text for text in words)
    assert any(("noise charged to" in text) == (policy == "cdp-fclub-plus") for text in words)
    assert "not confirmed yet" in words[-1]
    with pytest.raises(InvalidFile, match="only those release"):
        read_sent(tmp_path / "global.db")
    done = command("store", "sent", tmp_path / "s0.db", "--json")
    assert len(json.loads(done.stdout)) == len(told)
    done = run("sent", tmp_path / "s0.db")
    assert len(done.stdout.splitlines()) == len(told)
    assert "session 1, message 1" in done.stdout
    pump.close()
    restore_store(tmp_path / "s0.db", tmp_path / "again.db")
    (tmp_path / "again.db").replace(tmp_path / "s0.db")
    pump.locals["s0"], pump.hub = pump.open_local("s0"), pump.open_hub()
    pump.away.clear()
    pump.run()
    earlier = [message for message in read_sent(tmp_path / "s0.db") if message.session == 1]
    assert {message.confirmed for message in earlier} == {None}
    assert "of an earlier session" in in_words(earlier[0])
    pump.close()


def test_a_new_server_has_sent_nothing(tmp_path: Path, command: Command) -> None:
    done = command("store", "sent", _store(tmp_path))
    assert done.stdout == "nothing has left this server\n"
