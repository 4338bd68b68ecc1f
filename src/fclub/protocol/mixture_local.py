"""A local server of the mixture policies: soft clusters inside, released sums outside."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np

from fclub.core.clustering import number_by_first
from fclub.core.packing import with_row
from fclub.core.plus.evidence import noisy_information
from fclub.core.plus.mixture import SLOTS, concentration, make_slots, newcomer, sample_partitions
from fclub.core.plus.rounds import MixtureRound, feedback, recommend
from fclub.core.statistics import Packed, Statistics, total_by_label
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.errors import InvalidMessage
from fclub.protocol import trust
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
from fclub.protocol.mixture_rules import MixtureRules
from fclub.protocol.numbering import Numbering
from fclub.protocol.overview import LocalOverview, mixture_overview
from fclub.protocol.phase import GeometricClock
from fclub.protocol.releases import Releases
from fclub.protocol.saved import State, load_mixture, save_mixture

EFFORT = 40_000
"""User visits per detection: fewer sweeps where there are many users."""


class MixtureLocal:
    """Keeps a Gaussian for each of its users; `state` may be a slice of a federation's arrays.

    With a clock of its own a server detects and asks for news when its own count calls for it, as a
    live one does; without one it waits for the global server to start a phase.
    """

    began = 0
    """All streams are of one epoch."""

    def __init__(
        self,
        server: int,
        state: MixtureRound,
        rules: MixtureRules,
        releases: Releases,
        rng: np.random.Generator,
        link: Link,
        clock: GeometricClock | None = None,
    ) -> None:
        self.server, self.rules = server, rules
        self.state = self.room = state
        self.releases, self.rng, self.link, self.clock = releases, rng, link, clock
        self.dim = state.theta.shape[1]
        self.labels: Indices = np.zeros(len(state.theta), dtype=np.int64)
        self.alpha, self.gamma = 1.0, 1.0
        self.numbering = Numbering()
        self.ids: list[int] = []
        self.groups: dict[int, int] = {}
        self.outside: dict[int, tuple[Statistics, float, int]] = {}
        self.told: dict[int, int] = {}
        self.joined: Indices = np.zeros((len(state.theta), 2), dtype=np.int64)
        self.unanswered = False

    @property
    def users(self) -> Packed:
        return self.state.users

    @property
    def observations(self) -> int:
        return int(self.users.counts.sum())

    @property
    def waiting(self) -> int:
        """Observations that the global server does not know of."""
        return self.observations - sum(self.told.values())

    @property
    def served_by(self) -> Indices:
        """The cluster 0, 1, … of every user in the most probable partition."""
        return number_by_first(self.labels)

    def add_user(self) -> int:
        """A user who was not there before; returns its row.

        Nothing is known of it but that it may be like anyone here, or like nobody: it is served by
        the mixture of all users' Gaussians and, with mass α, the prior. Until the next detection it
        is counted with the largest cluster.
        """
        row, prior = len(self.state.theta), np.asarray(np.linalg.inv(self.rules.prior))
        mean, covariance = np.zeros(self.dim), prior
        if self.observations:
            mean, covariance = newcomer(self.state.theta, self.state.covariance, prior, self.alpha)
        self.state, self.room = with_row(self.state, self.room)
        self.state.row_of[row] = row
        self.state.theta[row], self.state.covariance[row] = mean, covariance
        self.state.vector[row] = np.linalg.solve(covariance, mean)
        self.releases.add_user(self.users)
        largest = np.bincount(self.labels, minlength=1).argmax()
        like = self.joined[self.labels == largest][:1] if row else np.zeros((1, 2), dtype=np.int64)
        self.labels, self.joined = np.append(self.labels, largest), np.vstack([self.joined, like])
        return row

    def recommend(self, row: int, items: Matrix) -> int:
        return recommend(self.state, row, items)

    def observe(self, row: int, x: Vector, y: float) -> None:
        feedback(self.state, row, x, y)
        if self.clock is not None and self.clock.advance(self.observations):
            self.detect()
            self._report(self.clock.phase)

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart() if self.clock is None:
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
        shares = [(0, 0)] * own + [(s.count, clusters) for s, _, clusters in self.outside.values()]
        self.joined = np.array(shares)[self.labels]
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
        """Send the released sums of the clusters that have something new.

        A server with its own clock asks for the others' news also when it has none.
        """
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
        if news or told.keys() != self.told.keys() or self.clock is not None:
            self.told, self.unanswered = told, True
            present = tuple(write_id(number) for number in told)
            self.link.to_global(self.server, Digest(phase, present, tuple(news)))

    def _adopt(self, message: Shares) -> None:
        """Take what others know; it counts from the next detection on."""
        arrived = {
            share.number: (*read_released(share.statistics, share.noise, self.dim), share.clusters)
            for share in message.news
        }
        for statistics, noise, clusters in arrived.values():
            trust.check_share(statistics, noise, clusters, self.rules)
        known = self.outside | arrived
        if not known.keys() >= set(message.present):
            raise InvalidMessage("shares refer to statistics that were never sent")
        if not 0.0 < message.gamma < inf:
            raise InvalidMessage("shares have a prior mass that is not positive")
        groups = {read_id(cluster): group for cluster, group in message.groups}
        self.outside = {number: known[number] for number in message.present}
        self.groups, self.gamma, self.unanswered = groups, message.gamma, False

    def group_labels(self) -> Indices:
        """The global cluster of each user; users of clusters that no one has seen get a number < 0."""
        of_cluster = [self.groups.get(number, -1 - c) for c, number in enumerate(self.ids)]
        if not of_cluster:
            return -1 - number_by_first(self.labels)
        labels = np.arange(len(self.labels)) if self.rules.separate else self.labels
        return np.array(of_cluster, dtype=np.int64)[number_by_first(labels)]

    def overview(self) -> list[LocalOverview]:
        """Clusters of the most probable partition."""
        return mixture_overview(self)

    def state_of(self) -> State:
        """Arrays and JSON-ready values from which `restore` continues."""
        return save_mixture(self)

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        load_mixture(self, arrays, values)
