"""Mechanisms as targets of the audit: a stream of releases through the real arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from fclub.core.lattice import STEP, Whole, on_grid, snap, whole
from fclub.core.types import Counts, Floats, Vector
from fclub.privacy.audit import Data, Released, TargetGuarantee
from fclub.privacy.calibration import mu_of
from fclub.privacy.encoding import decode, encode
from fclub.privacy.mechanisms import Increments, Mechanism, Tree, calibrate
from fclub.privacy.noise import DiscreteNoise, NoiseSource
from fclub.privacy.sensitivity import (
    Domain,
    noised_places,
    noised_variances,
    released_entries,
    released_std,
    sensitivity,
)

Send = Callable[[Whole, NoiseSource, Vector], Floats]
"""Turns increments, in steps, into the prefix sums that are released, in steps: (trials, releases,
entries), given a source of noise and the deviation of each entry."""

Cut = Callable[[Data, Counts], Counts]
"""The counts at which a stream releases, given the data (which must not matter) and the schedule."""


def noise_like(increments: Whole, source: NoiseSource, deviations: Vector) -> Whole:
    """Independent noise for every entry of every release."""
    return source.integers(np.broadcast_to(deviations, increments.shape))


def send_increments(increments: Whole, source: NoiseSource, deviations: Vector) -> Floats:
    """The square-root factorization as servers run it."""
    mechanism = Increments(increments.shape[1], 1.0)
    factor, noise = mechanism.factor(mechanism.releases), noise_like(increments, source, deviations)
    prefixes = np.zeros(increments.shape)
    for trial, exact in enumerate(increments):
        encoded = [encode(w[: k + 1], exact[: k + 1]) for k, w in enumerate(mechanism.encoder)]
        released = np.array(encoded) + noise[trial]
        for k, weights in enumerate(factor):
            prefixes[trial, k] = decode(weights[: k + 1], released[: k + 1]) / STEP
    return prefixes


def send_tree(increments: Whole, source: NoiseSource, deviations: Vector) -> Floats:
    """The printed tree."""
    nodes = noise_like(increments, source, deviations)
    factor = Tree(increments.shape[1], 1.0).factor(increments.shape[1])
    return np.asarray(np.cumsum(increments, axis=1) + np.einsum("tj,njp->ntp", factor, nodes))


def on_schedule(data: Data, schedule: Counts) -> Counts:
    """Releases happen at counts that are fixed in advance."""
    return schedule


SENDERS: dict[str, Send] = {"increments": send_increments, "tree": send_tree}


@dataclass(frozen=True)
class StreamTarget:
    """One stream that releases at the counts of `schedule`; `send` and `cut` are what may be broken."""

    mechanism: Mechanism
    domain: Domain
    dim: int
    schedule: tuple[int, ...]
    noise: NoiseSource
    send: Send
    cut: Cut = on_schedule

    @property
    def observations(self) -> int:
        return self.schedule[-1]

    @property
    def claim(self) -> TargetGuarantee:
        """The increments' noise is std·D L z with D the difference of neighbours, entry by entry."""
        k = len(self.schedule)
        cost = self.mechanism.cost(sensitivity(self.domain, self.dim), k)
        growth = np.diff(self.mechanism.factor(k), axis=0, prepend=0.0)
        variances = noised_variances(self.domain, self.dim, self.mechanism.std)
        covariance: Any = np.kron(growth @ growth.T, np.diag(variances))
        return TargetGuarantee(cost, covariance)

    def expected(self, data: Data) -> Vector:
        noised = self._deviations > 0.0
        return np.asarray(self._increments(data, np.array(self.schedule))[:, noised].ravel() * STEP)

    @property
    def _deviations(self) -> Vector:
        return released_std(self.domain, self.dim, self.mechanism.std) / STEP

    def _increments(self, data: Data, counts: Counts) -> Whole:
        """Sums of rounded observations, in steps."""
        x = np.array([snap(row, self.domain.constant or 0.0) for row in data.features])
        y = np.array([on_grid(reward) for reward in data.rewards])
        each = released_entries(x[:, :, None] * x[:, None, :], x * y[:, None])
        starts = np.concatenate([[0], counts[:-1]])
        return whole(np.array([each[a:b].sum(axis=0) for a, b in zip(starts, counts, strict=True)]))

    def release(self, data: Data, trials: int) -> Released:
        """Independent runs of the stream; the square of the constant is sent without noise."""
        counts = self.cut(data, np.array(self.schedule))
        increments = np.stack([self._increments(data, counts)] * trials)
        prefixes = self.send(increments, self.noise, self._deviations)
        sent, noised = np.diff(prefixes, axis=1, prepend=0.0) * STEP, self._deviations > 0.0
        plain = np.tile(counts.astype(np.float64), (trials, 1))
        plain = np.concatenate([plain, sent[..., ~noised].reshape(trials, -1)], axis=1)
        return Released(sent[..., noised].reshape(trials, -1), plain)


def stream_target(
    name: str,
    mu: float,
    domain: Domain,
    dim: int,
    schedule: tuple[int, ...],
    noise: NoiseSource,
) -> StreamTarget:
    """An honest stream that costs exactly μ."""
    entries = len(noised_places(domain, dim)[0])
    mechanism = calibrate(name, mu, sensitivity(domain, dim), len(schedule), entries)
    return StreamTarget(mechanism, domain, dim, schedule, noise, SENDERS[name])


def make_target(name: str, epsilon: float, delta: float) -> StreamTarget:
    """The mechanism of that name in the authors' domain: centred rewards beside a constant 1/√2."""
    mu, domain = mu_of(epsilon, delta), Domain.of(sqrt(0.5))
    return stream_target(name, mu, domain, 3, (2, 4, 7), DiscreteNoise())
