"""Servers with many users: types that all of them share, beside servers with few users."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from tests.protocol.two_kinds import DIM, HALF, check_saved, play, same_in_both_loops

import fclub
from fclub.config import Problem
from fclub.core.plus.type_sums import OWN_INFORMATION, PEOPLE, VISITS, TypeSums
from fclub.environments.registry import make_environment
from fclub.errors import InvalidMessage
from fclub.policies.registry import make_policy
from fclub.privacy.noise import NoNoise
from fclub.protocol.families import make_family
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import PhaseStart
from fclub.protocol.plus.global_server import PlusGlobal
from fclub.protocol.plus.growing import GrowingLocal
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.messages import Digest, Shares, decode
from fclub.protocol.plus.type_local import TypeLocal
from fclub.protocol.plus.type_messages import (
    TypeDigest,
    TypeNews,
    read_sums,
    read_values,
    to_bytes,
    write_sums,
)
from fclub.protocol.seam import Place, Shape

LIVE = {"few": 5, "types": 4, "ratio": 1.3}
UNEQUAL = [0] * 30 + [1] * 4 + [2] * 30 + [3] * 5


def unequal(**parameters: Any) -> fclub.Policy:
    """Four servers with 30, 4, 30 and 5 users; those with more than 4 learn types."""
    policy = make_policy("fclub-plus", few=4, types=6, **parameters)
    policy.start(Problem(len(UNEQUAL), 4, DIM, HALF), np.array(UNEQUAL), seed=3)
    return policy


def test_a_server_with_more_than_few_users_learns_types() -> None:
    kinds = [type(server) for server in unequal().servers.values()]
    assert kinds == [TypeLocal, PlusLocal, TypeLocal, TypeLocal]


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("users", "few"), [(60, 4), (21, 4), (60, 100)])
def test_the_compiled_loop_equals_the_readable_one(share: bool, users: int, few: int) -> None:
    """With types everywhere, with types on some servers, with types nowhere."""
    parameters = {"few": few, "types": 5, "share": share}
    trace = same_in_both_loops("fclub-plus", 600, users, **parameters)
    assert (trace.communications["phases"][-1] > 0) == share


def test_a_saved_federation_goes_on_as_if_nothing_had_happened(tmp_path: Any) -> None:
    policy = unequal()
    play(policy, 300)
    check_saved(policy, tmp_path / "saved.npz", 200)


def test_all_servers_have_the_same_types_in_the_end() -> None:
    """In a simulation everybody moves by everybody's sums; only the order of adding differs."""
    policy = unequal()
    play(policy, 400)
    first, *others = (s for s in policy.servers.values() if isinstance(s, TypeLocal))
    for other in others:
        for mine, its in zip(first.beliefs, other.beliefs, strict=True):
            assert mine == pytest.approx(its, rel=1e-6, abs=1e-9)
    assert isinstance(policy.hub, PlusGlobal)
    total, alone = policy.hub.types.total, [first, *others]
    assert total.scalars[VISITS] == sum(server.sums.scalars[VISITS] for server in alone)


def test_what_is_sent_grows_with_types_not_with_users() -> None:
    sizes = []
    for users in (100, 1000):
        environment = make_environment("synthetic", users=users, clusters=3, servers=5, dim=4, items=5)
        policy = make_policy("fclub-plus", types=5, few=10)
        sizes.append(fclub.simulate(policy, environment, 1000, seed=1).communications["bytes"][-1])
    assert sizes[1] <= sizes[0]  # with more users a first phase waits for more visits


def test_a_server_with_few_users_knows_the_types_as_clusters_of_others() -> None:
    policy = unequal()
    play(policy, 500)
    small, hub = policy.servers[1], policy.hub
    assert isinstance(small, PlusLocal)
    assert isinstance(hub, PlusGlobal)
    assert len(small.outside.known) == len(hub.types.clusters())
    for (statistics, noise, people), clusters in small.outside.known.values():
        assert noise == 0.0
        assert people == statistics.count
        assert clusters == 3
        assert np.trace(statistics.gram) <= statistics.count
    told = sum(known.statistics.count for known, _ in small.outside.known.values())
    assert told == pytest.approx(hub.types.total.scalars[VISITS], abs=6)
    assert hub.reported == hub.released_by(1) + sum(hub.released_by(s) for s in (0, 2, 3))
    assert sum(shown.observations for shown in hub.overview()) == pytest.approx(hub.reported, abs=6)


