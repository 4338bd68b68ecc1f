"""Types that a server learns at home: who serves when, from what prior; nothing of it leaves."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from tests.protocol.told import groups_of

from fclub.core.plus.beliefs import PopulationPrior, TypeRules
from fclub.core.plus.type_sums import VISITS
from fclub.core.population.rounds import SURE
from fclub.core.types import Floats
from fclub.errors import InvalidMessage
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.silent import SilentLocal
from fclub.protocol.exchanges.slots import Release, SlotsLocal
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.exchange import Beginning
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.interfaces.learner import PopulationNews
from fclub.protocol.interfaces.overview import TYPE
from fclub.protocol.learners.people import Crowd
from fclub.protocol.learners.phases import PhasesAtHome
from fclub.protocol.learners.types import Types
from fclub.protocol.learners.types_at_home import PRIOR_LEAD, REMEMBERED, TRUST, Border, TypesAtHome
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, PhaseStart
from fclub.protocol.phase import GeometricClock
from fclub.protocol.rows.population import PopulationFamily
from fclub.protocol.rows.private import PrivatePlusConstants
from fclub.protocol.servers import LocalServer

DIM, HALF, SIZES = 3, float(np.sqrt(0.5)), (12, 5, 4)
USERS = sum(SIZES)
ALWAYS, NEVER, EARLY = Border(users=0), Border(10**9, 10**9), Border(10**9, observations=20)
LARGE = Border(users=10, observations=10**9)
"""Only the first server is large enough."""

Visit = tuple[int, int, Floats, float]


class Recording(InProcessLink):
    """Keeps what leaves."""

    sent: list[Message]

    def from_local(self, server: int, message: Message) -> None:
        self.sent.append(message)
        super().from_local(server, message)


def family(live: bool = False, **parameters: Any) -> PopulationFamily:
    shape = Shape(DIM, USERS, HALF, USERS, len(SIZES), live)
    constants = PrivatePlusConstants(**({"visits": 9.0} | parameters))
    return PopulationFamily(constants, shape)


def federation(border: Border | None = ALWAYS, **parameters: Any) -> tuple[Federation, Recording]:
    made = family(**parameters)
    link = Recording(made.decode)
    link.sent = []
    first = np.concatenate([[0], np.cumsum(SIZES)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Border, "beside", staticmethod(lambda known: border))
        running = Federation(made, np.arange(USERS), first, SeedSequence(1), seeded=True, link=link)
    return running, link


def home(running: Federation, server: int) -> TypesAtHome:
    local: Any = running.servers[server]
    learner: TypesAtHome = local.learner
    return learner


def study(running: Federation, server: int) -> PhasesAtHome:
    local: Any = running.servers[server]
    found: PhasesAtHome = local.study
    return found


def visits(count: int, seed: int = 2) -> list[Visit]:
    """Two types: users of even rows like the first feature, others dislike it."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        server = int(rng.choice(len(SIZES), p=np.array(SIZES) / USERS))
        row = int(rng.integers(SIZES[server]))
        x = np.append(rng.uniform(-0.6, 0.6, DIM - 1), HALF)
        liked = 0.5 + 0.8 * x[0] * (-1) ** row
        found.append((server, row, x, float(rng.random() < liked)))
    return found


def play(running: Federation, seen: list[Visit], start: int = 0) -> None:
    for t, (server, row, x, y) in enumerate(seen, start + 1):
        running.servers[server].observe(row, x, y)
        running.advance(t)


def test_a_small_server_serves_from_the_population_until_it_has_data_enough() -> None:
    running, _ = federation(EARLY)
    learner, seen = home(running, 0), visits(200)
    learned_at = 0
    for t, visit in enumerate(seen):
        play(running, [visit], t)
        if np.isfinite(learner.lead[0]) and not learned_at:
            learned_at = int(learner.counts.sum())
        if not learned_at:
            assert np.array_equal(learner.bound(0).theta, learner.population.bound(0).theta)
    assert 20 <= learned_at < 40
    seen_there = int(home(running, 2).counts.sum())
    assert np.isfinite(home(running, 2).lead[0]) == bool(study(running, 2).phase) == (seen_there >= 20)


def test_a_large_server_learns_types_from_its_first_phase_on() -> None:
    running, _ = federation(LARGE)
    play(running, visits(30))
    assert np.isfinite(home(running, 0).lead[0])
    assert np.isneginf(home(running, 1).lead[0])
    assert study(running, 1).phase == 0, "it does not learn them"


