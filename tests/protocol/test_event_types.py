"""Large servers that promise something about single observations, with labels as given."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.protocol import two_kinds
from tests.protocol.two_kinds import DIM, HALF

import fclub
from fclub.config import Problem
from fclub.core.lattice import PARTS, STEP
from fclub.core.statistics import Packed
from fclub.core.types import Floats
from fclub.errors import InvalidMessage
from fclub.policies.registry import make_policy
from fclub.privacy.levels import Flag
from fclub.privacy.noise import NoNoise
from fclub.privacy.sensitivity import worst_pair
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import PhaseStart
from fclub.protocol.plus.event_local import EventLocal
from fclub.protocol.plus.event_releases import EventReleases
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.messages import Shares, decode
from fclub.protocol.plus.private import EventFamily
from fclub.protocol.plus.type_hub import NoisedHub
from fclub.protocol.plus.type_messages import TypeDigest, TypeNews, noised_length, to_bytes
from fclub.protocol.seam import Place, Shape

TYPES, COUNT = 5, 4
play = partial(two_kinds.play, count=COUNT)
offer = partial(two_kinds.offer, count=COUNT)
PAIR: dict[str, Any] = {"unit": "event", "level": "cdp", "types": TYPES, "few": 4}
THREE = [0] * 12 + [1] * 3 + [2] * 12


def started(server_of: list[int] = THREE, **parameters: Any) -> fclub.Policy:
    policy = make_policy("cdp-fclub-plus", **(PAIR | parameters))
    policy.start(Problem(len(server_of), max(server_of) + 1, DIM, HALF), np.array(server_of), seed=3)
    return policy


def family() -> EventFamily:
    made = make_policy("cdp-fclub-plus", **PAIR).make_family(Shape(DIM, 20, HALF))
    assert isinstance(made, EventFamily)
    return made


def test_large_servers_release_by_type_and_small_ones_by_user() -> None:
    policy = started()
    assert [type(server) for server in policy.servers.values()] == [EventLocal, PlusLocal, EventLocal]
    play(policy, 900)
    hub: Any = policy.hub
    assert isinstance(hub.types, NoisedHub)
    assert sorted(hub.types.sums) == [0, 2]
    assert hub.released_by(0) == policy.servers[0].releases.covered > 0
    shown = sum(view.observations for view in hub.types.overview())
    assert shown == pytest.approx(hub.released_by(0) + hub.released_by(2), abs=TYPES)
    for number in (0, 2):
        server: Any = policy.servers[number]
        assert server.sharing == 1
        assert server.others.rows.any()
        assert server.waiting == server.observations - server.releases.covered
        assert server.news.precision.any()


@pytest.mark.parametrize("share", [True, False])
def test_the_compiled_loop_equals_the_readable_one(share: bool) -> None:
    trace = two_kinds.same_in_both_loops("cdp-fclub-plus", 900, **(PAIR | {"share": share}))
    assert (trace.communications["total"][-1] > 0) == share


def test_a_saved_federation_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    for share in (True, False):
        policy = started(share=share)
        play(policy, 300)
        two_kinds.check_saved(policy, tmp_path / f"{share}.npz", count=COUNT)


def test_books_say_what_an_observation_costs() -> None:
    policy = started(slots=6)
    play(policy, 400)
    ledger, plan = policy.ledger, policy.family.events
    assert ledger is not None
    assert ledger.unit == "event"
    assert Flag.RAW_PARTITION in ledger.flags
    large = {name: stream for name, stream in ledger.streams.items() if name.endswith("/types")}
    assert sorted(large) == ["0/types", "2/types"]
    for stream in large.values():
        assert stream.sequence == 6
        assert stream.mu == pytest.approx(plan.mu)
    assert policy.servers[0].streams().keys() == {"0/types"}
    summary = ledger.summary()["spent"]
    assert isinstance(summary, list)
    assert summary[0][0] == pytest.approx(1.0, abs=1e-3)


def one_user(x: Floats, y: float) -> Packed:
    users = Packed.zeros(1, DIM)
    users.gram[0], users.moment[0], users.counts[0] = np.outer(x, x), y * x, 1
    return users


def silent_releases() -> EventReleases:
    """Noise is none, which is for a test of the arithmetic only."""
    made = family()
    ledger = made.ledger(seeded=True)
    assert ledger is not None
    return EventReleases(made.events, NoNoise(), ledger, "0")


def test_one_observation_moves_a_release_by_its_sensitivity_at_most() -> None:
    """Given its user's labels; the worst pair with one label comes close to it."""
    plan, grid = family().events, 2.0**-13
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0]])
    releases = []
    for x, y in worst_pair(plan.domain, DIM):
        rounded = np.rint(x / grid) * grid
        users = one_user(rounded, float(y))
        releases.append(silent_releases().release(users, weights))
    moved = (releases[0] - releases[1]).astype(np.float64)
    deviations = np.where(plan.deviations > 0.0, plan.deviations, np.inf)
    distance = plan.mechanism.std * np.linalg.norm(moved / deviations)
    assert 0.9 * plan.sensitivity < distance <= plan.sensitivity
    assert plan.mechanism.cost(plan.sensitivity, plan.mechanism.releases) == pytest.approx(plan.mu)


