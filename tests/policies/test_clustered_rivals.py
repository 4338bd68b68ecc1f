"""Rivals that cluster, beside slow versions that share no code with them: same choices and clusters."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import fclub
from fclub.policies.federated.heto import HetoFedBandit
from fclub.policies.local.locb import Locb
from fclub.policies.local.rclumb import Rclumb

WORLD: dict[str, Any] = {
    **{"users": 12, "clusters": 3, "servers": 2, "dim": 4, "items": 5, "placement": "spread"}
}


class Data:
    """All observations are kept; every regression is solved afresh."""

    def __init__(self, server_of: np.ndarray, ridge: float, exploration: float) -> None:
        self.server_of, self.ridge, self.exploration = server_of, ridge, exploration
        self.seen: list[tuple[int, np.ndarray, float]] = []

    def count(self, user: int) -> int:
        return sum(u == user for u, _, _ in self.seen)

    def regression(self, users: set[int]) -> tuple[np.ndarray, np.ndarray]:
        own = [(x, y) for user, x, y in self.seen if user in users]
        gram = self.ridge * np.eye(4) + sum(np.outer(x, x) for x, _ in own)
        inverse = np.linalg.inv(gram)
        return inverse @ sum((y * x for x, y in own), np.zeros(4)), inverse

    def width(self, user: int) -> float:
        return float(np.sqrt((1 + np.log(1 + self.count(user))) / (1 + self.count(user))))

    def apart(self, one: int, two: int) -> float:
        return float(np.linalg.norm(self.regression({one})[0] - self.regression({two})[0]))

    def bounds(self, users: set[int], items: np.ndarray, radius: float) -> np.ndarray:
        theta, inverse = self.regression(users)
        return np.array([x @ theta + radius * np.sqrt(x @ inverse @ x) for x in items])


def play(policy: fclub.Policy, slow: Any, rounds: int, check: Any) -> None:
    environment = fclub.make_environment("synthetic", **WORLD)
    environment.expect_rounds(rounds)
    environment.start(4)
    for _ in range(rounds):
        user, items = environment.visit()
        index = policy.recommend(user, items)
        scores = slow.scores(user, items)
        assert scores[index] > scores.max() - 1e-10
        reward = environment.feedback(index).reward
        policy.update(user, items[index], reward)
        slow.update(user, items[index], reward)
        check()


def start(policy: fclub.Policy) -> np.ndarray:
    environment = fclub.make_environment("synthetic", **WORLD)
    policy.start(environment.problem, environment.server_of, seed=1)
    return environment.server_of


class SlowRclumb(Data):
    """Sets of pairs; bonuses by the paper's formula, with its sum bounded."""

    def __init__(self, server_of: np.ndarray) -> None:
        super().__init__(server_of, 0.7, 0.3)
        users = range(len(server_of))
        self.edges = {
            frozenset((a, b)) for a in users for b in users if a < b and server_of[a] == server_of[b]
        }

    def around(self, user: int) -> set[int]:
        return {user}.union(*(edge for edge in self.edges if user in edge))

    def scores(self, user: int, items: np.ndarray) -> np.ndarray:
        near = self.around(user)
        count = sum(self.count(other) for other in near)
        # Of items at the limit 1 the one with the greatest mean is shown.
        bounds = self.bounds(near, items, 0.3 + 0.05 * np.sqrt(count))
        means = items @ self.regression(near)[0]
        return np.where(bounds >= 1.0, 1.0 + 1e-3 * means, bounds)

    def update(self, user: int, x: np.ndarray, y: float) -> None:
        self.seen.append((user, x, y))
        for edge in list(self.edges):
            if user in edge:
                (other,) = edge - {user}
                if self.apart(user, other) > 0.9 * (self.width(user) + self.width(other) + 0.05):
                    self.edges.remove(edge)