def test_users_are_served_from_both_by_how_well_each_has_predicted() -> None:
    running, _ = federation()
    learner = home(running, 0)
    play(running, visits(100))
    for lead in (-100.0, -0.7, 0.0, 1.3, 100.0):
        learner.lead[0] = lead
        share = 1.0 / (1.0 + np.exp(-lead))
        types, population, both = (one.bound(1) for one in (learner.types, learner.population, learner))
        assert np.allclose(both.theta, share * types.theta + (1.0 - share) * population.theta)
        apart = types.theta - population.theta
        inside = share * types.inverse + (1.0 - share) * population.inverse
        expected = inside + share * (1.0 - share) * np.outer(apart, apart)
        assert np.allclose(both.inverse, expected)
        assert np.allclose(learner.theta()[1, :-1], both.theta[:-1])


def test_the_lead_is_evidence_that_fades_from_phase_to_phase() -> None:
    running, _ = federation()
    learner = home(running, 0)
    play(running, visits(100))
    learner.lead[0] = 2.0
    expected = 2.0
    for _, row, x, y in visits(10, seed=3):
        row %= SIZES[0]
        told = learner.types.bound(row).theta, learner.population.bound(row).theta
        first, second = (y - 0.5 - theta @ x for theta in told)
        expected += float(second**2 - first**2) / 0.4
        learner.observe(row, x, y)
    assert learner.lead[0] == pytest.approx(expected)
    learner.prepare()
    assert learner.lead[0] == pytest.approx(PRIOR_LEAD + REMEMBERED * (expected - PRIOR_LEAD))
    assert learner.typed == (expected > 0.0)


