"""One private model for all: what leaves a server, and what its users are served from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import SeedSequence
from tests.parts import is_a, present

import fclub
from fclub.core.lattice import STEP, snap
from fclub.core.statistics import Statistics
from fclub.errors import InvalidMessage
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.streams import StreamGlobal, StreamLocal, Sums
from fclub.protocol.families import make_family
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.learners.pooled import Pooled
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, PhaseStart, write_id, write_statistics
from fclub.protocol.rows.pooled import PooledFamily
from fclub.protocol.servers import GlobalServer, LocalServer

DIM, HALF = 3, float(np.sqrt(0.5))
SOON: dict[str, float | str] = {"first_release": 5, "release_ratio": 1.5}


class Recording(InProcessLink):
    sent: list[Message]

    def from_local(self, server: int, message: Message) -> None:
        self.sent.append(message)
        super().from_local(server, message)


def federation(users: int = 4, **parameters: float | str) -> Federation:
    """Two servers with so many users together."""
    family = make_family("cdp-homo", Shape(DIM, 4, HALF), SOON | parameters)
    link = Recording(family.decode)
    link.sent = []
    first = np.array([0, users // 2, users])
    return Federation(family, np.arange(users), first, SeedSequence(1), seeded=True, link=link)


def stream(local: object) -> StreamLocal:
    return is_a(StreamLocal, is_a(LocalServer, local).exchange)


def collector(hub: object) -> StreamGlobal:
    return is_a(StreamGlobal, is_a(GlobalServer, hub).exchange)


def play(running: Federation, rounds: int, who: int | None = None) -> list[tuple[int, Statistics]]:
    """The observations by server, centred; all by user `who` of each server, or by any."""
    rng, seen = np.random.default_rng(2), []
    for t in range(1, rounds + 1):
        server, user = int(rng.integers(2)), int(rng.integers(2))
        x = np.append(rng.uniform(-0.4, 0.4, DIM - 1), HALF)
        y = float(rng.random() < 0.5 + x[0])
        running.servers[server].observe(user if who is None else who, x, y)
        x = snap(x, HALF)
        seen.append((server, Statistics(np.outer(x, x), (y - 0.5) * x, 1)))
        running.advance(t)
    return seen


def test_every_observation_is_in_one_release_of_its_server() -> None:
    running = federation()
    for local in running.servers.values():
        stream(local).releases.source = NoNoise()
    seen = play(running, 200)
    for server, local in running.servers.items():
        own = [one for owner, one in seen if owner == server]
        released = running.hub.released_by(server)
        assert 0 < released == len(own) - local.status().waiting
        total = sum(own[:released], Statistics.zeros(DIM))
        known = collector(running.hub).known[server].statistics
        np.testing.assert_allclose(known.gram, total.gram, rtol=0.0, atol=16 * STEP)
        np.testing.assert_allclose(known.moment, total.moment, rtol=0.0, atol=16 * STEP)
        news = is_a(Pooled, is_a(LocalServer, running.servers[1 - server]).learner).news
        assert news.servers == 1
        np.testing.assert_array_equal(news.others.statistics.moment, known.moment)


def test_who_among_a_servers_users_it_was_decides_nothing_that_is_sent() -> None:
    mixed, one = federation(), federation()
    play(mixed, 120)
    play(one, 120, who=0)
    assert len(is_a(Recording, mixed.link).sent) > 6
    assert is_a(Recording, mixed.link).sent == is_a(Recording, one.link).sent
    assert (
        present(mixed.ledger).mu
        == present(one.ledger).mu
        <= is_a(PooledFamily, mixed.family).plan.mu * (1 + 1e-9)
    )


def test_at_level_interactive_nobody_is_served_from_raw_data() -> None:
    for level, moves in (("transcript", True), ("interactive", False)):
        running = federation(level=level)
        play(running, 120)
        server = running.servers[0]
        before = server.learner.theta().copy()
        server.observe(0, np.array([0.4, 0.1, HALF]), 1.0)
        assert (not np.array_equal(before, server.learner.theta())) == moves
        assert present(running.ledger).summary()["notion"] == level


def test_sums_that_cannot_be_are_refused() -> None:
    running = federation()
    play(running, 120)
    hub, (known, noise) = (
        running.hub,
        collector(running.hub).known[0],
    )
    cluster, before = write_id(0), dict(collector(hub).known)
    fewer = Statistics(known.gram, known.moment, known.count - 1)
    for statistics, stated in ((fewer, noise), (known, 0.0), (known, 1e9)):
        with pytest.raises(InvalidMessage):
            hub.receive(0, Sums(cluster, write_statistics(statistics), stated))
    with pytest.raises(InvalidMessage, match="does not take"):
        hub.receive(7, Sums(cluster, write_statistics(known), noise))
    with pytest.raises(InvalidMessage, match="does not take"):
        running.servers[0].receive(Sums(cluster, write_statistics(known), noise))
    with pytest.raises(InvalidMessage, match="does not take"):
        hub.receive(0, PhaseStart(3))
    assert collector(hub).known == before


def test_one_vector_for_all_is_learned_together() -> None:
    """Measured when the limit was set: 0.41 of each user alone."""
    world = fclub.make_environment("synthetic", users=40, clusters=1, placement="spread")
    shared, alone = (
        np.mean([fclub.simulate(name, world, 4000, seed).regret[-1] for seed in range(3)])
        for name in ("cdp-homo", "linucb")
    )
    assert shared < 0.6 * alone


def test_a_server_without_a_constant_starts_without_users() -> None:
    family = make_family("cdp-homo", Shape(DIM, 4, None), SOON)
    link = Recording(family.decode)
    link.sent = []
    rng = np.random.default_rng(0)
    place = Place("0", link.uplink(0), NoNoise(), family.ledger(seeded=True), rng)
    server = family.local_server(place, family.users(0), live=False)
    assert server.overview() == []
    server.add_user()
    server.observe(0, np.array([0.5, 0.25, 0.0]), 1.0)
    again = family.local_server(place, family.users(0), live=False)
    again.restore(*server.state())
    np.testing.assert_array_equal(again.learner.theta(), server.learner.theta())
    assert again.learner.theta().shape == (1, DIM)
