"""Organisations join, pause and leave: kits, accounts, and what the global server makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from benchmarks.kits import KitDrill
from typer.testing import CliRunner

from fclub.cli.main import app
from fclub.cohorts.members import MemberEntry, make_identity, read_members
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidFile, InvalidSetting, NotAdmitted, OtherSettings
from fclub.service.kits.folder import Folder, admits
from fclub.service.kits.kit import read_kit
from fclub.service.link.broker import find_broker, free_port
from fclub.service.nodes.global_node import Membership
from fclub.service.settings import GlobalSettings, LocalSettings, Model, load_settings

from .federation import Pump, play, totals

DIM = 4


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.make(tmp_path / "fed", "shops", Model(dim=DIM), "127.0.0.1", free_port())


def entry(name: str) -> MemberEntry:
    return make_identity(name, f"{name} Ltd").entry


@pytest.fixture
def broker(folder: Folder) -> Iterator[subprocess.Popen[bytes]]:
    with (folder.path / "nats.log").open("wb") as log:
        words = [find_broker(), "--config", str(folder.path / "nats.conf")]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    deadline = time.monotonic() + 20
    while not admits(folder.kit_of("global")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    process.terminate()
    process.wait()


def test_a_broker_follows_who_is_in_without_a_restart(
    folder: Folder, broker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    follows = "broker: follows"
    folder.add("north", entry("north"))
    folder.add("south", entry("south"))
    assert follows in folder.reload()
    north, south = folder.kit_of("north"), folder.kit_of("south")
    assert admits(north)
    assert admits(south)
    folder.suspend("north")
    assert follows in folder.reload()
    assert not admits(north)
    assert admits(south)
    folder.resume("north")
    assert follows in folder.reload()
    assert admits(north)
    old = tmp_path / "old.kit"
    old.write_bytes(north.read_bytes())
    folder.rotate("north", overlap=True)
    folder.reload()
    assert admits(old)
    assert admits(north)
    old.write_bytes(north.read_bytes())
    folder.rotate("north")
    folder.reload()
    assert not admits(old), "a certificate that was replaced opens nothing"
    assert admits(north)
    old.write_bytes(north.read_bytes())
    folder.remove("north")
    assert follows in folder.reload()
    assert not admits(old)
    assert not north.exists()
    folder.rotate("broker")
    assert follows in folder.reload()
    assert broker.poll() is None


def test_a_certificate_of_another_authority_opens_nothing(
    folder: Folder, broker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    folder.add("north", entry("north"))
    folder.reload()
    port = folder.charter.port
    other = Folder.make(tmp_path / "other", "shops", Model(dim=DIM), "127.0.0.1", port)
    other.add("north", entry("north"))
    assert not admits(other.kit_of("north"))
    assert admits(folder.kit_of("north"))


def test_without_a_broker_here_it_says_what_to_do(folder: Folder) -> None:
    for text in ("", "x", str(os.getpid())):
        (folder.path / "nats.pid").write_text(text)
        broker, hub = folder.reload()
        assert "start it, or" in broker
        assert "start it, or" in hub


def test_a_kit_holds_the_settings_of_a_local_server(folder: Folder) -> None:
    folder.add("north", make_identity("north", "North Ltd").entry)
    path = folder.kit_of("north")
    kit = read_kit(path)
    assert path.stat().st_mode & 0o777 == 0o600
    settings = load_settings(LocalSettings, None, kit.settings(path) | {"store": "x.db"}, {})
    assert settings.name == "north"
    assert settings.model == Model(dim=DIM)
    assert settings.nats.url == folder.url
    assert settings.nats.certificate == settings.nats.key == settings.nats.ca == str(path)
    assert kit.members is not None
    assert kit.members.by_name["north"].organisation == "North Ltd"
    assert timedelta(days=300) < kit.expires - datetime.now(UTC) < timedelta(days=366)
    assert "private" not in path.read_text().replace("PRIVATE KEY", ""), "no identity leaves its home"


def test_the_global_server_reads_its_members_from_the_folder(folder: Folder) -> None:
    for name in ("a", "b", "c"):
        folder.add(name, entry(name))
    folder.suspend("b")
    folder.remove("a")
    options = Folder(folder.path).global_settings() | {"store": "g.db"}
    settings = load_settings(GlobalSettings, None, options, {})
    assert (settings.servers, settings.suspended, settings.retired) == (["c", "b"], ["b"], ["a"])


def test_names_are_given_once(folder: Folder, tmp_path: Path) -> None:
    folder.add("north", entry("north"))
    folder.remove("north")
    for name in ("north", "global", "broker", "no.dots", ""):
        with pytest.raises(InvalidSetting, match="name"):
            folder.add(name, entry("x"))
    for change in (folder.suspend, folder.resume, folder.remove, folder.rotate):
        with pytest.raises(InvalidSetting, match="left for good"):
            change("north")
    with pytest.raises(InvalidSetting, match="no organisation"):
        folder.suspend("nobody")
    with pytest.raises(InvalidFile, match="already"):
        Folder.make(folder.path, "shops", Model(dim=DIM), "127.0.0.1", 4222)
    with pytest.raises(InvalidFile, match="fclub federation init"):
        Folder(tmp_path / "nothing")
    (tmp_path / "federation.json").write_text("[]")
    with pytest.raises(InvalidFile, match="expected a federation"):
        Folder(tmp_path)
    for text in ("", "= 1"):
        (tmp_path / "bad.kit").write_text(text)
        with pytest.raises(InvalidFile, match="expected a kit"):
            read_kit(tmp_path / "bad.kit")
    with pytest.raises(InvalidFile, match="No such file"):
        read_kit(tmp_path / "no.kit")


def test_the_commands_of_an_operator(tmp_path: Path) -> None:
    runner, path = CliRunner(), tmp_path / "fed"

    def run(*words: str) -> str:
        result = runner.invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return str(result.output)

    fed = str(path)
    run("federation", "init", fed, "--name", "shops", "--dim", "4", "--address", "broker.example")
    assert "0.0.0.0:4222" in (path / "nats.conf").read_text()
    key = tmp_path / "north.json"
    identity = run("identity", str(tmp_path / "north.key"), "--name", "north", "--organisation", "N")
    assert "public key" in identity
    key.write_text(run("identity", str(tmp_path / "north.key"), "--json"))
    assert "epoch 1" in run("federation", "add", fed, "north", "--key", str(key))
    public = make_identity("south", "S").entry.key
    assert "epoch 2" in run("federation", "add", fed, "south", "--key", public)
    run("federation", "add", fed, "east", "--key", entry("east").key)
    members = Folder(path).charter.members
    kit = str(path / "east.kit")
    run("members", "accept", members.hash.hex(), kit, str(tmp_path / "members.json"))
    assert read_members(tmp_path / "members.json") == members
    assert "epoch 3" in run("members", "show", str(path / "east.kit"))
    run("federation", "suspend", fed, "south")
    run("federation", "resume", fed, "south")
    run("federation", "rotate", fed, "south")
    assert Folder(path).global_settings()["signers"]["south"] == [public]
    other = make_identity("south", "S").entry.key
    assert "epoch 4" in run("federation", "rotate", fed, "south", "--overlap", "--key", other)
    assert Folder(path).global_settings()["signers"]["south"] == [public, other]
    run("federation", "rotate", fed, "south")
    assert Folder(path).global_settings()["signers"]["south"] == [other]
    run("federation", "rotate", fed, "broker")
    assert "epoch 5" in run("federation", "remove", fed, "north")
    facts = json.loads(run("federation", "list", fed, "--json"))
    states = {one["name"]: one["state"] for one in facts["organisations"]}
    assert states == {
        "global": "active",
        "north": "retired",
        "south": "active",
        "east": "active",
        "broker": "-",
        "ca": "-",
    }
    assert "retired" in run("federation", "list", fed)
    for words, expected in (
        (("federation", "add", fed, "west", "--key", str(key)), "expected the key of west"),
        (("federation", "add", fed, "west", "--key", "nothing"), "64 hexadecimal digits"),
        (("members", "show", str(path / "east.kit.kit")), "No such file"),
    ):
        result = runner.invoke(app, words)
        assert result.exit_code != 0
        assert expected in str(result.exception)


def test_all_kits_and_the_global_server_have_the_proposed_list(folder: Folder) -> None:
    for name in ("north", "south", "east"):
        folder.add(name, entry(name))
    folder.remove("south")
    members = folder.charter.members
    assert [one.name for one in members.members] == ["east", "north"]
    for name in ("north", "east"):
        assert read_kit(folder.kit_of(name)).members == members
        assert folder.kit_of(name).stat().st_mode & 0o777 == 0o600
    assert read_members(Path(folder.global_settings()["secure.members"])) == members


@pytest.fixture
def pump(tmp_path: Path) -> Pump:
    return Pump(tmp_path, Model(dim=DIM, policy="fclub-plus"), 3)


def environment() -> Synthetic:
    found = Synthetic(users=6, clusters=2, servers=3, dim=DIM, items=4)
    found.start(1)
    return found


def test_what_waits_for_a_retired_server_ends_and_what_it_released_stays(tmp_path: Path) -> None:
    world, pump = environment(), Pump(tmp_path, Model(dim=DIM, policy="fclub-dc"), 3)
    play(pump, world, 60)
    released = pump.hub.server.released_by(0)
    assert released > 0
    pump.away.add("s0")
    play(pump, world, 60)
    pump.hub.close_phase()
    pump.run()
    channel = pump.hub.peers["s0"].channel
    assert channel.sent > channel.confirmed
    pump.hub.members.follow(Membership(["s1", "s2"], retired=["s0"]))
    pump.commit(pump.hub)
    assert channel.sent == channel.confirmed
    assert pump.hub.store.outbox("s0") == []
    assert pump.hub.server.released_by(0) == released
    assert not pump.hub.sessions.stuck(channel)
    sent, phase = channel.sent, pump.hub.server.phase
    play(pump, world, 60)
    assert not pump.hub.members.missing, "nobody waits for it"
    pump.hub.close_phase()
    pump.run()
    assert pump.hub.server.phase > phase
    assert channel.sent == sent, "nothing more is made for it"
    with pytest.raises(NotAdmitted, match="has left"):
        pump.hub.receive("s0", b"")
    again(pump, Membership(["s1", "s2"], retired=["s0"]))
    assert pump.hub.peers["s0"].retired
    assert pump.hub.peers["s0"].channel.sent == sent
    with pytest.raises(OtherSettings, match="left for good"):
        pump.hub.members.follow(Membership(["s0", "s1", "s2"]))
    with pytest.raises(OtherSettings, match="belongs into retired"):
        pump.hub.members.follow(Membership(["s1"], retired=["s0"]))
    pump.close()


def again(pump: Pump, membership: Membership) -> None:
    """The global server restarts: once from its log, once from a snapshot."""
    for snapshot in (False, True):
        if snapshot:
            pump.hub.journal.snapshot()
        pump.commit(pump.hub)
        pump.hub.store.close()
        pump.hub = pump.open_hub(membership)


def test_a_suspended_server_is_kept_a_place(pump: Pump) -> None:
    world = environment()
    play(pump, world, 60)
    pump.away.add("s0")
    pump.hub.members.follow(Membership(pump.names, suspended=["s0"]))
    play(pump, world, 60)
    assert not pump.hub.sessions.stuck(pump.hub.peers["s0"].channel)
    with pytest.raises(NotAdmitted, match="is suspended"):
        pump.hub.receive("s0", b"")
    again(pump, Membership(pump.names, suspended=["s0"]))
    assert pump.hub.peers["s0"].suspended
    pump.hub.members.follow(Membership(pump.names))
    pump.come_back("s0")
    own, reported, unknown = totals(pump)
    assert own == reported + unknown == 120
    pump.close()


def test_a_server_joins_while_the_others_go_on(pump: Pump) -> None:
    world = environment()
    play(pump, world, 60)
    pump.names.append("s3")
    pump.hub.members.follow(Membership(pump.names))
    pump.locals["s3"] = pump.open_local("s3")
    pump.run()
    rng = np.random.default_rng(0)
    for _ in range(40):
        items = rng.standard_normal((4, DIM))
        items /= np.linalg.norm(items, axis=1, keepdims=True)
        decision = pump.locals["s3"].recommend("new", items, [str(k) for k in range(4)])
        pump.locals["s3"].rewards.feedback(decision.id, 1.0)
        pump.run()
    assert pump.hub.server.released_by(3) > 0
    own, reported, unknown = totals(pump)
    assert own == reported + unknown == 100
    again(pump, Membership(pump.names))
    assert list(pump.hub.peers) == ["s0", "s1", "s2", "s3"]
    pump.close()


@pytest.mark.slow
def test_a_fourth_joins_and_one_leaves_under_load(tmp_path: Path) -> None:
    """`python -m benchmarks.kits` plays more visits."""
    found = KitDrill(tmp_path, visits=20).run()
    assert found["messages"] > 0