def test_soft_labels_never_weigh_more_than_one() -> None:
    x = np.array([0.5, 0.25, 0.5])
    weights = np.full((1, TYPES), 1.0 / TYPES)
    sums = silent_releases().release(one_user(x, 0.5), weights)
    parts = sums[:, 0] * STEP / PARTS / 0.25
    assert np.linalg.norm(parts[:-1]) <= 1.0
    assert parts[:-1].sum() == pytest.approx(1.0, abs=TYPES / PARTS)
    assert parts[-1] == 0.5


def test_slots_are_used_in_turn_and_only_where_the_budget_has_room() -> None:
    releases, users = silent_releases(), one_user(np.array([0.5, 0.5, 0.5]), 0.5)
    weights = np.full((1, TYPES), 1.0 / TYPES)
    assert not releases.due(0, 1)
    for _ in releases.plan.visits:
        assert releases.due(1000, 1)
        releases.release(users, weights)
    assert not releases.due(1000, 1)
    other = EventReleases(releases.plan, NoNoise(), releases.ledger, "1")
    releases.ledger.claimed = (1e-9, 1e-9)
    assert not other.due(1000, 1)


def test_a_live_server_keeps_a_stream_per_user() -> None:
    made = family()
    link = InProcessLink(decode)
    place = Place("0", link.uplink(0), NoNoise(), made.ledger(True), np.random.default_rng(0))
    assert isinstance(made.local_server(place, made.users(20), live=True), PlusLocal)


def test_what_it_must_not_release_it_does_not_learn_and_when_paused_it_is_silent() -> None:
    policy = started()
    server: Any = policy.servers[0]
    server.withhold(0, np.array([0.5, 0.5, HALF]), 1.0)
    assert server.observations == 0
    server.pause()
    play(policy, 300)
    assert server.releases.following == 0
    assert server.add_user() == 12
    assert len(server.before) == 13


def test_messages_that_do_not_fit_are_refused() -> None:
    policy = started()
    play(policy, 300)
    server, hub = policy.servers[0], policy.hub
    server.receive(Shares(1, (), (), (), 1.0))
    good = np.zeros(noised_length(TYPES, DIM))
    with pytest.raises(InvalidMessage, match="not asked for"):
        server.receive(TypeNews(9, 0, 1, TYPES, to_bytes(good)))
    with pytest.raises(InvalidMessage, match="does not take"):
        server.receive(TypeDigest(9, 0, TYPES, to_bytes(good)))
    for values in (good[1:], np.where(np.arange(len(good)) == 0, -1.0, good), good + np.nan):
        with pytest.raises(InvalidMessage):
            hub.receive(0, TypeDigest(9, 0, TYPES, to_bytes(values)))
    server.unanswered = True
    server.receive(TypeNews(9, 0, 0, TYPES, to_bytes(good)))
    assert not server.unanswered
    server.receive(PhaseStart(4))
