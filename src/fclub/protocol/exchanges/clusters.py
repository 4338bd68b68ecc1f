"""Clusters in phases (Alg. 2–4): reports, plans, and increments in between, exact or with tree noise.

At the start of a phase every server reports its clusters, and the global server answers with a plan.
Between phases clusters upload what they have learned, and download what others have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isnan, log2, sqrt
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fclub.core.clustering import merge, number_by_first
from fclub.core.compiling import DirectCall
from fclub.core.kernels import log_determinant
from fclub.core.lattice import MOST_OBSERVATIONS
from fclub.core.models import estimate_all
from fclub.core.noise import advance_tree
from fclub.core.packing import flatten, inside, rebuild
from fclub.core.paper.federation import (
    GlobalClusters,
    LocalClusters,
    download_due,
    receive_upload,
    renew_buffer,
    take_download,
)
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import (
    Packed,
    Statistics,
    pack_statistics,
    total_by_label,
    unpack_statistics,
)
from fclub.core.types import Floats, Indices, Matrix
from fclub.errors import InvalidMessage, PrivacyError
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.mechanisms import WholeTree
from fclub.privacy.noise import NoiseSource, symmetric
from fclub.privacy.sensitivity import Domain, entry_std, noised_places, sensitivity
from fclub.protocol.interfaces.exchange import Account, Beginning, GlobalStatus, Moment, Status
from fclub.protocol.interfaces.learner import Job, State
from fclub.protocol.interfaces.overview import (
    CHANGE,
    GlobalOverview,
    LocalOverview,
    Member,
    Outlook,
    global_overview,
)
from fclub.protocol.learners.edges import Edges, Increment, Partition, Start, upload_job
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import (
    Count,
    Decoder,
    Message,
    Part,
    PhaseStart,
    check_named,
    check_statistics,
    encode,
    read_id,
    read_statistics,
    write_id,
    write_statistics,
)
from fclub.protocol.numbering import number_clusters, numbers_of


class ClusterStatistics(msgspec.Struct, frozen=True, array_like=True):
    """Released statistics of one local cluster."""

    cluster: bytes
    statistics: bytes


class ClusterPlan(msgspec.Struct, frozen=True, array_like=True):
    """What a local cluster starts a phase from: S^g, u^g, T^g of `group`, shared by L′ = `sharing`."""

    cluster: bytes
    statistics: bytes
    sharing: int
    group: int


class Upload(Message, frozen=True, array_like=True, tag="upload"):
    """Alg. 3: an increment (ΔS, Δu, ΔT) of a local cluster."""

    cluster: bytes
    statistics: bytes

    def count(self) -> Count:
        return Count(uploads=1)

    def parts(self) -> Sequence[Part]:
        return (self,)


class Download(Message, frozen=True, array_like=True, tag="download"):
    """Alg. 4: what other members of its global cluster have uploaded."""

    cluster: bytes
    statistics: bytes

    def count(self) -> Count:
        return Count(downloads=1)


class Report(Message, frozen=True, array_like=True, tag="report"):
    """Alg. 2, line 5: all local clusters of a server."""

    phase: int
    clusters: tuple[ClusterStatistics, ...]

    def count(self) -> Count:
        return Count(phases=len(self.clusters))

    def parts(self) -> Sequence[Part]:
        return self.clusters


class Plan(Message, frozen=True, array_like=True, tag="plan"):
    """Alg. 2, lines 8–16: the outcome of the merge; without `renew` everything stays as it was."""

    phase: int
    renew: bool
    clusters: tuple[ClusterPlan, ...]

    def count(self) -> Count:
        return Count(phases=len(self.clusters))


decode = Decoder(Upload, Download, PhaseStart, Report, Plan)


@lru_cache(maxsize=64)
def event_size(dim: int) -> tuple[int, int]:
    """Bytes of any upload and of any download in dimension d."""
    cluster, statistics = write_id(0), write_statistics(Statistics.zeros(dim))
    return len(encode(Upload(cluster, statistics))), len(encode(Download(cluster, statistics)))


def check_upload(statistics: Statistics, total: Matrix, rules: Rules) -> None:
    """An increment of a local cluster whose global cluster has the Gram matrix `total`."""
    nodes = 2.0 * (log2(rules.uploads + 1) + 2.0)
    check_statistics(statistics, rules.upload_shift, rules.noise_std * sqrt(nodes))
    if isnan(log_determinant(total + statistics.gram)):
        raise InvalidMessage("an upload makes the statistics of its global cluster indefinite")


def check_report(
    phase: int, current: int, clusters: list[tuple[int, Statistics]], rules: Rules
) -> None:
    """All clusters of a server, in answer to a phase that has been announced."""
    if not 1 <= phase <= current:
        raise InvalidMessage(f"a report for phase {phase}, the current one is {current}")
    if not clusters:
        raise InvalidMessage("a report of 0 clusters")
    check_named([cluster for cluster, _ in clusters], "report")
    for _, statistics in clusters:
        check_statistics(statistics, rules.report_shift, rules.noise_std)
        if isnan(log_determinant(statistics.gram)):
            raise InvalidMessage("reported statistics are indefinite")


class Accounts:
    """Enters what leaves before the link gets it. A stream is a cluster since its report.

    These charge nothing: the release of exact statistics has no finite price.
    """

    def admits(self, phase: int) -> bool:
        """Whether a report may leave in this phase."""
        return True

    def report(self, phase: int, cluster: int, observations: int) -> None:
        """A cluster is about to be reported, with all observations of its users."""

    def upload(self, phase: int, cluster: int, observations: int) -> None:
        """A cluster that was reported in that phase is about to upload."""

    def lose(self, phases: range) -> None:
        """Charge phases whose entries were lost."""

    def catch_up(self, phase: int, cluster: int, releases: int, observations: int) -> None:
        """Enter the releases that compiled code has made; `releases` is the number of all so far."""

    def streams(self, phase: int) -> dict[str, Stream]:
        """The streams of the clusters that were reported in that phase."""
        return {}


def phase_tree(uploads: int, std: float, dim: int) -> WholeTree:
    """What a reported cluster is paid for: its report and `uploads` uploads."""
    return WholeTree(uploads + 1, std, len(noised_places(Domain(), dim)[0]))


class TreeAccounts(Accounts):
    """The printed mechanism: one tree per reported cluster, paid in full with the report.

    A report releases all data again, so a phase is an epoch, and phases add up; clusters of a phase
    hold disjoint data. Trees are paid in advance, so a phase that starts can be played to its end.
    """

    def __init__(self, ledger: Ledger, uploads: int, std: float, dim: int, name: str) -> None:
        self.ledger, self.name = ledger, name
        self._tree = phase_tree(uploads, std, dim)
        self._sensitivity = sensitivity(Domain(), dim)
        if not self.admits(0):
            raise PrivacyError("the budget does not allow a single phase")

    def admits(self, phase: int) -> bool:
        return self.ledger.admits(self._tree, self._sensitivity, epoch=phase)

    def _stream(self, phase: int, cluster: int) -> str:
        return f"{self.name}/{phase}/{cluster}"

    def report(self, phase: int, cluster: int, observations: int) -> None:
        stream = self._stream(phase, cluster)
        self.ledger.open(stream, self._tree, self._sensitivity, epoch=phase)
        self.ledger.release(stream, observations)

    def upload(self, phase: int, cluster: int, observations: int) -> None:
        self.ledger.release(self._stream(phase, cluster), observations)

    def lose(self, phases: range) -> None:
        """Each was admitted when it left, so they fit; a phase that was left out is paid too."""
        for phase in phases:
            if self.admits(phase):
                self.ledger.open(f"{self.name}/{phase}/lost", self._tree, self._sensitivity, phase)

    def catch_up(self, phase: int, cluster: int, releases: int, observations: int) -> None:
        stream = self._stream(phase, cluster)
        entered = self.ledger.streams[stream]
        if releases > entered.sequence:
            new = observations - entered.observations
            self.ledger.release(stream, new, releases - entered.sequence)

    def streams(self, phase: int) -> dict[str, Stream]:
        return {name: one for name, one in self.ledger.streams.items() if one.epoch == phase}


Draw = Callable[[], Matrix]
"""New noise for one node of a tree."""


class Staged(NamedTuple):
    """A partition that was reported in a phase and waits for its plan."""

    phase: int
    ids: list[int]
    labels: Indices
    totals: Packed
    nodes: Floats
    noise: Floats

    @staticmethod
    def of(phase: int, ids: list[int], labels: Indices, totals: Packed, depth: int) -> Staged:
        """One tree per cluster, without a leaf; none where there is no depth."""
        count, dim = totals.moment.shape
        side = dim + 1 if depth else 0
        nodes, noise = np.zeros((count, depth, side, side)), np.zeros((count, side, side))
        return Staged(phase, ids, labels, totals, nodes, noise)

    @staticmethod
    def empty(phase: int, ids: list[int], dim: int, depth: int) -> Staged:
        labels: Indices = np.zeros(0, dtype=np.int64)
        return Staged.of(phase, ids, labels, Packed.zeros(0, dim), depth)

    def release(self, c: int, draw: Draw, rules: Rules) -> Statistics:
        """Alg. 2, lines 4–5: what is reported of a cluster. The first leaf of its tree covers it."""
        total = Statistics.of(self.totals, c).shifted(rules.report_shift)
        if not self.nodes.shape[1]:
            return total
        noise, dim = self.noise[c], total.dim
        advance_tree(self.nodes[c], 1, draw(), noise)
        return total + Statistics(noise[:dim, :dim], noise[:dim, -1], 0)

    def start(
        self, starts: list[tuple[Statistics, int]], now: Packed, draw: Draw, rules: Rules
    ) -> LocalClusters:
        """Alg. 2, lines 8–16: clusters that start from global statistics shared by so many.

        Their buffers hold what was observed since the report; `now` is all that has been observed.
        """
        count, dim = self.totals.moment.shape
        clusters = LocalClusters.zeros(count, dim, self.nodes.shape[1])
        clusters.nodes[:], clusters.noise[:] = self.nodes, self.noise
        clusters.leaves[:] = 1
        for c, (start, sharing) in enumerate(starts):
            clusters.gram[c], clusters.moment[c] = start.gram, start.moment
            clusters.counts[c], clusters.sharing[c] = start.count, sharing
            renew_buffer(clusters, c, draw(), rules)
            clusters.buffer_gram[c] += now.gram[c] - self.totals.gram[c]
            clusters.buffer_moment[c] += now.moment[c] - self.totals.moment[c]
            clusters.buffer_count[c] = now.counts[c] - self.totals.counts[c]
        return clusters


class ClusterLocal:
    """Reports the learner's clusters when a phase starts, and uploads their buffers when they are full.

    Between a report and its plan nothing is uploaded: what is observed in between belongs to the
    buffers that the plan starts. A server that is cut off then, or that has had no plan yet, goes on
    learning for itself: its due uploads are `held`. If clusters are found beside serving it is as if
    the phase had started when they are reported: in between the server goes on as before.

    `ids` and `groups` are those of the learner's clusters, since the phase `began`, whose report held
    the first `reported` users. The report of phase `asked` waits until it can be sent; `answered` is
    the last one that was.
    """

    supports: frozenset[str] = frozenset()
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(
        self, learner: Edges, rules: Rules, noise: NoiseSource, accounts: Accounts, link: Uplink
    ) -> None:
        self.learner, self.rules, self.noise = learner, rules, noise
        self.accounts, self.link = accounts, link
        self.ids: list[int] = []
        self.groups: list[int] = []
        self.staged: Staged | None = None
        self.held: list[tuple[int, Statistics]] = []
        self.asked: int | None = None
        self.detecting = 0
        self.answered = self.began = self.reported = self.next_id = 0
        depth, dim = learner.depth, learner.dim
        self._deviations = entry_std(Domain(), dim, rules.noise_std) if depth else np.zeros((0, 0))

    def _draw(self) -> Matrix:
        """The noise of one release."""
        return symmetric(self.noise, self._deviations)

    def visited(self, row: int) -> Job | None:
        """Alg. 3; a first user makes the report possible that was asked for before."""
        learner, staged = self.learner, self.staged
        if learner.full is not None:
            job = upload_job(learner.full, self._draw())
            learner.contribute(job)
            self._hand_out(job.ask["cluster"], Statistics(**job.total))
        if self.reported < learner.settlers:
            self.reported = learner.settlers
            if staged is not None:
                self.staged = staged._replace(labels=np.append(staged.labels, 0))
        return self._answer()

    def _answer(self) -> Job | None:
        """Send the report that was asked for while there was nobody to report, or no agreement."""
        if self.asked is None or not len(self.learner.counts) or self.paused:
            return None
        return self._report(self.asked)

    def withhold(self, row: int, part: Statistics) -> None:
        """Reports release all data again, each for a price of its own: nothing can be held back."""

    def forget(self, row: int) -> Any:
        """Not supported."""

    def due(self, moment: Moment | None) -> None:
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
            earlier = sum((st for k, st in self.held if k == c), Statistics.zeros(self.learner.dim))
            self.held = [(k, st) for k, st in self.held if k != c]
            statistics = earlier + statistics
        self.held.append((c, statistics))

    def _hand_out_held(self) -> None:
        held, self.held = self.held, []
        for c, statistics in held:
            self._hand_out(c, statistics)

    def receive(self, message: Message) -> Job | None:
        match message:
            case PhaseStart():
                return self._report(message.phase)
            case Download():
                self._download(message)
            case Plan():
                self._adopt(message)
            case _:
                raise InvalidMessage(f"a local server does not take a {type(message).__name__}")
        return None

    def _download(self, message: Download) -> None:
        number = read_id(message.cluster)
        statistics = read_statistics(message.statistics, self.learner.dim)
        if number in self.ids:
            self.learner.absorb(Increment(self.ids.index(number), statistics))

    @property
    def _exact(self) -> bool:
        """Whether sums over users are exact, which noise has to be added to."""
        return self.rules.noise_std == 0.0 or self.learner.counts.sum() <= MOST_OBSERVATIONS

    def _may_report(self, phase: int) -> bool:
        return self._exact and self.accounts.admits(phase)

    def _report(self, phase: int) -> Job | None:
        """Alg. 2, lines 3–5: detect, perturb, report. The first leaf of a new tree covers it.

        A server without users has nothing to report: it answers when the first one comes. Without a
        budget for one more report it stays silent and goes on with the trees that are paid.
        """
        if phase <= max(self.answered, self.detecting):
            raise InvalidMessage(f"phase {phase} after phase {self.answered} was answered")
        users = len(self.learner.counts)
        self.asked = None if users else phase
        if self.asked is not None or not self._may_report(phase):
            return None
        self.detecting = phase
        return Job("partition", rows=users, ask={"phase": phase})

    def finish(self, job: Job) -> None:
        """Report what was found. Who may tell nothing now is asked again later."""
        phase, self.detecting = job.ask["phase"], 0
        if self.paused:
            self.asked = phase
        elif self._may_report(phase):
            labels = job.total.pop("labels")
            self.learner.absorb(Partition(labels, inside("detector.", job.total)))
            self._tell(phase, labels)

    def _tell(self, phase: int, labels: Indices) -> None:
        """Report these clusters, of all users but those who have come since."""
        self.answered, learner = phase, self.learner
        count = int(labels.max()) + 1
        totals = total_by_label(learner.users.slice(0, len(labels)), labels, count)
        known = numbers_of(learner.cluster_of[: self.reported], self.ids)
        ids, self.next_id = number_clusters(labels, count, known, self.next_id)
        staged = Staged.of(phase, ids, labels, totals, learner.depth)
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
        staged, learner = self.staged, self.learner
        if staged is None or staged.phase != plan.phase or not self._exact:
            return
        if plan.renew and [read_id(p.cluster) for p in plan.clusters] != staged.ids:
            raise InvalidMessage("a plan must cover exactly the clusters that were reported")
        starts = [
            (read_statistics(entry.statistics, learner.dim), entry.sharing) for entry in plan.clusters
        ]
        self.staged = None
        if not plan.renew:
            self._hand_out_held()
            return
        self.held = []
        largest = np.argmax(staged.totals.counts)
        newcomers = np.full(len(learner.counts) - len(staged.labels), largest, dtype=np.int64)
        labels = np.concatenate([staged.labels, newcomers])
        now = total_by_label(learner.users, labels, len(staged.ids))
        clusters = staged.start(starts, now, self._draw, self.rules)
        learner.absorb(Start(labels, clusters))
        self.ids, self.groups = staged.ids, [entry.group for entry in plan.clusters]
        self.reported, self.began = len(staged.labels), staged.phase

    def resume(self) -> Job | None:
        """Hand out what was held meanwhile."""
        job = self._answer()
        if self.staged is None:
            self._hand_out_held()
        return job

    def start_session(self, beginning: Beginning) -> None:
        """The global server knows nothing of the clusters, and starts a phase.

        An old store has lost entries of its ledger: it charges the phases that the other side knows.
        """
        self.staged, self.asked, self.held, self.ids, self.groups = None, None, [], [], []
        self.detecting = 0
        if beginning.local_old:
            self.accounts.lose(range(self.answered + 1, beginning.used + 1))
        self.answered = max(self.answered, beginning.used)

    def status(self) -> Status:
        """Eq. 5: it sends when data have changed an estimate enough."""
        held = sum(statistics.count for _, statistics in self.held)
        return Status(
            waiting=int(self.learner.clusters.buffer_count.sum()) + held,
            outlook=Outlook(CHANGE),
            unanswered=self.staged is not None,
            used=self.answered,
            streams=self.accounts.streams(self.began),
        )

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        waiting = self.learner.clusters.buffer_count.tolist()
        found = [replace(one, waiting=n) for one, n in zip(clusters, waiting, strict=True)]
        if not self.ids:
            return found
        heard = zip(found, self.ids, self.groups, strict=True)
        return [replace(one, cluster=cluster, group=group) for one, cluster, group in heard]

    def enter_uploads(self) -> None:
        """Enter what compiled code has uploaded: a tree's last leaf is the next release."""
        learner = self.learner
        own = total_by_label(learner.users, learner.cluster_of, len(self.ids)).counts
        released, leaves = own - learner.clusters.buffer_count, learner.clusters.leaves
        for c, cluster in enumerate(self.ids):
            self.accounts.catch_up(self.began, cluster, int(leaves[c]) - 1, int(released[c]))

    def state(self) -> State:
        held = [statistics for _, statistics in self.held]
        arrays = pack_statistics(held, self.learner.dim, "held.")
        values: dict[str, Any] = {"held": [c for c, _ in self.held], "staged": None}
        values |= {name: getattr(self, name) for name in self._NUMBERS}
        if self.staged is not None:
            arrays |= flatten(self.staged, "staged.")
            values["staged"] = {"phase": self.staged.phase, "ids": self.staged.ids}
        return arrays, values

    _NUMBERS = ("ids", "groups", "next_id", "asked", "reported", "answered", "began", "detecting")

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        for name in self._NUMBERS:
            setattr(self, name, values[name])
        self.held = list(zip(values["held"], unpack_statistics(arrays, "held."), strict=True))
        self.staged = None
        if values["staged"] is not None:
            empty = Staged.empty(**values["staged"], dim=self.learner.dim, depth=self.learner.depth)
            self.staged = rebuild(empty, arrays, "staged.")


