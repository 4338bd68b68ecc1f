"""A local server: recommends to its users, finds clusters among them, exchanges cluster statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fclub.core.federation import (
    LocalClusters,
    absorb,
    add_statistics,
    recommend,
    release,
    renew_buffer,
)
from fclub.core.noise import advance_tree
from fclub.core.packing import flatten, rebuild
from fclub.core.statistics import Packed, Statistics, observe, total_by_label
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.core.ucb import Rules
from fclub.errors import InvalidMessage, NumericalError
from fclub.privacy.noise import NoiseSource
from fclub.protocol.detection import Detector
from fclub.protocol.link import Link
from fclub.protocol.messages import (
    ClusterStatistics,
    Download,
    Message,
    PhaseStart,
    Plan,
    Report,
    Upload,
    read_id,
    read_statistics,
    write_id,
    write_statistics,
)


@dataclass
class _Staged:
    """A partition that was reported and waits for its plan."""

    labels: Indices
    ids: list[int]
    totals: Packed
    nodes: Floats
    noise: Floats


class LocalServer:
    """One server's users and local clusters; `cluster_of[row]` is the cluster of user `row`.

    Between a report and its plan nothing is uploaded: what is observed in between belongs to the
    buffers that the plan starts.
    """

    def __init__(
        self,
        server: int,
        users: Packed,
        rules: Rules,
        depth: int,
        detector: Detector,
        noise: NoiseSource,
        link: Link,
    ) -> None:
        self.server = server
        self.users = users
        self.rules = rules
        self.depth = depth
        self.dim = users.moment.shape[1]
        self.detector = detector
        self.noise = noise
        self.link = link
        self.cluster_of: Indices = np.zeros(len(users.counts), dtype=np.int64)
        self.ids: list[int] = []
        self.groups: list[int] = []
        self.clusters = LocalClusters.zeros(0, self.dim, depth)
        self.staged: _Staged | None = None
        self.next_id = 0

    def recommend(self, row: int, items: Matrix) -> int:
        """Alg. 1, line 12."""
        c = self.cluster_of[row]
        index = recommend(self.clusters, c, items, self.rules)
        if math.isnan(self.clusters.growth[c]):
            raise NumericalError(f"statistics of a cluster of server {self.server} are indefinite")
        return index

    def observe(self, row: int, x: Vector, y: float) -> None:
        """Alg. 1, line 13, and Alg. 3."""
        observe(self.users, row, x, y)
        c = int(self.cluster_of[row])
        if absorb(self.clusters, c, x, y, self.rules) and self.staged is None:
            gram, moment = np.empty((self.dim, self.dim)), np.empty(self.dim)
            gaussian = self.noise.gaussian(self.dim + 1)
            count = release(self.clusters, c, gaussian, self.rules, gram, moment)
            statistics = write_statistics(Statistics(gram, moment, int(count)))
            self.link.to_global(self.server, Upload(write_id(self.ids[c]), statistics))

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart():
                self._report(message.phase)
            case Download():
                self._download(message)
            case Plan():
                self._adopt(message)
            case _:
                raise InvalidMessage(f"a local server does not take a {type(message).__name__}")

    def _download(self, message: Download) -> None:
        number = read_id(message.cluster)
        statistics = read_statistics(message.statistics, self.dim)
        if number in self.ids:
            c = self.ids.index(number)
            add_statistics(self.clusters, c, statistics.gram, statistics.moment, statistics.count)

    def _report(self, phase: int) -> None:
        """Alg. 2, lines 3–5: detect, perturb, report. The first leaf of a new tree covers it."""
        labels = self.detector.detect(self.users)
        count = int(labels.max()) + 1
        totals = total_by_label(self.users, labels, count)
        side = self.dim + 1 if self.depth else 0
        nodes, noise = np.zeros((count, self.depth, side, side)), np.zeros((count, side, side))
        ids = self._number(labels, count)
        clusters = []
        for c in range(count):
            total = Statistics.of(totals, c).shifted(self.rules.report_shift)
            if self.depth:
                gaussian = self.noise.gaussian(side)
                advance_tree(nodes[c], 1, gaussian, self.rules.noise_std, noise[c])
                total += Statistics(noise[c, : self.dim, : self.dim], noise[c, : self.dim, -1], 0)
            clusters.append(ClusterStatistics(write_id(ids[c]), write_statistics(total)))
        self.staged = _Staged(labels, ids, totals, nodes, noise)
        self.link.to_global(self.server, Report(phase, tuple(clusters)))

    def _number(self, labels: Indices, count: int) -> list[int]:
        """An id per cluster: the old one where the membership is the same, else a new one."""
        old_of = dict(zip(self._members(self.cluster_of, len(self.ids)), self.ids, strict=True))
        ids = []
        for members in self._members(labels, count):
            number = old_of.get(members)
            if number is None:
                number, self.next_id = self.next_id, self.next_id + 1
            ids.append(number)
        return ids

    @staticmethod
    def _members(labels: Indices, count: int) -> list[bytes]:
        order = np.argsort(labels, kind="stable")
        bounds = np.searchsorted(labels[order], np.arange(1, count))
        return [part.tobytes() for part in np.split(order, bounds)] if count else []

    def _adopt(self, plan: Plan) -> None:
        """Alg. 2, lines 8–16: start from the global statistics with fresh buffers."""
        if not plan.renew:
            self.staged = None
            return
        staged = self.staged
        if staged is None or [read_id(p.cluster) for p in plan.clusters] != staged.ids:
            raise InvalidMessage("a plan must cover exactly the clusters that were reported")
        starts = [read_statistics(entry.statistics, self.dim) for entry in plan.clusters]
        clusters = LocalClusters.zeros(len(staged.ids), self.dim, self.depth)
        now = total_by_label(self.users, staged.labels, len(staged.ids))
        clusters.nodes[:], clusters.noise[:] = staged.nodes, staged.noise
        clusters.leaves[:] = 1
        for c, (start, entry) in enumerate(zip(starts, plan.clusters, strict=True)):
            clusters.gram[c], clusters.moment[c] = start.gram, start.moment
            clusters.counts[c], clusters.sharing[c] = start.count, entry.sharing
            renew_buffer(clusters, c, self.noise.gaussian(self.dim + 1), self.rules)
            clusters.buffer_gram[c] += now.gram[c] - staged.totals.gram[c]
            clusters.buffer_moment[c] += now.moment[c] - staged.totals.moment[c]
            clusters.buffer_count[c] = now.counts[c] - staged.totals.counts[c]
        self.clusters, self.cluster_of, self.ids = clusters, staged.labels, staged.ids
        self.groups, self.staged = [entry.group for entry in plan.clusters], None

    def state_of(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and JSON-ready values from which `restore` continues; not while a plan is awaited."""
        arrays = flatten(self.users, "users.") | flatten(self.clusters, "clusters.")
        arrays |= {f"detector.{name}": array for name, array in self.detector.arrays().items()}
        arrays["cluster_of"] = self.cluster_of
        return arrays, {"ids": self.ids, "groups": self.groups, "next_id": self.next_id}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        for name, array in flatten(self.users, "users.").items():
            array[...] = arrays[name]
        prefix = "detector."
        own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.detector.restore(own)
        self.clusters = rebuild(self.clusters, arrays, "clusters.")
        self.cluster_of = arrays["cluster_of"]
        self.ids, self.groups = list(values["ids"]), list(values["groups"])
        self.next_id = int(values["next_id"])
        self.staged = None
