"""Servers of types with clocks of their own: newcomers, answers, what they show, what they refuse."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from fclub.core import packing
from fclub.core.packing import with_room, with_row
from fclub.core.statistics import Packed, Statistics
from fclub.errors import InvalidMessage
from fclub.privacy.noise import SeededNoise
from fclub.protocol.exchanges.released import ReleasedSums, check_released, check_share
from fclub.protocol.exchanges.user_streams import StreamLimits
from fclub.protocol.families import FAMILIES, make_family
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import PhaseStart

DIM, HALF = 3, np.sqrt(0.5)
SHAPE = Shape(DIM, clusters=10, constant=HALF)
QUICK: dict[str, Any] = {
    "first_release": 4,
    "release_ratio": 1.5,
    "ratio": 1.3,
    "unit": "event",
    "level": "cdp",
}


def federation(name: str = "cdp-fclub-plus", **parameters: Any) -> tuple[list[Any], Any]:
    """Two servers without users, each with its own clock."""
    quick = {key: value for key, value in QUICK.items() if key in FAMILIES[name].defaults}
    family = make_family(name, SHAPE, quick | parameters)
    link, ledger = InProcessLink(family.decode), family.ledger(seeded=True)
    hub, servers = family.global_server([], link), []
    for number in range(2):
        rng = np.random.default_rng(number)
        place = Place(str(number), link.uplink(number), SeededNoise(rng), ledger, rng)
        servers.append(family.local_server(place, family.users(0), live=True))
    hub.invite(2)
    link.connect(hub, dict(enumerate(servers)))
    return servers, hub


def kinds() -> Iterator[np.ndarray]:
    """Two vectors that are easily told apart."""
    for sign in (1.0, -1.0):
        yield np.array([0.7 * sign, 0.0, HALF])


def visit(servers: list[Any], hub: Any, rounds: int, users: int = 4, seed: int = 0) -> None:
    """User u of a server is of kind u % 2; users are added when they first come."""
    rng, theta = np.random.default_rng(seed), list(kinds())
    for t in range(rounds):
        server, row = servers[t % 2], int(rng.integers(users))
        while row >= len(server.counts):
            server.add_user()
        angles = rng.uniform(0.0, 2.0 * np.pi, 5)
        items = np.column_stack([HALF * np.cos(angles), HALF * np.sin(angles), np.full(5, HALF)])
        x = items[server.recommend(row, items)]
        server.observe(row, x, float(rng.random() < x @ theta[row % 2]))
        work = server.due()
        if work is not None:
            work()
        hub.advance()


def test_a_row_more_keeps_what_is_there() -> None:
    state = room = Packed.zeros(0, 2)
    rooms = set()
    for row in range(40):
        state, room = with_row(state, room)
        state.counts[row] = row
        rooms.add(len(room.counts))
    assert state.counts.tolist() == list(range(40))
    assert rooms == {8, 16, 32, 64}


@pytest.mark.parametrize(("ahead", "size"), [(64, 64 * 32), (1 << 44, 2 * 32)])
def test_many_rows_get_all_the_room_that_is_promised(
    ahead: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as much where memory is not."""
    monkeypatch.setattr(packing, "LARGE", 32)
    monkeypatch.setattr(packing, "AHEAD", ahead)
    state = Packed.zeros(32, 2)
    state.counts[:] = range(32)
    few = state.slice(0, 31)
    assert with_room(few) == (few, few)
    there, room = with_room(state)
    assert len(room.counts) == size
    longer, same = with_row(there, room)
    assert same is room
    assert longer.counts.tolist() == [*range(32), 0]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("fclub-plus", {}),
        ("cdp-fclub-plus", {}),
        ("cdp-fclub-plus", {"level": "transcript"}),
    ],
)
def test_everybody_is_shown_once_and_counts_are_conserved(
    name: str, parameters: dict[str, str]
) -> None:
    servers, hub = federation(name, **parameters)
    assert hub.overview() == []
    assert sum(one.users for one in servers[0].overview()) == 0
    visit(servers, hub, 300)
    assert hub.phase > 4
    for number, server in enumerate(servers):
        clusters = server.overview()
        assert sum(one.users for one in clusters) == 4
        assert sum(one.own for one in clusters) == 150
        assert sum(one.waiting for one in clusters) == server.status().waiting
        assert hub.released_by(number) + server.status().waiting == 150
        assert not server.status().unanswered
    assert hub.reported == sum(group.observations for group in hub.overview()) > 0


def test_users_of_a_kind_find_each_other_whenever_they_come() -> None:
    servers, hub = federation()
    visit(servers, hub, 600, users=2)
    visit(servers, hub, 600, users=6, seed=1)
    for server in servers:
        labels = server.cluster_of_user
        assert len(labels) == 6
        for even, odd in ((0, 1), (2, 3), (4, 5), (0, 5), (2, 1)):
            assert labels[even] != labels[odd]
        assert set(labels[2:]) & set(labels[:2]), "somebody was taken in"
        assert any(one.shared_by > 1 or one.group is not None for one in server.overview())


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_restored_with_other_users_it_goes_on_alike(name: str) -> None:
    servers, hub = federation(name)
    visit(servers, hub, 200)
    again, other = federation(name)
    for old, new in zip(servers, again, strict=True):
        new.restore(*deepcopy(old.state()))
        if name == "cdp-fclub-plus":
            new.exchange.releases.source = deepcopy(old.exchange.releases.source)
    other.restore(*deepcopy(hub.state()))
    visit(servers, hub, 100, users=6, seed=2)
    visit(again, other, 100, users=6, seed=2)
    for old, new in zip(servers, again, strict=True):
        (arrays, values), (others, same) = old.state(), new.state()
        assert values == same
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, others[key])


def test_a_server_with_a_clock_starts_its_own_phases() -> None:
    servers, hub = federation()
    with pytest.raises(InvalidMessage, match="PhaseStart"):
        servers[0].receive(PhaseStart(1))
    hub.advance(overdue=True)
    assert hub.phase == 0


def test_a_digest_without_clusters_gets_an_answer() -> None:
    """Live, who asks is answered; nothing is known yet, and that is what it is told."""
    servers, hub = federation("cdp-fclub-plus", first_release=50)
    visit(servers, hub, 2 * DIM)
    assert hub.phase == 2
    assert not any(server.status().unanswered or server.exchange.others for server in servers)


def statistics(gram: np.ndarray, count: int) -> Statistics:
    return Statistics(gram, np.zeros(DIM), count)


ONE = np.eye(DIM) / DIM


@pytest.mark.parametrize(
    ("known", "noise", "reason"),
    [
        (statistics(ONE, 1), 0.1, "noise"),
        (statistics(2.9 * ONE, 1), 0.0, "trace"),
        (statistics(np.diag([500.0, -0.0009, 0.0]), 1000), 0.0, None),
        (statistics(np.diag([2e8, -9.0, 0.0]), 10**9), 0.0, "indefinite"),
    ],
)
def test_what_nobody_can_have_released_is_refused(
    known: Statistics, noise: float, reason: str | None
) -> None:
    rules = StreamLimits(np.eye(DIM), variance=0.2, least_noise=0.0, most_noise=0.0)
    if reason is None:
        check_released(ReleasedSums(known, noise), rules)
        return
    with pytest.raises(InvalidMessage, match=reason):
        check_released(ReleasedSums(known, noise), rules)
    with pytest.raises(InvalidMessage, match="share of 0 clusters"):
        check_share(ReleasedSums(known, noise), 0, rules)
