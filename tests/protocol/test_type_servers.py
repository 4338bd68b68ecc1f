"""Servers of types whose number adapts: how they learn them together, and what they refuse."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from tests.parts import federated
from tests.protocol.told import groups_of, ids_of
from tests.protocol.two_kinds import DIM, HALF, check_saved, play, same_in_both_loops

import fclub
from fclub.config import Problem
from fclub.core.plus.packed_sums import read_splits, write_splits
from fclub.core.plus.split_sums import SplitSums
from fclub.core.plus.type_sums import OWN_INFORMATION, PEOPLE, VISITS
from fclub.environments.registry import make_environment
from fclub.errors import InvalidMessage
from fclub.policies.registry import make_policy
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.rounds import (
    RoundsGlobal,
    TypeDigest,
    TypeNews,
    decode,
    read_told,
    to_bytes,
)
from fclub.protocol.exchanges.user_streams import Digest, Shares
from fclub.protocol.families import make_family
from fclub.protocol.interfaces.exchange import Beginning
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.learners.splitter import REMEMBERED, Change, Grouping, Splitter
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import PhaseStart, encode, read_id

LIVE = {"types": 6, "ratio": 1.3}
UNEQUAL = [0] * 30 + [1] * 4 + [2] * 30 + [3] * 5


def unequal(**parameters: Any) -> fclub.Policy:
    """Four servers with 30, 4, 30 and 5 users."""
    policy = make_policy("fclub-plus", types=6, **parameters)
    policy.start(Problem(len(UNEQUAL), 4, DIM, HALF), np.array(UNEQUAL), seed=3)
    return policy


def servers(policy: fclub.Policy) -> list[Any]:
    return [*federated(policy).servers.values()]


@pytest.mark.parametrize("share", [True, False])
def test_the_compiled_loop_equals_the_readable_one(share: bool) -> None:
    trace = same_in_both_loops("fclub-plus", 600, 60, types=5, share=share)
    assert (trace.communications["phases"][-1] > 0) == share


def test_users_who_come_or_are_forgotten_are_of_a_type_that_there_is() -> None:
    server = servers(unequal())[1]
    types = server.learner
    types.grouping = Grouping(0, (3,), (0,))
    types.forget(0)
    types.add_user()
    assert types.people.labels[[0, -1]].tolist() == [3, 3]


@pytest.mark.parametrize("share", [True, False])
def test_a_saved_federation_goes_on_as_if_nothing_had_happened(tmp_path: Any, share: bool) -> None:
    policy = unequal(share=share)
    play(policy, 300)
    check_saved(policy, tmp_path / "saved.npz", 200)


def test_two_kinds_of_users_are_found_by_all_servers() -> None:
    policy = unequal()
    play(policy, 3000)
    hub = federated(policy).federation.hub
    assert isinstance(hub.exchange, RoundsGlobal)
    first, *others = servers(policy)
    assert hub.exchange.splitter.types >= 2
    assert any(change.kind == "split" for change in hub.exchange.splitter.changes)
    for other in others:
        assert (
            other.learner.grouping.ids == first.learner.grouping.ids == tuple(hub.exchange.splitter.ids)
        )
        for mine, its in zip(first.learner.beliefs, other.learner.beliefs, strict=True):
            assert mine == pytest.approx(its, rel=1e-6, abs=1e-9)
    kinds = np.arange(len(UNEQUAL)) % 2
    alike = [np.bincount(kinds[policy.labels_ == k]).max() for k in np.unique(policy.labels_)]
    assert sum(alike) > 0.9 * len(UNEQUAL), "hardly a type has users of both kinds"
    told = sum(round(s.learner.splits.sums.scalars[VISITS]) for s in servers(policy))
    assert hub.reported == told == sum(map(hub.released_by, range(4)))
    shown = hub.overview()
    assert sum(k.observations for k in shown) == pytest.approx(told, abs=6)
    assert hub.paid_by(0) == 1.0
    assert not hub.missing
    assert hub.next_phase is None


def test_a_server_alone_finds_them_as_well() -> None:
    policy = unequal(share=False)
    play(policy, 4000)
    server = servers(policy)[0]
    assert len(server.learner.grouping.ids) >= 2
    assert ids_of(server) == []
    assert (groups_of(server) < 0).all()
    assert federated(policy).federation.hub.reported == 0
    assert federated(policy).federation.hub.overview() == []


def test_what_is_sent_grows_with_types_not_with_users() -> None:
    sizes = []
    for users in (100, 1000):
        environment = make_environment("synthetic", users=users, clusters=1, servers=5, dim=4, items=5)
        policy = make_policy("fclub-plus", types=2)
        sizes.append(fclub.simulate(policy, environment, 1000, seed=1).communications["bytes"][-1])
    assert sizes[1] <= sizes[0]  # with more users a first phase waits for more visits


def test_newcomers_are_served_from_what_is_known_of_all() -> None:
    policy = unequal()
    play(policy, 600)
    server = servers(policy)[0]
    row = server.add_user()
    assert row == 30
    weights = np.exp(server.learner.model.weights[0])
    expected = weights[:-1] @ server.learner.beliefs.centres + weights[-1] * server.learner.beliefs.mean
    found = server.learner.theta()[row]
    found[-1] -= 0.5 / HALF
    assert found == pytest.approx(expected / weights.sum(), abs=1e-9)


def test_without_a_constant_estimates_are_told_as_they_are() -> None:
    policy = make_policy("fclub-plus", types=6)
    policy.start(Problem(6, 1, DIM), np.zeros(6, dtype=np.int64), seed=3)
    play(policy, 200)
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


def visit(servers: list[Any], hub: Any, rounds: int, users: int, seed: int = 0) -> None:
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


def test_live_servers_come_to_agree() -> None:
    servers, hub, _ = live(3)
    visit(servers, hub, 3000, users=30)
    first, *others = servers
    assert hub.exchange.splitter.types >= 2
    for other in others:
        assert other.learner.beliefs.mean == pytest.approx(first.learner.beliefs.mean, abs=0.1)
        assert other.learner.beliefs.covariance == pytest.approx(
            first.learner.beliefs.covariance, abs=0.05
        )
    told = [round(float(server.learner.splits.sums.scalars[VISITS])) for server in servers]
    assert [hub.released_by(s) for s in range(3)] == told
    for server in servers:
        assert server.learner.sharing == 2
        assert int(server.counts.sum()) == server.status().waiting + round(
            server.learner.splits.sums.scalars[VISITS]
        )
        shown = server.overview()
        assert sum(kind.users for kind in shown) == len(server.counts)
        assert [kind.cluster for kind in shown] == ids_of(server)
        assert np.array_equal(np.array(ids_of(server))[server.cluster_of_user], groups_of(server))
        assert server.status().streams == {}


def test_a_live_server_is_restored_at_any_moment() -> None:
    """Also while an answer is awaited."""
    for rounds in (20, 73, 140, 400):
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
            assert np.array_equal(old.learner.theta(), new.learner.theta())
        assert hub.reported == other_hub.reported


class Deaf:
    def receive(self, server: int, message: Any) -> None:
        """Says nothing."""


def test_a_server_goes_on_alone_while_nobody_answers() -> None:
    servers, hub, links = live()
    visit(servers, hub, 150, users=12)
    server = servers[0]
    links[0].connect(Deaf(), {})
    before, known, types = (
        deepcopy(server.learner.beliefs),
        deepcopy(server.learner.others),
        server.learner.grouping.ids,
    )
    visit(servers[:1], hub, 200, users=12, seed=2)
    assert server.status().unanswered
    assert server.learner.grouping.ids == types, "types change for all servers, or for none"
    assert not np.array_equal(server.learner.beliefs.centres, before.centres)
    assert all(
        np.array_equal(a, b) for a, b in zip(server.learner.others.sums, known.sums, strict=True)
    )


def test_a_server_that_was_away_while_types_were_split_takes_them_over() -> None:
    servers, hub, links = live()
    visit(servers, hub, 60, users=20)
    links[0].connect(hub, {0: servers[0]})
    visit(servers[:1], hub, 3000, users=20, seed=3)
    types = hub.exchange.splitter.types
    assert types > 1
    late = servers[1]
    assert len(late.learner.grouping.ids) < types
    links[0].connect(hub, dict(enumerate(servers)))
    visit(servers[1:], hub, 400, users=20, seed=5)
    assert late.learner.grouping.ids == tuple(hub.exchange.splitter.ids)
    total = hub.exchange.splitter.total.sums
    assert total.users.sum() == pytest.approx(total.scalars[PEOPLE])


def test_a_global_server_without_memory_takes_types_over() -> None:
    servers, hub, links = live()
    visit(servers, hub, 2000, users=20)
    known = hub.exchange.splitter.ids
    assert len(known) > 1
    _, fresh, _ = live()
    fresh.exchange.link = links[0]
    links[0].connect(fresh, dict(enumerate(servers)))
    for server in servers:
        server.begin(Beginning(global_lost=True))
        fresh.advance()
    assert set(known) & set(fresh.exchange.splitter.ids)
    assert fresh.exchange.splitter.version >= hub.exchange.splitter.version
    assert [fresh.released_by(s) for s in (0, 1)] == [int(s.counts.sum()) for s in servers]


def test_sums_of_a_lost_store_stay() -> None:
    servers, hub, _ = live()
    visit(servers, hub, 200, users=12)
    told = hub.released_by(0)
    hub.begin(0, Beginning(local_new=True))
    assert hub.released_by(0) == told
    assert hub.reported == told + hub.released_by(1)
    visit(servers, hub, 60, users=12, seed=1)
    again = hub.released_by(0) - told
    hub.begin(0, Beginning(local_new=True))
    assert hub.released_by(0) == told + again
    hub.begin(0, Beginning(local_old=True))
    assert hub.released_by(0) == 0
    assert hub.used_by(0) == 0


def some_sums(types: int = 2, seed: int = 0) -> SplitSums:
    """Of a server that has users."""
    servers, hub, _ = live(1)
    visit(servers, hub, 150, users=12, seed=seed)
    while len(servers[0].learner.grouping.ids) < types:
        seed += 1
        visit(servers, hub, 150, users=12, seed=seed)
    return servers[0].learner.splits


def test_sums_survive_the_journey() -> None:
    sums = some_sums()
    again = read_told(to_bytes(write_splits(sums)), sums.types, DIM)
    for mine, its in zip((*sums.sums, *sums[1:]), (*again.sums, *again[1:]), strict=True):
        assert np.array_equal(mine, its)


def broken(sums: SplitSums) -> list[SplitSums]:
    """Sums that users cannot add up to."""
    nan, negative, indefinite, more, fewer, row, crowd = (sums.copy() for _ in range(7))
    nan.sums.slope[0] = np.nan
    negative.sums.users[0] = -1.0
    indefinite.sums.second[0, 0] = -5.0
    more.sums.users[1] += 1.0
    fewer.sums.visits[1] += 2.0
    row.sums.rows[0, DIM] = -5.0
    crowd.sums.scalars[PEOPLE] = crowd.sums.scalars[VISITS] + 1.0
    uninformed, half, endless = (sums.copy() for _ in range(3))
    uninformed.sums.scalars[OWN_INFORMATION] = -1.0
    half.half_users[0] = -1.0
    endless.scatter[0, 0] = np.inf
    return [nan, negative, indefinite, more, fewer, row, crowd, uninformed, half, endless]


def deaf_server() -> tuple[Any, Any]:
    """A server whose question is not answered."""
    servers, hub, links = live()
    visit(servers, hub, 300, users=12)
    links[0].connect(Deaf(), dict(enumerate(servers)))
    visit(servers, hub, 200, users=12, seed=1)
    assert servers[0].status().unanswered
    return servers[0], hub


def answer(server: Any, **changes: Any) -> TypeNews:
    """What could be answered, but for the changes."""
    shape = (
        server.exchange.phase,
        server.exchange.step,
        1,
        server.learner.grouping.version,
        server.learner.grouping.ids,
        server.learner.grouping.candidates,
    )
    sums = to_bytes(write_splits(server.learner.splits))
    told: dict[str, Any] = {"fresh": (), "starts": b"", "own": b"", "sums": sums}
    names = "phase", "step", "servers", "version", "ids", "candidates"
    values: dict[str, Any] = dict(zip(names, shape, strict=True))
    return TypeNews(**(values | told | changes))


@pytest.mark.parametrize("which", range(10))
def test_impossible_sums_are_refused_and_change_nothing(which: int) -> None:
    server, hub = deaf_server()
    wrong = broken(some_sums())[which]
    sums, ids = to_bytes(write_splits(wrong)), tuple(range(wrong.types))
    before = hub.state()
    with pytest.raises(InvalidMessage):
        hub.receive(0, TypeDigest(9, 0, 3, ids, (0,) * len(ids), sums))
    assert str(hub.state()) == str(before)
    told, own = str(server.state()), to_bytes(write_splits(some_sums()))
    message = answer(server, version=99, ids=ids, candidates=(0,) * len(ids), own=own, sums=sums)
    with pytest.raises(InvalidMessage):
        server.receive(message)
    assert str(server.state()) == told


def test_messages_that_do_not_fit_are_refused() -> None:
    server, hub = deaf_server()
    good, types = to_bytes(write_splits(server.learner.splits)), len(server.learner.grouping.ids)
    for message in (
        answer(server, step=server.exchange.step + 1),
        answer(server, servers=-1),
        answer(server, ids=(*server.learner.grouping.ids, 77)),
        answer(server, ids=()),
        answer(server, ids=(server.learner.grouping.ids[0],) * types)
        if types > 1
        else answer(server, ids=(-1,)),
        answer(server, candidates=(-1,) * types),
        answer(server, candidates=(0,)) if types > 1 else answer(server, candidates=()),
        answer(server, version=-1),
        answer(server, version=server.learner.grouping.version + 1),
        answer(server, own=good),
        answer(server, sums=good[:-8]),
        answer(server, fresh=(0,), starts=b""),
        answer(server, fresh=(types,), starts=bytes(16 * DIM)),
        answer(server, fresh=(0,), starts=np.full(2 * DIM, np.nan).tobytes()),
        PhaseStart(3),
        Shares(1, 0, (), ()),
    ):
        with pytest.raises(InvalidMessage):
            server.receive(message)
    shape = (
        server.learner.grouping.version,
        server.learner.grouping.ids,
        server.learner.grouping.candidates,
    )
    with pytest.raises(InvalidMessage, match="step"):
        hub.receive(0, TypeDigest(1, -1, *shape, good))
    with pytest.raises(InvalidMessage, match="bytes"):
        hub.receive(0, TypeDigest(1, 0, *shape, b""))
    with pytest.raises(InvalidMessage, match="server 7"):
        hub.receive(7, TypeDigest(1, 0, *shape, good))
    with pytest.raises(InvalidMessage, match="Digest"):
        hub.receive(0, Digest(1, (), ()))


def test_a_late_answer_is_of_no_use() -> None:
    """The server went on without it; to refuse it would stop all messages that follow."""
    server, _ = deaf_server()
    told = str(server.state())
    server.receive(answer(server, phase=server.exchange.phase - 1, step=2))
    assert str(server.state()) == told
    server.receive(answer(server))
    assert str(server.state()) != told


def test_what_a_digest_of_types_tells_of_itself() -> None:
    sums = some_sums()
    ids = tuple(range(1, sums.types + 1))
    message = TypeDigest(1, 0, 3, ids, ids, to_bytes(write_splits(sums)))
    assert message.count().phases == sums.types
    counts = [int.from_bytes(part.statistics, "little") for part in message.parts()]
    assert counts == [round(visits) for visits in sums.sums.visits]
    assert [read_id(part.cluster) for part in message.parts()] == [*ids]
    assert decode(encode(message)) == message


def test_exact_sums_have_nothing_to_withhold() -> None:
    (one, other), _, _ = live()
    x = np.array([0.5, 0.25, HALF])
    for server in (one, other):
        visit([server], live()[1], 40, users=6)
    one.observe(0, x, 1.0)
    other.observe(0, x, 1.0, releasable=False)
    np.testing.assert_array_equal(one.learner.users.gram, other.learner.users.gram)


class Told:
    """A splitter with one server, whose sums are made up."""

    def __init__(self, types: int, most: int = 6) -> None:
        self.splitter, self.sums = Splitter(most, DIM), some_sums()
        base = read_splits(np.zeros_like(write_splits(SplitSums.zeros(types, DIM))), types, DIM)
        for name in self.sums.sums._fields[3:]:
            getattr(base.sums, name)[...] = getattr(self.sums.sums, name)
        self.sums = base

    def tell(self, change: Callable[[SplitSums], None], candidates: bool = True) -> None:
        """Learn sums after this change, and decide."""
        change(self.sums)
        splitter, types = self.splitter, self.sums.types
        numbers = tuple(splitter.candidates) if candidates and splitter.known else (0,) * types
        ids = tuple(splitter.ids) if splitter.known else tuple(range(types))
        splitter.learn(0, Grouping(splitter.version, ids, numbers), self.sums.copy())
        splitter.decide()


def apart(gap: float, users: float) -> Callable[[SplitSums], None]:
    """Half of each type's users like one thing, half the opposite: a wide scatter, and good halves."""

    def change(sums: SplitSums) -> None:
        triangle = np.triu_indices(DIM)
        Q = 20.0 * np.eye(DIM)
        for k in range(sums.types):
            theta = np.zeros(DIM)
            theta[k % DIM] = gap
            e = Q @ theta
            sums.sums.users[k] = sums.sums.visits[k] = users
            sums.sums.rows[k, :DIM] = 0.0
            sums.sums.rows[k, DIM:] = users * Q[triangle]
            sums.scatter[k] = users * (Q + np.outer(e, e))[triangle]
            sums.half_users[k] = sums.half_visits[k] = users / 2
            sums.half_rows[k, :DIM] = users / 2 * e
            sums.half_rows[k, DIM:] = users / 2 * Q[triangle]

    return change


