"""A local server: jobs beside serving, capabilities, and what its two parts tell of themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.protocol.told import groups_of, ids_of

from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Counts, Floats, Indices, Vector
from fclub.errors import CannotForget, CannotReplace
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.streams import CLUSTER
from fclub.protocol.families import make_family
from fclub.protocol.interfaces import learner as interface
from fclub.protocol.interfaces.exchange import Begin, Beginning, Moment, Status
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Bound, Job, State, SumNews
from fclub.protocol.interfaces.overview import NOTHING, LocalOverview, Outlook
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, PhaseStart
from fclub.protocol.servers import LocalServer

DIM, USERS = 2, 5


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "PART", 2)


class Means:
    """Knows the sum of all rewards; contributes Σ count·given over its users."""

    supports = frozenset({FORGET, REPLACE})
    by_user = ("gram",)

    def __init__(self) -> None:
        self.users = Packed.zeros(0, DIM)
        self.heard = 0.0

    @property
    def counts(self) -> Counts:
        return self.users.counts

    def add_user(self) -> int:
        longer = (
            np.concatenate([array, np.zeros_like(array[:1], shape=(1, *array.shape[1:]))])
            for array in self.users
        )
        self.users = Packed(*longer)
        return len(self.counts) - 1

    def bound(self, row: int) -> Bound:
        return Bound(self.users.moment[row], np.eye(DIM), 0.0)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.users.moment[row] += y * x
        self.users.counts[row] += 1

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        self.users.moment[row] += (new - old) * x

    def forget(self, row: int) -> None:
        self.users.clear(row)

    def contribute(self, job: Job) -> Callable[[], None] | None:
        rows = job.take()
        counts, total = self.counts[rows].copy(), job.total.setdefault("sums", np.zeros(1))
        if not len(counts):
            return None

        def add() -> None:
            total[0] += counts.sum() * job.given["factor"][0]

        return add

    def absorb(self, news: SumNews) -> None:
        self.heard = float(news.sums[0])

    def labels(self) -> Indices:
        return np.arange(len(self.counts)) % 2

    def theta(self) -> Floats:
        return self.users.moment

    def overview(self) -> list[LocalOverview]:
        return [LocalOverview(users=1, own=0, others=0, shared_by=1)] * 2

    def state(self) -> State:
        return self.users._asdict(), {"heard": self.heard}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.users, self.heard = Packed(**arrays), values["heard"]


class Twice:
    """Two jobs in a row for every phase, whose contributions it keeps."""

    supports = frozenset({FORGET, REPLACE})
    by_user = ("seen",)
    paused = False

    def __init__(self, learner: Means) -> None:
        self.learner, self.sent = learner, list[float]()
        self.withheld = 0

    def _job(self, step: int) -> Job:
        given = {"factor": np.array([10.0**step])}
        return Job("sums", rows=len(self.learner.counts), ask={"step": step}, given=given)

    def visited(self, row: int) -> Job | None:
        return None

    def withhold(self, row: int, part: Statistics) -> None:
        self.withheld += part.count

    def forget(self, row: int) -> int:
        return 0

    def due(self, moment: Moment | None) -> Begin | None:
        return None if moment is None else lambda: self._job(0)

    def finish(self, job: Job) -> Job | None:
        self.sent.append(float(job.total["sums"][0]))
        self.learner.absorb(SumNews(job.total["sums"], 0))
        return self._job(1) if job.ask["step"] == 0 else None

    def receive(self, message: Message) -> Job | None:
        return self._job(1)

    def resume(self) -> Job | None:
        return self._job(1)

    def start_session(self, beginning: Beginning) -> Job | None:
        return None

    def status(self) -> Status:
        return Status(waiting=len(self.sent), outlook=Outlook(NOTHING), used=3)

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        return [replace(clusters[0], cluster=7, group=4), clusters[1]]

    def state(self) -> State:
        return {"seen": self.learner.counts}, {"sent": self.sent}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.sent = values["sent"]


def started() -> tuple[LocalServer, Twice]:
    learner = Means()
    exchange = Twice(learner)
    server = LocalServer(learner, exchange)
    for row in range(USERS):
        assert server.add_user() == row
        server.observe(row, np.array([0.5, -0.5]), 1.0)
    return server, exchange


def finish(server: LocalServer) -> int:
    """All parts; returns how many there were."""
    parts = 0
    while server.busy:
        server.part()()
        parts += 1
    return parts


def test_a_job_is_done_at_once_or_in_parts_alike() -> None:
    whole, parts = started(), started()
    parts[0].in_parts = True
    for server, _ in (whole, parts):
        assert server.due() is None
        begin = server.due(Moment(1.0, 0.0))
        assert begin is not None
        begin()
    assert (whole[0].busy, parts[0].busy) == (False, True)
    assert finish(parts[0]) == 2 * (3 + 1)
    assert whole[1].sent == parts[1].sent == [USERS, 10.0 * USERS]
    for server, _ in (whole, parts):
        server.pause()
        assert server.exchange.paused
        server.go_on()
        finish(server)
        server.receive(PhaseStart(1))
        finish(server)
    assert whole[1].sent == parts[1].sent
    assert whole[0].status().waiting == 4


def test_a_job_takes_the_place_of_an_open_one_of_its_kind_and_a_session_that_of_all() -> None:
    server, exchange = started()
    server.in_parts = True
    for _ in range(2):
        server.receive(PhaseStart(1))
        server.part()()
    assert finish(server) == 3
    assert exchange.sent == [10.0 * USERS]
    server.receive(PhaseStart(1))
    server.begin(Beginning())
    assert not server.busy


def test_users_who_come_or_go_while_a_job_is_done() -> None:
    """Who comes later is not in it; who is forgotten is not in it either."""
    server, exchange = started()
    server.in_parts = True
    server.receive(PhaseStart(1))
    server.part()()
    server.add_user()
    server.observe(USERS, np.array([0.5, -0.5]), 1.0)
    with pytest.raises(CannotReplace, match="is added up"):
        server.replace(0, np.array([0.5, -0.5]), 1.0, 0.0)
    assert server.forget(0) == 0
    finish(server)
    assert exchange.sent == [10.0 * (USERS - 1)]


def test_a_job_goes_on_from_what_was_saved() -> None:
    (server, exchange), (again, other) = started(), started()
    server.in_parts = again.in_parts = True
    server.receive(PhaseStart(1))
    server.part()()
    arrays, values = server.state()
    assert set(server.by_user) == {"learner.gram", "exchange.seen"} <= set(arrays)
    again.restore(deepcopy(arrays), json.loads(json.dumps(values)))
    assert finish(server) == finish(again) == 3
    assert exchange.sent == other.sent


def test_what_is_not_supported_is_refused_and_changes_nothing() -> None:
    server, exchange = started()
    x, before = np.array([0.5, -0.5]), deepcopy(server.state())
    exchange.supports = frozenset()
    with pytest.raises(CannotForget):
        server.forget(0)
    with pytest.raises(CannotReplace):
        server.replace(0, x, 1.0, 0.0)
    np.testing.assert_equal(server.state(), before)
    exchange.supports = frozenset({REPLACE})
    server.replace(0, x, 1.0, 0.0)
    assert server.stored(0).moment.tolist() == [0.0, 0.0]


def test_what_a_server_tells_of_itself() -> None:
    server, exchange = started()
    server.observe(1, np.array([0.5, -0.5]), 1.0, releasable=False)
    assert (exchange.withheld, server.counts.tolist()) == (1, [1, 2, 1, 1, 1])
    assert server.cluster_of_user.tolist() == [0, 1, 0, 1, 0]
    assert groups_of(server).tolist() == [4, -2, 4, -2, 4]
    status = server.status()
    assert (ids_of(server), status.used, status.unanswered, status.streams) == ([7], 3, False, {})
    assert status.outlook.what == NOTHING
    assert server.recommend(0, np.eye(DIM)) == 0
    bound = server.bound(0)
    server.observe(0, np.array([1.0, 0.0]), 1.0)
    assert bound.theta.tolist() == [0.5, -0.5]
    assert server.learner.theta()[0].tolist() == [1.5, -0.5]
    server.begin(Beginning())
    assert not server.busy


def test_a_server_of_one_stream_knows_what_it_released_of_a_forgotten_user() -> None:
    """Released observations stay in the count, so the schedule goes on as it was paid for."""
    family = make_family("cdp-homo", Shape(DIM, 4), {"first_release": 5, "release_ratio": 1.5})
    link = InProcessLink(family.decode)
    rng, source = np.random.default_rng(0), family.ledger(seeded=True)
    place = Place("0", link.uplink(0), NoNoise(), source, rng)
    server = family.local_server(place, family.users(0), live=True)
    hub = family.global_server([0], link)
    link.connect(hub, {0: server})
    assert hub.gathers
    hub.gathers = False
    assert not hub.gathers
    rows = [server.add_user() for _ in range(2)]
    for t in range(20):
        server.observe(rows[t % 2], np.array([0.5, -0.5]), float(t % 3 == 0))
    begin = server.due()
    assert begin is not None
    begin()
    assert (server.status().waiting, ids_of(server)) == (0, [CLUSTER])
    assert server.forget(0) == 10
    assert (server.status().waiting, server.overview()[0].own) == (0, 10)
    server.observe(1, np.array([0.5, -0.5]), 1.0)
    assert (server.status().waiting, server.stored(0).count) == (1, 0)
