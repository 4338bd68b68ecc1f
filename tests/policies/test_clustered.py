"""CLUB and SCLUB beside slow versions written from their own papers: same choices, same clusters."""

from abc import ABC, abstractmethod
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from tests.parts import packed

import fclub


def width(count: float) -> float:
    return np.sqrt((1 + np.log(1 + count)) / (1 + count))


class Slow(ABC):
    """One centralised clustering bandit over some users; statistics summed afresh every time."""

    def __init__(self, users: list[int], d: int, params: dict[str, Any]) -> None:
        self.users, self.d, self.params = users, d, params
        self.V = {u: np.zeros((d, d)) for u in users}
        self.b = {u: np.zeros(d) for u in users}
        self.T = dict.fromkeys(users, 0)
        self.rounds = 0

    def estimate(self, users: set[int]) -> tuple[np.ndarray, np.ndarray, int]:
        M = self.params["ridge"] * np.eye(self.d) + sum(self.V[u] for u in users)
        b = sum(self.b[u] for u in users)
        return np.linalg.inv(M), np.linalg.solve(M, b), sum(self.T[u] for u in users)

    @abstractmethod
    def cluster(self, user: int) -> set[int]: ...

    @abstractmethod
    def radius(self, count: int) -> float: ...

    def recommend(self, user: int, items: np.ndarray) -> int:
        inverse, theta, count = self.estimate(self.cluster(user))
        bonus = np.sqrt(np.einsum("ki,ij,kj->k", items, inverse, items))
        return int(np.argmax(items @ theta + self.params["exploration"] * self.radius(count) * bonus))

    def learn(self, user: int, x: np.ndarray, y: float) -> None:
        self.V[user] += np.outer(x, x)
        self.b[user] += y * x
        self.T[user] += 1
        self.rounds += 1


class SlowClub(Slow):
    """Gentile, Li, Zappella (2014), Figure 1."""

    def __init__(self, users: list[int], d: int, params: dict[str, Any], population: int) -> None:
        super().__init__(users, d, params)
        self.edges = {frozenset(pair) for pair in combinations(users, 2)}

    def cluster(self, user: int) -> set[int]:
        part, frontier = {user}, [user]
        while frontier:
            node = frontier.pop()
            new = [u for u in self.users if u not in part and frozenset((u, node)) in self.edges]
            part.update(new)
            frontier.extend(new)
        return part

    def radius(self, count: int) -> float:
        return np.sqrt(np.log(self.rounds + 2))

    def update(self, user: int, x: np.ndarray, y: float) -> None:
        self.learn(user, x, y)
        for other in self.users:
            apart = np.linalg.norm(self.estimate({user})[1] - self.estimate({other})[1])
            if apart > self.params["deletion"] * (width(self.T[user]) + width(self.T[other])):
                self.edges.discard(frozenset((user, other)))


class SlowSclub(Slow):
    """Li, Chen, Li, Leung (2019), Algorithms 1 to 3; merges are tested for the visiting cluster."""

    def __init__(self, users: list[int], d: int, params: dict[str, Any], population: int) -> None:
        super().__init__(users, d, params)
        self.population = population
        self.clusters = {0: set(users)}
        self.checked: set[int] = set()
        self.stage: dict[int, tuple[np.ndarray, int]] = {}

    def number(self, user: int) -> int:
        return next(k for k, c in self.clusters.items() if user in c)

    def cluster(self, user: int) -> set[int]:
        return self.clusters[self.number(user)]

    def radius(self, count: int) -> float:
        return np.sqrt(self.d * np.log(1 + count / self.d) + 2 * np.log(4 * self.population))

    def remember(self, k: int) -> None:
        _, theta, count = self.estimate(self.clusters[k])
        self.stage[k] = (theta, count)

    def update(self, user: int, x: np.ndarray, y: float) -> None:
        if self.rounds in {2**s - 2 for s in range(1, 30)}:
            self.checked = set()
            for k in self.clusters:
                self.remember(k)
        self.learn(user, x, y)
        self.split(user)
        self.checked.add(user)
        self.merge(user)

    def split(self, user: int) -> None:
        k = self.number(user)
        theta, count = self.stage[k]
        limit = self.params["deletion"] * (width(self.T[user]) + width(count))
        rate = 2 * self.params["frequency"] * width(self.rounds)
        rates = [abs(self.T[user] - self.T[o]) / self.rounds for o in self.clusters[k]]
        away = np.linalg.norm(self.estimate({user})[1] - theta) > limit
        if len(self.clusters[k]) > 1 and (away or max(rates) > rate):
            new = min(set(range(len(self.users))) - self.clusters.keys())
            self.clusters[k].remove(user)
            self.clusters[new] = {user}
            self.remember(new)

    def merge(self, user: int) -> None:
        k = self.number(user)
        if not self.clusters[k] <= self.checked:
            return
        for other in sorted(self.clusters.keys() - {k}):
            if not self.clusters[other] <= self.checked:
                continue
            _, first, a = self.estimate(self.clusters[k])
            _, second, b = self.estimate(self.clusters[other])
            near = self.params["deletion"] / 2 * (width(a) + width(b))
            rates = a / len(self.clusters[k]) - b / len(self.clusters[other])
            often = self.params["frequency"] * width(self.rounds)
            if np.linalg.norm(first - second) < near and abs(rates) / self.rounds < often:
                self.clusters[k] |= self.clusters.pop(other)
                self.remember(k)


@pytest.mark.parametrize("placement", ["blocks", "spread"])
@pytest.mark.parametrize(
    ("name", "slow", "parameters"),
    [
        ("club", SlowClub, {"deletion": 0.8}),
        ("sclub", SlowSclub, {"deletion": 0.8}),
        ("sclub", SlowSclub, {"deletion": 1.2, "frequency": 0.2}),
    ],
)
def test_same_choices_and_clusters(
    name: str, slow: type[SlowClub | SlowSclub], parameters: dict[str, float], placement: str
) -> None:
    environment = fclub.make_environment(
        "synthetic", users=12, clusters=3, servers=3, dim=3, items=4, placement=placement
    )
    environment.start(2)
    policy = fclub.make_policy(name, **parameters)
    policy.start(environment.problem, environment.server_of, seed=0)
    servers = [
        slow([int(u) for u in np.flatnonzero(environment.server_of == s)], 3, policy.get_params(), 12)
        for s in range(3)
    ]
    seen = set()
    for _ in range(500):
        user, items = environment.visit()
        local = servers[environment.server_of[user]]
        index = policy.recommend(user, items)
        assert index == local.recommend(user, items)
        reward = environment.feedback(index).reward
        policy.update(user, items[index], reward)
        local.update(user, items[index], reward)
        mates = set(np.flatnonzero(policy.labels_ == policy.labels_[user]).tolist())
        assert mates == local.cluster(user)
        seen.add(frozenset(mates))
    assert len(seen) > 3, "no cluster ever changed"


def test_sparse_club_starts_from_a_sparse_graph() -> None:
    environment = fclub.make_environment("synthetic", users=60, servers=2)
    policy = fclub.make_policy("club", sparse=True, sparse_clusters=1)
    trace = fclub.simulate(policy, environment, 300)
    state: Any = packed(policy)
    assert len(state.neighbour) < 2 * 2 * 30 * 29 / 2
    assert trace.clusters["found"][-1] >= 2
