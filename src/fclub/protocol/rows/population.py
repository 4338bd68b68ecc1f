"""Unit user of `cdp-fclub-plus`: the population of tastes, released in the slots of a plan."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fclub.config import Privacy, require
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.fading import keep_share
from fclub.core.plus.type_model import stacked
from fclub.core.population import rounds, typed_rounds
from fclub.core.population.filter import VERSION
from fclub.core.population.model import PublicModel
from fclub.core.population.rounds import PopulationRound
from fclub.core.population.typed_rounds import TypedRound
from fclub.core.statistics import Packed
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import USER, Flag, level_named
from fclub.privacy.plan import FEWEST, Plan, PlanLevel, decode_plan, make_plan, read_plan, slot_visits
from fclub.privacy.sensitivity import Domain
from fclub.protocol.exchanges import slots
from fclub.protocol.exchanges.slots import SlotsGlobal, SlotsLocal, Transcript
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Place, Price, Shape
from fclub.protocol.learners.people import Crowd, People
from fclub.protocol.learners.phases import PhasesAtHome
from fclub.protocol.learners.population import PopulationLearner
from fclub.protocol.learners.types import Types
from fclub.protocol.learners.types_at_home import Border, TypesAtHome
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.servers import GlobalServer, LocalServer

if TYPE_CHECKING:
    from fclub.protocol.rows.private import PrivatePlusConstants

FLAGS = {"transcript": (Flag.RAW_CHOICES,), "interactive": ()}
"""What each level leaves to raw data: evidence of neighbours weighs what a user is served from."""

FOREVER = 2**62


class PlanClock:
    """A simulation's clock is the number of visits: slot r is phase r + 1.

    Phase 0 is a time at which servers only learn at home, where they do that.
    """

    def __init__(self, starts: tuple[int, ...], home: GeometricClock | None) -> None:
        self.starts, self.home = starts, home
        self.phase = self.slots = 0

    @property
    def _next_slot(self) -> int:
        return self.starts[self.slots] if self.slots < len(self.starts) else FOREVER

    @property
    def next_start(self) -> int:
        return min(self._next_slot, FOREVER if self.home is None else self.home.next_start)

    def advance(self, observations: int) -> bool:
        """Whether a slot is due now, of several the last one, or a phase at home."""
        at_home = self.home is not None and self.home.advance(observations)
        before = self.slots
        while observations >= self._next_slot:
            self.slots += 1
        self.phase = self.slots if self.slots > before else 0
        return at_home or self.phase > 0

    def state(self) -> list[int]:
        return [self.slots, *([] if self.home is None else self.home.state())]

    def restore(self, state: list[int]) -> None:
        self.slots, *home = state
        if self.home is not None:
            self.home.restore(home)


def plan_of(given: str) -> Plan:
    """A plan by its file, or by what that holds."""
    return decode_plan(given) if given.lstrip().startswith("{") else read_plan(Path(given))


class PopulationFamily:
    """Every server serves its users from their own data and the population; all release in slots."""

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        self.constants, self.shape = constants, shape
        self.privacy = Privacy(constants.epsilon, constants.delta)
        self.domain = Domain.of(shape.constant) if constants.centre else Domain()
        self.model = PublicModel(shape.dim, shape.constant)

    @property
    def level(self) -> PlanLevel:
        assert self.constants.level != "cdp"  # no guarantee about all data of a user
        return self.constants.level

    @cached_property
    def plan(self) -> Plan:
        """A file's, or one for the expected visits."""
        constants, shape = self.constants, self.shape
        if constants.plan:
            plan = plan_of(constants.plan)
            members = plan.members if shape.live else shape.members
            same = (plan.dim, plan.members, plan.epsilon, plan.delta, plan.level)
            own = (shape.dim, members, constants.epsilon, constants.delta, constants.level)
            require(same == own, f"the plan is for dim, members, epsilon, delta, level {same}", own)
            return plan
        secure = constants.secure and shape.members >= max(FEWEST, (constants.colluders or 1) + 2)
        return make_plan(
            epsilon=constants.epsilon,
            delta=constants.delta,
            dim=shape.dim,
            users=shape.users,
            members=shape.members,
            visits=slot_visits(constants.visits),
            level=self.level,
            secure=secure,
            colluders=constants.colluders,
            epsilon_alone=constants.epsilon_alone,
            past=constants.past_visits,
        )

    @cached_property
    def first(self) -> Transcript:
        """Nothing was released."""
        return Transcript(self.plan, self.model)

    decode = staticmethod(slots.decode)

    @property
    def planned(self) -> bool:
        """Whether live servers release at all: they do so in the slots of a plan that was given."""
        return bool(self.constants.plan) and self.constants.share

    def fingerprint(self) -> dict[str, Any]:
        """A live store takes a plan once, after which that is its own."""
        plan = msgspec.to_builtins(self.plan) if self.planned or not self.shape.live else None
        known = {"plan": plan, "filter": VERSION, "share": self.constants.share}
        known |= {"constant": self.shape.constant, "centre": self.domain.low}
        return known | ({"types": self.constants.types} if self.pooled else {})

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger:
        level, flags = level_named(self.constants.level), FLAGS[self.constants.level]
        budget = self.privacy.epsilon, self.privacy.delta
        return Ledger(level, *budget, flags, seeded, keep=keep, unit=USER)

    def price(self) -> Price:
        """A stream is the slots of a server."""
        return Price(self.plan.mu, self.plan.mechanism.distance(self.plan.releases))

    def clock(self) -> PlanClock:
        visits = self.plan.visits if self._shares else ()
        starts = tuple(max(1, round(self.plan.users * number)) for number in visits)
        return PlanClock(starts, self._clock_at_home() if self.pooled else None)

    def _clock_at_home(self) -> GeometricClock:
        return GeometricClock(ratio=self.constants.ratio)

    @property
    def _shares(self) -> bool:
        """One server that serves users from each other's data learns nothing from its own releases."""
        return self.constants.share and (self.shape.members > 1 or not self.pooled)

    @property
    def pooled(self) -> bool:
        """Whether a user may be served from the data of others on its server."""
        return self.constants.level == "transcript"

    def users(self, count: int) -> Packed | Crowd:
        kind = Crowd if self.pooled else Packed
        return kind.zeros(count, self.shape.dim)

    def local_server(self, place: Place, users: Any, live: bool) -> LocalServer:
        assert place.ledger is not None
        told = place.noise, place.ledger, place.name, place.link
        times = None if not live else self.plan.begins if self.planned else ()
        if self.pooled:
            home = self._at_home(users, live)
            clock = self._clock_at_home() if live else None
            study = PhasesAtHome(home.types, clock, home.ready, home.prepare)
            return LocalServer(home, SlotsLocal(home.population, self.first, *told, times), study)
        learner = self._learner(users)
        return LocalServer(learner, SlotsLocal(learner, self.first, *told, times))

    def _learner(self, users: Packed) -> PopulationLearner:
        exploration = self.constants.type_exploration
        return PopulationLearner(users, self.model, self.domain, self.pooled, exploration)

    def _at_home(self, crowd: Crowd, live: bool) -> TypesAtHome:
        types = Types(
            crowd,
            TypeRules.alone(types=self.constants.types, dim=self.shape.dim),
            self.constants.type_exploration,
            self.domain,
            live=live,
            kept=keep_share(self.constants.half_life),
        )
        others = self.planned if live else self._shares
        border = Border.beside(self.plan.known) if others else None
        return TypesAtHome(self._learner(crowd.users), types, border)

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        closings = self.plan.ends if self.shape.live and self.planned else ()
        return GlobalServer(SlotsGlobal(servers, self.first, link, closings))

    def compiled(self, federation: Federation) -> PopulationRounds | TypedRounds:
        return TypedRounds(federation) if self.pooled else PopulationRounds(federation)


