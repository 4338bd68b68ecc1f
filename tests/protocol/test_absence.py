"""Servers that are away, late or empty: the others go on, and nothing is lost or counted twice."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parts import edges, is_a, merger, present, sender
from tests.protocol.told import ids_of

import fclub
from fclub.core.clustering import UserGraph
from fclub.core.paper.ucb import make_rules, ridge_bounds
from fclub.core.statistics import Packed, Statistics
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges import clusters as m
from fclub.protocol.exchanges.clusters import Accounts, ClusterGlobal, ClusterLocal
from fclub.protocol.learners.edges import EdgeDeletion, Edges, OneCluster
from fclub.protocol.link import Communications, InProcessLink
from fclub.protocol.messages import Decoder, Message, PhaseStart, read_count, write_id, write_statistics
from fclub.protocol.servers import GlobalServer, LocalServer

DIM = 2
EAST, NORTH = np.array([1.0, 0.0]), np.array([0.0, 1.0])


class CutLink(InProcessLink):
    """Delivers in order, as the transport does; what concerns a server that is away waits."""

    def __init__(self, decode: Decoder) -> None:
        super().__init__(decode)
        self.away: set[int] = set()
        self.kept: deque[tuple[str, int, Message]] = deque()
        self.busy = False

    def from_local(self, server: int, message: Message) -> None:
        self._send("up", server, message)

    def to_local(self, server: int, message: Message) -> None:
        self._send("down", server, message)

    def _send(self, direction: str, server: int, message: Message) -> None:
        self.kept.append((direction, server, message))
        if not self.busy:
            self.deliver()

    def deliver(self) -> None:
        self.busy, waiting = True, deque[tuple[str, int, Message]]()
        while self.kept:
            direction, server, message = self.kept.popleft()
            if server in self.away:
                waiting.append((direction, server, message))
            elif direction == "up":
                super().from_local(server, message)
            else:
                super().to_local(server, message)
        self.busy, self.kept = False, waiting

    def return_of(self, server: int) -> None:
        self.away.discard(server)
        self.deliver()


def federation(
    servers: int, users: int, merging: float = 2.0
) -> tuple[list[LocalServer], GlobalServer]:
    """Servers that upload every observation, over a link that can be cut."""
    protocol = fclub.Protocol()
    bounds, link = ridge_bounds(protocol), CutLink(m.decode)
    rules = make_rules(max(1, users * servers), protocol, bounds)
    rng = np.random.default_rng(0)
    locals_ = []
    for s in range(servers):
        detector = EdgeDeletion(UserGraph(users, rng), 0.5, 1.0) if users else OneCluster()
        learner = Edges(Packed.zeros(users, DIM), rules, bounds.depth, detector)
        exchange = ClusterLocal(learner, rules, NoNoise(), Accounts(), link.uplink(s))
        locals_.append(LocalServer(learner, exchange))
    hub = GlobalServer(ClusterGlobal(DIM, list(range(servers)), rules, 2.0, link))
    link.connect(hub, dict(enumerate(locals_)))
    return locals_, hub


def link_of(hub: GlobalServer) -> CutLink:
    return is_a(CutLink, merger(hub).link)


def check_books(locals_: list[LocalServer], hub: GlobalServer) -> None:
    """With everybody back: released + kept = seen, and what a server holds plus its pending download
    is its global cluster."""
    seen = sum(int(local.learner.users.counts.sum()) for local in locals_)
    assert hub.reported + sum(local.status().waiting for local in locals_) == seen
    for row, (server, cluster) in enumerate(merger(hub).members):
        local = locals_[server]
        c, k = ids_of(local).index(cluster), merger(hub).clusters.group[row]
        held = edges(local).clusters.gram[c] + merger(hub).clusters.pending_gram[row]
        np.testing.assert_allclose(held, merger(hub).clusters.gram[k], atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    events=st.lists(
        st.sampled_from(["visit"] * 6 + ["leave", "return", "newcomer", "phase"]), max_size=60
    ),
)
def test_nothing_is_lost_whoever_comes_and_goes(seed: int, events: list[str]) -> None:
    rng = np.random.default_rng(seed)
    locals_, hub = federation(servers=3, users=2)
    hub.begin_phase(1)
    for event in events:
        server = int(rng.integers(3))
        if event == "visit":
            local = locals_[server]
            row = int(rng.integers(len(local.learner.users.counts)))
            theta = EAST if row % 2 else NORTH
            x = rng.dirichlet([1.0, 1.0])
            local.observe(row, x, float(x @ theta))
        elif event == "leave":
            link_of(hub).away.add(server)
        elif event == "return":
            link_of(hub).return_of(server)
        elif event == "newcomer":
            locals_[server].add_user()
        elif merger(hub).waiting is None:
            hub.begin_phase(hub.phase + 1)
        elif hub.phase > 1:
            merger(hub).close_phase()
    for server in range(3):
        link_of(hub).return_of(server)
    check_books(locals_, hub)


def test_servers_are_invited_and_shown() -> None:
    """Nobody is asked twice; own and others' observations are told apart."""
    locals_, hub = federation(servers=3, users=2)
    merger(hub).servers = []
    assert locals_[0].overview()[0].cluster is None
    hub.invite(2)
    assert (hub.phase, hub.next_phase) == (1, 2)
    for server in (0, 1):
        locals_[server].observe(0, EAST, 1.0)
    hub.invite(3)
    assert [sender(local).answered for local in locals_] == [1, 1, 1]
    assert not any(local.status().unanswered for local in locals_)
    assert [hub.released_by(server) for server in range(3)] == [1, 1, 0]
    (group,) = hub.overview()
    assert (group.observations, len(group.members)) == (2, 3)
    (one,) = locals_[0].overview()
    assert (one.cluster, one.group, one.users, one.shared_by) == (ids_of(locals_[0])[0], 0, 2, 2)
    assert (one.own, one.waiting) == (1, 0)


