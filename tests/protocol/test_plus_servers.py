"""Streams of users between servers: what is sent, what it depends on, what is refused."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.conftest import RecordingLink
from tests.parts import is_a

import fclub
from fclub.checks import check_saving
from fclub.core.lattice import Whole
from fclub.core.statistics import Statistics
from fclub.core.types import Floats
from fclub.errors import InvalidMessage, PrivacyError, UnknownName
from fclub.policies.federated.families import FederatedPolicy
from fclub.policies.registry import POLICIES
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import Flag, level_named
from fclub.protocol.exchanges import rounds
from fclub.protocol.exchanges import user_streams as m
from fclub.protocol.exchanges.user_streams import FROZEN
from fclub.protocol.messages import (
    Message,
    PhaseStart,
    read_id,
    read_statistics,
    write_id,
    write_statistics,
)

SMALL = {"users": 9, "clusters": 3, "servers": 3, "dim": 4, "items": 5, "placement": "spread"}
QUICK = {
    "first_release": 10,
    "release_ratio": 1.3,
    "ratio": 1.3,
    "unit": "event",
    "level": "cdp",
}
ROUNDS = 300

pytestmark = pytest.mark.usefixtures("recorded")


def quick(name: str) -> dict[str, Any]:
    return {key: value for key, value in QUICK.items() if key in POLICIES[name].defaults}


def started(name: str, **parameters: Any) -> tuple[Any, fclub.Environment]:
    environment = fclub.make_environment("synthetic", **SMALL)
    environment.start(4)
    policy = fclub.make_policy(name, **(quick(name) | parameters))
    policy.start(environment.problem, environment.server_of, seed=2)
    return policy, environment


Change = Callable[[float], float]


def play(
    policy: FederatedPolicy,
    environment: fclub.Environment,
    rounds: int = ROUNDS,
    change: Change = float,
) -> list[tuple[int, int, np.ndarray, float]]:
    """Rounds of the policy, whose rewards `change` may alter."""
    history = []
    for _ in range(rounds):
        user, items = environment.visit()
        index = policy.recommend(user, items)
        reward = change(environment.feedback(index).reward)
        policy.update(user, items[index], reward)
        history.append((user, index, items[index], reward))
    return history


def digests(policy: FederatedPolicy) -> list[tuple[int, m.Digest]]:
    return [
        (s.server, s.message)
        for s in is_a(RecordingLink, policy.federation.link).sent
        if isinstance(s.message, m.Digest)
    ]


def rows_of(server: Any) -> dict[int, int]:
    """The user behind each number that the server uses now."""
    return {number: row for row, number in enumerate(server.exchange.numbers)}


def test_a_digest_holds_what_was_released() -> None:
    """Every digest, when it is sent, against the servers' released prefixes; nothing is lost."""
    policy, environment = started("cdp-fclub-plus")
    checked = 0
    for _ in range(ROUNDS):
        policy.federation.link.sent.clear()
        play(policy, environment, 1)
        for number, digest in digests(policy):
            server = policy.servers[number]
            released, rows = server.exchange.releases.released, rows_of(server)
            assert {read_id(cluster) for cluster in digest.present} <= rows.keys()
            for entry in digest.news:
                row = rows[read_id(entry.cluster)]
                sent = read_statistics(entry.statistics, 4)
                np.testing.assert_array_equal(sent.gram, released.gram[row])
                np.testing.assert_array_equal(sent.moment, released.moment[row])
                assert sent.count == released.counts[row]
                assert entry.noise == server.exchange.releases.noise[row]
                checked += 1
    assert checked > 10
    policy.federation.hub.begin_phase(99)
    for number, server in policy.servers.items():
        known = [
            s for (owner, _), (s, *_) in policy.federation.hub.exchange.known.items() if owner == number
        ]
        told = sum((s.gram for s in known), np.zeros((4, 4)))
        np.testing.assert_allclose(told, server.exchange.releases.released.gram.sum(0), atol=1e-9)


def test_the_noise_is_in_what_is_sent() -> None:
    """What the hub knows minus what was observed has the stated variance; without noise it fails."""
    policy, environment = started("cdp-fclub-plus", first_release=20, release_ratio=100.0)
    play(policy, environment, 400)
    ratios = []
    for (owner, stream), (sent, noise) in policy.federation.hub.exchange.known.items():
        server = policy.servers[owner]
        exact = server.exchange.releases.streams.covered.gram[rows_of(server)[stream]]
        ratios += list((sent.gram - exact)[np.triu_indices(3, k=1)] / np.sqrt(noise))
    assert len(ratios) >= 9
    assert 0.2 < np.mean(np.square(ratios)) < 4.0


