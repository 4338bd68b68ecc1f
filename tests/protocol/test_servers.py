"""What crosses the link, what its ids mean, and what servers refuse."""

from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.parts import edges, is_a, merger, present, sender
from tests.protocol.told import ids_of

import fclub
from fclub.core.paper.ucb import make_rules, ridge_bounds, tree_bounds
from fclub.core.statistics import Packed, Statistics
from fclub.errors import InvalidMessage, NumericalError
from fclub.policies.federated.families import FederatedPolicy
from fclub.policies.registry import POLICIES
from fclub.privacy.noise import NoNoise, SeededNoise
from fclub.protocol.exchanges import clusters as m
from fclub.protocol.exchanges.clusters import Accounts, ClusterGlobal, ClusterLocal
from fclub.protocol.learners.edges import Edges, OneCluster
from fclub.protocol.link import Communications, InProcessLink
from fclub.protocol.messages import (
    Decoder,
    Message,
    PhaseStart,
    read_id,
    read_statistics,
    write_id,
    write_statistics,
)
from fclub.protocol.servers import GlobalServer, LocalServer

FEDERATED = ["cdp-fclub-dc", "fclub-dc", "fclub", "homo-dc", "homo"]
SMALL = {"users": 9, "clusters": 3, "servers": 3, "dim": 4, "items": 5, "placement": "spread"}


def eager(name: str, deletion: float) -> dict[str, float]:
    """Users are told apart early, by policies that do so at all."""
    return {"deletion": deletion} if "deletion" in POLICIES[name].defaults else {}


def started(name: str, **parameters: float) -> tuple[Any, fclub.Environment]:
    environment = fclub.make_environment("synthetic", **SMALL)
    environment.start(4)
    policy = fclub.make_policy(name, **parameters)
    policy.start(environment.problem, environment.server_of, seed=2)
    return policy, environment


def step(policy: FederatedPolicy, environment: fclub.Environment) -> tuple[np.ndarray, float]:
    user, items = environment.visit()
    index = policy.recommend(user, items)
    reward = environment.feedback(index).reward
    policy.update(user, items[index], reward)
    return items[index], reward


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", FEDERATED)
def test_messages_do_not_depend_on_who_the_users_are(name: str) -> None:
    """Two federations whose users have other numbers, and the same visits, send the same bytes."""
    policy, environment = started(name, **eager(name, 0.6))
    renamed: Any = fclub.make_policy(name, **eager(name, 0.6))
    number = np.argsort(environment.server_of, kind="stable").argsort()
    assert np.any(number != np.arange(9))
    renamed.start(environment.problem, np.sort(environment.server_of), seed=2)
    for _ in range(150):
        user, items = environment.visit()
        index = policy.recommend(user, items)
        reward = environment.feedback(index).reward
        policy.update(user, items[index], reward)
        renamed.update(int(number[user]), items[index], reward)
    sent = [(s.upwards, s.server, s.data) for s in policy.federation.link.sent]
    assert sent == [(s.upwards, s.server, s.data) for s in renamed.federation.link.sent]
    kinds = {type(s.message) for s in policy.federation.link.sent}
    assert kinds == {m.Upload, m.Download, PhaseStart, m.Report, m.Plan}


@pytest.mark.usefixtures("recorded")
def test_no_raw_observation_is_in_any_byte() -> None:
    """The eight bytes of a feature, of a product of features or of a rewarded feature never appear."""
    policy, environment = started("cdp-fclub-dc")
    secrets: set[bytes] = set()
    for _ in range(120):
        x, y = step(policy, environment)
        numbers = np.concatenate([x, np.outer(x, x).ravel(), y * x])
        secrets |= {value.tobytes() for value in numbers.astype("<f8") if value != 0.0}
    assert len(secrets) > 500
    for sent in policy.federation.link.sent:
        assert not any(secret in sent.data for secret in secrets)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", FEDERATED)
