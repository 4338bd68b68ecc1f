"""The federated policies beside a slow transcription of Algorithms 1 to 5 with full matrices.

The transcription shares no code with the package: statistics are dictionaries, determinants and
inverses are computed afresh, the tree keeps every node. It draws its noise in the order in which the
servers draw theirs, so even the private policy must make the same choices.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence

import fclub
from fclub.config import Privacy, Protocol
from fclub.core.paper.ucb import NoiseBounds, ridge_bounds, tree_bounds
from fclub.policies.registry import POLICIES

LocalCluster = tuple[int, tuple[int, ...]]


def width(count: int) -> float:
    return np.sqrt((1 + np.log(1 + count)) / (1 + count))


def connected(nodes: list[Any], linked: set[frozenset[Any]]) -> list[tuple[Any, ...]]:
    """Connected components, in the order of their first nodes."""
    parts, left = [], list(nodes)
    while left:
        part, frontier = {left[0]}, [left[0]]
        while frontier:
            node = frontier.pop()
            new = [o for o in left if o not in part and frozenset((node, o)) in linked]
            part.update(new)
            frontier.extend(new)
        parts.append(tuple(node for node in nodes if node in part))
        left = [node for node in left if node not in part]
    return parts


class Tree:
    """Alg. 5 with every node kept: node (height, index) covers leaves index·2^height …"""

    def __init__(self, draw: Callable[[int], np.ndarray], side: int) -> None:
        self.draw, self.side, self.leaves = draw, side, 0
        self.nodes: dict[tuple[int, int], np.ndarray] = {}

    def next_partial_sum(self) -> np.ndarray:
        self.leaves += 1
        height = (self.leaves & -self.leaves).bit_length() - 1
        self.nodes[height, (self.leaves >> height) - 1] = self.draw(self.side)
        total, start = np.zeros((self.side, self.side)), 0
        for h in reversed(range(self.leaves.bit_length())):
            if (self.leaves >> h) & 1:
                total += self.nodes[h, start >> h]
                start += 1 << h
        return total


class Reference:
    def __init__(
        self,
        environment: fclub.Environment,
        protocol: Protocol,
        bounds: NoiseBounds,
        detect: bool,
        rng: np.random.Generator,
    ) -> None:
        self.problem, self.server_of = environment.problem, environment.server_of
        self.p, self.bounds, self.rng, self.detect = protocol, bounds, rng, detect
        n, d = self.problem.users, self.problem.dim
        self.V, self.b, self.T = np.zeros((n, d, d)), np.zeros((n, d)), np.zeros(n, dtype=int)
        pairs = combinations(range(n), 2)
        self.edges = {frozenset(p) for p in pairs if self.server_of[p[0]] == self.server_of[p[1]]}
        self.groups: list[tuple[LocalCluster, ...]] = []
        self.uploads = self.downloads = 0
        self.start_phase()

    def draw(self, side: int) -> np.ndarray:
        """The upper triangle row by row, in multiples of the lattice's step."""
        noise = np.zeros((side, side))
        for i in range(side):
            for j in range(i, side):
                std = self.bounds.noise_std * (np.sqrt(2) if i == j else 1.0)
                noise[i, j] = noise[j, i] = np.rint(std * self.rng.standard_normal() * 2**26) / 2**26
        return noise

    def local_clusters(self) -> list[LocalCluster]:
        theta = [
            np.linalg.solve(self.p.ridge * np.eye(len(b)) + V, b)
            for V, b in zip(self.V, self.b, strict=True)
        ]
        for edge in list(self.edges):
            i, j = edge
            threshold = self.p.deletion * (width(self.T[i]) + width(self.T[j]))
            if self.detect and np.linalg.norm(theta[i] - theta[j]) > threshold:
                self.edges.remove(edge)
        clusters = []
        for server in range(self.problem.servers):
            users = [int(u) for u in np.flatnonzero(self.server_of == server)]
            clusters += [(server, part) for part in connected(users, self.edges)]
        return clusters

    def start_phase(self) -> None:
        """Algorithm 2."""
        d, private = self.problem.dim, self.bounds.depth > 0
        clusters = self.local_clusters()
        trees, bars, reports = {}, {}, {}
        for c in clusters:
            users, noise = list(c[1]), np.zeros((d + 1, d + 1))
            if private:
                trees[c] = Tree(self.draw, d + 1)
                noise = trees[c].next_partial_sum()
            shift = self.bounds.report_shift * np.eye(d)
            V = shift + noise[:d, :d] + self.V[users].sum(axis=0)
            bars[c] = noise
            reports[c] = [V, noise[:d, d] + self.b[users].sum(axis=0), int(self.T[users].sum())]
        theta = {c: np.linalg.solve(V, b) for c, (V, b, _) in reports.items()}
        close = {
            frozenset((c, o))
            for c, o in combinations(clusters, 2)
            if c[0] != o[0]
            and np.linalg.norm(theta[c] - theta[o])
            < self.p.merging * (width(reports[c][2]) + width(reports[o][2]))
        }
        groups = connected(clusters, close)
        if {frozenset(g) for g in groups} == {frozenset(g) for g in self.groups}:
            return
        self.groups, self.trees, self.bars = groups, trees, bars
        self.group_of = {c: k for k, g in enumerate(groups) for c in g}
        self.G = [[sum(reports[c][part] for c in g) for part in range(3)] for g in groups]
        self.S = {c: [np.copy(part) for part in self.G[self.group_of[c]]] for c in clusters}
        self.pending: dict[LocalCluster, list[Any]] = {
            c: [np.zeros((d, d)), np.zeros(d), 0] for c in clusters
        }
        self.H: dict[LocalCluster, np.ndarray] = {}
        self.buffer: dict[LocalCluster, list[Any]] = {}
        for c in clusters:
            self.renew_buffer(c)

    def renew_buffer(self, c: LocalCluster) -> None:
        d = self.problem.dim
        self.buffer[c] = [np.zeros((d, d)), np.zeros(d), 0]
        if self.bounds.depth:
            self.H[c] = self.trees[c].next_partial_sum()
            step = self.H[c] - self.bars[c]
            self.buffer[c] = [self.bounds.upload_shift * np.eye(d) + step[:d, :d], step[:d, d], 0]

    def cluster(self, user: int) -> LocalCluster:
        return next(c for c in self.group_of if user in c[1])

    def recommend(self, user: int, items: np.ndarray) -> int:
        """Algorithm 1, with β of Lemma 1."""
        c = self.cluster(user)
        S, u, T = self.S[c]
        shared, d = len(self.groups[self.group_of[c]]), self.problem.dim
        low, high, kappa = self.bounds.rho_min, self.bounds.rho_max, self.bounds.kappa
        tail = 2 * np.log(self.problem.users / self.p.alpha)
        beta = self.p.sigma_0 * np.sqrt(tail + d * np.log(high / low + T / (d * shared * low)))
        beta += np.sqrt(shared * high) + np.sqrt(shared) * kappa
        inverse = np.linalg.inv(S)
        bonus = np.sqrt(np.einsum("ki,ij,kj->k", items, inverse, items))
        return int(np.argmax(items @ inverse @ u + self.p.exploration * beta * bonus))

    def update(self, user: int, x: np.ndarray, y: float) -> None:
        if self.bounds.depth:
            x, y = np.rint(x * 2**13) / 2**13, np.rint(y * 2**13) / 2**13
        self.V[user] += np.outer(x, x)
        self.b[user] += y * x
        self.T[user] += 1
        self.check_upload(self.cluster(user), x, y)
        if int(self.T.sum()) + 2 in {1 << s for s in range(2, 30)}:
            self.start_phase()

    def check_upload(self, c: LocalCluster, x: np.ndarray, y: float) -> None:
        """Algorithm 3."""
        delta = self.buffer[c] = self.sum(self.buffer[c], [np.outer(x, x), y * x, 1])
        growth = np.linalg.slogdet(self.S[c][0] + delta[0])[1] - np.linalg.slogdet(self.S[c][0])[1]
        if self.p.upload_ratio > 1 and growth < np.log(self.p.upload_ratio):
            return
        self.uploads += 1
        k = self.group_of[c]
        self.G[k] = self.sum(self.G[k], delta)
        for other in self.groups[k]:
            if other != c:
                self.pending[other] = self.sum(self.pending[other], delta)
        self.S[c] = self.sum(self.S[c], delta)
        if self.bounds.depth:
            self.bars[c] = self.H[c]
        self.renew_buffer(c)
        for other in self.groups[k]:
            self.check_download(other, k)

    def check_download(self, c: LocalCluster, k: int) -> None:
        """Algorithm 4."""
        growth = np.linalg.slogdet(self.G[k][0])[1] - np.linalg.slogdet(self.S[c][0])[1]
        due = self.p.download_ratio == 1 or growth >= np.log(self.p.download_ratio)
        if due and self.pending[c][2] > 0:
            self.downloads += 1
            self.S[c] = self.sum(self.S[c], self.pending[c])
            self.pending[c] = [0 * part for part in self.pending[c]]

    @staticmethod
    def sum(a: list[Any], b: list[Any]) -> list[Any]:
        return [first + second for first, second in zip(a, b, strict=True)]