class Still:
    """A source that has run dry."""

    seeded = True

    def integers(self, deviations: Floats) -> Whole:
        return np.zeros(deviations.shape, dtype=np.int64)


def test_without_noise_a_digest_would_be_exact() -> None:
    """The test above would notice: a source without noise leaves nothing between sent and observed."""
    policy, environment = started("cdp-fclub-plus")
    for server in policy.servers.values():
        server.exchange.releases.source = Still()
    play(policy, environment)
    for number, server in policy.servers.items():
        known = [
            s for (owner, _), (s, *_) in policy.federation.hub.exchange.known.items() if owner == number
        ]
        total = sum((s.gram for s in known), np.zeros((4, 4)))
        np.testing.assert_allclose(
            total, server.exchange.releases.streams.covered.gram.sum(0), atol=1e-9
        )


@pytest.mark.parametrize("level", ["cdp", "transcript"])
def test_no_raw_observation_is_in_any_byte(level: str) -> None:
    """Neither a feature, a product, a rewarded feature nor any user's exact sum."""
    policy, environment = started("cdp-fclub-plus", level=level)
    secrets: set[bytes] = set()
    for _ in range(ROUNDS):
        ((_, _, x, y),) = play(policy, environment, 1)
        users = policy.compiled.pack().users
        square = np.outer(x, x)[:-1]
        sums = np.concatenate([users.gram[:, :-1].ravel(), users.moment.ravel()])
        numbers = np.concatenate([x, square.ravel(), y * x, (y - 0.5) * x, sums]).astype("<f8")
        secrets |= {value.tobytes() for value in numbers if value not in (0.0, x[-1])}
    assert len(digests(policy)) > 10
    for sent in policy.federation.link.sent:
        words = {sent.data[i : i + 8] for i in range(len(sent.data) - 7)}
        assert not words & secrets


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_messages_do_not_depend_on_who_the_users_are(name: str) -> None:
    """Two federations whose users have other numbers, and the same visits, send the same bytes."""
    policy, environment = started(name)
    renamed: Any = fclub.make_policy(name, **quick(name))
    number = np.argsort(environment.server_of, kind="stable").argsort()
    renamed.start(environment.problem, np.sort(environment.server_of), seed=2)
    for user, _, x, reward in play(policy, environment):
        renamed.update(int(number[user]), x, reward)
    assert [s.data for s in policy.federation.link.sent] == [
        s.data for s in renamed.federation.link.sent
    ]
    kinds = {type(s.message) for s in policy.federation.link.sent}
    exact = {rounds.TypeDigest, rounds.TypeNews}
    assert kinds == {PhaseStart} | (exact if name == "fclub-plus" else {m.Digest, m.Shares})


def test_only_news_is_sent() -> None:
    """Statistics cross the link once; phases in which nothing was released are silent."""
    policy, environment = started("cdp-fclub-plus", level="transcript")
    play(policy, environment)
    told: set[tuple[object, ...]] = set()
    entries: list[tuple[object, ...]]
    for sent in policy.federation.link.sent:
        match sent.message:
            case m.Digest(news=news):
                entries = [(sent.server, entry.cluster, entry.statistics) for entry in news]
            case m.Shares(news=news):
                entries = [(sent.server, share.number) for share in news]
            case _:
                entries = []
        assert told.isdisjoint(entries)
        told.update(entries)
    starts = sum(isinstance(s.message, PhaseStart) for s in policy.federation.link.sent)
    assert len(digests(policy)) < starts
    policy.federation.hub.begin_phase(98)
    before = len(policy.federation.link.sent)
    policy.federation.hub.begin_phase(99)
    assert len(policy.federation.link.sent) == before + 3, (
        "three servers were asked and had nothing to say"
    )


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_a_server_that_does_not_share_says_nothing(name: str) -> None:
    policy, environment = started(name, share=False)
    play(policy, environment, 100)
    assert {type(s.message) for s in policy.federation.link.sent} == {PhaseStart}
    assert len(policy.labels_) == 9


def snapshot(end: Any) -> str:
    arrays, values = end.state()
    return repr([(name, array.tobytes()) for name, array in arrays.items()]) + repr(values)