def test_ids_change_exactly_when_the_membership_does(name: str) -> None:
    policy, environment = started(name, **eager(name, 0.5))
    known: dict[tuple[int, int], frozenset[int]] = {}
    for _ in range(300):
        step(policy, environment)
        for k, server in policy.servers.items():
            assert len(set(ids_of(server))) == len(ids_of(server))
            for c, number in enumerate(ids_of(server)):
                members = frozenset(np.flatnonzero(server.learner.cluster_of == c).tolist())
                assert known.setdefault((k, number), members) == members
    assert len(set(known.items())) == len({(server, users) for (server, _), users in known.items()})
    if not name.startswith("homo"):
        assert len(known) > 3, "no cluster was ever split"
    mentioned = {
        (s.server, read_id(entry.cluster))
        for s in policy.federation.link.sent
        if isinstance(s.message, m.Report)
        for entry in s.message.clusters
    }
    assert mentioned == set(known)


def is_standard_normal(samples: list[float]) -> bool:
    """A chi-square test of the scale at level 10⁻⁶."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], df=len(samples))
    return bool(low < np.sum(np.square(samples)) < high)


def whitened(noise: np.ndarray, moment: np.ndarray, std: float) -> list[float]:
    upper = noise[np.triu_indices(len(moment), k=1)]
    return [*(upper / std), *(np.diag(noise) / (np.sqrt(2) * std)), *(moment / std)]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_noise_is_in_what_is_sent(epsilon: float) -> None:
    """Received minus observed is noise of the printed scale, in every report and after every upload.

    What the receiver knows is rebuilt from the bytes alone. Nobody is ever separated, so each server
    has one cluster and one tree: after c uploads its partial sum over c + 1 leaves is in the total.
    """
    policy, environment = started(
        "cdp-fclub-dc", epsilon=epsilon, horizon=300, deletion=np.inf, merging=np.inf
    )
    rules, reports = policy.family.rules, []
    received: dict[int, Statistics] = {}
    leaves = dict.fromkeys(range(3), 1)
    for _ in range(300):
        for sent in policy.federation.link.sent:
            own = policy.servers[sent.server].learner.users
            if isinstance(sent.message, m.Report):
                (entry,) = sent.message.clusters
                report = read_statistics(entry.statistics, 4).shifted(-rules.report_shift)
                received.setdefault(sent.server, report)
                gram, moment = report.gram - own.gram.sum(0), report.moment - own.moment.sum(0)
                reports += whitened(gram, moment, rules.noise_std)
            if isinstance(sent.message, m.Upload):
                change = read_statistics(sent.message.statistics, 4).shifted(-rules.upload_shift)
                total = received[sent.server] = received[sent.server] + change
                leaves[sent.server] += 1
                std = rules.noise_std * np.sqrt(leaves[sent.server].bit_count())
                gram, moment = total.gram - own.gram.sum(0), total.moment - own.moment.sum(0)
                assert is_standard_normal(whitened(gram, moment, std))
        policy.federation.link.sent.clear()
        step(policy, environment)
    assert is_standard_normal(reports)
    assert not is_standard_normal(list(np.multiply(reports, rules.noise_std)))
    assert not is_standard_normal([0.0] * 14)
    assert min(leaves.values()) > 30


def test_statistics_that_are_indefinite_are_reported() -> None:
    policy, environment = started("fclub-dc")
    step(policy, environment)
    for server in policy.servers.values():
        server.learner.clusters.gram[:] *= -1.0
        server.learner.clusters.buffer_count[:] = 1
        server.learner.clusters.fresh[:] = False
    with pytest.raises(NumericalError, match="indefinite"):
        policy.recommend(0, np.eye(4))
    with pytest.raises(NumericalError, match="indefinite"):
        policy.compiled.unpack(policy.compiled.pack())


def make_pair(
    link: InProcessLink | None = None, private: bool = False
) -> tuple[LocalServer, GlobalServer]:
    """One local server with two users, and its global server; every observation is uploaded."""
    protocol = fclub.Protocol()
    bounds = tree_bounds(2, 2, protocol, fclub.Privacy()) if private else ridge_bounds(protocol)
    noise = SeededNoise(np.random.default_rng(0)) if private else NoNoise()
    rules, link = make_rules(2, protocol, bounds), link or InProcessLink(m.decode)
    learner = Edges(Packed.zeros(2, 2), rules, bounds.depth, OneCluster())
    local = LocalServer(learner, ClusterLocal(learner, rules, noise, Accounts(), link.uplink(0)))
    hub = GlobalServer(ClusterGlobal(2, [0], rules, 2.0, link))
    link.connect(hub, {0: local})
    return local, hub


def test_messages_that_go_the_wrong_way_are_refused() -> None:
    local, hub = make_pair()
    data = write_statistics(Statistics.zeros(2))
    with pytest.raises(InvalidMessage, match="Plan"):
        hub.receive(0, m.Plan(1, False, ()))
    with pytest.raises(InvalidMessage, match="Upload"):
        local.receive(m.Upload(write_id(0), data))


def test_an_upload_of_an_unknown_cluster_is_refused() -> None:
    _, hub = make_pair()
    hub.begin_phase(1)
    before = {name: array.copy() for name, array in hub.state()[0].items()}
    data = write_statistics(Statistics.zeros(2))
    for server, number in ((0, 7), (1, 0)):
        with pytest.raises(InvalidMessage, match=str(number)):
            hub.receive(server, m.Upload(write_id(number), data))
    for name, array in hub.state()[0].items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("statistics", [b"", write_statistics(Statistics.zeros(3))])
def test_a_bad_plan_is_refused_and_a_good_one_can_still_come(statistics: bytes) -> None:
    local, hub = make_pair()
    hub.begin_phase(1)
    good = write_statistics(Statistics(np.eye(2), np.zeros(2), 0))
    sender(local).link = type("Silent", (), {"to_global": lambda *_: None})()
    local.receive(PhaseStart(2))
    number = write_id(ids_of(local)[0])
    for bad in (
        m.Plan(2, True, ()),
        m.Plan(2, True, (m.ClusterPlan(write_id(99), good, 1, 0),)),
        m.Plan(2, True, (m.ClusterPlan(number, statistics, 1, 0),)),
    ):
        with pytest.raises(InvalidMessage):
            local.receive(bad)
        assert sender(local).staged is not None
    local.receive(m.Plan(2, True, (m.ClusterPlan(number, good, 1, 0),)))
    assert sender(local).staged is None


def test_a_plan_nobody_asked_for_is_void() -> None:
    local, hub = make_pair()
    hub.begin_phase(1)
    before = edges(local).clusters.gram.copy()
    data = write_statistics(Statistics(7 * np.eye(2), np.zeros(2), 9))
    local.receive(m.Plan(1, True, (m.ClusterPlan(write_id(0), data, 1, 0),)))
    np.testing.assert_array_equal(edges(local).clusters.gram, before)


def test_an_upload_that_takes_away_is_refused() -> None:
    _, hub = make_pair()
    hub.begin_phase(1)
    data = write_statistics(Statistics(np.zeros((2, 2)), np.zeros(2), -1))
    with pytest.raises(InvalidMessage, match="-1"):
        hub.receive(0, m.Upload(write_id(0), data))


def test_a_download_for_a_cluster_that_is_gone_is_dropped() -> None:
    local, hub = make_pair()
    hub.begin_phase(1)
    before = edges(local).clusters.gram.copy()
    local.receive(m.Download(write_id(99), write_statistics(Statistics(np.eye(2), np.ones(2), 3))))
    np.testing.assert_array_equal(edges(local).clusters.gram, before)


class _SlowLink(InProcessLink):
    """Keeps what goes up until it is let through."""

    def __init__(self, decode: Decoder) -> None:
        super().__init__(decode)
        self.waiting: list[Message] | None = None

    def from_local(self, server: int, message: Message) -> None:
        if self.waiting is None:
            super().from_local(server, message)
        else:
            self.waiting.append(message)

    def let_through(self) -> None:
        messages, self.waiting = self.waiting or [], None
        for message in messages:
            self.from_local(0, message)


def slow(hub: GlobalServer) -> _SlowLink:
    return is_a(_SlowLink, merger(hub).link)


def wait_for_a_plan(detector: OneCluster, rows: tuple[int, ...], private: bool = False) -> LocalServer:
    """Observations while the report is on its way; then the plan comes."""
    local, hub = make_pair(_SlowLink(m.decode), private)
    hub.begin_phase(1)
    edges(local).detector = detector
    slow(hub).waiting = []
    hub.begin_phase(2)
    for row in rows:
        local.observe(row, np.array([1.0, 0.0]), 1.0)
    kinds = [type(message) for message in present(slow(hub).waiting)]
    assert kinds == [m.Report], "uploads wait for the plan"
    slow(hub).let_through()
    assert sender(local).staged is None
    held_by_all = hub.reported + int(edges(local).clusters.buffer_count.sum())
    assert held_by_all == int(local.learner.users.counts.sum()) == len(rows)
    return local


def test_a_server_that_waits_for_a_plan_holds_its_uploads_when_both_sides_agree_again() -> None:
    local, hub = make_pair(_SlowLink(m.decode))
    hub.begin_phase(1)
    slow(hub).waiting = []
    hub.begin_phase(2)
    local.observe(0, np.array([1.0, 0.0]), 1.0)
    local.pause()
    local.go_on()
    assert [type(message) for message in present(slow(hub).waiting)] == [m.Report]
    assert len(sender(local).held) == 1


def test_observations_before_a_new_plan_enter_its_buffers() -> None:
    local = wait_for_a_plan(_Apart(), (0, 1, 1))
    assert edges(local).clusters.buffer_count.tolist() == [1, 2]
    assert edges(local).clusters.counts.tolist() == [0, 0]
    np.testing.assert_allclose(edges(local).clusters.buffer_moment[:, 0], [1, 2])


@pytest.mark.parametrize("private", [False, True])
def test_observations_before_an_unchanged_plan_are_uploaded_after_it(private: bool) -> None:
    local = wait_for_a_plan(OneCluster(), (0, 1, 1), private)
    assert edges(local).clusters.counts.tolist() == [3]
    assert edges(local).clusters.buffer_count.sum() < 3


def test_a_report_after_a_newcomer_has_another_id() -> None:
    """Before the first observation a new user is one of those who were there; after it a change."""
    local, hub = make_pair()
    hub.begin_phase(1)
    (first,) = ids_of(local)
    local.add_user()
    hub.begin_phase(2)
    assert ids_of(local) == [first]
    local.observe(0, np.array([1.0, 0.0]), 1.0)
    local.add_user()
    local.observe(3, np.array([0.0, 1.0]), 1.0)
    assert ids_of(local) == [first], "uploads carry the id that was reported"
    hub.begin_phase(3)
    (second,) = ids_of(local)
    assert second != first
    hub.begin_phase(4)
    assert ids_of(local) == [second]
    assert hub.reported == 2


def test_a_newcomer_between_report_and_plan_is_in_the_next_report() -> None:
    local, hub = make_pair(_SlowLink(m.decode))
    hub.begin_phase(1)
    local.observe(0, np.array([1.0, 0.0]), 1.0)
    local.add_user()
    slow(hub).waiting = []
    hub.begin_phase(2)
    local.observe(local.add_user(), np.array([1.0, 0.0]), 1.0)
    slow(hub).let_through()
    (reported,) = ids_of(local)
    assert edges(local).cluster_of.tolist() == [0, 0, 0, 0]
    assert edges(local).clusters.buffer_count.tolist() == [1]
    hub.begin_phase(3)
    assert ids_of(local) != [reported]
    assert hub.reported == 2


@pytest.mark.parametrize("private", [False, True])
def test_what_is_held_is_bounded(private: bool) -> None:
    """Exact uploads are held as a sum; noisy ones stay apart, and a tree has only so many."""
    local, hub = make_pair(_SlowLink(m.decode), private)
    hub.begin_phase(1)
    slow(hub).waiting = []
    hub.begin_phase(2)
    for _ in range(1_000):
        local.observe(0, np.array([1.0, 0.0]), 1.0)
    most = sender(local).rules.uploads if private else 1
    assert 1 <= len(sender(local).held) <= most
    slow(hub).let_through()
    assert (sender(local).held, sender(local).staged) == ([], None)
    assert hub.reported + edges(local).clusters.buffer_count.sum() == 1_000


class _Apart(OneCluster):
    def copy(self) -> OneCluster:
        return self

    def detect(self, users: Packed) -> np.ndarray:
        return np.arange(len(users.counts))


def test_communications_count_by_kind() -> None:
    policy, environment = started("fclub-dc")
    for _ in range(100):
        step(policy, environment)
    counted = policy.communications
    assert counted.total == counted.uploads + counted.downloads + counted.phases
    assert counted.as_dict()["total"] == counted.total
    compiled = Communications()
    compiled.count_events(3, 2, m.event_size(4))
    upload, download = m.event_size(4)
    assert (compiled.messages, compiled.bytes) == (5, 3 * upload + 2 * download)
