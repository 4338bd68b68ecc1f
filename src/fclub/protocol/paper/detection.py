"""How a local server divides its users into clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from fclub.core.clustering import UserGraph, allowance, most_alike, number_by_first
from fclub.core.kernels import distance
from fclub.core.models import estimate_all
from fclub.core.packing import inside, under
from fclub.core.paper.federation import LocalClusters
from fclub.core.statistics import Packed, total_by_label
from fclub.core.types import Floats, Indices, Vector

TELLING_DISTANCE = 1.0
"""A newcomer is known well enough once Eq. 3 would separate two users like it at this distance."""


class Detector(Protocol):
    """Divides the users of one server into local clusters.

    `guests` are newcomers of whom too little is known; between detections they may be served by
    another cluster than they were put into.
    """

    guests: list[int]

    def detect(self, users: Packed) -> Indices:
        """One label per user, numbered by first user."""

    def add_user(self, known: bool) -> None:
        """One user more, in the next row; `known`: as if it had been there from the start."""

    def copy(self) -> Self:
        """The same, which detects for itself: nothing that changes is shared."""

    def state(self) -> dict[str, Any]:
        """What it remembers between detections."""

    def restore(self, arrays: dict[str, Any]) -> None: ...


def serve_guests(guests: list[int], users: Packed, clusters: LocalClusters, served_by: Indices) -> None:
    """Let the cluster serve each of these that predicts its data best.

    Detections are far apart, and a guest has to be served today: it is looked at again after 1, 2, 4,
    … of its observations. Where it was reported to belong stays as it is.
    """
    theta = np.empty_like(clusters.moment)
    estimate_all(clusters.gram, clusters.moment, 0.0, theta)
    for row in guests:
        served_by[row] = most_alike(users.gram[row], users.moment[row], theta, clusters.counts)


class OneCluster:
    """All users of a server are alike (`homo`)."""

    def __init__(self) -> None:
        self.guests: list[int] = []

    def add_user(self, known: bool) -> None:
        """There is nothing to remember."""

    def copy(self) -> OneCluster:
        return OneCluster()

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, arrays: dict[str, Any]) -> None:
        """There is nothing to remember."""

    def detect(self, users: Packed) -> Indices:
        return np.zeros(len(users.counts), dtype=np.int64)


class _Clusters:
    """The clusters of users who have edges: their members, and what those have learned."""

    def __init__(self, users: Packed, labels: Indices, guests: list[int], ridge: float) -> None:
        settled = np.delete(np.arange(len(labels)), guests)
        labels[settled] = number_by_first(labels[settled])
        count = int(labels[settled].max()) + 1
        labels[guests] = count
        total = total_by_label(users, labels, count + 1).slice(0, count)
        self.users, self.counts, self.theta = users, total.counts, np.empty_like(total.moment)
        estimate_all(total.gram, total.moment, ridge, self.theta)
        self.members: list[list[int]] = [[] for _ in range(count)]
        for row in settled:
            self.members[labels[row]].append(int(row))

    def most_alike(self, row: int) -> int:
        return most_alike(self.users.gram[row], self.users.moment[row], self.theta, self.counts)

    def far(self, c: int, row: int, theta: Vector, factor: float) -> bool:
        """Eq. 3 for a user and a cluster."""
        allowed = allowance(float(self.counts[c]), float(self.users.counts[row]), factor)
        return distance(self.theta[c], theta) > allowed

    def found(self, row: int, theta: Vector) -> int:
        """A new cluster of one user."""
        self.counts = np.append(self.counts, self.users.counts[row])
        self.theta = np.vstack([self.theta, theta])
        self.members.append([])
        return len(self.members) - 1


class EdgeDeletion:
    """Alg. 2, line 3: connected components of a graph that loses the edges condemned by Eq. 3.

    Eq. 3 keeps the edges of a user of whom little is known, so a newcomer with edges to many would
    hold clusters together. It is a guest first: without edges, in the cluster that predicts its data
    best, chosen again at every detection. Once its own estimate is narrow enough for Eq. 3 to tell
    it settles: with edges to the members of that cluster, or alone if Eq. 3 keeps it from them.
    """

    def __init__(self, graph: UserGraph, deletion: float, ridge: float) -> None:
        self.graph, self.deletion, self.ridge = graph, deletion, ridge
        self.guests: list[int] = []

    def add_user(self, known: bool) -> None:
        row = self.graph.add_user()
        if known:
            self.graph.link(row, range(row))
        else:
            self.guests.append(row)

    def detect(self, users: Packed) -> Indices:
        theta = np.empty_like(users.moment)
        estimate_all(users.gram, users.moment, self.ridge, theta)
        self.graph.delete_far(theta, users.counts, self.deletion)
        labels = self.graph.components()
        return self._place(users, theta, labels) if self.guests else labels

    def _telling(self, count: int, dim: int) -> bool:
        """With fewer observations than dimensions an estimate is more about the ridge than the user."""
        own = float(count)
        return count >= dim and allowance(own, own, self.deletion) <= TELLING_DISTANCE

    def _place(self, users: Packed, theta: Floats, labels: Indices) -> Indices:
        """Let guests settle who can, in the order of arrival; then give the others a cluster."""
        clusters = _Clusters(users, labels, self.guests, self.ridge)
        guests, self.guests = self.guests, []
        for row in guests:
            if not self._telling(int(users.counts[row]), theta.shape[1]):
                self.guests.append(row)
                continue
            c = clusters.most_alike(row)
            if clusters.far(c, row, theta[row], self.deletion):
                c = clusters.found(row, theta[row])
            self.graph.link(row, clusters.members[c])
            clusters.members[c].append(row)
            labels[row] = c
        for row in self.guests:
            labels[row] = clusters.most_alike(row)
        return number_by_first(labels)

    def copy(self) -> EdgeDeletion:
        other = EdgeDeletion(self.graph.copy(), self.deletion, self.ridge)
        other.guests = self.guests.copy()
        return other

    def state(self) -> dict[str, Any]:
        return self.graph.state() | {"guests": np.array(self.guests, dtype=np.int64)}

    def restore(self, arrays: dict[str, Any]) -> None:
        self.graph.restore(arrays)
        self.guests = arrays["guests"].tolist()


class Found(NamedTuple):
    """What a detection has found, and the detector after it."""

    labels: Indices
    detector: Detector


@dataclass
class Detection:
    """A detection for the report of a phase, beside serving; `found` once it is done."""

    phase: int
    found: Found | None = None

    def state(self) -> dict[str, Any]:
        """Arrays; a detection that was not done begins again."""
        if self.found is None:
            return {}
        return {"labels": self.found.labels} | under("detector.", self.found.detector.state())

    @staticmethod
    def restored(phase: int, arrays: dict[str, Any], detector: Detector) -> Detection:
        """What `state` gave; the detector is one of the same kind."""
        if "labels" not in arrays:
            return Detection(phase)
        after = detector.copy()
        after.restore(inside("detector.", arrays))
        return Detection(phase, Found(arrays["labels"], after))