def data(dim: int = 4, count: int = 3) -> bytes:
    return write_statistics(Statistics(np.eye(dim), np.zeros(dim), count))


ONE = write_id(77)


@pytest.mark.parametrize(
    "message",
    [
        PhaseStart(3),
        m.Digest(3, (b"short",), ()),
        m.Digest(3, (ONE,), ()),
        m.Digest(3, (), (m.News(ONE, data(), 0.0),)),
        m.Digest(3, (ONE,), (m.News(ONE, data(3), 0.0),)),
        m.Digest(3, (ONE,), (m.News(ONE, b"", 0.0),)),
        m.Digest(3, (ONE,), (m.News(b"", data(), 0.0),)),
        m.Digest(3, (ONE,), (m.News(ONE, data(count=-1), 0.0),)),
        m.Digest(3, (ONE,), (m.News(ONE, data(), -1.0),)),
        m.Digest(3, (ONE,), (m.News(ONE, data(), np.nan),)),
        m.Digest(3, (ONE,), (m.News(ONE, data(), np.inf),)),
        m.Digest(3, (ONE,), (m.News(ONE, data(), 0.0),)),
        m.Digest(3, (ONE, ONE), ()),
        m.Digest(3, (write_id(FROZEN),), ()),
    ],
)
def test_a_bad_digest_is_refused_and_changes_nothing(message: Message) -> None:
    policy, environment = started("cdp-fclub-plus")
    play(policy, environment, 60)
    before = snapshot(policy.federation.hub)
    with pytest.raises(InvalidMessage):
        policy.federation.hub.receive(0, message)
    assert snapshot(policy.federation.hub) == before


def test_a_digest_without_clusters_is_answered_by_silence() -> None:
    policy, _ = started("cdp-fclub-plus")
    policy.federation.hub.receive(0, m.Digest(1, (), ()))
    policy.federation.link.sent.clear()
    policy.federation.hub.begin_phase(2)
    assert {type(s.message) for s in policy.federation.link.sent} == {PhaseStart}


def test_a_server_that_nobody_knows_is_refused() -> None:
    policy, _ = started("cdp-fclub-plus")
    with pytest.raises(InvalidMessage, match="server 9"):
        policy.federation.hub.receive(9, m.Digest(1, (), ()))


@pytest.mark.parametrize(
    "message",
    [
        m.Digest(3, (), ()),
        rounds.TypeNews(3, 0, 1, 0, (0,), (0,), (), b"", b"", b""),
        m.Shares(3, 1, (1234,), ()),
        m.Shares(3, -1, (), ()),
        m.Shares(3, 1, (77,), (m.ReleasedUser(77, data(3), 0.0),)),
        m.Shares(3, 1, (77,), (m.ReleasedUser(77, data(count=-1), 0.0),)),
        m.Shares(3, 1, (77,), (m.ReleasedUser(77, data(), -1.0),)),
        m.Shares(3, 1, (77,), (m.ReleasedUser(77, data(), np.nan),)),
        m.Shares(3, 1, (77,), (m.ReleasedUser(77, data(), 0.0),)),
    ],
)
def test_bad_shares_are_refused_and_change_nothing(message: Message) -> None:
    policy, environment = started("cdp-fclub-plus")
    play(policy, environment, 60)
    before = snapshot(policy.servers[0])
    with pytest.raises(InvalidMessage):
        policy.servers[0].receive(message)
    assert snapshot(policy.servers[0]) == before


@pytest.mark.parametrize("level", ["cdp", "transcript"])
def test_every_user_has_a_stream_of_its_own(level: str) -> None:
    """So that no partition is told, with or without ids."""
    policy, environment = started("cdp-fclub-plus", level=level)
    play(policy, environment)
    for server in policy.servers.values():
        assert rows_of(server) == {row: row for row in range(3)}
    for _, digest in digests(policy):
        assert {read_id(cluster) for cluster in digest.present} <= {0, 1, 2}


class World(NamedTuple):
    """A run; `release` is the round after which the observation of round `TAU` was released."""

    policy: FederatedPolicy
    choices: list[int]
    estimates: list[np.ndarray]
    release: int


TAU = 120


def opposite(reward: float) -> float:
    return 1.0 - reward