def test_rclumb_serves_from_neighbours_and_deletes_edges_as_printed() -> None:
    policy = Rclumb(ridge=0.7, exploration=0.3, deletion=0.9, misspecification=0.05)
    slow = SlowRclumb(start(policy))
    labels = []

    def check() -> None:
        state = policy._state
        ends = np.repeat(np.arange(12), np.diff(state.starts))[state.alive]
        found = {
            frozenset((int(a), int(b))) for a, b in zip(ends, state.neighbour[state.alive], strict=True)
        }
        assert found == slow.edges
        labels.append(policy.labels_)

    play(policy, slow, 150, check)
    np.testing.assert_allclose(
        policy.theta_, [slow.regression(slow.around(u))[0] for u in range(12)], atol=1e-9
    )
    assert 0 < len(slow.edges) < 30
    for one in range(12):
        for two in range(12):
            assert (labels[-1][one] == labels[-1][two]) == (slow.around(one) == slow.around(two))


class SlowLocb(Data):
    """A set of users per seed."""

    def __init__(self, server_of: np.ndarray, seeds: list[int]) -> None:
        super().__init__(server_of, 0.7, 0.3)
        self.members = {
            s: {u for u in range(len(server_of)) if server_of[u] == server_of[s]} for s in seeds
        }
        self.final: set[int] = set()

    def scores(self, user: int, items: np.ndarray) -> np.ndarray:
        around = [members for members in self.members.values() if user in members] or [{user}]
        return np.max([self.bounds(members, items, 0.3) for members in around], axis=0)

    def update(self, user: int, x: np.ndarray, y: float) -> None:
        self.seen.append((user, x, y))
        for seed, members in self.members.items():
            if seed in self.final or self.server_of[seed] != self.server_of[user]:
                continue
            members.discard(user)
            if self.apart(user, seed) <= 0.8 * (self.width(user) + self.width(seed)):
                members.add(user)
            if 0.8 * self.width(seed) <= 1.2 / 4:
                self.final.add(seed)


def test_locb_lets_users_leave_and_join_seeds_until_clusters_are_final() -> None:
    policy = Locb(ridge=0.7, exploration=0.3, deletion=0.8, gap=1.2, seeds=3)
    servers = start(policy)
    seeds = [int(seed) for seed in policy._state.seeds]
    assert sorted(servers[seeds]) == [0, 0, 0, 1, 1, 1]
    slow = SlowLocb(servers, seeds)
    sizes = []

    def check() -> None:
        found = [set(np.flatnonzero(row).tolist()) for row in policy._state.inside]
        assert found == list(slow.members.values())
        assert {s for s, f in zip(seeds, policy._state.final, strict=True) if f} == slow.final
        sizes.append(sum(map(len, found)))

    play(policy, slow, 400, check)
    assert any(a > b for a, b in pairwise(sizes))
    assert any(a < b for a, b in pairwise(sizes))
    assert slow.final
    for c, members in enumerate(slow.members.values()):
        np.testing.assert_allclose(
            policy._state.clusters.theta[c], slow.regression(members)[0], atol=1e-9
        )


