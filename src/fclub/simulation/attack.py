"""Attack a whole federated policy: what its local server really sends over its link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.statistics import Statistics
from fclub.core.types import Floats, Vector
from fclub.environments.form import HALF
from fclub.errors import UnknownName
from fclub.policies.federated import FederatedPolicy
from fclub.policies.registry import make_policy
from fclub.privacy.audit import Claim, Data, Released, Target
from fclub.privacy.calibration import mu_of
from fclub.privacy.mechanisms import Tree
from fclub.privacy.noise import SecureNoise
from fclub.privacy.sensitivity import Domain, released_entries
from fclub.privacy.targets import stream_target
from fclub.protocol.link import Link
from fclub.protocol.messages import Message, Report, Upload, read_statistics


class RecordingLink:
    """Notes what goes up, with the number of observations made before, and passes everything on."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.observations = 0
        self.uploads: list[tuple[int, Upload]] = []
        self.reports: list[tuple[int, Report]] = []

    def to_global(self, server: int, message: Message) -> None:
        match message:
            case Upload():
                self.uploads.append((self.observations, message))
            case Report():
                self.reports.append((self.observations, message))
        self.link.to_global(server, message)

    def to_local(self, server: int, message: Message) -> None:
        self.link.to_local(server, message)


@dataclass
class PrintedTarget:
    """`cdp-fclub-dc` with one user: the report that opens its tree, every upload, one later report.

    Phase 2 starts after two observations and, as nothing changed, only re-releases what was there:
    the tree of phase 1 goes on, and the new report's noise is a release of its own. One user cannot
    show what the raw partition and trigger betray: this attacks the noise.
    """

    epsilon: float
    delta: float
    dim: int = 3
    observations: int = 5
    seeds: SeedSequence = field(default_factory=SeedSequence)

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
        rows, columns = released_entries(self.domain, self.dim)
        within = np.diag(bounds.noise_std**2 * np.where(rows == columns, 2.0, 1.0))
        return Claim(mu_of(self.epsilon, self.delta), np.asarray(np.kron(across, within)))

    def expected(self, data: Data) -> Vector:
        one_by_one = [
            self._entries(Statistics(np.outer(x, x), y * x, 1))
            for x, y in zip(data.features, data.rewards, strict=True)
        ]
        return np.concatenate([np.zeros_like(one_by_one[0]), *one_by_one, sum(one_by_one[:2])])

    def _entries(self, statistics: Statistics) -> Vector:
        both = np.zeros((self.dim + 1, self.dim + 1))
        both[: self.dim, : self.dim] = statistics.gram
        both[: self.dim, self.dim] = statistics.moment
        return both[released_entries(self.domain, self.dim)]

    def release(self, data: Data, trials: int) -> Released:
        runs = [self._run(data, seed) for seed in self.seeds.spawn(trials)]
        width = max(len(noised) for noised, _ in runs)
        fields = max(len(plain) for _, plain in runs)
        return Released(
            np.array([np.pad(noised, (0, width - len(noised))) for noised, _ in runs]),
            np.array([np.pad(plain, (0, fields - len(plain))) for _, plain in runs]),
        )

    def _run(self, data: Data, seed: SeedSequence) -> tuple[Vector, Floats]:
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
        return np.concatenate([self._entries(statistics) for statistics in sent]), plain

    def prepare(self, policy: FederatedPolicy) -> None:
        """What a test does to the policy before the data come."""


def _stream(name: str, epsilon: float, delta: float) -> Target:
    """A short stream in the authors' domain: centred rewards beside a constant 1/√2."""
    domain = Domain.of(Problem(1, 1, 3, HALF))
    return stream_target(name, mu_of(epsilon, delta), domain, 3, (2, 4, 7), SecureNoise())


TARGETS: dict[str, Callable[[float, float], Target]] = {
    "increments": partial(_stream, "increments"),
    "tree": partial(_stream, "tree"),
    "cdp-fclub-dc": PrintedTarget,
}
"""What `fclub audit` can attack, by name, given the claimed (ε, δ)."""


def make_target(name: str, epsilon: float, delta: float) -> Target:
    """The target of that name."""
    if name not in TARGETS:
        raise UnknownName("audit target", name, TARGETS)
    return TARGETS[name](epsilon, delta)