class PopulationRounds:
    """Users are played on the federation's own arrays; servers talk between blocks only."""

    kernels = (rounds.recommend, rounds.feedback)

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        servers: Any = federation.servers.values()
        self._learners: list[PopulationLearner] = [_population(server.learner) for server in servers]
        sizes = [len(learner.counts) for learner in self._learners]
        self._first = np.concatenate([[0], np.cumsum(sizes)])
        self._server_of = np.repeat(np.arange(len(sizes)), sizes)

    def pack(self) -> PopulationRound:
        """All servers know the same population, and each its own users' evidence."""
        users = _packed(self.federation.users)
        parts = [learner.round() for learner in self._learners]
        return parts[0]._replace(
            users=users,
            row_of=self.federation.row_of,
            server_of=self._server_of,
            first=self._first,
            odds=np.concatenate([part.odds for part in parts]),
            visits=np.concatenate([part.visits for part in parts]),
            due=np.concatenate([part.due for part in parts]),
        )

    def count_events(self, state: PopulationRound) -> None:
        """Nothing is sent between blocks."""

    def unpack(self, state: PopulationRound) -> None:
        for place, learner in enumerate(self._learners):
            learner.odds[0], learner.visits[0] = state.odds[place], state.visits[place]
            learner.asked[0] = state.due[place]


def _population(learner: PopulationLearner | TypesAtHome) -> PopulationLearner:
    return learner.population if isinstance(learner, TypesAtHome) else learner


def _packed(users: Any) -> Packed:
    found: Packed = users.users if isinstance(users, Crowd) else users
    return found


class TypedRounds:
    """The same for servers that learn types at home."""

    kernels = (typed_rounds.recommend, typed_rounds.feedback)

    def __init__(self, federation: Federation) -> None:
        self._population, self._federation = PopulationRounds(federation), federation
        servers: Any = federation.servers.values()
        self._learners: list[TypesAtHome] = [server.learner for server in servers]
        self._people = [learner.types.people for learner in self._learners]

    def pack(self) -> TypedRound:
        users: Any = self._federation.users
        return TypedRound(
            population=self._population.pack(),
            squares=users.squares,
            model=stacked([learner.types.model for learner in self._learners]),
            lead=np.concatenate([learner.lead for learner in self._learners]),
            recent=People.fading(self._people),
            kept=self._people[0].kept,
        )

    def count_events(self, state: TypedRound) -> None:
        """Nothing is sent between blocks."""

    def unpack(self, state: TypedRound) -> None:
        self._population.unpack(state.population)
        People.faded(self._people, state.recent)
        for learner, lead in zip(self._learners, state.lead, strict=True):
            learner.lead[0] = lead
