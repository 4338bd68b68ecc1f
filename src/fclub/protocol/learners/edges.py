"""Clusters of users by edge deletion (Alg. 1–3), or one cluster of all; newcomers are guests first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from fclub.core.clustering import UserGraph, allowance, most_alike, number_by_first
from fclub.core.compiling import DirectCall
from fclub.core.kernels import distance
from fclub.core.lattice import on_grid, snap
from fclub.core.models import estimate_all
from fclub.core.packing import flatten, inside, rebuild, under, with_row
from fclub.core.paper.federation import LocalClusters, absorb, add_statistics, recommend, release
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import Packed, Statistics, observe, total_by_label
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.errors import NumericalError
from fclub.protocol.interfaces.learner import Bound, Job, State
from fclub.protocol.interfaces.overview import LocalOverview

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


class Increment(NamedTuple):
    """What other servers have added to the global cluster of a local one (Alg. 4)."""

    cluster: int
    statistics: Statistics


class Partition(NamedTuple):
    """A partition of the users was reported: the contribution of a job that has found clusters."""

    labels: Indices
    detector: dict[str, Any]


class Start(NamedTuple):
    """Clusters that start a phase anew, and the users in them (Alg. 2, lines 8–16)."""

    labels: Indices
    clusters: LocalClusters


EdgeNews = Increment | Partition | Start


UPLOAD = "upload"


def upload_job(cluster: int, noise: Matrix) -> Job:
    """Asks for the buffer of a cluster; `noise` is that of the release after this one."""
    return Job(UPLOAD, rows=0, ask={"cluster": cluster}, given={"noise": noise})


class Edges:
    """Users and local clusters of a server; `cluster_of[row]` is the cluster of user `row`.

    `served_by[row]` is the same, but for newcomers who turn out to be like others. After an observation
    `full` is a cluster whose buffer Eq. 5 wants to be uploaded. The first `settlers` users came before
    the first observation, and count as there from the start.

    It contributes the buffer of a cluster (`upload_job`), or a partition of its users, which any other
    job asks for: the labels, and the detector that has found them.
    """

    supports: frozenset[str] = frozenset()
    by_user: tuple[str, ...] = ()

    def __init__(self, users: Packed, rules: Rules, depth: int, detector: Detector) -> None:
        self.users = self._room = users
        self.rules, self.depth, self.dim, self.detector = rules, depth, users.moment.shape[1], detector
        self.cluster_of: Indices = np.zeros(len(users.counts), dtype=np.int64)
        self.served_by = self.cluster_of.copy()
        self.clusters = LocalClusters.first(min(1, len(users.counts)), self.dim, depth, rules)
        self.settlers = 0
        self.full: int | None = None
        self._row = 0
        self._recommend, self._observe = DirectCall(recommend), DirectCall(observe)
        self._absorb, self._release = DirectCall(absorb), DirectCall(release)

    @property
    def counts(self) -> Counts:
        return self.users.counts

    def add_user(self) -> int:
        """Let a new user join the cluster with most observations.

        Before the first observation nothing tells it from those who are there: it is one of them.
        """
        row = len(self.counts)
        self.users, self._room = with_row(self.users, self._room)
        known = not self.counts.any()
        self.detector.add_user(known)
        if row == 0:
            self.clusters = LocalClusters.first(1, self.dim, self.depth, self.rules)
        largest = np.argmax(self.clusters.counts)
        self.cluster_of = np.append(self.cluster_of, largest)
        self.served_by = np.append(self.served_by, largest)
        if known:
            self.settlers = row + 1
        return row

    def bound(self, row: int) -> Bound:
        """Alg. 1, line 12: to score any item refreshes what the cluster's items are scored with."""
        c, clusters = int(self.served_by[row]), self.clusters
        if not clusters.fresh[c]:
            self._recommend(clusters, c, np.zeros((1, self.dim)), self.rules)
        if math.isnan(clusters.growth[c]):
            raise NumericalError("statistics of a cluster are indefinite")
        return Bound(clusters.theta[c], clusters.inverse[c], float(clusters.radius[c]))

    def observe(self, row: int, x: Vector, y: float) -> None:
        """Alg. 1, line 13, and Alg. 3. What will be released with noise is rounded to the lattice."""
        if self.rules.noise_std > 0.0:
            x, y = snap(x, 0.0), on_grid(y)
        self._observe(self.users, row, x, y)
        c = int(self.served_by[row])
        self.full = c if self._absorb(self.clusters, c, x, y, self.rules) else None
        self._row = row
        if self.full is None:
            self._serve_guest()

    def _serve_guest(self) -> None:
        """Look again where the user who was observed last is served best, after 1, 2, 4, … visits."""
        row = self._row
        if self.counts[row].bit_count() == 1 and row in self.detector.guests:
            serve_guests([row], self.users, self.clusters, self.served_by)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """Not supported: buffers hold a reward in a sum."""

    def forget(self, row: int) -> None:
        """Not supported: buffers hold a user's part and its neighbours' as one sum."""

    def contribute(self, job: Job) -> Callable[[], None] | None:
        if job.kind == UPLOAD:
            self._hand_out(job)
            return None
        if job.rows < self.settlers:
            job.rows = len(self.counts)
            job.start_again()
        if job.following == job.rows:
            return None
        job.following, users, detector = job.rows, self.users.copy(), self.detector.copy()

        def detect() -> None:
            """Alg. 2, line 3."""
            job.total["labels"] = detector.detect(users)
            job.total |= under("detector.", detector.state())

        return detect

    def _hand_out(self, job: Job) -> None:
        """Alg. 3, lines 8–10; then the user whose observation has filled the buffer is looked at."""
        gram, moment = np.empty((self.dim, self.dim)), np.empty(self.dim)
        drawn, c = job.given["noise"], job.ask["cluster"]
        count = self._release(self.clusters, c, drawn, self.rules, gram, moment)
        job.total = {"gram": gram, "moment": moment, "count": int(count)}
        self.full = None
        self._serve_guest()

    def absorb(self, news: EdgeNews) -> None:
        if isinstance(news, Increment):
            known = news.statistics
            add_statistics(self.clusters, news.cluster, known.gram, known.moment, known.count)
        elif isinstance(news, Partition):
            self.detector.restore(news.detector)
            for _ in range(len(self.counts) - len(news.labels)):
                self.detector.add_user(known=False)
        else:
            self.clusters, self.cluster_of = news.clusters, news.labels
            self.served_by = news.labels.copy()
            serve_guests(self.detector.guests, self.users, self.clusters, self.served_by)

    def labels(self) -> Indices:
        return self.served_by

    def theta(self) -> Floats:
        pairs = zip(self.clusters.gram, self.clusters.moment, strict=True)
        solved = [np.linalg.solve(gram, moment) for gram, moment in pairs]
        return np.array(solved).reshape(-1, self.dim)[self.served_by]

    def overview(self) -> list[LocalOverview]:
        """Own data of an estimate are what its users have observed and uploaded."""
        clusters, rows = self.clusters, len(self.clusters.counts)
        users = np.bincount(self.served_by, minlength=rows)
        observed = np.bincount(self.served_by, weights=self.counts, minlength=rows)
        own = np.clip(observed - clusters.buffer_count, 0, clusters.counts)
        return [
            LocalOverview(
                users=int(users[c]),
                own=int(own[c]),
                others=int(clusters.counts[c] - own[c]),
                shared_by=int(clusters.sharing[c]),
            )
            for c in range(rows)
        ]

    def state(self) -> State:
        arrays = flatten(self.users, "users.") | flatten(self.clusters, "clusters.")
        arrays |= under("detector.", self.detector.state())
        return arrays | {"cluster_of": self.cluster_of, "served_by": self.served_by}, {
            "settlers": self.settlers
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        if len(self.counts) != len(arrays["users.counts"]):
            self.users = self._room = Packed.zeros(len(arrays["users.counts"]), self.dim)
        for name, array in flatten(self.users, "users.").items():
            array[...] = arrays[name]
        self.detector.restore(inside("detector.", arrays))
        self.clusters = rebuild(self.clusters, arrays, "clusters.")
        self.cluster_of, self.served_by = arrays["cluster_of"], arrays["served_by"]
        self.settlers = values["settlers"]
