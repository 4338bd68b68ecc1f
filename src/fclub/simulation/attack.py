"""Attack a whole federated policy: what its local server really sends over its link."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.statistics import Statistics
from fclub.core.types import Floats, Matrix, Vector
from fclub.environments.world import HALF
from fclub.errors import UnknownName
from fclub.policies.federated import FederatedPolicy
from fclub.policies.mixture import MixturePolicy
from fclub.policies.registry import make_policy
from fclub.privacy.audit import Claim, Data, Released, Target
from fclub.privacy.calibration import mu_of
from fclub.privacy.mechanisms import Tree, calibrate, count_schedule
from fclub.privacy.noise import SecureNoise
from fclub.privacy.sensitivity import CENTRE, Domain, entry_std, released_entries, sensitivity
from fclub.privacy.targets import stream_target
from fclub.protocol.link import Link
from fclub.protocol.messages import Digest, Message, Report, Upload, read_id, read_statistics


class RecordingLink:
    """Notes what goes up, with the number of observations made before, and passes everything on."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.observations = 0
        self.uploads: list[tuple[int, Upload]] = []
        self.reports: list[tuple[int, Report]] = []
        self.digests: list[tuple[int, Digest]] = []

    def to_global(self, server: int, message: Message) -> None:
        match message:
            case Upload():
                self.uploads.append((self.observations, message))
            case Report():
                self.reports.append((self.observations, message))
            case Digest():
                self.digests.append((self.observations, message))
        self.link.to_global(server, message)

    def to_local(self, server: int, message: Message) -> None:
        self.link.to_local(server, message)


Run = tuple[Vector, Floats]
"""What one run sent: numbers with noise, and all others."""


@dataclass
class PolicyTarget(ABC):
    """A policy with one user. This attacks the noise: what a partition betrays takes more users."""

    epsilon: float
    delta: float
    dim: int = 3
    observations: int = 5
    seeds: SeedSequence = field(default_factory=SeedSequence)

    @property
    @abstractmethod
    def domain(self) -> Domain: ...

    @abstractmethod
    def run(self, data: Data, seed: SeedSequence) -> Run:
        """Play the observations on a fresh policy and collect what left its local server."""

    def release(self, data: Data, trials: int) -> Released:
        runs = [self.run(data, seed) for seed in self.seeds.spawn(trials)]
        width = max(len(noised) for noised, _ in runs)
        fields = max(len(plain) for _, plain in runs)
        return Released(
            np.array([np.pad(noised, (0, width - len(noised))) for noised, _ in runs]),
            np.array([np.pad(plain, (0, fields - len(plain))) for _, plain in runs]),
        )

    def entries(self, statistics: Statistics) -> Vector:
        """The numbers of a message that carry noise."""
        both = np.zeros((self.dim + 1, self.dim + 1))
        both[: self.dim, : self.dim] = statistics.gram
        both[: self.dim, self.dim] = statistics.moment
        return both[released_entries(self.domain, self.dim)]

    def variances(self, std: float) -> Matrix:
        """Covariance of `entries` when the base deviation is `std`."""
        rows, columns = released_entries(self.domain, self.dim)
        deviations = entry_std(self.domain, self.dim, std)[rows, columns]
        return np.diag(deviations**2 * np.where(rows == columns, 2.0, 1.0))


@dataclass
class PrintedTarget(PolicyTarget):
    """`cdp-fclub-dc`: the report that opens its tree, every upload, one later report.

    Phase 2 starts after two observations and, as nothing changed, only re-releases what was there:
    the tree of phase 1 goes on, and the new report's noise is a release of its own.
    """

    @property
    def domain(self) -> Domain:
        return Domain()

    def make(self) -> FederatedPolicy:
        """An unbound policy with the audited budget."""
        policy = make_policy("cdp-fclub-dc", epsilon=self.epsilon, delta=self.delta)
        assert isinstance(policy, FederatedPolicy)
        return policy

    @property
    def problem(self) -> Problem:
        return Problem(1, 1, self.dim)

    @property
    def claim(self) -> Claim:
        """Growths of a tree with one leaf more than observations, and one independent report."""
        bounds = self.make().bounds(self.problem)
        leaves = self.observations + 1
        growth = np.diff(Tree(leaves, 1.0).factor(leaves), axis=0, prepend=0.0)
        across = np.eye(leaves + 1)
        across[:leaves, :leaves] = growth @ growth.T
        covariance = np.asarray(np.kron(across, self.variances(bounds.noise_std)))
        return Claim(mu_of(self.epsilon, self.delta), covariance)

    def expected(self, data: Data) -> Vector:
        one_by_one = [
            self.entries(Statistics(np.outer(x, x), y * x, 1))
            for x, y in zip(data.features, data.rewards, strict=True)
        ]
        return np.concatenate([np.zeros_like(one_by_one[0]), *one_by_one, sum(one_by_one[:2])])

    def run(self, data: Data, seed: SeedSequence) -> Run:
        policy = self.make()
        policy.start(self.problem, [0], seed=seed)
        self.prepare(policy)
        link = RecordingLink(policy.link)
        policy.servers[0].link = link
        hub = policy.hub.state  # with one cluster, its total is the report that opened the phase
        opening = [Statistics(hub.gram[0].copy(), hub.moment[0].copy(), int(hub.counts[0]))]
        for x, y in zip(data.features, data.rewards, strict=True):
            policy.update(0, x, y)
            link.observations += 1
        times = [at for at, _ in link.uploads + link.reports]
        encoded = [upload.statistics for _, upload in link.uploads]
        encoded += [cluster.statistics for _, report in link.reports for cluster in report.clusters]
        sent = opening + [read_statistics(data, self.dim) for data in encoded]
        plain = np.array([*times, *(statistics.count for statistics in sent)], dtype=np.float64)
        return np.concatenate([self.entries(statistics) for statistics in sent]), plain

    def prepare(self, policy: FederatedPolicy) -> None:
        """What a test does to the policy before the data come."""