class SlowHeto(Data):
    """Residual sums of squares by least squares; a list as queue."""

    def __init__(self, server_of: np.ndarray) -> None:
        super().__init__(server_of, 0.7, 0.3)
        self.known: dict[int, set[int]] = {}  # positions in `seen` that a client decides from
        self.base: dict[int, set[int]] = {u: set() for u in range(len(server_of))}
        self.waiting = dict.fromkeys(self.base, 0)
        self.cluster: dict[int, int] = {}
        self.queue: list[int] = []
        self.sent = [0, 0]

    def scores(self, user: int, items: np.ndarray) -> np.ndarray:
        if len(self.seen) < 60:
            return np.zeros(len(items))
        theta, inverse = self.fit(self.known[user])
        return np.array([x @ theta + 0.3 * np.sqrt(x @ inverse @ x) for x in items])

    def fit(self, rows: set[int]) -> tuple[np.ndarray, np.ndarray]:
        gram, moment = 0.7 * np.eye(4), np.zeros(4)
        for row in rows:
            _, x, y = self.seen[row]
            gram, moment = gram + np.outer(x, x), moment + y * x
        return np.linalg.solve(gram, moment), np.linalg.inv(gram)

    def residual(self, users: tuple[int, ...]) -> tuple[float, int]:
        x = np.array([x for u, x, _ in self.seen if u in users])
        y = np.array([y for u, _, y in self.seen if u in users])
        theta = np.linalg.lstsq(x, y, rcond=None)[0]
        return float(np.sum((y - x @ theta) ** 2)), int(np.linalg.matrix_rank(x))

    def evidence(self, i: int, j: int) -> float:
        if not self.count(i) or not self.count(j):
            return np.inf
        (one, a), (two, b), (both, c) = self.residual((i,)), self.residual((j,)), self.residual((i, j))
        freedom = a + b - c
        return (both - one - two) / (0.25 * chi2.ppf(0.9, freedom)) if freedom else 0.0

    def clusters(self) -> None:
        self.sent[0] += len(self.base)
        for first in self.base:
            if first in self.cluster:
                continue
            others = [j for j in self.base if j > first and j not in self.cluster]
            near = {j: self.evidence(first, j) for j in others}
            members = [first]
            for j in sorted(near, key=lambda j: near[j]):
                if near[j] <= 1 and all(self.evidence(m, j) <= 1 for m in members[1:]):
                    members.append(j)
            self.cluster |= dict.fromkeys(members, first)

    def update(self, user: int, x: np.ndarray, y: float) -> None:
        self.seen.append((user, x, y))
        self.known.setdefault(user, set()).add(len(self.seen) - 1)
        self.waiting[user] += 1
        if len(self.seen) < 60:
            return
        if len(self.seen) == 60:
            self.clusters()
            for other in self.base:
                self.known.setdefault(other, set())
        dets = [
            np.linalg.slogdet(np.linalg.inv(self.fit(rows)[1]))[1]
            for rows in (self.known[user], self.base[user])
        ]
        cluster = self.cluster[user]
        if self.waiting[user] * (dets[0] - dets[1]) > 2.0 and cluster not in self.queue:
            self.queue.append(cluster)
        if self.queue:
            cluster = self.queue.pop(0)
            members = {u for u, c in self.cluster.items() if c == cluster}
            rows = {row for row, (u, _, _) in enumerate(self.seen) if u in members}
            for member in members:
                self.known[member], self.base[member] = set(rows), set(rows)
                self.waiting[member] = 0
            self.sent = [count + len(members) for count in self.sent]


def test_heto_fedbandit_explores_tests_pairs_and_shares_one_cluster_at_a_time() -> None:
    policy = HetoFedBandit(
        ridge=0.7, exploration=0.3, threshold=2.0, visits=5, level=0.1, deviation=0.5
    )
    slow = SlowHeto(start(policy))

    def check() -> None:
        sent = policy.communications
        assert [sent.uploads, sent.downloads] == slow.sent
        assert sent.bytes == 8 * 14 * sent.messages

    play(policy, slow, 160, check)
    found = policy.labels_
    for one in range(12):
        for two in range(12):
            assert (found[one] == found[two]) == (slow.cluster[one] == slow.cluster[two])
    assert 1 < len(set(found)) < 12
    assert slow.sent[1] > 12


def test_heto_fedbandit_leaves_clients_alone_of_whom_nothing_is_known() -> None:
    policy = HetoFedBandit(visits=1)
    start(policy)
    x = np.array([0.5, 0.0, 0.0, np.sqrt(0.5)])
    for _ in range(12):
        policy.update(0, x, 1.0)
    assert len(set(policy.labels_)) == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rival", "bases", "world", "most"),
    [
        (
            Rclumb(deletion=2.0, exploration=0.05),
            ("linucb", "club"),
            {"users": 100, "clusters": 5, "servers": 1, "misfit": 0.1},
            0.9,
        ),
        (
            Locb(),
            ("club", "sclub"),
            {"users": 100, "clusters": 5, "servers": 1, "dim": 5, "items": 20},
            0.7,
        ),
        (
            HetoFedBandit(level=0.01, exploration=0.1, threshold=1.0, deviation=0.1),
            ("dis-linucb",),
            {"users": 50, "clusters": 5, "placement": "spread", "noise": 0.1},
            0.25,
        ),
    ],
)
def test_the_order_of_their_papers(
    rival: fclub.Policy, bases: tuple[str, ...], world: dict[str, Any], most: float
) -> None:
    environment = fclub.make_environment("synthetic", **world)

    def regret(policy: fclub.Policy | str) -> float:
        ends = [fclub.simulate(policy, environment, 20_000, seed).regret[-1] for seed in range(2)]
        return float(np.mean(ends))

    for base in bases:
        assert regret(rival) < most * regret(base)