def world(level: str, flipped: bool) -> World:
    """A run in which the reward of one round may be the opposite."""
    policy, environment = started("cdp-fclub-plus", level=level, first_release=25)
    choices, estimates, release = [], [], None
    for t in range(ROUNDS):
        flip = flipped and t == TAU
        ((user, index, _, _),) = play(policy, environment, 1, opposite if flip else float)
        choices.append(index)
        estimates.append(policy.theta_)
        if t == TAU:
            server, row = policy._locate(user)
            step = server.exchange.releases.streams.steps[row]
        if t > TAU and release is None and server.exchange.releases.streams.steps[row] > step:
            release = t
    assert release is not None
    assert release > TAU + 5
    return World(policy, choices, estimates, release)


def test_cdp_estimates_do_depend_on_it() -> None:
    """The flag `raw-choices` is not an empty confession."""
    first, second = (world("cdp", flipped) for flipped in (False, True))
    np.testing.assert_array_equal(first.estimates[:TAU], second.estimates[:TAU])
    assert np.any(first.estimates[TAU] != second.estimates[TAU])


def test_transcript_messages_before_the_release_are_the_same_for_fixed_observations() -> None:
    """All other observations held fixed, as the level has it; the partition is the same throughout."""
    source, environment = started("cdp-fclub-plus", level="transcript")
    history = play(source, environment)
    policies = []
    for reward in (0.0, 1.0):
        policy, _ = started("cdp-fclub-plus", level="transcript", first_release=25)
        for t, (user, _, x, y) in enumerate(history):
            policy.update(user, x, reward if t == 120 else y)
            if t == 120:
                server, row = policy._locate(user)
                step, same = (
                    int(server.exchange.releases.streams.steps[row]),
                    len(policy.federation.link.sent),
                )
            elif t > 120 and server.exchange.releases.streams.steps[row] == step:
                same = len(policy.federation.link.sent)
        policies.append((policy, same))
    (first, same), (second, also) = policies
    assert same == also < len(first.federation.link.sent)
    assert [s.data for s in first.federation.link.sent[:same]] == [
        s.data for s in second.federation.link.sent[:same]
    ]
    assert [d.present for _, d in digests(first)] == [d.present for _, d in digests(second)]


@pytest.mark.parametrize(
    ("level", "flags"),
    [("cdp", ["raw-choices", "raw-partition"]), ("transcript", ["raw-choices"])],
)
def test_what_a_level_leaves_to_raw_data_is_reported(level: str, flags: list[str]) -> None:
    policy, _ = started("cdp-fclub-plus", level=level)
    report = policy.privacy_report()
    assert report is not None
    assert (report["notion"], report["unaccounted"]) == (level, flags)
    assert started("fclub-plus")[0].privacy_report() is None


def test_the_printed_policy_cannot_claim_more_than_cdp() -> None:
    with pytest.raises(UnknownName, match="level"):
        fclub.make_policy("cdp-fclub-dc", level="transcript")
    with pytest.raises(PrivacyError, match="raw-trigger"):
        Ledger(level_named("transcript"), 1.0, 0.1, (Flag.RAW_TRIGGER, Flag.RAW_PARTITION))


def test_the_spent_budget_is_the_claimed_one_once_something_was_released() -> None:
    policy, environment = started("cdp-fclub-plus")
    assert policy.federation.ledger is not None
    assert policy.federation.ledger.mu == 0.0
    play(policy, environment)
    assert policy.federation.ledger.spent(1e-5) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_the_compiled_loop_does_what_the_readable_one_does(name: str) -> None:
    """With releases of rounded observations, which others' types learn from."""
    first, second = (
        fclub.simulate(
            fclub.make_policy(name, **quick(name)),
            fclub.make_environment("synthetic", **SMALL),
            ROUNDS,
            seed=3,
            fast=fast,
            record_choices=True,
        )
        for fast in (True, False)
    )
    np.testing.assert_array_equal(first.choices, second.choices)
    np.testing.assert_array_equal(first.regret, second.regret)


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_saved_in_mid_run_it_goes_on_alike(name: str) -> None:
    """With releases, shares and ids in the file: the defaults would release nothing so early."""
    check_saving(
        fclub.make_policy(name, **quick(name)), fclub.make_environment("synthetic", **SMALL), 150
    )


def test_squared_rewards_are_kept() -> None:
    policy, environment = started("cdp-fclub-plus")
    history = play(policy, environment)
    for user in range(9):
        server, row = policy._locate(user)
        mine = [(y - 0.5) ** 2 for other, _, _, y in history if other == user]
        assert server.learner.people.crowd.squares[row] == pytest.approx(sum(mine))
