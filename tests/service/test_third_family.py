"""A family of one's own: one module, here, and one row of the table; everything else works as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

import fclub
from fclub.core.packing import flatten, with_row
from fclub.core.statistics import Packed, Statistics, observe
from fclub.core.types import Counts, Floats, Indices, Vector
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidMessage
from fclub.parameters import meaning
from fclub.policies.base import summary_of
from fclub.policies.federated.families import policy_of
from fclub.privacy.sensitivity import Domain
from fclub.protocol.exchanges.clusters import PhaseClock
from fclub.protocol.families import FAMILIES
from fclub.protocol.interfaces.exchange import Account, Beginning, GlobalStatus, Moment, Status
from fclub.protocol.interfaces.family import Constants, Place, Shape
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Bound, Job, State
from fclub.protocol.interfaces.overview import OBSERVATIONS, GlobalOverview, LocalOverview, Outlook
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import Decoder, Message, PhaseStart, encode
from fclub.protocol.servers import GlobalServer, LocalServer
from fclub.service.dashboard.views import GlobalView, LocalView
from fclub.service.monitoring import Monitor

from .federation import Pump, model_of, play

EVERY = 10


class Tally(Message, frozen=True, array_like=True, tag="tally"):
    """How many visits a server has had. Nobody learns anything else from it."""

    visits: int


class LonelyLearner:
    """A greedy ridge regression for each user."""

    supports = frozenset({REPLACE, FORGET})
    by_user: tuple[str, ...] = ()

    def __init__(self, users: Packed, ridge: float) -> None:
        self.users, self.room, self.ridge = users, users, ridge

    @property
    def counts(self) -> Counts:
        return self.users.counts

    def add_user(self) -> int:
        self.users, self.room = with_row(self.users, self.room)
        return len(self.counts) - 1

    def bound(self, row: int) -> Bound:
        theta = self.theta()[row]
        return Bound(theta, np.zeros((len(theta),) * 2), 0.0)

    def observe(self, row: int, x: Vector, y: float) -> None:
        observe(self.users, row, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        self.users.moment[row] += (new - old) * x

    def forget(self, row: int) -> None:
        self.users.clear(row)

    def contribute(self, job: Job) -> None:
        """A tally needs nobody."""

    def absorb(self, news: object) -> None:
        """Nobody answers a tally."""

    def labels(self) -> Indices:
        return np.arange(len(self.counts))

    def theta(self) -> Floats:
        eye = self.ridge * np.eye(self.users.moment.shape[1])
        theta: Any = np.linalg.solve(self.users.gram + eye, self.users.moment[..., None])[..., 0]
        return theta

    def overview(self) -> list[LocalOverview]:
        return [LocalOverview(1, int(n), 0, 1, waiting=int(n)) for n in self.counts]

    def state(self) -> State:
        return flatten(self.users), {}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        while len(self.counts) < len(arrays["counts"]):
            self.add_user()
        for name, array in flatten(self.users).items():
            array[...] = arrays[name]


class TallyLocal:
    """Tells a tally every tenth visit."""

    supports = frozenset({REPLACE, FORGET})
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(self, learner: LonelyLearner, link: Uplink) -> None:
        self.learner, self.link, self.told = learner, link, 0

    def visited(self, row: int) -> None: ...

    def withhold(self, row: int, part: Statistics) -> None: ...

    def forget(self, row: int) -> int:
        return 0

    def due(self, moment: Moment | None) -> Callable[[], None] | None:
        waits = self.status().waiting >= EVERY and not self.paused
        return self._tell if moment is None and waits else None

    def _tell(self) -> None:
        self.told = int(self.learner.counts.sum())
        self.link.to_global(Tally(self.told))

    def finish(self, job: Job) -> None: ...

    def receive(self, message: Message) -> None:
        raise InvalidMessage("nobody answers a tally")

    def resume(self) -> None: ...

    def start_session(self, beginning: Beginning) -> None:
        if len(self.learner.counts):
            self._tell()

    def status(self) -> Status:
        waiting = int(self.learner.counts.sum()) - self.told
        return Status(waiting, Outlook(OBSERVATIONS, waiting, 1))

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        return clusters

    def state(self) -> State:
        return {}, {"told": self.told}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.told = values["told"]


class TallyGlobal:
    """Adds tallies up."""

    gathers = True

    def __init__(self, servers: list[int]) -> None:
        self.servers, self.phase = servers, 0
        self.visits: dict[int, int] = {}

    def invite(self, servers: int) -> None:
        self.servers = list(range(servers))

    def begin_phase(self, phase: int) -> None:
        self.phase = phase

    def advance(self, overdue: bool) -> None:
        """There is nothing to do."""

    def due(self, now: float) -> None:
        """It has no times."""

    def start_session(self, server: int, beginning: Beginning) -> None:
        self.visits.pop(server, None)

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Tally():
                self.visits[server] = message.visits

    def status(self) -> GlobalStatus:
        return GlobalStatus(self.phase, sum(self.visits.values()))

    def account(self, server: int) -> Account:
        return Account(self.visits.get(server, 0), 0.0)

    def limit(self, clusters: int) -> float | None:
        return None

    def overview(self) -> list[GlobalOverview]:
        return []

    def state(self) -> State:
        return {}, {"visits": list(self.visits.items())}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.visits = dict(map(tuple, values["visits"]))


class Lonely:
    privacy, domain = None, Domain()

    def __init__(self, shape: Shape, ridge: float) -> None:
        self.shape, self.ridge = shape, ridge
        self.decode = Decoder(Tally)

    def fingerprint(self) -> float:
        return self.ridge

    def ledger(self, seeded: bool, keep: bool = True) -> None:
        """Nothing is claimed."""

    def price(self) -> None:
        """Nothing is claimed."""

    def clock(self) -> PhaseClock:
        return PhaseClock()

    def users(self, count: int) -> Packed:
        return Packed.zeros(count, self.shape.dim)

    def local_server(self, place: Place, users: Packed, live: bool) -> LocalServer:
        learner = LonelyLearner(users, self.ridge)
        return LocalServer(learner, TallyLocal(learner, place.link))

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        return GlobalServer(TallyGlobal(servers))

    def compiled(self, federation: object) -> None:
        """It is played round by round."""


class LonelyConstants(Constants):
    """Each user alone."""

    name = "lonely"
    switches: ClassVar[dict[str, str]] = {"noise": "none"}

    ridge: Annotated[float, meaning("regularisation", above=0)] = 1.0

    def make_family(self, shape: Shape) -> Lonely:
        return Lonely(shape, self.ridge)


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "lonely", LonelyConstants)


def world() -> Synthetic:
    return Synthetic(users=6, clusters=2, servers=2, dim=3, items=4)


def test_it_is_simulated() -> None:
    policy = policy_of(LonelyConstants)
    trace = fclub.simulate(policy(), world(), 300, seed=1)
    again = fclub.simulate(policy(ridge=1.0), world(), 300, seed=1)
    assert (policy.name, summary_of(policy)) == ("lonely", "Each user alone")
    np.testing.assert_array_equal(trace.regret, again.regret)
    assert trace.clusters["found"][-1] == 6


def test_it_runs_live_and_continues_after_a_restart(tmp_path: Path) -> None:
    environment = world()
    environment.start(1)
    pump = Pump(tmp_path, model_of(environment, "lonely"), 2)
    play(pump, environment, 95)
    before = pump.hub.server.reported
    assert before == sum(10 * (int(n.server.counts.sum()) // 10) for n in pump.locals.values())
    state = pump.locals["s0"].server.state()
    pump.restart(snapshot=True)
    pump.restart(snapshot=False)
    assert pump.hub.server.reported == before
    np.testing.assert_equal(pump.locals["s0"].server.state(), state)
    play(pump, environment, 20)
    assert pump.hub.server.reported > before
    pump.close()


def test_pages_show_it(tmp_path: Path) -> None:
    environment = world()
    environment.start(1)
    pump = Pump(tmp_path, model_of(environment, "lonely"), 2)
    play(pump, environment, 30)
    hub = GlobalView(pump.hub, pump.model)
    local = LocalView(pump.locals["s0"], pump.model, Monitor("local"))
    assert "limit" not in hub.sample()
    assert hub.state()["privacy"] is None
    assert len(local.state()["clusters"]) == len(pump.locals["s0"].users.rows)
    pump.close()


def test_it_reads_its_own_messages_only() -> None:
    family = LonelyConstants(ridge=1.0).make_family(Shape(3, 6))
    assert family.decode(encode(Tally(3))) == Tally(3)
    with pytest.raises(InvalidMessage):
        family.decode(encode(PhaseStart(1)))
