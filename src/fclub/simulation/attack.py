"""Attack a whole federated policy: what its local server really sends over its link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.random import SeedSequence

from fclub.core.types import Floats, Vector
from fclub.environments.world import HALF
from fclub.errors import UnknownName
from fclub.privacy.audit import Claim, Data, Released, Target
from fclub.privacy.calibration import mu_of
from fclub.privacy.noise import DiscreteNoise
from fclub.privacy.sensitivity import CENTRE, Domain, noised_entries, noised_variances
from fclub.privacy.targets import stream_target
from fclub.protocol.families import FAMILIES, make_family
from fclub.protocol.federation import Federation
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, read_statistics
from fclub.protocol.seam import Family, Forecast, Rehearsal, Shape


class RecordingLink(InProcessLink):
    """Notes what goes up, with the number of observations made before."""

    def __init__(self, family: Family) -> None:
        super().__init__(family.decode)
        self.observations = 0
        self.sent: list[tuple[int, Message]] = []

    def from_local(self, server: int, message: Message) -> None:
        self.sent.append((self.observations, message))
        super().from_local(server, message)


Run = tuple[Vector, Floats]
"""What one run sent: numbers with noise, and all others."""


@dataclass
class PolicyTarget:
    """A federation with the user of the canary and, where they are streams of their own, bystanders.

    A bystander observes the same thing again and again. Shared noise, and an order of entries that
    depends on data, show between its entries and those of the user.
    """

    policy: str
    epsilon: float
    delta: float
    dim: int = 3
    seeds: SeedSequence = field(default_factory=SeedSequence)

    def __post_init__(self) -> None:
        rehearsal = FAMILIES[self.policy].rehearsal
        assert rehearsal is not None
        self.rehearsal: Rehearsal = rehearsal
        shape = Shape(self.dim, clusters=1, constant=rehearsal.constant)
        budget = {"epsilon": self.epsilon, "delta": self.delta}
        self.family = make_family(self.policy, shape, {**rehearsal.parameters, **budget})
        self._forecast: Forecast = rehearsal.forecast(self.family)

    @property
    def domain(self) -> Domain:
        return self.family.domain

    @property
    def observations(self) -> int:
        return int(self._forecast.weights.shape[1])

    @property
    def claim(self) -> Claim:
        variances = noised_variances(self.domain, self.dim, self._forecast.std)
        covariance = np.kron(self._forecast.across, np.diag(np.tile(variances, self.rehearsal.users)))
        return Claim(mu_of(self.epsilon, self.delta), np.asarray(covariance))

    def expected(self, data: Data) -> Vector:
        X, y = data.features, data.rewards
        sums = [((X.T * w) @ X, (w * y) @ X) for w in self._forecast.weights]
        own = [noised_entries(*pair, self.domain) for pair in sums]
        nothing = np.zeros((self.rehearsal.users - 1) * len(own[0]))
        return np.concatenate([part for entries in own for part in (entries, nothing)])

    def prepare(self, federation: Federation) -> None:
        """What a test does to the federation before the data come."""

    def run(self, data: Data, seed: SeedSequence) -> Run:
        """Play the observations on a fresh federation and collect what left its local server."""
        link = RecordingLink(self.family)
        rows, first = np.arange(self.rehearsal.users), np.array([0, self.rehearsal.users])
        federation = Federation(self.family, rows, first, seed, seeded=True, link=link)
        self.prepare(federation)
        centre = CENTRE if self.domain.low < 0.0 else 0.0
        for x, y in zip(data.features, data.rewards, strict=True):
            federation.servers[0].observe(0, x, y + centre)
            for bystander in rows[1:]:
                federation.servers[0].observe(int(bystander), data.features[-1], centre)
            link.observations += 1
            federation.advance(link.observations)
        noised: list[Vector] = []
        plain: list[float] = []
        for at, message in link.sent:
            plain += [at, *numbers_in(msgspec.to_builtins(message))]
            for part in message.parts():
                sent = read_statistics(part.statistics, self.dim)
                noised.append(noised_entries(sent.gram, sent.moment, self.domain))
                plain += [int.from_bytes(part.cluster), sent.count]
                plain += [] if self.domain.constant is None else [sent.gram[-1, -1]]
        return np.concatenate(noised), np.array(plain, dtype=np.float64)

    def release(self, data: Data, trials: int) -> Released:
        runs = [self.run(data, seed) for seed in self.seeds.spawn(trials)]
        width = max(len(noised) for noised, _ in runs)
        fields = max(len(plain) for _, plain in runs)
        return Released(
            np.array([np.pad(noised, (0, width - len(noised))) for noised, _ in runs]),
            np.array([np.pad(plain, (0, fields - len(plain))) for _, plain in runs]),
        )


def numbers_in(value: Any) -> Iterator[float]:
    """All numbers that a message holds beside its statistics, and how many entries its lists have."""
    match value:
        case int() | float():
            yield value
        case list() | tuple():
            yield len(value)
            for entry in value:
                yield from numbers_in(entry)


def _stream(name: str, epsilon: float, delta: float) -> Target:
    """A short stream in the authors' domain: centred rewards beside a constant 1/√2."""
    mu, domain = mu_of(epsilon, delta), Domain.of(HALF)
    return stream_target(name, mu, domain, 3, (2, 4, 7), DiscreteNoise())


TARGETS: dict[str, Callable[[float, float], Target]] = {
    "increments": partial(_stream, "increments"),
    "tree": partial(_stream, "tree"),
} | {name: partial(PolicyTarget, name) for name, row in FAMILIES.items() if row.rehearsal}
"""What `fclub audit` can attack, by name, given the claimed (ε, δ)."""


def make_target(name: str, epsilon: float, delta: float) -> Target:
    """The target of that name."""
    if name not in TARGETS:
        raise UnknownName("audit target", name, TARGETS)
    return TARGETS[name](epsilon, delta)
