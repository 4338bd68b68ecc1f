"""What the audit attacks inside this package: a stream of releases through the real kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fclub.core.noise import advance_tree, privatize_increment
from fclub.core.types import Counts, Floats, Matrix, Vector
from fclub.privacy.audit import Claim, Data, Released
from fclub.privacy.mechanisms import Mechanism, calibrate
from fclub.privacy.noise import NoiseSource
from fclub.privacy.sensitivity import Domain, entry_std, noised_entries, noised_variances, sensitivity

Send = Callable[[Floats, Floats, Floats, Matrix], None]
"""Turns exact increments into messages in place: gram (trials, releases, d, d), moment, draws, and the
deviation of each entry."""

Cut = Callable[[Data, Counts], Counts]
"""The counts at which a stream releases, given the data (which must not matter) and the schedule."""


def send_increments(gram: Floats, moment: Floats, draws: Floats, deviations: Matrix) -> None:
    """The square-root factorization as servers run it."""
    trials, releases = draws.shape[:2]
    for trial in range(trials):
        past, noise = np.zeros_like(draws[trial]), np.zeros_like(deviations)
        for step in range(releases):
            sent = gram[trial, step], moment[trial, step]
            privatize_increment(past, noise, step, draws[trial, step], deviations, *sent)


def send_tree(gram: Floats, moment: Floats, draws: Floats, deviations: Matrix) -> None:
    """The printed tree, sending growths of the partial sums."""
    trials, releases, side, _ = draws.shape
    noise = np.zeros_like(draws)
    for trial in range(trials):
        nodes = np.zeros((releases.bit_length(), side, side))
        for step in range(releases):
            advance_tree(nodes, step + 1, draws[trial, step], 1.0, noise[trial, step])
    add_growth(gram, moment, noise * deviations)


def add_growth(gram: Floats, moment: Floats, noise: Floats) -> None:
    """Add what the noise of the prefixes gains from each release to the next."""
    d = moment.shape[-1]
    growth = np.diff(noise, axis=1, prepend=0.0)
    gram += growth[..., :d, :d]
    moment += growth[..., :d, d]


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
    def claim(self) -> Claim:
        """The increments' noise is std·D L z with D the difference of neighbours, entry by entry."""
        k = len(self.schedule)
        cost = sensitivity(self.domain) * self.mechanism.charged(k) / self.mechanism.std
        growth = np.diff(self.mechanism.factor(k), axis=0, prepend=0.0)
        variances = noised_variances(self.domain, self.dim, self.mechanism.std)
        covariance: Any = np.kron(growth @ growth.T, np.diag(variances))
        return Claim(cost, covariance)

    def expected(self, data: Data) -> Vector:
        gram, moment = self._increments(data, np.array(self.schedule))
        return noised_entries(gram, moment, self.domain).ravel()

    def _increments(self, data: Data, counts: Counts) -> tuple[Floats, Floats]:
        outer = data.features[:, :, None] * data.features[:, None, :]
        starts = np.concatenate([[0], counts[:-1]])
        gram = np.array([outer[a:b].sum(axis=0) for a, b in zip(starts, counts, strict=True)])
        products = data.features * data.rewards[:, None]
        moment = np.array([products[a:b].sum(axis=0) for a, b in zip(starts, counts, strict=True)])
        return gram, moment

    def release(self, data: Data, trials: int) -> Released:
        """Independent runs of the stream; the square of the constant is sent without noise."""
        counts = self.cut(data, np.array(self.schedule))
        gram, moment = (np.stack([exact] * trials) for exact in self._increments(data, counts))
        draws = np.array([self.noise.gaussian(self.dim + 1) for _ in range(trials * len(counts))])
        draws = draws.reshape(trials, len(counts), self.dim + 1, self.dim + 1)
        self.send(gram, moment, draws, entry_std(self.domain, self.dim, self.mechanism.std))
        plain = np.tile(counts.astype(np.float64), (trials, 1))
        if self.domain.constant is not None:
            plain = np.concatenate([plain, gram[..., -1, -1]], axis=1)
        return Released(noised_entries(gram, moment, self.domain).reshape(trials, -1), plain)


def stream_target(
    name: str,
    mu: float,
    domain: Domain,
    dim: int,
    schedule: tuple[int, ...],
    noise: NoiseSource,
) -> StreamTarget:
    """An honest stream that costs exactly μ."""
    mechanism = calibrate(name, mu, sensitivity(domain), len(schedule))
    return StreamTarget(mechanism, domain, dim, schedule, noise, SENDERS[name])