Reported = list[tuple[int, Statistics]]
"""All clusters of a server by number."""


class PhaseClock:
    """Counts observations; phase s starts before round 2^s − 1, once 2^s − 2 of them are complete.

    In simulation the count is the number of rounds; a live global server feeds it the reported total.
    """

    def __init__(self, phase: int = 0) -> None:
        self.phase = phase

    @staticmethod
    def phases(observations: int) -> int:
        """How many have started when so many observations are complete."""
        return (observations + 2).bit_length() - 1

    @property
    def next_start(self) -> int:
        """The number of completed observations at which the next phase starts."""
        return (1 << (self.phase + 1)) - 2

    def advance(self, observations: int) -> bool:
        """Whether a new phase starts now. A count that jumps over several starts only the last."""
        if observations < self.next_start:
            return False
        while observations >= self.next_start:
            self.phase += 1
        return True

    def state(self) -> list[int]:
        return [self.phase]

    def restore(self, state: list[int]) -> None:
        (self.phase,) = state


class ClusterGlobal:
    """Knows local clusters only by server, opaque id and released statistics.

    In the printed algorithm Eq. 6 is looked at after every upload. If it `gathers`, as a live one does,
    that waits until all uploads that have arrived together are added.
    """

    def __init__(self, dim: int, servers: list[int], rules: Rules, merging: float, link: Downlink):
        self.dim = dim
        self.servers = sorted(servers)
        self.rules = rules
        self.merging = merging
        self.link = link
        self.clock = PhaseClock()
        self.phase = 0
        self.waiting: set[int] | None = None
        self.reports: dict[int, Reported] = {}
        self.heard: dict[int, int] = {}
        self.members: list[Member] = []
        self.released: list[Statistics] = []
        self.clusters = GlobalClusters.zeros(np.zeros(0, dtype=np.int64), dim)
        self.gathers = False
        self._uploaded: set[int] = set()
        self._receive_upload, self._download_due = DirectCall(receive_upload), DirectCall(download_due)

    def status(self) -> GlobalStatus:
        reported = int(self.clusters.counts.sum())
        return GlobalStatus(self.phase, reported, self.clock.next_start, self.waiting or ())

    def account(self, server: int) -> Account:
        """Every phase releases all data again, and is paid."""
        rows = zip(self.members, self.released, strict=True)
        released = sum(st.count for (owner, _), st in rows if owner == server)
        return Account(released, float(self.phase if released else 0), self.heard.get(server, 0))

    def overview(self) -> list[GlobalOverview]:
        return global_overview(self.members, self.clusters.group, self.clusters.counts)

    def invite(self, servers: int) -> None:
        """Live: let servers 0, 1, … take part; start the first phase, or ask the new ones to join."""
        new = range(len(self.servers), servers)
        self.servers = list(range(servers))
        if self.phase == 0:
            self.advance(overdue=False)
            return
        for server in new:
            self.ask(server)

    def due(self, now: float) -> None:
        """It has no times."""

    def advance(self, overdue: bool) -> None:
        """Live: start the next phase once the reported total calls for it and the last one is over."""
        self._send_due()
        if overdue and self.waiting is not None:
            self.close_phase()
        if self.waiting is None and self.clock.advance(self.status().reported):
            self.begin_phase(self.clock.phase)

    def begin_phase(self, phase: int) -> None:
        """Ask every local server for a report; the last one to answer closes the phase."""
        self.phase = phase
        self.waiting = set(self.servers)
        for server in self.servers:
            self.ask(server)

    def ask(self, server: int) -> None:
        """Ask one server for its report in the current phase."""
        self.link.to_local(server, PhaseStart(self.phase))

    def start_session(self, server: int, beginning: Beginning) -> None:
        """Forget the server's part and start a phase; a server that has reported nothing is just asked.

        The phase is one that neither side has heard of, since each has its own price.
        """
        self._send_due()
        known = self.reports.pop(server, None) is not None or any(m[0] == server for m in self.members)
        if not known and beginning.used < self.phase:
            self.ask(server)
            return
        rest = [row for row, member in enumerate(self.members) if member[0] != server]
        group = number_by_first(self.clusters.group[rest])
        released = [self.released[row] for row in rest]
        self._renew([self.members[row] for row in rest], released, group, set())
        self.reports = {}
        self.clock = PhaseClock(max(self.phase, beginning.used) + 1)
        self.begin_phase(self.clock.phase)

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Upload():
                self._upload(server, message)
            case Report():
                self._report(server, message)
            case _:
                raise InvalidMessage(f"the global server does not take a {type(message).__name__}")

    def _report(self, server: int, message: Report) -> None:
        """A report of the present phase counts when all are there, or at once if the phase is closed.

        A report of an earlier phase says nothing any more.
        """
        clusters = [
            (read_id(entry.cluster), read_statistics(entry.statistics, self.dim))
            for entry in message.clusters
        ]
        check_report(message.phase, self.phase, clusters, self.rules)
        self._send_due()
        self.heard[server] = message.phase
        if message.phase < self.phase:
            return
        self.reports[server] = clusters
        if self.waiting is None:
            self._join(server)
            return
        self.waiting.discard(server)
        if not self.waiting:
            self.close_phase()

    def _upload(self, server: int, message: Upload) -> None:
        """Alg. 3, lines 3–7."""
        statistics = read_statistics(message.statistics, self.dim)
        member = self._member(server, read_id(message.cluster))
        k = self.clusters.group[member]
        check_upload(statistics, self.clusters.gram[k], self.rules)
        self.released[member] += statistics
        parts = statistics.gram, statistics.moment, statistics.count
        self._receive_upload(self.clusters, member, *parts, self.rules)
        self._uploaded.add(int(k))
        if not self.gathers:
            self._send_due()

    def _send_due(self) -> None:
        """Alg. 4 for the members of global clusters with an upload since the last time."""
        changed, self._uploaded = sorted(self._uploaded), set()
        for k in changed:
            for other in self.clusters.members[self.clusters.starts[k] : self.clusters.starts[k + 1]]:
                if self._download_due(self.clusters, other, self.rules):
                    self._send_download(int(other))

    def _member(self, server: int, cluster: int) -> int:
        try:
            return self.members.index((server, cluster))
        except ValueError:
            raise InvalidMessage(f"server {server} has no cluster {cluster}") from None

    def _send_download(self, member: int) -> None:
        gram, moment = np.empty((self.dim, self.dim)), np.empty(self.dim)
        count = take_download(self.clusters, member, gram, moment)
        server, cluster = self.members[member]
        statistics = write_statistics(Statistics(gram, moment, int(count)))
        self.link.to_local(server, Download(write_id(cluster), statistics))

    def close_phase(self) -> None:
        """Alg. 2, lines 7–16: merge; if the partition has changed, all servers start anew from it.

        A server that has not answered takes part with what it has released so far.
        """
        self.waiting = None
        present, self.reports = self.reports, {}
        members, released = _latest_members(self.members, self.released, present)
        group = _merge_members(members, released, self.merging)
        renew = _partition(members, group) != _partition(self.members, self.clusters.group)
        if renew:
            self._renew(members, released, group, set(present))
        for server in sorted(present):
            self.link.to_local(server, self._plan(server, renew))

    def _join(self, server: int) -> None:
        """A late report: each new cluster goes to a group that it would merge with, or stays alone.

        The others keep their groups and get the difference as a download.
        """
        present, self.reports = self.reports, {}
        members, released = _latest_members(self.members, self.released, present)
        close = _merge_members(members, released, self.merging)
        old = {m: int(k) for m, k in zip(self.members, self.clusters.group, strict=True)}
        group = [old.get(m, -1) for m in members]
        fresh = len(self.clusters.counts)
        for row in range(len(members)):
            if group[row] < 0:
                near = [group[i] for i in np.flatnonzero(close == close[row]) if group[i] >= 0]
                group[row], fresh = (near[0], fresh) if near else (fresh, fresh + 1)
        self._renew(members, released, number_by_first(np.array(group)), {server})
        self.link.to_local(server, self._plan(server, renew=True))

    def _renew(
        self, members: list[Member], released: list[Statistics], group: Indices, planned: set[int]
    ) -> None:
        """(S^g, u^g, T^g) = the sum over a global cluster; planned servers start from it.

        What the others hold stays S^g minus their pending download: the difference becomes pending.
        """
        state = GlobalClusters.zeros(group, self.dim)
        for k, statistics in zip(group, released, strict=True):
            state.gram[k] += statistics.gram
            state.moment[k] += statistics.moment
            state.counts[k] += statistics.count
        for k in range(len(state.counts)):
            state.logdet[k] = log_determinant(state.gram[k])
        state.member_logdet[:] = state.logdet[group]
        old = {member: row for row, member in enumerate(self.members)}
        for row, member in enumerate(members):
            if member[0] not in planned:
                self._correct(state, row, old[member])
        self.members, self.released, self.clusters = members, released, state

    def _correct(self, state: GlobalClusters, row: int, old_row: int) -> None:
        old, k, old_k = self.clusters, state.group[row], self.clusters.group[old_row]
        held = old.gram[old_k] - old.pending_gram[old_row]
        state.pending_gram[row] = state.gram[k] - held
        state.pending_moment[row] = state.moment[k] - old.moment[old_k] + old.pending_moment[old_row]
        state.pending_count[row] = state.counts[k] - old.counts[old_k] + old.pending_count[old_row]
        state.member_logdet[row] = log_determinant(held)

    def _plan(self, server: int, renew: bool) -> Plan:
        entries = []
        for row, (owner, cluster) in enumerate(self.members):
            if renew and owner == server:
                k = int(self.clusters.group[row])
                statistics = Statistics(
                    self.clusters.gram[k], self.clusters.moment[k], int(self.clusters.counts[k])
                )
                sharing = int(self.clusters.starts[k + 1] - self.clusters.starts[k])
                entries.append(ClusterPlan(write_id(cluster), write_statistics(statistics), sharing, k))
        return Plan(self.phase, renew, tuple(entries))

    def state(self) -> State:
        arrays = flatten(self.clusters, "world.")
        arrays |= pack_statistics(self.released, self.dim, "released.")
        values: dict[str, Any] = {"phase": self.phase, "members": self.members, "reports": {}}
        values["heard"] = list(self.heard.items())
        values["waiting"] = None if self.waiting is None else sorted(self.waiting)
        for server, clusters in self.reports.items():
            values["reports"][str(server)] = [cluster for cluster, _ in clusters]
            arrays |= pack_statistics([st for _, st in clusters], self.dim, f"report{server}.")
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.clusters = rebuild(self.clusters, arrays, "world.")
        self.members = [(int(owner), int(cluster)) for owner, cluster in values["members"]]
        self.released = unpack_statistics(arrays, "released.")
        self.phase = int(values["phase"])
        self.clock = PhaseClock(self.phase)
        self.heard = dict(values["heard"])
        self.waiting = None if values["waiting"] is None else set(values["waiting"])
        self.reports = {
            int(server): list(zip(ids, unpack_statistics(arrays, f"report{server}."), strict=True))
            for server, ids in values["reports"].items()
        }


