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
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidMessage
from fclub.parameters import meaning
from fclub.policies.base import summary_of
from fclub.policies.federated.families import policy_of
from fclub.privacy.sensitivity import Domain
from fclub.protocol.exchanges.clusters import PhaseClock
from fclub.protocol.families import FAMILIES
from fclub.protocol.interfaces.exchange import Beginning, Moment
from fclub.protocol.interfaces.family import Constants, Place, Shape
from fclub.protocol.interfaces.learner import Bound, State
from fclub.protocol.interfaces.overview import OBSERVATIONS, GlobalOverview, LocalOverview, Outlook
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Decoder, Message, PhaseStart, encode
from fclub.service.dashboard.views import GlobalView, LocalView
from fclub.service.monitoring import Monitor

from .federation import Pump, model_of, play

EVERY = 10


class Tally(Message, frozen=True, array_like=True, tag="tally"):
    """How many visits a server has had. Nobody learns anything else from it."""

    visits: int


class LonelyLocal:
    """A greedy ridge regression for each user; tells a tally every tenth visit."""

    unanswered = paused = in_parts = busy = False
    used = 0
    by_user: tuple[str, ...] = ()

    def part(self) -> Callable[[], None]:
        raise AssertionError("it is never busy")

    def __init__(self, place: Place, users: Packed, ridge: float) -> None:
        self.place, self.users, self.room, self.ridge = place, users, users, ridge
        self.told = 0
        self.ids: list[int] = []

    def add_user(self) -> int:
        self.users, self.room = with_row(self.users, self.room)
        return len(self.counts) - 1

    def recommend(self, row: int, items: Matrix) -> int:
        return int(np.argmax(items @ self.theta[row]))

    def observe(self, row: int, x: Vector, y: float) -> None:
        observe(self.users, row, x, y)

    def withhold(self, row: int, x: Vector, y: float) -> None:
        self.observe(row, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        self.users.moment[row] += (new - old) * x

    @property
    def final_once_sent(self) -> bool:
        return True

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False

    def begin(self, beginning: Beginning) -> None:
        if len(self.counts):
            self._tell()

    def bound(self, row: int) -> Bound:
        return Bound(self.theta[row], np.zeros((len(self.theta[row]),) * 2), 0.0)

    def stored(self, row: int) -> Statistics:
        return Statistics.of(self.users, row).copy()

    def forget(self, row: int) -> int:
        self.users.clear(row)
        return 0

    def due(self, moment: Moment | None = None) -> Callable[[], None] | None:
        return self._tell if moment is None and self.waiting >= EVERY and not self.paused else None

    def _tell(self) -> None:
        self.told = int(self.counts.sum())
        self.place.link.to_global(Tally(self.told))

    def receive(self, message: Message) -> None:
        raise InvalidMessage("nobody answers a tally")

    @property
    def counts(self) -> Counts:
        return self.users.counts

    @property
    def waiting(self) -> int:
        return int(self.counts.sum()) - self.told

    @property
    def served_by(self) -> Indices:
        return np.arange(len(self.counts))

    @property
    def theta(self) -> Floats:
        eye = self.ridge * np.eye(self.users.moment.shape[1])
        theta: Any = np.linalg.solve(self.users.gram + eye, self.users.moment[..., None])[..., 0]
        return theta

    @property
    def group_of(self) -> Indices:
        return -1 - self.served_by

    def streams(self) -> dict[str, Any]:
        return {}

    def overview(self) -> list[LocalOverview]:
        return [LocalOverview(1, int(n), 0, 1, waiting=int(n)) for n in self.counts]

    @property
    def outlook(self) -> Outlook:
        return Outlook(OBSERVATIONS, self.waiting, 1)

    def state(self) -> State:
        return flatten(self.users), {"told": self.told}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        while len(self.counts) < len(arrays["counts"]):
            self.add_user()
        for name, array in flatten(self.users).items():
            array[...] = arrays[name]
        self.told = values["told"]


class LonelyGlobal(Gathering):
    """Adds tallies up."""

    phase, next_phase = 0, None
    missing: frozenset[int] = frozenset()

    def __init__(self, servers: list[int]) -> None:
        self.servers = servers
        self.visits: dict[int, int] = {}

    def invite(self, servers: int) -> None:
        self.servers = list(range(servers))

    def begin_phase(self, phase: int) -> None:
        self.phase = phase

    def advance(self, overdue: bool = False) -> None:
        """There is nothing to do."""

    def begin(self, server: int, beginning: Beginning) -> None:
        self.visits.pop(server, None)

    def used_by(self, server: int) -> int:
        return 0

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Tally():
                self.visits[server] = message.visits

    @property
    def reported(self) -> int:
        return sum(self.visits.values())

    def released_by(self, server: int) -> int:
        return self.visits.get(server, 0)

    def limit(self, clusters: int) -> float | None:
        return None

    def paid_by(self, server: int) -> float:
        return 0.0

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

    def local_server(self, place: Place, users: Packed, live: bool) -> LonelyLocal:
        return LonelyLocal(place, users, self.ridge)

    def global_server(self, servers: list[int], link: Downlink) -> LonelyGlobal:
        return LonelyGlobal(servers)

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
    assert len(local.state()["clusters"]) == len(pump.locals["s0"].rows)
    pump.close()


def test_it_reads_its_own_messages_only() -> None:
    family = LonelyConstants(ridge=1.0).make_family(Shape(3, 6))
    assert family.decode(encode(Tally(3))) == Tally(3)
    with pytest.raises(InvalidMessage):
        family.decode(encode(PhaseStart(1)))