def test_a_type_is_split_when_its_halves_explain_more() -> None:
    told = Told(1)
    told.tell(apart(1.0, 40.0))
    assert told.splitter.ids == [0]
    assert [*told.splitter.fresh] == [0]
    told.tell(apart(1.0, 40.0))
    assert told.splitter.ids == [0, 1]
    assert told.splitter.changes == [Change(1, "split", 0, 1)]
    assert told.splitter.known[0].sums.users == pytest.approx([20.0, 20.0])


@pytest.mark.parametrize("server", [1, 2])
def test_sums_by_types_that_are_no_more_wait_for_better_ones(server: int) -> None:
    """Whether the server was known before or not: its users as wholes would undo the split."""
    told = Told(1)
    told.tell(apart(1.0, 40.0))
    late, splitter = told.sums.copy(), told.splitter
    splitter.learn(1, Grouping(0, (0,), (0,)), late.copy())
    told.tell(apart(1.0, 40.0))
    assert splitter.ids == [0, 1]
    before = write_splits(splitter.total)
    splitter.learn(server, Grouping(0, (0,), (0,)), late)
    assert np.array_equal(write_splits(splitter.total), before)
    assert read_splits(splitter.own(server), 2, DIM).sums.users.any() == (server == 1)


def test_small_halves_are_no_types() -> None:
    told = Told(1)
    told.tell(apart(1.0, 40.0))

    def tiny(sums: SplitSums) -> None:
        sums.half_users[0] = 0.5

    told.tell(tiny)
    assert told.splitter.ids == [0]