@pytest.mark.parametrize("placement", ["blocks", "spread"])
@pytest.mark.parametrize("name", ["cdp-fclub-dc", "fclub-dc", "fclub", "homo-dc", "homo"])
def test_policy_is_the_printed_algorithm(name: str, placement: str) -> None:
    parameters = {"deletion": 0.5, "merging": 0.6, "epsilon": 5.0, "horizon": 1000, "exploration": 0.9}
    parameters |= {"upload_ratio": 1.1, "download_ratio": 1.2}
    parameters = {key: value for key, value in parameters.items() if key in POLICIES[name].defaults}
    environment = fclub.make_environment(
        "synthetic", users=9, clusters=3, servers=3, dim=4, items=5, placement=placement
    )
    environment.start(11)
    policy: Any = fclub.make_policy(name, **parameters)
    policy.start(environment.problem, environment.server_of, seed=1)
    privacy = Privacy(epsilon=5.0, horizon=1000) if name.startswith("cdp") else None
    protocol = policy.family.protocol
    bounds = ridge_bounds(protocol)
    if privacy:
        bounds = tree_bounds(environment.problem.dim, environment.problem.users, protocol, privacy)
    rng = np.random.default_rng(SeedSequence(1).spawn(2)[0])
    detect = not name.startswith("homo")
    reference = Reference(environment, protocol, bounds, detect, rng)
    for _ in range(400):
        user, items = environment.visit()
        index = policy.recommend(user, items)
        assert index == reference.recommend(user, items)
        reward = environment.feedback(index).reward
        policy.update(user, items[index], reward)
        reference.update(user, items[index], reward)
        sent = policy.communications
        assert (sent.uploads, sent.downloads) == (reference.uploads, reference.downloads)
    assert sent.uploads > 0
    assert (len(reference.group_of) > 3) == detect, "no cluster was ever split"
    labels = [reference.group_of[reference.cluster(user)] for user in range(9)]
    np.testing.assert_array_equal(policy.labels_, labels)
    theta = [np.linalg.solve(*reference.S[reference.cluster(user)][:2]) for user in range(9)]
    np.testing.assert_allclose(policy.theta_, theta, atol=1e-9)
