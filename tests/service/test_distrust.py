"""Whatever arrives at the global server: refused, counted, nothing changed."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.parts import is_a, sender
from tests.protocol.told import ids_of

from fclub.core.plus.packed_sums import write_splits
from fclub.core.statistics import Statistics
from fclub.environments.synthetic import Synthetic
from fclub.errors import OutOfOrder, Quarantined
from fclub.protocol.exchanges.clusters import ClusterStatistics, Download, Report, Upload
from fclub.protocol.exchanges.rounds import RoundsGlobal, TypeDigest, to_bytes
from fclub.protocol.exchanges.user_streams import Digest, News, UserStreamGlobal
from fclub.protocol.messages import Message, encode, write_id, write_statistics
from fclub.service.link.channel import GLOBAL, VERSION, Numbered, Record, Welcome, encode_frame
from fclub.service.nodes.global_node import QUARANTINE_AFTER
from fclub.service.settings import Model

from .federation import Pump, name_of, play, refuse, totals, visits

DIM = 3
RECORD = Record(b"", False, 0, b"", 0, 0, 0, (b"",), b"")


def federation(path: Path, policy: str, rounds: int = 40) -> Pump:
    """Two servers after a few visits."""
    environment = Synthetic(users=4, clusters=2, servers=2, dim=DIM, items=4)
    environment.start(0)
    soon: dict[str, Any] = (
        {"first_release": 4, "release_ratio": 1.5, "unit": "event"}
        if policy == "cdp-fclub-plus"
        else {}
    )
    pump = Pump(path, Model(policy=policy, dim=DIM, parameters=soon), 2)
    for user, items, reward in visits(environment, rounds):
        node = pump.locals[f"s{environment.server_of[user]}"]
        decision = node.recommend(name_of(user), items, [f"item-{k}" for k in range(len(items))])
        pump.run()
        node.rewards.feedback(decision.id, reward(decision.index))
        pump.run()
    return pump


def sample(pump: Pump) -> Message:
    """A message that server s0 could send next."""
    server = pump.locals["s0"].server
    if pump.model.policy.endswith("dc"):
        return upload(pump, sender(server).rules.upload_shift * np.eye(DIM) + ONE, ZERO, 1)
    if pump.model.policy == "fclub-plus":
        return types_of(pump, pump.hub.server.phase + 1, 0)
    statistics = write_statistics(Statistics(50.0 * ONE, ZERO, 100))
    news = News(
        write_id(10**6), statistics, is_a(UserStreamGlobal, pump.hub.server.exchange).limits.least_noise
    )
    return Digest(1, (news.cluster,), (news,))


def types_of(pump: Pump, phase: int, step: int, shift: float = 0.0) -> TypeDigest:
    """What server s0 told of types before, with all its sums shifted."""
    types = is_a(RoundsGlobal, pump.hub.server.exchange).splitter
    sums = np.frombuffer(to_bytes(write_splits(types.known[0])), dtype="<f8") + shift
    return TypeDigest(
        phase, step, types.version, tuple(types.ids), tuple(types.candidates), to_bytes(sums)
    )


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[Pump]:
    pump = federation(tmp_path, "fclub-dc")
    yield pump
    pump.close()


def state(pump: Pump) -> Any:
    arrays, values = pump.hub.server.state()
    frozen = {name: array.tobytes() for name, array in arrays.items()}
    return copy.deepcopy((frozen, values, pump.hub.peers["s0"].channel.counters()))


def frame(pump: Pump, message: Message | bytes, sender: str = "s0", ahead: int = 1) -> bytes:
    payload = message if isinstance(message, bytes) else encode(message)
    channel = pump.hub.peers["s0"].channel
    return encode_frame(Numbered(VERSION, sender, channel.session, channel.received + ahead, payload))


def upload(pump: Pump, gram: Any, moment: Any, count: int, cluster: int | None = None) -> Upload:
    number = ids_of(pump.locals["s0"].server)[0] if cluster is None else cluster
    statistics = Statistics(np.array(gram, dtype=float), np.array(moment, dtype=float), count)
    return Upload(write_id(number), write_statistics(statistics))


@dataclass
class Case:
    reason: str
    gram: Any
    moment: Any
    count: int
    cluster: int | None = None


ZERO, ONE = np.zeros(DIM), np.eye(DIM) / DIM
BAD_UPLOADS = [
    Case("dimension", np.eye(DIM + 1), np.zeros(DIM + 1), 9),
    Case("not finite", ONE * np.nan, ZERO, 1),
    Case("not finite", ONE, ZERO + np.inf, 1),
    Case("absurd count", ONE, ZERO, 2**62),
    Case("negative count", ONE, ZERO, -1),
    Case("trace", ONE * 50, ZERO, 1),
    Case("negative trace", -ONE, ZERO, 1),
    Case("moment", ONE, ZERO + 5.0, 1),
    Case("indefinite", np.diag([5.0, -4.0, 0.0]), ZERO, 1),
    Case("unknown cluster", ONE, ZERO, 1, cluster=10**6),
]


@pytest.mark.parametrize("case", BAD_UPLOADS, ids=lambda case: case.reason)
def test_bad_uploads_are_refused(pump: Pump, case: Case) -> None:
    before = state(pump)
    error = refuse(
        pump, "s0", frame(pump, upload(pump, case.gram, case.moment, case.count, case.cluster))
    )
    assert error is not None
    assert state(pump) == before
    assert pump.hub.peers["s0"].rejected == {"invalid": 1}


def report(phase: int, clusters: list[int], count: int = 1) -> Report:
    statistics = write_statistics(Statistics(np.eye(DIM) + ONE, ZERO, count))
    return Report(phase, tuple(ClusterStatistics(write_id(c), statistics) for c in clusters))


def test_bad_reports_and_foreign_messages_are_refused(pump: Pump) -> None:
    phase = pump.hub.server.phase
    good = upload(pump, ONE, ZERO, 1)
    bad = [
        frame(pump, report(phase + 1, [0])),
        frame(pump, report(phase, [0, 0])),
        frame(pump, report(phase, [])),
        frame(pump, Download(good.cluster, good.statistics)),
        frame(pump, good, sender="s1"),
        encode_frame(Welcome(VERSION, "s0", b"", RECORD, None)),
    ]
    before = state(pump)
    for data in bad:
        pump.hub.members.release("s0")
        assert refuse(pump, "s0", data) is not None
        assert state(pump) == before
    assert refuse(pump, "stranger", frame(pump, good)) is not None


def test_repeated_and_overtaking_messages_change_nothing(pump: Pump) -> None:
    good = upload(pump, ONE, ZERO, 1)
    before = state(pump)
    assert refuse(pump, "s0", frame(pump, good, ahead=0)) is None, "a repetition gets its receipt again"
    assert refuse(pump, "s0", frame(pump, good, ahead=2)) is not None
    assert state(pump) == before
    assert pump.hub.peers["s0"].rejected == {"repeated": 1, "out of order": 1}
    assert pump.hub.peers["s0"].offences == 0
    assert refuse(pump, "s0", frame(pump, good)) is None
    assert state(pump) != before


@pytest.mark.parametrize("policy", ["fclub-dc", "fclub-plus"])
def test_lost_and_shuffled_messages_heal(tmp_path: Path, policy: str) -> None:
    """Frames get lost, come twice and in any order: nothing is applied but the next, once."""
    pump, rng = federation(tmp_path, policy), np.random.default_rng(0)
    environment = Synthetic(users=4, clusters=2, servers=2, dim=DIM, items=4)
    environment.start(1)
    node, applied = pump.locals["s0"], pump.hub.peers["s0"].channel
    pump.away.add("s0")
    play(pump, environment, 60)
    waiting = [data for _, data in node.store.outbox(GLOBAL)]
    assert len(waiting) > 2
    while applied.received < node.sessions.channel.sent:
        before, received = state(pump), applied.received
        frames = [data for data in waiting if rng.random() < 0.7]
        for k in rng.permutation(len(frames)):
            following = received + 1
            error = refuse(pump, "s0", frames[k])
            if applied.received == received:
                assert error is None or isinstance(error, OutOfOrder)
                assert state(pump) == before
            else:
                assert applied.received == following
            before, received = state(pump), applied.received
    pump.come_back("s0")
    peer = pump.hub.peers["s0"]
    assert peer.rejected["out of order"] > 0
    assert (peer.offences, peer.quarantined) == (0, False)
    own, reported, unknown = totals(pump)
    assert own == reported + unknown == 100
    pump.close()


def test_a_quarantined_server_heals_once_it_is_released(pump: Pump) -> None:
    """What it sent meanwhile waits in its outbox and is applied in order; nobody else is held up."""
    environment = Synthetic(users=4, clusters=2, servers=2, dim=DIM, items=4)
    environment.start(1)
    for _ in range(QUARANTINE_AFTER):
        refuse(pump, "s0", b"nonsense")
    pump.away.add("s0")
    before = pump.hub.server.released_by(1)
    for _ in range(4):
        play(pump, environment, 30)
        pump.hub.close_phase()
    assert pump.hub.server.released_by(1) > before
    for _, data in pump.locals["s0"].store.outbox(GLOBAL):
        assert isinstance(refuse(pump, "s0", data), Quarantined)
    pump.hub.members.release("s0")
    pump.come_back("s0")
    own, reported, unknown = totals(pump)
    assert own == reported + unknown == 160


def test_repeated_offences_lead_to_quarantine_until_an_operator_ends_it(pump: Pump) -> None:
    for _ in range(QUARANTINE_AFTER):
        assert refuse(pump, "s0", b"nonsense") is not None
    good = frame(pump, upload(pump, ONE, ZERO, 1))
    assert isinstance(refuse(pump, "s0", good), Quarantined)
    assert not pump.hub.peers["s1"].quarantined
    pump.run()
    pump.hub.store.close()
    pump.hub = pump.open_hub()
    assert isinstance(refuse(pump, "s0", good), Quarantined), "it outlives a restart"
    pump.hub.members.release("s0")
    assert refuse(pump, "s0", good) is None


EDIT = st.tuples(
    st.integers(0, 2), st.integers(0, 10_000), st.integers(0, 255), st.binary(min_size=1, max_size=9)
)
"""What is drawn must not depend on the federation, which every accepted message changes."""


def mutations(data: bytes, pick: st.DataObject) -> bytes:
    """Cut, lengthen or change bytes of a valid frame."""
    changed = bytearray(data)
    for kind, place, value, more in pick.draw(st.lists(EDIT, min_size=1, max_size=4)):
        place %= max(1, len(changed))
        match kind:
            case 0:
                changed[place : place + 1] = bytes([value])
            case 1:
                del changed[place:]
            case _:
                changed[place:place] = more
    return bytes(changed)


def awkward(pump: Pump, pick: st.DataObject) -> Message:
    """A message of the right form with any numbers in it, under an id that exists or does not."""
    numbers = st.floats(allow_nan=True, allow_infinity=True)
    values = pick.draw(st.lists(numbers, min_size=DIM + 1, max_size=DIM + 1))
    gram, count = np.outer(values[:DIM], [1.0] * DIM), pick.draw(st.integers(-(2**62), 2**62))
    statistics = write_statistics(Statistics(gram, np.array(values[1:]), count))
    known = write_id(next(iter(ids_of(pump.locals["s0"].server)), 0))
    clusters = [known, write_id(10**6), b"", b"short"]
    cluster = clusters[pick.draw(st.integers(0, 3))]
    phase = pick.draw(st.none() | st.integers(-(2**62), 2**62))
    phase = pump.hub.server.phase if phase is None else phase
    noise = pick.draw(numbers | st.sampled_from([0.0, -1.0, 1e300]))
    typed = pump.model.policy == "fclub-plus"
    match pick.draw(st.integers(0, 3 if typed else 2)):
        case 3:
            return types_of(pump, phase, pick.draw(st.integers(-3, 9)), values[0])
        case 0:
            return Upload(cluster, statistics)
        case 1:
            return Report(phase, (ClusterStatistics(cluster, statistics),))
        case _:
            present = pick.draw(st.lists(st.integers(0, 3), max_size=3))
            news = (News(cluster, statistics, noise),)
            return Digest(phase, tuple(clusters[k] for k in present), news)


def fuzz(pump: Pump, pick: st.DataObject) -> None:
    """No bytes crash the global server, and what it refuses changes nothing."""
    pump.hub.members.release("s0")
    good = frame(pump, sample(pump))
    match pick.draw(st.integers(0, 3)):
        case 0:
            data = pick.draw(st.binary(max_size=200))
        case 1:
            data = mutations(good, pick)
        case 2:
            data = frame(pump, pick.draw(st.binary(max_size=200)))
        case _:
            data = frame(pump, awkward(pump, pick))
    before = state(pump)
    if refuse(pump, "s0", data) is not None:
        assert state(pump) == before
    arrays, _ = pump.hub.server.state()
    assert all(np.isfinite(array).all() for array in arrays.values())


CASES = int(os.environ.get("FCLUB_FUZZ_MESSAGES", "1000"))
"""How many messages of each kind of federation; the full form is 10,000."""
FUZZ: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture],
}


@settings(max_examples=100, **FUZZ)
@given(pick=st.data())
def test_fuzzed_messages(pump: Pump, pick: st.DataObject) -> None:
    fuzz(pump, pick)


@pytest.mark.slow
@settings(max_examples=CASES, **FUZZ)
@given(pick=st.data())
def test_many_fuzzed_messages(pump: Pump, pick: st.DataObject) -> None:
    fuzz(pump, pick)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fclub-plus", "cdp-fclub-plus", "cdp-fclub-dc"])
def test_many_fuzzed_messages_of_the_other_policies(tmp_path: Path, policy: str) -> None:
    pump = federation(tmp_path, policy)

    @settings(max_examples=CASES, **FUZZ)
    @given(pick=st.data())
    def all_of_them(pick: st.DataObject) -> None:
        fuzz(pump, pick)

    all_of_them()
    pump.close()


@pytest.mark.parametrize("policy", ["cdp-fclub-dc", "cdp-fclub-plus"])
def test_no_name_and_no_raw_datum_crosses_the_link(tmp_path: Path, policy: str) -> None:
    """Every byte that a private federation carried: no user, no item, no number of a feature vector."""
    pump = federation(tmp_path, policy, rounds=200)
    everything = b"".join(pump.seen)
    assert len(everything) > 1000
    for node in pump.locals.values():
        assert not [user for user in node.users.rows if user.encode() in everything]
        for features, item in node.store.reader.execute("SELECT features, item FROM decisions"):
            assert item.encode() not in everything
            assert not any(features[i : i + 8] in everything for i in range(0, 8 * DIM, 8))
    pump.close()


def test_exact_statistics_of_one_observation_are_that_observation(pump: Pump) -> None:
    """Why the test above needs noise: without it an upload can be a feature vector."""
    everything = b"".join(pump.seen)
    rows = pump.locals["s0"].store.reader.execute("SELECT features FROM decisions WHERE reward = 1")
    assert any(features in everything for (features,) in rows)