def test_there_is_room_for_so_many_types() -> None:
    told = Told(1, most=1)
    told.tell(apart(1.0, 40.0))
    told.tell(apart(1.0, 40.0))
    assert told.splitter.ids == [0]
    assert told.splitter.candidates == [0]


def test_equal_types_become_one_and_its_number_is_free_again() -> None:
    told = Told(3)

    def equal(sums: SplitSums) -> None:
        apart(0.0, 30.0)(sums)
        sums.sums.rows[2, :DIM] = 600.0
        sums.sums.users[1] = 40.0
        sums.merging[0, 1] = 1.0

    told.tell(equal)
    assert told.splitter.ids == [1, 2]
    assert told.splitter.changes == [Change(1, "merge", 1, 0)]
    assert told.splitter.known[0].sums.users == pytest.approx([70.0, 30.0])
    assert told.splitter.candidates == [0, 0], "nobody differs beyond what is expected"


def test_of_types_that_are_all_equal_each_changes_once_in_a_decision() -> None:
    told = Told(4)
    told.tell(apart(0.0, 30.0))
    assert len(told.splitter.ids) == 2


def test_halves_that_do_not_help_are_replaced() -> None:
    told = Told(1)
    told.tell(apart(1.0, 40.0))
    first = told.splitter.candidates[0]

    def useless(sums: SplitSums) -> None:
        sums.half_rows[0] = 0.5 * sums.sums.rows[0]
        sums.rest_entropy[0] = sums.half_entropy[0] = 0.0

    for _ in range(8):
        told.tell(useless)
        assert told.splitter.candidates == [first]
        assert not told.splitter.fresh
    told.tell(useless)
    assert told.splitter.candidates == [first + 1]
    told.tell(useless, candidates=False)
    assert told.splitter.known[0].half_users[0] == 0.0, "its users were not shared out between them"


def test_only_the_last_changes_are_kept() -> None:
    splitter = Splitter(4, DIM)
    for _ in range(REMEMBERED + 5):
        splitter._note("split", 0, 1)
    assert len(splitter.changes) == REMEMBERED
    assert splitter.changes[-1].version == splitter.version == REMEMBERED + 5


def test_nothing_is_decided_about_nobody() -> None:
    splitter = Splitter(4, DIM)
    splitter.decide()
    assert splitter.ids == [0]
