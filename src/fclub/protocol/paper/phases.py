"""Alg. 2 at a local server: it finds clusters, reports them, and starts anew from the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from fclub.core.lattice import MOST_OBSERVATIONS
from fclub.core.paper.federation import LocalClusters
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import Packed, Statistics, total_by_label
from fclub.core.types import Indices, Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.link import Uplink
from fclub.protocol.messages import read_id, read_statistics, write_id, write_statistics
from fclub.protocol.numbering import number_clusters, numbers_of
from fclub.protocol.paper.accounts import Accounts
from fclub.protocol.paper.detection import Detection, Detector, Found, serve_guests
from fclub.protocol.paper.messages import ClusterStatistics, Plan, Report
from fclub.protocol.paper.staged import Staged
from fclub.protocol.seam import nothing


class Phases(ABC):
    """With `in_parts` clusters are found beside serving, from a copy, and reported after that.

    It is as if the phase had started then: in between the server goes on as before.
    """

    in_parts = False
    users: Packed
    rules: Rules
    depth: int
    dim: int
    detector: Detector
    accounts: Accounts
    link: Uplink
    cluster_of: Indices
    served_by: Indices
    clusters: LocalClusters
    ids: list[int]
    groups: list[int]
    reported: int
    next_id: int
    began: int
    answered: int
    asked: int | None
    staged: Staged | None
    held: list[tuple[int, Statistics]]
    paused: bool
    _detection: Detection | None

    @abstractmethod
    def _hand_out(self, c: int, statistics: Statistics) -> None:
        """Upload, or hold until there is a plan."""

    @property
    def _exact(self) -> bool:
        """Whether sums over users are exact, which noise has to be added to."""
        return self.rules.noise_std == 0.0 or self.users.counts.sum() <= MOST_OBSERVATIONS

    @abstractmethod
    def _draw(self) -> Matrix:
        """The noise of one release."""

    def _report(self, phase: int) -> None:
        """Alg. 2, lines 3–5: detect, perturb, report. The first leaf of a new tree covers it.

        A server without users has nothing to report: it answers when the first one comes. Without a
        budget for one more report it stays silent and goes on with the trees that are paid.
        """
        if phase <= max(self.answered, 0 if self._detection is None else self._detection.phase):
            raise InvalidMessage(f"phase {phase} after phase {self.answered} was answered")
        self.asked = None if len(self.users.counts) else phase
        if self.asked is not None or not self._may_report(phase):
            return
        if self.in_parts:
            self._detection = Detection(phase)
        else:
            self._tell(phase, self.detector.detect(self.users))

    def _may_report(self, phase: int) -> bool:
        return self._exact and self.accounts.admits(phase)

    def part(self) -> Callable[[], None]:
        """Copy what clusters are found from elsewhere; then report what was found."""
        work = self._detection
        assert work is not None
        if work.found is not None:
            self._detection = None
            self._take(work.phase, work.found)
            return nothing
        users, detector = self.users.copy(), self.detector.copy()

        def detect() -> None:
            work.found = Found(detector.detect(users), detector)

        return detect

    def _take(self, phase: int, found: Found) -> None:
        """Users who have come meanwhile are guests. Who may tell nothing now is asked again later."""
        if self.paused:
            self.asked = phase
        elif self._may_report(phase):
            self.detector = found.detector
            for _ in range(len(self.users.counts) - len(found.labels)):
                self.detector.add_user(known=False)
            self._tell(phase, found.labels)

    def _tell(self, phase: int, labels: Indices) -> None:
        """Report these clusters, of all users but those who have come since."""
        self.answered = phase
        count = int(labels.max()) + 1
        totals = total_by_label(self.users.slice(0, len(labels)), labels, count)
        known = numbers_of(self.cluster_of[: self.reported], self.ids)
        ids, self.next_id = number_clusters(labels, count, known, self.next_id)
        staged = Staged.of(phase, ids, labels, totals, self.depth)
        clusters = []
        for c, number in enumerate(ids):
            self.accounts.report(phase, number, int(totals.counts[c]))
            released = staged.release(c, self._draw, self.rules)
            clusters.append(ClusterStatistics(write_id(number), write_statistics(released)))
        self.staged = staged
        self.link.to_global(Report(phase, tuple(clusters)))

    def _adopt(self, plan: Plan) -> None:
        """Alg. 2, lines 8–16: start from the global statistics with fresh buffers.

        A plan for a report that a later one has replaced is void.
        """
        staged, held = self.staged, self.held
        if staged is None or staged.phase != plan.phase or not self._exact:
            return
        if plan.renew and [read_id(p.cluster) for p in plan.clusters] != staged.ids:
            raise InvalidMessage("a plan must cover exactly the clusters that were reported")
        starts = [
            (read_statistics(entry.statistics, self.dim), entry.sharing) for entry in plan.clusters
        ]
        self.staged, self.held = None, []
        if not plan.renew:
            for c, statistics in held:
                self._hand_out(c, statistics)
            return
        largest = np.argmax(staged.totals.counts)
        newcomers = np.full(len(self.users.counts) - len(staged.labels), largest, dtype=np.int64)
        labels = np.concatenate([staged.labels, newcomers])
        now = total_by_label(self.users, labels, len(staged.ids))
        self.clusters = staged.start(starts, now, self._draw, self.rules)
        self.cluster_of, self.ids = labels, staged.ids
        self.served_by = labels.copy()
        serve_guests(self.detector.guests, self.users, self.clusters, self.served_by)
        self.reported, self.began = len(staged.labels), staged.phase
        self.groups = [entry.group for entry in plan.clusters]
