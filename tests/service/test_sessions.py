"""Restored, replaced and new servers: each comes back by itself, and nothing counts twice."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.parts import is_a

from fclub.environments.synthetic import Synthetic
from fclub.errors import Conflict, NotAgreed, OtherVersion
from fclub.protocol.exchanges.user_streams import UserStreamLocal
from fclub.protocol.learners.types import Types
from fclub.protocol.servers import LocalServer
from fclub.service.link.channel import (
    GLOBAL,
    VERSION,
    Hello,
    Numbered,
    Receipt,
    Record,
    decode_frame,
    encode_frame,
)
from fclub.service.link.sessions import Verdict, judge
from fclub.service.nodes import local_node
from fclub.service.nodes.handshake import AGREED, AGREEING, REFUSED
from fclub.service.nodes.local_node import LocalNode
from fclub.service.settings import Model
from fclub.service.store.backup import restore_store

from .federation import Pump, model_of, play, refuse, totals

FAMILIES: dict[str, dict[str, Any]] = {
    "fclub-plus": {},
    "fclub-dc": {},
    "cdp-fclub-plus": {"unit": "event", "first_release": 4, "release_ratio": 1.5, "delta": 1e-5},
    "cdp-homo": {},
    "cdp-fclub-dc": {"epsilon": 100.0, "delta": 0.1},
}


def record(
    ordinal: int = 3,
    session: bytes = b"x",
    sent: int = 4,
    confirmed: int = 2,
    received: int = 7,
    heard: bytes = b"g7",
    **others: Any,
) -> Record:
    letter = "l" if heard.startswith(b"g") else "g"
    chains = tuple(f"{letter}{n}".encode() for n in range(confirmed, sent + 1))
    given: dict[str, Any] = {"incarnation": b"i", "marked": False} | others
    return Record(
        ordinal=ordinal,
        session=session,
        sent=sent,
        confirmed=confirmed,
        received=received,
        heard=heard,
        chains=given.pop("chains", chains),
        **given,
    )


def hub_record(**changes: Any) -> Record:
    given: dict[str, Any] = {"sent": 9, "confirmed": 6, "received": 3, "heard": b"l3"}
    return record(**(given | changes))


OLD, LOST = Verdict(local_old=True), Verdict(global_lost=True)
BOTH = Verdict(local_old=True, global_lost=True)
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Verdict]] = [
    ("in step", {}, {}, Verdict()),
    ("all heard", {}, {"received": 4, "heard": b"l4"}, Verdict()),
    ("superseded", {"marked": True}, {"superseded": True}, Verdict(refused=True)),
    ("superseded although new", {"ordinal": 0}, {"superseded": True}, Verdict(refused=True)),
    ("new", {"ordinal": 0, "session": b""}, {}, Verdict(local_new=True)),
    ("both new", {"ordinal": 0}, {"ordinal": 0}, Verdict(local_new=True)),
    ("new, hub restored", {"ordinal": 0}, {"marked": True}, Verdict(local_new=True, global_lost=True)),
    ("restored", {"marked": True}, {}, OLD),
    ("restored, hub new", {"marked": True}, {"ordinal": 0, "session": b""}, BOTH),
    ("lower ordinal", {"ordinal": 2}, {}, OLD),
    ("other id", {"session": b"y"}, {}, OLD),
    ("heard more than was sent", {}, {"received": 5, "heard": b"l5"}, OLD),
    ("confirmed more than was heard", {"received": 5, "heard": b"g5"}, {}, OLD),
    ("other bytes up", {}, {"heard": b"other"}, OLD),
    ("hub restored", {}, {"marked": True}, LOST),
    ("hub new", {}, {"ordinal": 0, "session": b""}, LOST),
    ("hub behind", {}, {"ordinal": 2, "session": b"w"}, LOST),
    ("hub forgot what it heard", {}, {"received": 1, "heard": b"l1"}, LOST),
    ("hub forgot what it sent", {}, {"sent": 6}, LOST),
    ("other bytes down", {"heard": b"gx"}, {}, LOST),
    ("both restored", {"marked": True}, {"marked": True}, BOTH),
    ("both forgot", {"sent": 2}, {"sent": 6}, BOTH),
]


@pytest.mark.parametrize(("local", "hub", "verdict"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_table_of_verdicts(local: dict[str, Any], hub: dict[str, Any], verdict: Verdict) -> None:
    assert judge(record(**local), hub_record(**hub)) == verdict


def test_both_agree_only_where_nothing_is_missing() -> None:
    """Over all small numbers: agreed means C ≤ R ≤ S on both sides, and equal chains."""
    found = 0
    for s, c, r, s2, c2, r2 in itertools.product(range(4), repeat=6):
        if c > s or c2 > s2:
            continue
        local = record(sent=s, confirmed=c, received=r2, heard=f"g{r2}".encode())
        hub = hub_record(sent=s2, confirmed=c2, received=r, heard=f"l{r}".encode())
        verdict = judge(local, hub)
        assert verdict.agreed == (c <= r <= s and c2 <= r2 <= s2)
        assert verdict.local_old == (s < r or r2 < c2)
        assert verdict.global_lost == (r < c or s2 < r2)
        found += verdict.agreed
    assert found > 100


def server_of(node: LocalNode) -> UserStreamLocal:
    return is_a(UserStreamLocal, is_a(LocalServer, node.server).exchange)


def federation(path: Path, policy: str, servers: int = 2) -> tuple[Pump, Synthetic]:
    environment = Synthetic(users=6, clusters=2, servers=servers, dim=3, items=4)
    environment.start(0)
    pump = Pump(path, model_of(environment, policy, **FAMILIES[policy]), servers)
    play(pump, environment, 60)
    return pump, environment


def close(pump: Pump, name: str) -> Path:
    pump.run()
    (pump.hub if name == GLOBAL else pump.locals[name]).store.close()
    return pump.path / f"{name}.db"


def open_again(pump: Pump, name: str) -> None:
    if name == GLOBAL:
        pump.hub = pump.open_hub()
    else:
        pump.locals[name] = pump.open_local(name)


def copy(pump: Pump, name: str) -> Path:
    """A plain copy of a store, made while its server is stopped."""
    path = close(pump, name)
    kept = path.with_name(f"{name}.copy")
    shutil.copy(path, kept)
    open_again(pump, name)
    pump.run()
    return kept


def put_back(pump: Pump, name: str, kept: Path | None, plain: bool = True) -> None:
    """Stop a server, give it an empty disk, or the copy, plainly or by the command; and start it."""
    path = close(pump, name)
    for file in path.parent.glob(f"{name}.db*"):
        file.unlink()
    if kept is not None and plain:
        shutil.copy(kept, path)
    elif kept is not None:
        restore_store(kept, path)
    open_again(pump, name)
    pump.run()


def settle(pump: Pump, environment: Synthetic) -> None:
    """Go on until everybody has reported anew."""
    for _ in range(3):
        play(pump, environment, 60)
        pump.hub.close_phase()
        pump.run()


@pytest.mark.parametrize("policy", FAMILIES)
@pytest.mark.parametrize("case", ["old local", "new local", "old global", "new global", "both old"])
def test_every_case_comes_back_by_itself(tmp_path: Path, policy: str, case: str) -> None:
    pump, environment = federation(tmp_path, policy)
    names = {"old local": ["s0"], "new local": ["s0"], "both old": ["s0", GLOBAL]}.get(case, [GLOBAL])
    kept = {name: copy(pump, name) if "old" in case else None for name in names}
    play(pump, environment, 60)
    lost = 0
    for name in names:
        before = {n: int(node.server.counts.sum()) for n, node in pump.locals.items()}
        put_back(pump, name, kept[name])
        after = {n: int(node.server.counts.sum()) for n, node in pump.locals.items()}
        lost += sum(before.values()) - sum(after.values())
    assert (lost > 0) == ("s0" in names)
    for node in pump.locals.values():
        assert node.sessions.handshake.standing.state == AGREED
    settle(pump, environment)
    own, reported, waiting = totals(pump)
    assert reported <= own + lost, "an observation counts twice"
    assert reported > 0 or all(node.books.exhausted for node in pump.locals.values())
    assert all(peer.offences == 0 for peer in pump.hub.peers.values())
    pump.restart(snapshot=True)
    pump.restart(snapshot=False)
    assert totals(pump) == (own, reported, waiting)
    pump.close()


def test_a_store_that_is_put_back_does_not_release_the_same_data_again(tmp_path: Path) -> None:
    """Attack: copy, continue, put back, continue. Each release of an observation has a price.

    On a server that forgets what it has released the same observations leave again, with other noise,
    and the ledger shows one release.
    """
    pump, environment = federation(tmp_path, "cdp-fclub-plus", servers=1)
    kept = copy(pump, "s0")
    for plain in (True, False, False):
        play(pump, environment, 120)
        put_back(pump, "s0", kept, plain)
        node = pump.locals["s0"]
        held = is_a(Types, node.server.learner).observations
        assert server_of(node).releases.closed == held, "what may have left never leaves again"
        assert not server_of(node).releases.released.counts.any()
        assert node.server.status().waiting == 0
        play(pump, environment, 60)
        released = int(server_of(node).releases.released.counts.sum())
        assert 0 < released <= 60
        assert server_of(node).releases.closed == held
        ledger = node.books.ledger
        assert ledger is not None
        epsilon, delta = ledger.claimed
        assert ledger.spent(delta) == pytest.approx(epsilon, rel=1e-3), "in full, and once: the maximum"
        assert any(name.startswith("s0/lost/") for name in ledger.streams)
    pump.close()


def test_a_reward_for_a_visit_before_the_verdict_is_learned_and_never_released(tmp_path: Path) -> None:
    pump, environment = federation(tmp_path, "cdp-fclub-plus", servers=1)
    node = pump.locals["s0"]
    items = np.zeros((1, 3))
    items[0, -1] = environment.problem.constant or 1.0
    shown = [node.recommend("user-0", items, ["i"]).id for _ in range(30)]
    kept = copy(pump, "s0")
    play(pump, environment, 60)
    put_back(pump, "s0", kept)
    node = pump.locals["s0"]
    before = is_a(Types, node.server.learner).observations
    for decision in shown:
        assert node.rewards.feedback(decision, 1.0)
        pump.run()
    assert is_a(Types, node.server.learner).observations == before + 30
    assert server_of(node).releases.closed == before + 30
    pump.restart(snapshot=False)
    assert server_of(pump.locals["s0"]).releases.closed == before + 30
    pump.close()


def test_two_stores_of_one_name(tmp_path: Path) -> None:
    """The one that comes second is old and takes over; the first is refused, and serves its users."""
    pump, environment = federation(tmp_path, "cdp-fclub-plus", servers=1)
    kept = copy(pump, "s0")
    play(pump, environment, 40)
    first = pump.locals["s0"]
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(kept, other / "s0.db")
    path, pump.path = pump.path, other
    pump.locals["s0"] = pump.open_local("s0")
    pump.path = path
    pump.run()
    assert pump.locals["s0"].sessions.handshake.standing.state == AGREED
    second = pump.locals["s0"]
    pump.locals["s0"] = first
    first.sessions.connected()
    pump.run()
    assert first.sessions.handshake.standing.state == REFUSED
    assert "another store" in str(first.sessions.handshake.standing.reason)
    entries = first.books.entries
    play(pump, environment, 60)
    assert first.books.entries == entries, "it releases nothing"
    pump.locals["s0"] = second
    play(pump, environment, 40)
    assert second.sessions.handshake.standing.state == AGREED
    first.store.close()
    pump.close()


def deliver(pump: Pump, to: str, frames: list[bytes]) -> None:
    for frame in frames:
        node = pump.hub if to == GLOBAL else pump.locals[to]
        node.receive("s0" if to == GLOBAL else GLOBAL, frame)


def test_a_lost_answer_makes_no_sound_store_old(tmp_path: Path) -> None:
    """The offer of a session is no more than that until somebody speaks in it."""
    pump, _ = federation(tmp_path, "fclub-plus", servers=1)
    put_back(pump, GLOBAL, None)
    node = pump.locals["s0"]
    node.sessions.hello()
    (_, question), *_ = [pair for pair in pump.commit(node) if pair[1]]
    pump.hub.receive("s0", question)
    pump.commit(pump.hub)
    node.sessions.hello()
    pump.run()
    assert node.sessions.handshake.standing.state == AGREED
    assert node.sessions.era == 0
    pump.hub.receive("s0", question)
    answers = [frame for _, frame in pump.commit(pump.hub)]
    ordinal = node.sessions.channel.ordinal
    deliver(pump, "s0", answers)
    pump.run()
    assert node.sessions.channel.ordinal == ordinal, "an answer to an older question is left alone"
    pump.close()


def test_a_repeated_question_gets_the_same_answer(tmp_path: Path) -> None:
    pump, _ = federation(tmp_path, "fclub-plus", servers=1)
    put_back(pump, GLOBAL, None)
    node = pump.locals["s0"]
    node.sessions.hello()
    question = pump.commit(node)[-1][1]
    answers = []
    for _ in range(2):
        pump.hub.receive("s0", question)
        answers.append(pump.commit(pump.hub)[-1][1])
    pump.hub.store.close()
    pump.hub = pump.open_hub()
    pump.commit(pump.hub)
    pump.hub.receive("s0", question)
    answers.append(pump.commit(pump.hub)[-1][1])
    assert len(set(answers)) == 1
    pump.close()


def test_nothing_is_released_before_there_is_an_answer(tmp_path: Path) -> None:
    environment = Synthetic(users=6, clusters=2, servers=1, dim=3, items=4)
    environment.start(0)
    pump = Pump(tmp_path, model_of(environment, "cdp-fclub-plus", **FAMILIES["cdp-fclub-plus"]), 1)
    pump.restart(snapshot=False)
    pump.away.add("s0")
    put_back(pump, "s0", None)
    play(pump, environment, 80)
    node = pump.locals["s0"]
    assert node.sessions.handshake.standing.state == AGREEING
    assert node.books.entries == 0
    pump.come_back("s0")
    play(pump, environment, 40)
    assert node.books.entries > 0
    assert node.sessions.handshake.standing.state == AGREED
    pump.close()


def test_receipts_confirm_bytes_and_not_numbers(tmp_path: Path) -> None:
    pump, environment = federation(tmp_path, "fclub-plus", servers=1)
    channel = pump.locals["s0"].sessions.channel
    pump.away.add("s0")
    play(pump, environment, 60)
    assert channel.sent > channel.confirmed
    wrong = Receipt(VERSION, GLOBAL, channel.session, channel.sent, b"other bytes")
    confirmed = channel.confirmed
    with pytest.raises(Conflict):
        pump.locals["s0"].receive(GLOBAL, encode_frame(wrong))
    assert channel.confirmed == confirmed
    foreign = Numbered(VERSION, "s0", b"another session", 1, b"")
    with pytest.raises(NotAgreed):
        pump.hub.receive("s0", encode_frame(foreign))
    assert "s0" not in pump.hub.take().receipts
    assert pump.hub.peers["s0"].rejected == {"other session": 1}
    pump.close()


@pytest.mark.parametrize("sender", ["s0", GLOBAL])
def test_peers_of_another_version_refuse_each_other_by_name(tmp_path: Path, sender: str) -> None:
    pump, _ = federation(tmp_path, "fclub-plus", servers=1)
    frame = msgspec.msgpack.encode(["message", VERSION - 1, sender, 5, b"payload"])
    node: Any = pump.hub if sender == "s0" else pump.locals["s0"]
    with pytest.raises(OtherVersion, match=f"{sender} speaks version {VERSION - 1}"):
        node.receive(sender, frame)
    if sender == "s0":
        assert "version" in pump.hub.members.troubles()["s0"]
        assert pump.hub.peers["s0"].offences == 0
    else:
        assert "version" in str(node.sessions.handshake.standing.reason)
    pump.close()


BAD: list[Callable[[Record], Record]] = [
    lambda r: msgspec.structs.replace(r, sent=-1),
    lambda r: msgspec.structs.replace(r, ordinal=1 << 63),
    lambda r: msgspec.structs.replace(r, chains=()),
]


@pytest.mark.parametrize("change", BAD)
def test_records_that_make_no_sense_are_refused(tmp_path: Path, change: Any) -> None:
    pump, _ = federation(tmp_path, "fclub-plus", servers=1)
    node = pump.locals["s0"]
    sound = node.sessions.channel.record(node.incarnation, False, 0)
    frame = encode_frame(Hello(VERSION, "s0", b"n", change(sound)))
    assert refuse(pump, "s0", frame) is not None
    assert decode_frame(encode_frame(Hello(VERSION, "s0", b"n", sound)), "s0")
    pump.close()


def test_a_server_that_is_cut_off_for_long_holds_back_what_would_make_its_question_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_node, "MOST_UNHEARD", 5)
    pump = Pump(tmp_path, Model(dim=3, policy="fclub"), 1)
    node, items = pump.locals["s0"], 0.5 * np.eye(3)

    def visits(count: int) -> None:
        for number in range(count):
            shown = node.recommend("ann", items, ["a", "b", "c"])
            node.rewards.feedback(shown.id, float(number % 2))
            pump.run()

    visits(5)
    pump.away.add("s0")
    visits(30)
    assert node.sessions.channel.sent - node.sessions.channel.confirmed == 5
    assert node.sessions.paused
    pump.away.clear()
    node.sessions.connected()
    pump.run()
    assert (node.sessions.paused, node.sessions.handshake.standing.state) == (False, AGREED)
    visits(10)
    assert pump.hub.server.reported + node.server.status().waiting == 45
    for snapshot in (False, True):
        pump.restart(snapshot)
        node = pump.locals["s0"]
        assert node.sessions.channel.sent == node.sessions.channel.confirmed > 5, (
            "what was heard does not count"
        )
        assert node.sessions.handshake.standing.state == AGREED
    pump.close()