@pytest.mark.parametrize(
    ("users", "members", "secure", "at_once"),
    [
        (3_000, 3, True, True),
        (20_000, 10, True, False),
        (2_000, 10, True, False),
        (2_000, 10, False, True),
        (5_000, 100, True, False),
        (5_000, 100, False, True),
    ],
)
def test_a_server_that_knows_more_than_a_release_learns_types_at_once(
    users: int, members: int, secure: bool, at_once: bool
) -> None:
    made: Any = PrivatePlusConstants(visits=20.0, secure=secure).make_family(
        Shape(10, users, HALF, users, members)
    )
    place = Place("0", Recording(made.decode).uplink(0), NoNoise(), made.ledger(True), rng())
    local: Any = made.local_server(place, made.users(users // members), live=False)
    border: Border = local.learner.border
    assert border.users == 2.0 * made.plan.known
    assert (users // members >= border.users) == at_once


def test_without_others_there_is_no_border() -> None:
    for parameters in ({"share": False}, {}):
        made = family(**parameters)
        place = Place("0", Recording(made.decode).uplink(0), NoNoise(), made.ledger(True), rng())
        local: Any = made.local_server(place, made.users(3), live=False)
        assert (local.learner.border is None) == bool(parameters)
        live: Any = family(live=True).local_server(place, made.users(3), live=True)
        assert live.learner.border is None, "there is no plan"
    single = PopulationFamily(PrivatePlusConstants(), Shape(DIM, 5, HALF, 5, 1))
    alone: Any = single.local_server(place, single.users(5), live=False)
    assert alone.learner.border is None


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_at_interactive_there_are_no_types_whatever_the_size() -> None:
    made = family(level="interactive")
    place = Place("0", Recording(made.decode).uplink(0), NoNoise(), made.ledger(True), rng())
    local: Any = made.local_server(place, made.users(2000), live=False)
    assert local.study is None
    assert not isinstance(local.learner, TypesAtHome)


def test_alone_it_is_a_server_of_types_that_shares_nothing() -> None:
    running, link = federation(None, share=False)
    rules = TypeRules.alone(types=PrivatePlusConstants().types, dim=DIM)
    types = Types(Crowd.zeros(SIZES[0], DIM), rules, 1.0, running.family.domain)
    plain, clock = LocalServer(types, SilentLocal(types), PhasesAtHome(types, None)), GeometricClock()
    clock.advance(0)
    plain.receive(PhaseStart(clock.phase))
    for t, (server, row, x, y) in enumerate(visits(150), 1):
        running.servers[server].observe(row, x, y)
        running.advance(t)
        if server == 0:
            plain.observe(row, x, y)
        if clock.advance(t):
            plain.receive(PhaseStart(clock.phase))
    assert home(running, 0).typed
    assert np.array_equal(running.servers[0].learner.theta(), plain.learner.theta())
    assert np.array_equal(running.servers[0].cluster_of_user, plain.cluster_of_user)
    assert link.sent == []


def test_an_exchange_cannot_reach_types() -> None:
    running, _ = federation(ALWAYS)
    local: Any = running.servers[0]
    assert local.exchange.learner is home(running, 0).population
    assert local.study.learner is home(running, 0).types


def test_releases_are_the_same_whoever_serves() -> None:
    """Contributions are functions of a user's own data and of released values: types are in none."""
    sent = []
    for border in (ALWAYS, EARLY, NEVER):
        running, link = federation(border)
        play(running, visits(8 * USERS))
        sent.append([one for one in link.sent if isinstance(one, Release)])
    assert sent[0] == sent[1] == sent[2]
    assert len(sent[0]) >= 3 * len(SIZES)


@pytest.mark.parametrize("border", [ALWAYS, NEVER])
def test_releases_do_not_fade_but_what_users_are_served_from_does(border: Border) -> None:
    (plain, whole), (fading, told) = (federation(border, half_life=h) for h in (0.0, 3.0))
    for running in (plain, fading):
        play(running, visits(150))
    assert whole.sent
    assert whole.sent == told.sent
    assert np.array_equal(home(plain, 0).users.gram, home(fading, 0).users.gram)
    assert not np.allclose(home(plain, 0).bound(0).theta, home(fading, 0).bound(0).theta)
    theta = home(fading, 0).theta()
    assert np.allclose(theta[0, :-1], home(fading, 0).bound(0).theta[:-1])


def test_compiled_rounds_release_the_same_whoever_serves() -> None:
    """The same visits, kept by the kernels: the releases are those of readable rounds with no types."""
    first, seen = np.concatenate([[0], np.cumsum(SIZES)]), visits(8 * USERS)
    readable, expected = federation(NEVER)
    play(readable, seen)
    for border in (ALWAYS, EARLY):
        fast, link = federation(border)
        compiled = fast.family.compiled(fast)
        assert compiled is not None
        state, learn = compiled.pack(), compiled.kernels[1]
        for t, (server, row, x, y) in enumerate(seen, 1):
            learn(state, int(first[server]) + row, x, y)
            if t == fast.clock.next_start:
                compiled.unpack(state)
                fast.advance(t)
                state = compiled.pack()
        assert np.isfinite(home(fast, 0).lead[0])
        assert link.sent == expected.sent


def test_the_lead_fades_when_a_phase_begins_and_only_then() -> None:
    running, _ = federation()
    learner, phases = home(running, 0), study(running, 0)
    for _, row, x, y in visits(20):
        learner.observe(row % SIZES[0], x, y)
    local: Any = running.servers[0]
    local._work(phases.call())
    learner.lead[0], learner.typed = 5.0, False
    for _ in range(3):
        assert phases.call() is None, "there are no new data"
        assert (learner.lead[0], learner.typed) == (5.0, False)
    for _, row, x, y in visits(20):
        learner.types.observe(row % SIZES[0], x, y)
    assert phases.call() is not None
    assert learner.typed
    assert learner.lead[0] == pytest.approx(PRIOR_LEAD + REMEMBERED * (5.0 - PRIOR_LEAD))


def test_a_reward_that_is_replaced_counts_as_what_it_is_now() -> None:
    running, _ = federation()
    learner, x = home(running, 0), np.array([0.4, -0.3, HALF])
    play(running, visits(100))
    before = float(learner.lead[0])
    learner.observe(0, x, 0.0)
    once = float(learner.lead[0])
    assert once != before
    later = learner.types.bound(0).theta, learner.population.bound(0).theta
    learner.replace(0, x, 0.0, 1.0)
    apart = float((later[0] - later[1]) @ x)
    assert learner.lead[0] == pytest.approx(once + apart / 0.2)


def test_a_server_that_gets_a_plan_later_goes_on_with_types_until_the_population_tells_more() -> None:
    alone, planned = federation(None, share=False)[0], federation()[0]
    play(alone, visits(60))
    arrays, values = home(alone, 0).state()
    learner = home(planned, 0)
    learner.restore(arrays, values)
    assert learner.lead[0] == SURE
    assert np.allclose(learner.bound(0).theta, learner.types.bound(0).theta)


def test_the_released_population_is_the_prior_of_types() -> None:
    running, _ = federation()
    learner = home(running, 0)
    assert learner.types.prior.users == learner.types.rules.prior_users
    mean, covariance = np.array([0.5, -0.2, 0.1]), np.diag([0.3, 0.6, 1.1])
    learner.population.absorb(PopulationNews(mean, covariance, 2, 70.0))
    for _, row, x, y in visits(4):
        learner.observe(row % SIZES[0], x, y)
    study(running, 0).call()
    prior, unit = learner.types.prior, learner.population.model.unit
    assert prior.users == TRUST * 70.0
    assert np.allclose(prior.mean, unit * mean)
    assert np.allclose(prior.covariance, covariance * np.outer(unit, unit))
    beliefs = learner.types.beliefs
    assert np.allclose(beliefs.covariance, prior.covariance, atol=1e-3), "where learning starts"
    for _, row, x, y in visits(20):
        learner.observe(row % SIZES[0], x, y)
    learner.population.odds[0] = 1.0
    study(running, 0).call()
    expected = PopulationPrior.of(learner.types.rules)
    assert np.array_equal(learner.types.prior.covariance, expected.covariance)
    assert learner.types.prior.users == expected.users, "its users' data speak against the release"


def test_types_are_shown_where_they_serve() -> None:
    running, _ = federation()
    play(running, visits(20 * USERS))
    local: Any = running.servers[0]
    local.learner.typed = True
    shown = local.overview()
    assert len(shown) > 1
    assert {one.kind for one in shown} == {TYPE}
    assert {one.group for one in shown} == {None}, "nobody else knows them"
    assert sum(one.users for one in shown) == SIZES[0]
    labels = groups_of(local)
    assert (labels < 0).all()
    halves = labels[::2], labels[1::2]
    assert {*halves[0]}.isdisjoint(halves[1]), "the two types"
    local.learner.typed = False
    (everybody,) = local.overview()
    assert (everybody.group, everybody.users) == (0, SIZES[0])
    assert groups_of(local).tolist() == [0] * SIZES[0]
    assert local.learner.theta().shape == (SIZES[0], DIM)


@pytest.mark.parametrize("border", [ALWAYS, EARLY, LARGE])
def test_compiled_rounds_equal_readable_ones(border: Border) -> None:
    readable, fast = federation(border)[0], federation(border)[0]
    compiled = fast.family.compiled(fast)
    assert compiled is not None
    state = compiled.pack()
    recommend, learn = compiled.kernels
    items = np.random.default_rng(3).uniform(-0.6, 0.6, (6, DIM))
    items[:, -1] = HALF
    first = np.concatenate([[0], np.cumsum(SIZES)])
    for t, (server, row, x, y) in enumerate(visits(150), 1):
        user = int(first[server]) + row
        assert recommend(state, user, items) == readable.servers[server].recommend(row, items)
        readable.servers[server].observe(row, x, y)
        readable.advance(t)
        learn(state, user, x, y)
        if t == fast.clock.next_start:
            compiled.count_events(state)
            compiled.unpack(state)
            fast.advance(t)
            state = compiled.pack()
    compiled.unpack(state)
    for server in range(len(SIZES)):
        assert same(readable.servers[server], fast.servers[server])
    assert np.isfinite(home(readable, 0).lead[0])


def same(one: Any, other: Any) -> bool:
    (arrays, values), (others, same_values) = one.state(), other.state()
    assert arrays.keys() == others.keys()
    return values == same_values and all(
        np.array_equal(array, others[name]) for name, array in arrays.items()
    )


def test_a_saved_federation_goes_on_alike() -> None:
    seen = visits(160)
    running, link = federation(EARLY)
    play(running, seen[:80])
    arrays, values = running.state()
    again, other = federation(EARLY)
    again.restore({name: array.copy() for name, array in arrays.items()}, values)
    known = len(link.sent)
    for one in (running, again):
        play(one, seen[80:], 80)
    assert other.sent == link.sent[known:]
    for server in range(len(SIZES)):
        assert same(running.servers[server], again.servers[server])
    assert np.isfinite(home(again, 0).lead[0])


def live_server() -> Any:
    """Without a plan, so without a border."""
    made = family(live=True)
    place = Place("0", Recording(made.decode).uplink(0), NoNoise(), made.ledger(True), rng())
    return made.local_server(place, made.users(0), live=True)


def serve(local: Any, seen: list[Visit], parts: bool) -> None:
    local.in_parts = parts
    for _, row, x, y in seen:
        while len(local.counts) <= row:
            local.add_user()
        local.observe(row, x, y)
        begin = local.due()
        if begin is not None:
            begin()
        while local.busy:
            local.part()()


def test_live_a_phase_in_parts_gives_the_same_bits_as_at_once() -> None:
    seen = visits(90)
    servers = [live_server(), live_server()]
    for local, parts in zip(servers, (False, True), strict=True):
        serve(local, seen, parts)
    one, other = servers
    assert one.learner.typed
    assert one.study.phase > 2
    assert same(one, other)
    assert one.learner.by_user == ("types.crowd.users.gram", *one.learner.by_user[1:])
    assert not any(name.startswith("learner.users") for name in one.state()[0])


def test_live_a_phase_goes_on_after_a_restart_and_with_a_new_session() -> None:
    seen = visits(60)
    local = live_server()
    serve(local, seen[:40], True)
    while local.due() is None:
        local.observe(0, seen[0][2], 1.0)
    local.due()()
    assert local.busy
    assert local.due() is None, "one phase at a time"
    local.part()()
    again = live_server()
    again.restore(*deepcopy(local.state()))
    for one in (local, again):
        one.in_parts = True
        one.begin(Beginning())
        assert one.busy, "what a server learns at home is no matter of sessions"
        one.observe(1, seen[41][2], 1.0)
        while one.busy:
            one.part()()
        serve(one, seen[42:], True)
    assert same(local, again)


def test_a_slot_does_not_wait_for_a_phase_that_was_begun_before() -> None:
    running, link = federation()
    local: Any = running.servers[0]
    exchange: SlotsLocal = local.exchange
    exchange.noise = NoNoise()
    for _, row, x, y in visits(30):
        local.observe(row % SIZES[0], x, y)
    local.in_parts, before = True, local.study.phase
    local._work(local.study.call())
    local.part()()
    local._work(exchange._begin_slot(0))
    assert [job.kind for job in local.jobs] == ["slot", "types"]
    while not link.sent:
        assert local.jobs[0].kind == "slot"
        local.part()()
    assert [job.kind for job in local.jobs] == ["types"]
    while local.busy:
        local.part()()
    assert len(link.sent) == 1
    assert local.study.phase == before + 1
    assert home(running, 0).types.splits.sums.scalars[VISITS] == 30


def test_a_user_is_forgotten_and_a_reward_replaced_also_while_types_are_learned() -> None:
    local = live_server()
    seen = visits(60)
    serve(local, seen[:40], True)
    learner: TypesAtHome = local.learner
    while local.due() is None:
        local.observe(0, seen[0][2], 1.0)
    local.due()()
    x = seen[0][2]
    before = local.stored(0).moment
    local.replace(0, x, 1.0, 0.0)
    assert np.allclose(local.stored(0).moment, before - x)
    local.part()()
    local.forget(0)
    assert local.stored(0).count == 0
    assert learner.population.users.counts[0] == 0, "both look at the same rows"
    while local.busy:
        local.part()()
    assert learner.types.splits.sums.scalars[VISITS] == learner.counts.sum()
    row = local.add_user()
    local.observe(row, x, 1.0)
    assert learner.population.users.counts[row] == 1
    assert isinstance(local, LocalServer)


def test_a_server_alone_forgets_and_takes_no_answers() -> None:
    types = Types(
        Crowd.zeros(2, DIM), TypeRules(types=2, dim=DIM), 1.0, federation(None)[0].family.domain
    )
    plain = LocalServer(types, SilentLocal(types), PhasesAtHome(types, None))
    plain.observe(0, np.array([0.0, 0.0, HALF]), 1.0)
    with pytest.raises(InvalidMessage, match="a server alone does not take a Release"):
        plain.receive(Release(0, 0, b""))
    assert plain.learner.counts[0] == 1
    assert plain.forget(0) == 0, "nothing was released"
    assert plain.learner.counts[0] == 0