@dataclass
class MixtureTarget(PolicyTarget):
    """`cdp-fclub-plus` in the authors' domain: the digests of a user's first three releases.

    Detections follow 20, 30 and 40 observations, and more than one scheduled count lies between them.
    """

    observations: int = 40
    detections: ClassVar[tuple[int, ...]] = (20, 30, 40)
    first: ClassVar[int] = 8
    ratio: ClassVar[float] = 1.1

    @property
    def problem(self) -> Problem:
        return Problem(1, 1, self.dim, HALF)

    @property
    def domain(self) -> Domain:
        return Domain.of(self.problem)

    @property
    def claim(self) -> Claim:
        """Prefixes of one stream, provisioned for many more releases than these."""
        releases = len(count_schedule(self.first, self.ratio))
        mu = mu_of(self.epsilon, self.delta)
        mechanism = calibrate("increments", mu, sensitivity(self.domain), releases)
        factor = mechanism.factor(len(self.detections))
        covariance = np.asarray(np.kron(factor @ factor.T, self.variances(mechanism.std)))
        return Claim(mu, covariance)

    def expected(self, data: Data) -> Vector:
        prefixes = [(data.features[:count], data.rewards[:count]) for count in self.detections]
        return np.concatenate([self.entries(Statistics(X.T @ X, y @ X, len(y))) for X, y in prefixes])

    def run(self, data: Data, seed: SeedSequence) -> Run:
        policy = make_policy(
            "cdp-fclub-plus",
            epsilon=self.epsilon,
            delta=self.delta,
            first_release=self.first,
            release_ratio=self.ratio,
        )
        assert isinstance(policy, MixturePolicy)
        policy.start(self.problem, [0], seed=seed)
        self.prepare(policy)
        link = RecordingLink(policy.link)
        policy.servers[0].link = link
        for x, y in zip(data.features, data.rewards, strict=True):
            policy.update(0, x, y + CENTRE)
            link.observations += 1
        noised: list[Vector] = []
        plain: list[float] = []
        for at, digest in link.digests:
            plain += [at, digest.phase, *map(read_id, digest.present)]
            for news in digest.news:
                sent = read_statistics(news.statistics, self.dim)
                noised.append(self.entries(sent))
                plain += [read_id(news.cluster), news.noise, sent.count, sent.gram[-1, -1]]
        return np.concatenate(noised), np.array(plain, dtype=np.float64)

    def prepare(self, policy: MixturePolicy) -> None:
        """What a test does to the policy before the data come."""


def _stream(name: str, epsilon: float, delta: float) -> Target:
    """A short stream in the authors' domain: centred rewards beside a constant 1/√2."""
    domain = Domain.of(Problem(1, 1, 3, HALF))
    return stream_target(name, mu_of(epsilon, delta), domain, 3, (2, 4, 7), SecureNoise())


TARGETS: dict[str, Callable[[float, float], Target]] = {
    "increments": partial(_stream, "increments"),
    "tree": partial(_stream, "tree"),
    "cdp-fclub-dc": PrintedTarget,
    "cdp-fclub-plus": MixtureTarget,
}
"""What `fclub audit` can attack, by name, given the claimed (ε, δ)."""


def make_target(name: str, epsilon: float, delta: float) -> Target:
    """The target of that name."""
    if name not in TARGETS:
        raise UnknownName("audit target", name, TARGETS)
    return TARGETS[name](epsilon, delta)