def _latest_members(
    members: list[Member], released: list[Statistics], present: dict[int, Reported]
) -> tuple[list[Member], list[Statistics]]:
    """Members by server, with their report where there is one, else with their releases."""
    rows = [(m, st) for m, st in zip(members, released, strict=True) if m[0] not in present]
    for server, clusters in present.items():
        rows += [((server, cluster), statistics) for cluster, statistics in clusters]
    rows.sort(key=lambda row: row[0][0])
    return [member for member, _ in rows], [statistics for _, statistics in rows]


def _merge_members(members: list[Member], released: list[Statistics], factor: float) -> Indices:
    """The group of each member: those of different servers with like estimates are together."""
    if not members:
        return np.zeros(0, dtype=np.int64)
    moment = np.array([statistics.moment for statistics in released])
    theta: Floats = np.empty_like(moment)
    estimate_all(np.array([statistics.gram for statistics in released]), moment, 0.0, theta)
    count = np.array([statistics.count for statistics in released], dtype=np.int64)
    server = np.array([server for server, _ in members], dtype=np.int64)
    return merge(theta, count, server, factor)


def _partition(members: list[Member], group: Indices) -> frozenset[frozenset[Member]]:
    """Who is together with whom, whatever the groups are called."""
    parts: dict[int, set[Member]] = {}
    for member, k in zip(members, group, strict=True):
        parts.setdefault(int(k), set()).add(member)
    return frozenset(frozenset(part) for part in parts.values())
