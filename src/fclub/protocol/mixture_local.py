"""A local server of the mixture policies: soft clusters inside, released sums outside."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np

from fclub.core.clustering import number_by_first
from fclub.core.evidence import noisy_information
from fclub.core.mixture import SLOTS, concentration, make_slots, sample_partitions
from fclub.core.mixture_round import MixtureRound, feedback, recommend
from fclub.core.packing import flatten
from fclub.core.statistics import Statistics, total_by_label
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.errors import InvalidMessage
from fclub.protocol.link import Link
from fclub.protocol.messages import (
    Digest,
    Message,
    News,
    PhaseStart,
    Shares,
    read_id,
    read_released,
    write_id,
    write_statistics,
)
from fclub.protocol.numbering import Numbering
from fclub.protocol.releases import Releases

EFFORT = 40_000
"""User visits per detection: fewer sweeps where there are many users."""


@dataclass(frozen=True)
class MixtureRules:
    """Constants of the mixture: `variance` of a reward, prior precision, Gibbs sweeps.

    `share` off makes a server that reports nothing. `separate` reports every user as a cluster of its
    own, so that the partition tells nothing; `released_only` serves users from released data only.
    """

    prior: Matrix
    variance: float
    sweeps: int
    share: bool = True
    separate: bool = False
    released_only: bool = False


class MixtureLocal:
    """Keeps a Gaussian for each of its users; `state` may be a slice of a federation's arrays."""

    def __init__(
        self,
        server: int,
        state: MixtureRound,
        rules: MixtureRules,
        releases: Releases,
        rng: np.random.Generator,
        link: Link,
    ) -> None:
        self.server, self.state, self.rules = server, state, rules
        self.releases, self.rng, self.link = releases, rng, link
        self.dim = state.theta.shape[1]
        self.labels: Indices = np.zeros(len(state.theta), dtype=np.int64)
        self.alpha, self.gamma = 1.0, 1.0
        self.numbering = Numbering()
        self.ids: list[int] = []
        self.groups: dict[int, int] = {}
        self.outside: dict[int, tuple[Statistics, float, int]] = {}
        self.told: dict[int, int] = {}

    def recommend(self, row: int, items: Matrix) -> int:
        return recommend(self.state, row, items)

    def observe(self, row: int, x: Vector, y: float) -> None:
        feedback(self.state, row, x, y)

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart():
                self.detect()
                self._report(message.phase)
            case Shares():
                self._adopt(message)
            case _:
                raise InvalidMessage(f"a mixture server does not take a {type(message).__name__}")

    def detect(self) -> None:
        """Infer who shares a vector with whom, and what serves each user from now on."""
        self.releases.advance()
        information, vectors = self._information()
        others = [
            noisy_information(s.gram, s.moment, noise, self.rules.variance)
            for s, noise, _ in self.outside.values()
        ]
        own = min(len(vectors), SLOTS)
        slots = make_slots(
            self.rules.prior,
            np.array([Q for Q, _ in others]),
            np.array([q for _, q in others]),
            np.array([float(clusters) for _, _, clusters in self.outside.values()]),
            own,
            self.alpha,
            self.gamma,
        )
        labels = np.minimum(number_by_first(self.labels), own - 1)
        mean, covariance = np.empty_like(self.state.theta), np.empty_like(self.state.covariance)
        sweeps = int(np.clip(EFFORT // len(labels), 4, self.rules.sweeps))
        found = sample_partitions(
            slots,
            information,
            vectors,
            labels,
            sweeps,
            sweeps // 4,
            self.rng,
            mean,
            covariance,
            self.labels,
        )
        self.alpha = sqrt(self.alpha * concentration(found, len(labels)))
        self.state.theta[:], self.state.covariance[:] = mean, covariance
        self.state.vector[:] = np.linalg.solve(covariance, mean[..., None])[..., 0]

    def _information(self) -> tuple[Floats, Floats]:
        """What is known of each user: all of it, or only what was released."""
        variance = self.rules.variance
        if not self.rules.released_only:
            users = self.state.users
            return users.gram / variance, users.moment / variance
        released = self.releases.released
        pairs = [
            noisy_information(gram, moment, noise, variance)
            for gram, moment, noise in zip(
                released.gram, released.moment, self.releases.noise, strict=True
            )
        ]
        return np.array([Q for Q, _ in pairs]), np.array([q for _, q in pairs])

    def _report(self, phase: int) -> None:
        """Send the released sums of the clusters that have something new."""
        if not self.rules.share:
            return
        labels = self.labels
        if self.rules.separate:
            labels = np.arange(len(labels))
        labels = number_by_first(labels)
        self.ids = self.numbering.number(labels)
        totals = total_by_label(self.releases.released, labels, len(self.ids))
        noise = np.bincount(labels, weights=self.releases.noise, minlength=len(self.ids))
        news, told = [], {}
        for c, number in enumerate(self.ids):
            if totals.counts[c] > 0:
                told[number] = int(totals.counts[c])
                if self.told.get(number) != told[number]:
                    statistics = write_statistics(Statistics.of(totals, c))
                    news.append(News(write_id(number), statistics, float(noise[c])))
        if news or told.keys() != self.told.keys():
            self.told = told
            present = tuple(write_id(number) for number in told)
            self.link.to_global(self.server, Digest(phase, present, tuple(news)))

    def _adopt(self, message: Shares) -> None:
        """Take what others know; it counts from the next detection on."""
        arrived = {
            share.number: (*read_released(share.statistics, share.noise, self.dim), share.clusters)
            for share in message.news
        }
        known = self.outside | arrived
        if not known.keys() >= set(message.present):
            raise InvalidMessage("shares refer to statistics that were never sent")
        if not 0.0 < message.gamma < inf or any(share.clusters < 1 for share in message.news):
            raise InvalidMessage("shares have a prior mass that is not positive")
        groups = {read_id(cluster): group for cluster, group in message.groups}
        self.outside = {number: known[number] for number in message.present}
        self.groups, self.gamma = groups, message.gamma

    def group_labels(self) -> Indices:
        """The global cluster of each user; users of clusters that no one has seen get a number < 0."""
        of_cluster = [self.groups.get(number, -1 - c) for c, number in enumerate(self.ids)]
        if not of_cluster:
            return -1 - number_by_first(self.labels)
        labels = np.arange(len(self.labels)) if self.rules.separate else self.labels
        return np.array(of_cluster, dtype=np.int64)[number_by_first(labels)]

    def state_of(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and JSON-ready values from which `restore` continues."""
        arrays = flatten(self.state.users, "users.")
        arrays |= {f"releases.{name}": array for name, array in self.releases.arrays().items()}
        for name in ("covariance", "vector", "theta"):
            arrays[name] = getattr(self.state, name)
        outside = list(self.outside.values())
        arrays["labels"] = self.labels
        arrays["outside.gram"] = np.array([s.gram for s, _, _ in outside]).reshape(
            -1, self.dim, self.dim
        )
        arrays["outside.moment"] = np.array([s.moment for s, _, _ in outside]).reshape(-1, self.dim)
        return arrays, {
            "alpha": self.alpha,
            "gamma": self.gamma,
            "ids": self.ids,
            "groups": list(self.groups.items()),
            "told": list(self.told.items()),
            "outside": [(n, s.count, noise, k) for n, (s, noise, k) in self.outside.items()],
            "numbering": self.numbering.state_of(),
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        for name, array in flatten(self.state.users, "users.").items():
            array[...] = arrays[name]
        for name in ("covariance", "vector", "theta"):
            getattr(self.state, name)[...] = arrays[name]
        prefix = "releases."
        own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.releases.restore(own)
        self.labels, self.ids = arrays["labels"], list(values["ids"])
        self.alpha, self.gamma = values["alpha"], values["gamma"]
        self.groups, self.told = dict(values["groups"]), dict(values["told"])
        self.outside = {
            number: (Statistics(gram, moment, count), noise, clusters)
            for (number, count, noise, clusters), gram, moment in zip(
                values["outside"], arrays["outside.gram"], arrays["outside.moment"], strict=True
            )
        }
        self.numbering.restore(values["numbering"])
        self.rng.bit_generator.state = values["rng"]
