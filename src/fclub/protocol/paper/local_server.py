"""A local server: recommends to its users, finds clusters among them, exchanges cluster statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fclub.core.compiling import DirectCall
from fclub.core.lattice import on_grid, snap
from fclub.core.packing import flatten, inside, rebuild, under, with_row
from fclub.core.paper.federation import LocalClusters, absorb, add_statistics, recommend, release
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import (
    Packed,
    Statistics,
    observe,
    pack_statistics,
    total_by_label,
    unpack_statistics,
)
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.errors import CannotForget, CannotReplace, InvalidMessage, NumericalError
from fclub.privacy.ledger import Stream
from fclub.privacy.noise import NoiseSource, symmetric
from fclub.privacy.sensitivity import Domain, entry_std
from fclub.protocol.link import Uplink
from fclub.protocol.messages import (
    Message,
    PhaseStart,
    read_id,
    read_statistics,
    write_id,
    write_statistics,
)
from fclub.protocol.paper.accounts import Accounts
from fclub.protocol.paper.detection import Detection, Detector, serve_guests
from fclub.protocol.paper.messages import Download, Plan, Upload
from fclub.protocol.paper.phases import Phases
from fclub.protocol.paper.staged import Staged
from fclub.protocol.seam import (
    CHANGE,
    Beginning,
    Bound,
    LocalOverview,
    Outlook,
    Slotted,
    State,
)


class PaperLocal(Phases):
    """One server's users and local clusters; `cluster_of[row]` is the cluster of user `row`.

    `served_by[row]` is the same, but for newcomers who turn out to be like others.
    Between a report and its plan nothing is uploaded: what is observed in between belongs to the
    buffers that the plan starts. A server that is cut off then, or that has had no plan yet, goes on
    learning for itself: its due uploads are held.
    """

    by_user: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        users: Packed,
        rules: Rules,
        depth: int,
        detector: Detector,
        noise: NoiseSource,
        accounts: Accounts,
        link: Uplink,
    ) -> None:
        self.name = name
        self.users = self.room = users
        self.rules = rules
        self.depth = depth
        self.dim = users.moment.shape[1]
        self.detector = detector
        self.noise = noise
        self.accounts = accounts
        self.link = link
        self.cluster_of: Indices = np.zeros(len(users.counts), dtype=np.int64)
        self.served_by = self.cluster_of.copy()
        self.reported = 0
        self.ids: list[int] = []
        self.groups: list[int] = []
        self.clusters = LocalClusters.first(min(1, len(users.counts)), self.dim, depth, rules)
        self.staged: Staged | None = None
        self.held: list[tuple[int, Statistics]] = []
        self.asked: int | None = None
        self.answered = self.began = 0
        self.next_id = 0
        self.paused = False
        self._detection = None
        self._deviations = entry_std(Domain(), self.dim, rules.noise_std) if depth else np.zeros((0, 0))
        self._recommend, self._observe = DirectCall(recommend), DirectCall(observe)
        self._absorb, self._release = DirectCall(absorb), DirectCall(release)

    def add_user(self) -> int:
        """Let a new user join the cluster with most observations; returns its row.

        Before the first observation nothing tells it from those who are there: it is one of them.
        """
        row = len(self.users.counts)
        self.users, self.room = with_row(self.users, self.room)
        known = not self.users.counts.any()
        self.detector.add_user(known)
        if row == 0:
            self.clusters = LocalClusters.first(1, self.dim, self.depth, self.rules)
        largest = np.argmax(self.clusters.counts)
        self.cluster_of = np.append(self.cluster_of, largest)
        self.served_by = np.append(self.served_by, largest)
        if known:
            self.reported = row + 1
            if self.staged is not None:
                self.staged = self.staged._replace(labels=np.append(self.staged.labels, 0))
            if self._detection is not None:
                self._detection = Detection(self._detection.phase)
        self._answer()
        return row

    def _answer(self) -> None:
        """Send the report that was asked for while there was nobody to report, or no agreement."""
        if self.asked is not None and len(self.users.counts) and not self.paused:
            self._report(self.asked)

    def recommend(self, row: int, items: Matrix) -> int:
        """Alg. 1, line 12."""
        c = self.served_by[row]
        index: int = self._recommend(self.clusters, c, items, self.rules)
        if math.isnan(self.clusters.growth[c]):
            raise NumericalError(f"statistics of a cluster of server {self.name} are indefinite")
        return index

    def observe(self, row: int, x: Vector, y: float) -> None:
        """Alg. 1, line 13, and Alg. 3. What will be released with noise is rounded to the lattice."""
        if self.rules.noise_std > 0.0:
            x, y = snap(x, 0.0), on_grid(y)
        self._observe(self.users, row, x, y)
        c = int(self.served_by[row])
        if self._absorb(self.clusters, c, x, y, self.rules):
            gram, moment = np.empty((self.dim, self.dim)), np.empty(self.dim)
            count = self._release(self.clusters, c, self._draw(), self.rules, gram, moment)
            self._hand_out(c, Statistics(gram, moment, int(count)))
        if self.users.counts[row].bit_count() == 1 and row in self.detector.guests:
            serve_guests([row], self.users, self.clusters, self.served_by)

    def withhold(self, row: int, x: Vector, y: float) -> None:
        """Reports release all data again, each for a price of its own: nothing can be held back."""
        self.observe(row, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """Buffers and trees hold it in a sum."""
        raise CannotReplace("the printed algorithm cannot take a reward back; the plus family can")

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        """Hand out what was held meanwhile."""
        self.paused = False
        self._answer()
        if self.staged is None:
            held, self.held = self.held, []
            for c, statistics in held:
                self._hand_out(c, statistics)

    @property
    def slotted(self) -> Slotted | None:
        return None

    @property
    def used(self) -> int:
        return self.answered

    def begin(self, beginning: Beginning) -> None:
        """The global server knows nothing of the clusters, and starts a phase.

        An old store has lost entries of its ledger: it charges the phases that the other side knows.
        """
        self.staged, self.asked, self.held, self.ids, self.groups = None, None, [], [], []
        self._detection = None
        if beginning.local_old:
            self.accounts.lose(range(self.answered + 1, beginning.used + 1))
        self.answered = max(self.answered, beginning.used)

    def bound(self, row: int) -> Bound:
        """To score any item refreshes what the cluster's items are scored with."""
        self.recommend(row, np.zeros((1, self.dim)))
        c, clusters = int(self.served_by[row]), self.clusters
        return Bound(clusters.theta[c].copy(), clusters.inverse[c].copy(), float(clusters.radius[c]))

    def stored(self, row: int) -> Statistics:
        return Statistics.of(self.users, row).copy()

    def forget(self, row: int) -> int:
        """Buffers and trees hold a user's part and its neighbours' as one sum."""
        raise CannotForget(
            "the printed algorithm adds users up in the buffers of their clusters and cannot take one "
            "out again; a policy of the plus family can"
        )

    def _draw(self) -> Matrix:
        return symmetric(self.noise, self._deviations)

    def due(self) -> None:
        """There is never anything to do: the global server starts phases."""

    def _hand_out(self, c: int, statistics: Statistics) -> None:
        """Upload, or hold until there is a plan.

        Each noisy release stays a message of its own, and there are at most t_c of a cluster. Exact
        ones are without limit, so those of a cluster are held as their sum.
        """
        if self.staged is None and self.ids and not self.paused:
            self.accounts.upload(self.began, self.ids[c], statistics.count)
            message = Upload(write_id(self.ids[c]), write_statistics(statistics))
            self.link.to_global(message)
            return
        if self.rules.noise_std == 0.0:
            earlier = sum((st for k, st in self.held if k == c), Statistics.zeros(self.dim))
            self.held = [(k, st) for k, st in self.held if k != c]
            statistics = earlier + statistics
        self.held.append((c, statistics))

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

    @property
    def busy(self) -> bool:
        return self._detection is not None

    @property
    def unanswered(self) -> bool:
        """Whether a report was sent whose plan has not come."""
        return self.staged is not None

    @property
    def waiting(self) -> int:
        """Observations that the global server does not know of."""
        return int(self.clusters.buffer_count.sum()) + sum(st.count for _, st in self.held)

    @property
    def counts(self) -> Counts:
        return self.users.counts

    @property
    def theta(self) -> Floats:
        pairs = zip(self.clusters.gram, self.clusters.moment, strict=True)
        solved = [np.linalg.solve(gram, moment) for gram, moment in pairs]
        return np.array(solved).reshape(-1, self.dim)[self.served_by]

    @property
    def group_of(self) -> Indices:
        return np.array(self.groups, dtype=np.int64)[self.cluster_of]

    def streams(self) -> dict[str, Stream]:
        return self.accounts.streams(self.began)

    def overview(self) -> list[LocalOverview]:
        """Own data of an estimate are what its users have observed and uploaded."""
        clusters, rows = self.clusters, len(self.clusters.counts)
        users = np.bincount(self.served_by, minlength=rows)
        observed = np.bincount(self.served_by, weights=self.users.counts, minlength=rows)
        own = np.clip(observed - clusters.buffer_count, 0, clusters.counts)
        return [
            LocalOverview(
                cluster=self.ids[c] if self.ids else None,
                group=self.groups[c] if self.groups else None,
                users=int(users[c]),
                own=int(own[c]),
                others=int(clusters.counts[c] - own[c]),
                waiting=int(clusters.buffer_count[c]),
                shared_by=int(clusters.sharing[c]),
            )
            for c in range(rows)
        ]

    @property
    def outlook(self) -> Outlook:
        """Eq. 5: when data have changed the estimate enough."""
        return Outlook(CHANGE)

    def enter_uploads(self) -> None:
        """Enter what compiled code has uploaded: a tree's last leaf is the next release."""
        own = total_by_label(self.users, self.cluster_of, len(self.ids)).counts
        released, leaves = own - self.clusters.buffer_count, self.clusters.leaves
        for c, cluster in enumerate(self.ids):
            self.accounts.catch_up(self.began, cluster, int(leaves[c]) - 1, int(released[c]))

    def state(self) -> State:
        arrays = flatten(self.users, "users.") | flatten(self.clusters, "clusters.")
        arrays |= under("detector.", self.detector.state())
        arrays |= {"cluster_of": self.cluster_of, "served_by": self.served_by}
        arrays |= pack_statistics([statistics for _, statistics in self.held], self.dim, "held.")
        values: dict[str, Any] = {"ids": self.ids, "groups": self.groups, "next_id": self.next_id}
        values |= {"asked": self.asked, "held": [c for c, _ in self.held], "reported": self.reported}
        values |= {"answered": self.answered, "began": self.began}
        if self.staged is not None:
            arrays |= flatten(self.staged, "staged.")
            values["staged"] = {"phase": self.staged.phase, "ids": self.staged.ids}
        if self._detection is not None:
            arrays |= under("detection.", self._detection.state())
            values["detecting"] = self._detection.phase
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        if len(self.users.counts) != len(arrays["users.counts"]):
            self.users = self.room = Packed.zeros(len(arrays["users.counts"]), self.dim)
        for name, array in flatten(self.users, "users.").items():
            array[...] = arrays[name]
        self.detector.restore(inside("detector.", arrays))
        self.clusters = rebuild(self.clusters, arrays, "clusters.")
        self.cluster_of, self.served_by = arrays["cluster_of"], arrays["served_by"]
        self.ids, self.groups = list(values["ids"]), list(values["groups"])
        self.next_id, self.asked = int(values["next_id"]), values["asked"]
        self.reported, self.answered = int(values["reported"]), int(values["answered"])
        self.began = int(values["began"])
        self.held = list(zip(values["held"], unpack_statistics(arrays, "held."), strict=True))
        staged = values.get("staged")
        self.staged = None
        if staged is not None:
            empty = Staged.empty(**staged, dim=self.dim, depth=self.depth)
            self.staged = rebuild(empty, arrays, "staged.")
        self._detection, phase = None, values.get("detecting")
        if phase is not None:
            self._detection = Detection.restored(phase, inside("detection.", arrays), self.detector)