def test_a_server_with_many_users_takes_nothing_from_clusters_of_others() -> None:
    """Its types are those that it would have learned without the server with few users."""
    with_few, without = unequal(), make_policy("fclub-plus", few=4, types=6)
    server_of = np.array([s for s in UNEQUAL if s != 1])
    without.start(Problem(len(server_of), 4, DIM, HALF), server_of, seed=3)
    rng = np.random.default_rng(2)
    for t in range(300):
        user = int(rng.choice(np.flatnonzero(np.array(UNEQUAL) != 1)))
        x = np.append(HALF * np.array([np.cos(t), np.sin(t)]), HALF)
        with_few.update(user, x, float(t % 3 == 0))
        without.update(user if user < 30 else user - 4, x, float(t % 3 == 0))
    for server in (0, 2, 3):
        pairs = zip(with_few.servers[server].beliefs, without.servers[server].beliefs, strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


def test_newcomers_are_served_from_what_is_known_of_all() -> None:
    policy = unequal()
    play(policy, 600)
    server = policy.servers[0]
    row = server.add_user()
    assert row == 30
    model = server.beliefs
    weights = np.exp(server.model.weights[0])
    expected = weights[:-1] @ model.centres + weights[-1] * model.mean
    found = server.theta[row]
    found[-1] -= 0.5 / HALF
    assert found == pytest.approx(expected / weights.sum(), abs=1e-9)


def test_without_a_constant_estimates_are_told_as_they_are() -> None:
    policy = make_policy("fclub-plus", few=4, types=6)
    policy.start(Problem(6, 1, DIM), np.zeros(6, dtype=np.int64), seed=3)
    play(policy, 40)
    liked = [user for user in range(6) if user % 2]
    first = policy.theta_[:, 0]
    assert first[liked].min() > first[[0, 2, 4]].max()


def live(servers: int = 2, **parameters: Any) -> tuple[list[Any], Any, list[Any]]:
    """Servers without users, each with its own clock, and everything that is sent."""
    family = make_family("fclub-plus", Shape(DIM, 100, HALF), LIVE | parameters)
    link, made = InProcessLink(family.decode), []
    hub = family.global_server([], link)
    for number in range(servers):
        rng = np.random.default_rng(number)
        place = Place(str(number), link.uplink(number), NoNoise(), None, rng)
        made.append(family.local_server(place, family.users(0), live=True))
    hub.invite(servers)
    link.connect(hub, dict(enumerate(made)))
    return made, hub, [link]


def visit(servers: list[GrowingLocal], hub: PlusGlobal, rounds: int, users: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for t in range(rounds):
        server, row = servers[t % len(servers)], int(rng.integers(users))
        while row >= len(server.counts):
            server.add_user()
        angles = rng.uniform(0.0, 2.0 * np.pi, 5)
        items = np.column_stack([HALF * np.cos(angles), HALF * np.sin(angles), np.full(5, HALF)])
        x = items[server.recommend(row, items)]
        server.observe(row, x, float(rng.random() < x @ [0.7 * (1 if row % 2 else -1), 0.0, HALF]))
        work = server.due()
        if work is not None:
            work()
            hub.advance()


def test_a_live_server_that_grows_keeps_all_that_it_knows() -> None:
    servers, hub, _ = live()
    visit(servers, hub, 60, users=5)
    assert all(isinstance(server.server, PlusLocal) for server in servers)
    before = servers[0].server.users.gram.copy()
    assert hub.known
    servers[0].add_user()
    assert isinstance(servers[0].server, TypeLocal)
    assert np.array_equal(servers[0].server.users.gram[:5], before)
    visit(servers, hub, 200, users=12, seed=1)
    assert all(isinstance(server.server, TypeLocal) for server in servers)
    assert not hub.known, "servers of types have no clusters"
    told = [round(float(s.server.sums.scalars[VISITS])) for s in servers]
    assert [hub.released_by(s) for s in range(2)] == told
    for server in servers:
        assert server.server.sharing == 1
        assert int(server.counts.sum()) == server.waiting + round(server.server.sums.scalars[VISITS])
        shown = server.overview()
        assert sum(cluster.users for cluster in shown) == len(server.counts)
        assert np.array_equal(server.group_of, server.served_by)
        assert server.ids == [0, 1, 2, 3]
        assert server.streams() == {}


def test_live_servers_come_to_agree() -> None:
    servers, hub, _ = live(3)
    visit(servers, hub, 3000, users=30)
    first, *others = (server.server.beliefs for server in servers)
    for other in others:
        assert other.mean == pytest.approx(first.mean, abs=0.1)
        assert other.covariance == pytest.approx(first.covariance, abs=0.05)
        assert other.scalars == pytest.approx(first.scalars, abs=0.5)


def test_a_live_server_is_restored_at_any_moment() -> None:
    """Also while an answer is awaited, before and after it has grown."""
    for rounds in (20, 73, 140, 215):
        servers, hub, _ = live()
        visit(servers, hub, rounds, users=4 + rounds // 20)
        again, other_hub, _ = live()
        for old, new in zip(servers, again, strict=True):
            while len(new.counts) < min(len(old.counts), 2):
                new.add_user()
            new.restore(*deepcopy(old.state()))
        other_hub.restore(*deepcopy(hub.state()))
        for pair in ((servers, hub), (again, other_hub)):
            visit(*pair, 120, users=14, seed=4)
        for old, new in zip(servers, again, strict=True):
            assert np.array_equal(old.theta, new.theta)
        assert hub.reported == other_hub.reported


def test_a_server_goes_on_alone_while_nobody_answers() -> None:
    servers, hub, links = live()
    visit(servers, hub, 150, users=12)
    server = servers[0].server
    assert isinstance(server, TypeLocal)
    links[0].connect(Deaf(), {})
    before, known = deepcopy(server.beliefs), deepcopy(server.others)
    visit(servers[:1], hub, 200, users=12, seed=2)
    assert server.unanswered
    assert not np.array_equal(server.beliefs.centres, before.centres)
    assert all(np.array_equal(a, b) for a, b in zip(server.others, known, strict=True))


class Deaf:
    def receive(self, server: int, message: Any) -> None:
        """Says nothing."""


def test_answers_to_what_was_asked_before_growing_are_of_no_use() -> None:
    """Every phase asks, answered or not: several may be under way."""
    servers, hub, links = live(1)
    links[0].connect(Deaf(), dict(enumerate(servers)))
    visit(servers, hub, 30, users=5)
    assert servers[0].unanswered
    servers[0].add_user()
    before = deepcopy(servers[0].state())
    for phase in (1, 2):
        servers[0].receive(Shares(phase, (), (), (), 1.0))
    after = servers[0].state()
    assert after[1] == before[1]
    assert all(np.array_equal(after[0][name], array) for name, array in before[0].items())


def some_sums(seed: int = 0) -> TypeSums:
    """Of a server that has users."""
    servers, hub, _ = live(1)
    visit(servers, hub, 150, users=12, seed=seed)
    return servers[0].server.sums


def test_sums_survive_the_journey() -> None:
    sums = some_sums()
    again = read_sums(read_values(to_bytes(write_sums(sums)), 4, DIM), 4, DIM)
    assert all(np.array_equal(a, b) for a, b in zip(sums, again, strict=True))


def broken(sums: TypeSums) -> list[TypeSums]:
    """Sums that users cannot add up to."""
    nan, negative, indefinite = (deepcopy(sums) for _ in range(3))
    nan.slope[0] = np.nan
    negative.users[0] = -1.0
    indefinite.second[0, 0] = -5.0
    more, fewer, uninformed, row = (deepcopy(sums) for _ in range(4))
    more.users[1] += 1.0
    fewer.visits[1] += 2.0
    uninformed.scalars[OWN_INFORMATION] = -1.0
    row.rows[0, DIM] = -5.0
    crowd = deepcopy(sums)
    crowd.scalars[PEOPLE] = crowd.scalars[VISITS] + 1.0
    return [nan, negative, indefinite, more, fewer, uninformed, row, crowd]


@pytest.mark.parametrize("which", range(8))
def test_impossible_sums_are_refused_and_change_nothing(which: int) -> None:
    servers, hub, links = live()
    visit(servers, hub, 150, users=12)
    wrong = to_bytes(write_sums(broken(some_sums())[which]))
    before = hub.state()
    with pytest.raises(InvalidMessage):
        hub.receive(0, TypeDigest(9, 0, 4, wrong))
    assert str(hub.state()) == str(before)
    links[0].connect(Deaf(), dict(enumerate(servers)))
    visit(servers, hub, 60, users=12, seed=1)
    server = servers[0].server
    assert isinstance(server, TypeLocal)
    assert server.unanswered
    told = str(server.state())
    with pytest.raises(InvalidMessage):
        server.receive(TypeNews(server.phase, server.step, 1, 4, wrong))
    assert str(server.state()) == told


def test_messages_that_do_not_fit_are_refused() -> None:
    servers, hub, links = live()
    visit(servers, hub, 150, users=12)
    server, good = servers[0].server, to_bytes(write_sums(some_sums()))
    assert isinstance(server, TypeLocal)
    links[0].connect(Deaf(), dict(enumerate(servers)))
    visit(servers, hub, 60, users=12, seed=1)
    for message in (
        TypeNews(server.phase, server.step + 1, 1, 4, good),
        TypeNews(server.phase, server.step, 1, 5, good),
        TypeNews(server.phase, server.step, 1, 4, good[:-8]),
        TypeNews(server.phase, server.step, -1, 4, good),
        PhaseStart(3),
        Shares(1, (), (), (), 1.0),
    ):
        with pytest.raises(InvalidMessage):
            server.receive(message)
    for wrong in (TypeDigest(1, 0, 5, good), TypeDigest(1, -1, 4, good), TypeDigest(1, 0, 4, b"")):
        with pytest.raises(InvalidMessage):
            hub.receive(0, wrong)
    with pytest.raises(InvalidMessage):
        hub.receive(7, TypeDigest(1, 0, 4, good))
    with pytest.raises(InvalidMessage, match="Digest"):
        hub.receive(0, Digest(1, (), ()))


def test_a_late_answer_is_of_no_use() -> None:
    """The server went on without it; to refuse it would stop all messages that follow."""
    servers, hub, links = live()
    visit(servers, hub, 150, users=12)
    server, good = servers[0].server, to_bytes(write_sums(some_sums()))
    assert isinstance(server, TypeLocal)
    links[0].connect(Deaf(), dict(enumerate(servers)))
    visit(servers, hub, 60, users=12, seed=1)
    told = str(server.state())
    server.receive(TypeNews(server.phase - 1, 2, 1, 4, good))
    assert str(server.state()) == told
    server.receive(TypeNews(server.phase, server.step, 1, 4, good))
    assert str(server.state()) != told


def test_what_a_digest_of_types_tells_of_itself() -> None:
    sums = some_sums()
    message = TypeDigest(1, 0, 4, to_bytes(write_sums(sums)))
    assert message.count().phases == 4
    counts = [int.from_bytes(part.statistics, "little") for part in message.parts()]
    assert counts == [round(visits) for visits in sums.visits]
    assert decode(fclub.protocol.messages.encode(message)) == message


def test_exact_sums_have_nothing_to_withhold() -> None:
    (one, other), _, _ = live()
    x = np.array([0.5, 0.25, HALF])
    for server in (one, other):
        visit([server], live()[1], 40, users=6)
    one.observe(0, x, 1.0)
    other.withhold(0, x, 1.0)
    np.testing.assert_array_equal(one.server.users.gram, other.server.users.gram)


def test_what_was_sent_of_types_is_restored() -> None:
    _, hub, _ = live()
    arrays, values = hub.state()
    values["sent"] = [[0, [[["type", 2], 7]]]]
    hub.restore(arrays, values)
    assert hub.state()[1]["sent"] == [(0, [(("type", 2), 7)])]
