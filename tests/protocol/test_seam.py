"""What every row of the table of families has to do, asked only through the seam."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from tests.parts import present
from tests.protocol.told import groups_of, ids_of

from fclub.core.types import Floats, Matrix
from fclub.errors import CannotForget, CannotReplace, InvalidMessage, UnknownName
from fclub.parameters import Parameter
from fclub.privacy.noise import NoNoise, SeededNoise
from fclub.protocol.families import FAMILIES, make_family
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Family, Place, Shape
from fclub.protocol.interfaces.learner import Bound
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, PhaseStart, encode
from fclub.protocol.servers import GlobalServer, LocalServer

DIM, HALF = 3, float(np.sqrt(0.5))
SHAPE = Shape(DIM, clusters=8, constant=HALF)
SOON: dict[str, Parameter] = {"first_release": 4, "release_ratio": 1.5}
QUICK: dict[str, dict[str, Parameter]] = {
    "cdp-fclub-plus": SOON | {"unit": "event", "level": "cdp"},
    "cdp-homo": SOON,
}
COUNTED = list(FAMILIES)
"""As above their servers release by their own numbers; those with a plan do so by the clock."""

PRIVATE = [name for name, preset in FAMILIES.items() if preset.switches["noise"] != "none"]


class Recording(InProcessLink):
    def __init__(self, family: Family) -> None:
        super().__init__(family.decode)
        self.up: list[Message] = []

    def from_local(self, server: int, message: Message) -> None:
        self.up.append(message)
        super().from_local(server, message)


class Live:
    """Two live servers that meet their users one by one, and a global server, through the seam only."""

    def __init__(self, name: str) -> None:
        self.family = make_family(name, SHAPE, QUICK.get(name, {}))
        self.link, self.ledger = Recording(self.family), self.family.ledger(seeded=True)
        self.noise = [np.random.default_rng(number) for number in range(2)]
        self.locals: list[LocalServer] = []
        for number, noise in enumerate(self.noise):
            source = NoNoise() if self.family.privacy is None else SeededNoise(noise)
            rng = np.random.default_rng(number)
            place = Place(str(number), self.link.uplink(number), source, self.ledger, rng)
            self.locals.append(self.family.local_server(place, self.family.users(0), live=True))
        self.hub: GlobalServer = self.family.global_server([], self.link)
        self.servers: list[LocalServer | GlobalServer] = [*self.locals, self.hub]
        self.link.connect(self.hub, dict(enumerate(self.locals)))
        self.hub.invite(2)

    def visit(self, rounds: int, users: int = 3, seed: int = 0) -> list[int]:
        """Choices of so many visits."""
        rng, choices = np.random.default_rng(seed), []
        for t in range(rounds):
            server, row = self.locals[t % 2], int(rng.integers(users))
            while row >= len(server.counts):
                server.add_user()
            angles = rng.uniform(0.0, 2.0 * np.pi, 4)
            items = np.column_stack([HALF * np.cos(angles), HALF * np.sin(angles), np.full(4, HALF)])
            choices.append(server.recommend(row, items))
            x = items[choices[-1]]
            server.observe(row, x, float(rng.random() < 0.5 + 0.7 * x[0] * (1 - 2 * (row % 2))))
            work = server.due()
            if work is not None:
                work()
            self.hub.advance()
        return choices


@pytest.mark.parametrize("name", COUNTED)
def test_live_servers_are_served_learn_and_share(name: str) -> None:
    live = Live(name)
    live.visit(200)
    for number, server in enumerate(live.locals):
        assert server.counts.sum() == 100
        assert live.hub.released_by(number) + server.status().waiting == 100
        assert sum(one.own + one.waiting for one in server.overview()) >= 100
        assert set(server.cluster_of_user) <= set(range(len(server.overview())))
        assert server.learner.theta().shape == (3, DIM)
        assert groups_of(server).shape == (3,)
        assert not server.status().unanswered
    assert live.hub.phase > 1
    assert live.hub.servers == [0, 1]
    assert live.hub.reported == sum(group.observations for group in live.hub.overview()) > 0
    known = {member for group in live.hub.overview() for member in group.members}
    for number, server in enumerate(live.locals):
        exchange: Any = server.exchange
        told = ids_of(server) or exchange.told  # of users, or of their streams
        assert {k for owner, k in known if owner == number} == set(told)


@pytest.mark.parametrize("name", COUNTED)
def test_what_was_saved_goes_on_alike(name: str) -> None:
    first, second = Live(name), Live(name)
    first.visit(60)
    second.visit(30)
    for old, new in zip(first.servers, second.servers, strict=True):
        arrays, values = old.state()
        new.restore(deepcopy(arrays), json.loads(json.dumps(values)))
    if first.ledger is not None:
        present(second.ledger).restore(first.ledger.events)
    for ours, theirs in zip(first.noise, second.noise, strict=True):
        theirs.bit_generator.state = ours.bit_generator.state
    assert first.visit(60, seed=1) == second.visit(60, seed=1)
    for old, new in zip(first.servers, second.servers, strict=True):
        (arrays, values), (others, same) = old.state(), new.state()
        assert json.dumps(values) == json.dumps(same)
        assert arrays.keys() == others.keys()
        assert all(np.array_equal(arrays[key], others[key]) for key in arrays)


def scores(bound: Bound, items: Matrix) -> Floats:
    theta, inverse, radius, _ = bound.scoring
    spread = np.sqrt(np.einsum("ki,ij,kj->k", items, inverse, items))
    return bound.offset + items @ theta + radius * spread


@pytest.mark.parametrize("name", COUNTED)
def test_a_bound_is_what_a_choice_is_made_with(name: str) -> None:
    live = Live(name)
    live.visit(80)
    rng = np.random.default_rng(3)
    for server in live.locals:
        for row in range(3):
            items = np.column_stack([rng.uniform(-0.5, 0.5, (20, 2)), np.full(20, HALF)])
            assert server.recommend(row, items) == np.argmax(scores(server.bound(row), items))


def outcome(live: Live, row: int) -> int | None:
    """Whether a user of the first server can be forgotten; how much of it was released."""
    try:
        return live.locals[0].forget(row)
    except CannotForget:
        return None


@pytest.mark.parametrize("name", COUNTED)
def test_a_forgotten_user_is_in_nothing_that_is_released_later(name: str) -> None:
    """As if it had never come, except for what had left before."""
    live = Live(name)
    live.visit(150)
    server = live.locals[0]
    count, before = int(server.counts[0]), deepcopy(server.state())
    assert server.stored(0).count == count > 0
    released = outcome(live, 0)
    if released is None:
        np.testing.assert_equal(server.state(), before)
        return
    assert 0 < released <= count
    empty = server.stored(0)
    assert (server.counts[0], empty.count) == (0, 0)
    assert not empty.gram.any()
    assert not empty.moment.any()
    others = [server.stored(row) for row in (1, 2)]
    assert all(one.count > 0 for one in others)
    assert min(server.status().waiting, *(one.waiting for one in server.overview())) >= 0
    live.visit(150, seed=1)
    assert live.locals[0].add_user() == 3


def lone_server(name: str, parameters: dict[str, Parameter]) -> LocalServer:
    """A server with three users, some of whose rewards it has learned; live but for one kind."""
    family = make_family(name, SHAPE, parameters)
    source = NoNoise() if family.privacy is None else SeededNoise(np.random.default_rng(0))
    link = Recording(family)
    place = Place("0", link.uplink(0), source, family.ledger(True), np.random.default_rng(0))
    server = family.local_server(place, family.users(0), live=True)
    while len(server.counts) < 3:
        server.add_user()
    for t in range(6):
        server.observe(t % 3, np.array([0.1 * t, 0.3, HALF]), float(t % 2))
    return server


ROWS = [(name, QUICK.get(name, {})) for name in COUNTED]
ROWS += [("cdp-fclub-plus", {})]


@pytest.mark.parametrize(("name", "parameters"), ROWS)
def test_another_reward_takes_the_place_of_an_assumed_one(
    name: str, parameters: dict[str, Parameter]
) -> None:
    """Then everything is as if only the other one had been learned."""
    x = np.array([0.31, -0.2, HALF])
    changed, straight = lone_server(name, parameters), lone_server(name, parameters)
    changed.observe(1, x, 0.25)
    before = deepcopy(changed.state())
    try:
        changed.replace(1, x, 0.25, 0.8)
    except CannotReplace:
        np.testing.assert_equal(changed.state(), before)
        assert FAMILIES[name].switches["detection"] in ("edges", "off")
        return
    straight.observe(1, x, 0.8)
    (arrays, values), (wanted, others) = changed.state(), straight.state()
    assert values == others
    for key, array in wanted.items():
        np.testing.assert_allclose(arrays[key], array, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("constant", [None, HALF])
@pytest.mark.parametrize("name", [n for n, preset in FAMILIES.items() if "centre" in preset.defaults])
def test_an_estimate_is_of_rewards_as_they_are(name: str, constant: float | None) -> None:
    """Whether or not they were centred to be learned from."""
    family = make_family(name, Shape(DIM, 8, constant), {})
    link, rng = InProcessLink(family.decode), np.random.default_rng(0)
    place = Place("0", link.uplink(0), NoNoise(), family.ledger(True), rng)
    server = family.local_server(place, family.users(1), live=False)
    rng = np.random.default_rng(1)
    for _ in range(300):
        x = np.append(rng.uniform(-0.4, 0.4, DIM - 1), HALF)
        server.observe(0, x, 0.6 + 0.5 * float(x[0]))
    np.testing.assert_allclose(server.learner.theta(), [[0.5, 0.0, 0.6 / HALF]], atol=0.05)


@pytest.mark.parametrize("name", COUNTED)
def test_clocks_tell_the_same_time_after_a_save(name: str) -> None:
    family = make_family(name, SHAPE, QUICK.get(name, {}))
    clock, again = family.clock(), family.clock()
    started = [t for t in range(500) if clock.advance(t)]
    assert len(started) == clock.phase > 5
    again.restore(json.loads(json.dumps(clock.state())))
    assert (again.phase, again.next_start) == (clock.phase, clock.next_start)


@pytest.mark.parametrize("name", COUNTED)
def test_a_fingerprint_is_of_the_shape_and_the_constants(name: str) -> None:
    quick = QUICK.get(name, {})
    mark = json.dumps(make_family(name, SHAPE, quick).fingerprint())
    assert mark == json.dumps(make_family(name, SHAPE, quick).fingerprint())
    others: dict[str, Parameter] = {"ridge": 3.0, "variance": 0.2, "types": 7}
    other = dict([next((k, v) for k, v in others.items() if k in FAMILIES[name].defaults)])
    assert mark != json.dumps(make_family(name, SHAPE, quick | other).fingerprint())


@pytest.mark.parametrize("name", COUNTED)
def test_only_private_families_have_books_and_a_price(name: str) -> None:
    live = Live(name)
    live.visit(60)
    private = name in PRIVATE
    assert (live.family.privacy is not None) == private
    assert (live.ledger is not None) == (live.family.price() is not None) == private
    streams = [server.status().streams for server in live.locals]
    assert all(streams) == any(streams) == private
    if live.ledger is not None:
        price = present(live.family.price())
        for one in (stream for found in streams for stream in found.values()):
            assert 0.0 < one.mu <= price.stream * (1 + 1e-9)
        assert live.ledger.mu >= max(one.mu for found in streams for one in found.values())


@pytest.mark.parametrize("name", COUNTED)
def test_messages_carry_what_is_counted_and_survive_their_bytes(name: str) -> None:
    live = Live(name)
    live.visit(60)
    assert sum(len(message.parts()) for message in live.link.up) > 3
    for message in live.link.up:
        assert live.family.decode(encode(message)) == message
        assert sum(message.count()) == len(message.parts())
    assert PhaseStart(1).parts() == ()
    assert sum(PhaseStart(1).count()) == 0


def test_a_family_reads_no_message_of_another() -> None:
    lives = [Live("fclub-dc"), Live("fclub-plus")]
    for live, other in (lives, reversed(lives)):
        live.visit(30)
        with pytest.raises(InvalidMessage, match="not a message"):
            other.family.decode(encode(live.link.up[-1]))


@pytest.mark.parametrize("name", COUNTED)
def test_an_overdue_phase_goes_on_without_the_missing(name: str) -> None:
    """Servers without users cannot report; families in which no server waits have none missing."""
    live = Live(name)
    live.locals[0].add_user()
    missing = set(live.hub.missing)
    assert missing in (set(), {1})
    assert (live.hub.next_phase is None) == (not missing)
    live.hub.advance(overdue=True)
    assert not live.hub.missing


def test_noise_of_the_printed_policy_is_drawn_inside_compiled_code_only_if_seeded() -> None:
    for name, alike in (("cdp-fclub-dc", False), ("fclub-dc", True), ("cdp-fclub-plus", True)):
        family = make_family(name, SHAPE, {})
        rows, first = np.arange(4), np.array([0, 2, 4])
        federation = Federation(family, rows, first, SeedSequence(1), seeded=False)
        assert (family.compiled(federation) is not None) == alike


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="policy"):
        make_family("fclub-minus", SHAPE, {})
    with pytest.raises(UnknownName, match="colour"):
        make_family("fclub-dc", SHAPE, {"colour": 1})