def test_phases_are_announced_when_the_total_doubles() -> None:
    (local,), hub = federation(servers=1, users=1)
    hub.advance()
    phases = []
    for _ in range(64):
        local.observe(0, EAST, 1.0)
        hub.advance()
        phases.append(hub.phase)
    assert phases == sorted(phases)
    assert 5 <= hub.phase <= 8
    hub.begin_phase(hub.phase + 1)
    link_of(hub).away.add(0)
    hub.begin_phase(hub.phase + 1)
    for _ in range(1_000):
        local.observe(0, EAST, 1.0)
    before = hub.phase
    hub.advance()
    assert hub.phase == before, "a phase that is not over is not followed by another"


def opposed(locals_: list[LocalServer], rounds: int = 400) -> None:
    """Server 0 and 1 are alike, server 2 is not."""
    for _ in range(rounds):
        for local, theta in zip(locals_, (EAST, EAST, NORTH), strict=True):
            for x in (EAST, NORTH):
                local.observe(0, x, float(x @ theta))


@pytest.mark.parametrize("late", [1, 2])
def test_a_late_server_joins_its_kind_or_stays_alone(late: int) -> None:
    """The others are told the difference."""
    locals_, hub = federation(servers=3, users=1)
    hub.begin_phase(1)
    opposed(locals_)
    link_of(hub).away.add(late)
    hub.begin_phase(2)
    opposed(locals_)
    merger(hub).close_phase()
    link_of(hub).return_of(late)
    kinds = {
        server: int(k)
        for (server, _), k in zip(merger(hub).members, merger(hub).clusters.group, strict=True)
    }
    assert kinds[0] == kinds[1] != kinds[2]
    check_books(locals_, hub)


def known_by(hub: GlobalServer) -> str:
    """All that a global server knows, but for the phases that it has heard from each server."""
    arrays, values = hub.state()
    del values["heard"]
    return str((arrays, values))


def test_a_report_that_a_phase_has_overtaken_is_void() -> None:
    locals_, hub = federation(servers=2, users=1)
    hub.begin_phase(1)
    link_of(hub).away.add(0)
    hub.begin_phase(2)
    merger(hub).close_phase()
    hub.begin_phase(3)
    before = known_by(hub)
    data = write_statistics(Statistics.zeros(DIM).shifted(1.0))
    hub.receive(0, m.Report(2, (m.ClusterStatistics(write_id(5), data),)))
    assert known_by(hub) == before
    assert hub.used_by(0) == 2, "but its price was paid"
    link_of(hub).return_of(0)
    check_books(locals_, hub)


def test_a_phase_in_which_nobody_answers_closes() -> None:
    (local,), hub = federation(servers=1, users=1)
    link_of(hub).away.add(0)
    hub.begin_phase(1)
    merger(hub).close_phase()
    assert merger(hub).members == []
    local.observe(0, EAST, 1.0)
    link_of(hub).return_of(0)
    assert hub.reported + local.status().waiting == 1


def test_a_server_without_users_answers_when_the_first_one_comes() -> None:
    (before,), _ = federation(servers=1, users=0)
    before.receive(PhaseStart(1))
    (local,), hub = federation(servers=1, users=0)
    hub.begin_phase(1)
    local.restore(*before.state())
    assert sender(local).asked == 1
    local.observe(local.add_user(), EAST, 1.0)
    after: Any = local
    assert (after.exchange.asked, hub.reported + local.status().waiting) == (None, 1)


def test_users_who_come_while_the_first_plan_is_awaited_are_in_it() -> None:
    (local,), hub = federation(servers=1, users=1)
    link_of(hub).away.add(0)
    hub.begin_phase(1)
    local.receive(PhaseStart(1))
    row = local.add_user()
    assert len(present(sender(local).staged).labels) == row + 1
    link_of(hub).kept.popleft()
    link_of(hub).return_of(0)
    after: Any = local
    assert after.exchange.staged is None
    assert after.learner.cluster_of.tolist() == [0, 0]


@pytest.mark.parametrize("fresh_users", [1, 2])
def test_saved_between_report_and_plan_both_ends_go_on(fresh_users: int) -> None:
    """The restored ends have been made for another number of users."""
    locals_, hub = federation(servers=2, users=2)
    hub.begin_phase(1)
    opposed([locals_[0], locals_[1], locals_[0]], 5)
    link_of(hub).away.add(1)
    hub.begin_phase(2)
    assert sender(locals_[0]).staged is not None
    assert list(merger(hub).reports) == [0]
    again, hub_again = federation(servers=2, users=fresh_users)
    for old, new in zip(locals_, again, strict=True):
        new.restore(*old.state())
    hub_again.restore(*hub.state())
    merger(hub_again).close_phase()
    link_of(hub_again).away.add(1)
    link_of(hub_again).kept = link_of(hub).kept
    link_of(hub_again).return_of(1)
    assert sender(again[0]).staged is None
    check_books(again, hub_again)


def test_communications_add_up() -> None:
    one, two = Communications(1, 2, 3, 4, 5), Communications(10, 20, 30, 40, 50)
    assert one + two == Communications(11, 22, 33, 44, 55)


def test_a_count_can_be_read_alone() -> None:
    assert read_count(write_statistics(Statistics(np.eye(3), np.zeros(3), 17))) == 17
