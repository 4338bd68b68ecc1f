"""`fclub-plus`: types of users whose number adapts, learned by all servers together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fclub.config import Privacy
from fclub.core.plus import type_rounds
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.fading import keep_share
from fclub.core.plus.type_model import stacked
from fclub.core.plus.type_rounds import PlusRound
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.sensitivity import Domain
from fclub.protocol.exchanges import rounds
from fclub.protocol.exchanges.rounds import RoundsGlobal, RoundsLocal
from fclub.protocol.exchanges.silent import SilentLocal
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Constants, Family, Kernels, Place, Price, Shape
from fclub.protocol.learners.people import Crowd, People
from fclub.protocol.learners.phases import PhasesAtHome
from fclub.protocol.learners.types import Types
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.servers import GlobalServer, LocalServer

LevelName = Annotated[
    Literal["cdp", "transcript", "interactive"],
    meaning("what the promise covers: values (cdp), all messages, or choices as well"),
]

SWITCHES = {"detection": "mixture", "trigger": "count", "scoring": "fused"}


class PlusConstants(Constants):
    """Parameters of types and of sharing."""

    name = "fclub-plus"
    switches: ClassVar[Mapping[str, str]] = SWITCHES | {"noise": "none"}

    ratio: Annotated[float, meaning("growth of the visits from phase to phase", above=1)] = 1.1
    share: Annotated[bool, meaning("let servers learn from each other; off: each stays alone")] = True
    centre: Annotated[
        bool, meaning("take 1/2 off every reward where all items share a constant feature")
    ] = True
    types: Annotated[int, meaning("most types of users that servers learn", least=2)] = 20
    type_exploration: Annotated[
        float, meaning("posterior deviations that a server with types adds to a score", least=0)
    ] = 1.0
    half_life: Annotated[
        float,
        meaning(
            "visits of a user after which what it liked counts half when it is served; 0: in full",
            "visits",
            least=0,
        ),
    ] = 0.0

    item_effects: Annotated[
        bool,
        meaning(
            "learn at home what each item of a catalogue is worth beyond its features; "
            "never at level interactive"
        ),
    ] = True

    def make_family(self, shape: Shape) -> Family:
        return PlusFamily(self, shape)


class PlusFamily:
    """Local servers serve users from types that all of them learn together."""

    privacy: Privacy | None = None
    grid = False
    """Whether observations are rounded to the lattice, on which streams are released."""

    def __init__(self, constants: PlusConstants, shape: Shape) -> None:
        self.constants, self.shape = constants, shape
        self.domain = Domain.of(shape.constant) if constants.centre else Domain()

    @property
    def type_rules(self) -> TypeRules:
        make = TypeRules if self.constants.share else TypeRules.alone
        return make(types=self.constants.types, dim=self.shape.dim)

    decode = staticmethod(rounds.decode)

    def fingerprint(self) -> dict[str, Any]:
        return asdict(self.type_rules) | {"centre": self.domain.low, "share": self.constants.share}

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        return None

    def price(self) -> Price | None:
        return None

    def clock(self) -> GeometricClock:
        return GeometricClock(ratio=self.constants.ratio)

    def users(self, count: int) -> Crowd:
        return Crowd.zeros(count, self.shape.dim)

    def local_server(self, place: Place, users: Crowd, live: bool) -> LocalServer:
        learner, clock = self._learner(users, live), self.clock() if live else None
        if not self.constants.share:
            return LocalServer(learner, SilentLocal(learner), PhasesAtHome(learner, clock))
        return LocalServer(learner, RoundsLocal(learner, place.link, clock))

    def _learner(self, users: Crowd, live: bool) -> Types:
        return Types(
            users,
            self.type_rules,
            self.constants.type_exploration,
            self.domain,
            live=live,
            kept=keep_share(self.constants.half_life),
            grid=self.grid,
        )

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        return GlobalServer(RoundsGlobal(servers, self.constants.types, self.shape.dim, link))

    def compiled(self, federation: Federation) -> PlusRounds:
        return PlusRounds(federation, self.grid)


class PlusRounds:
    """Users are played one by one on the federation's own arrays; servers talk between blocks only."""

    kernels: Kernels = (type_rounds.recommend, type_rounds.feedback)

    def __init__(self, federation: Federation, grid: bool) -> None:
        self.federation, self.grid = federation, grid
        servers: Any = federation.servers.values()
        self._learners: list[Types] = [server.learner for server in servers]
        self._people = [learner.people for learner in self._learners]
        sizes = [len(learner.counts) for learner in self._learners]
        self._model_of = np.repeat(np.arange(len(sizes)), sizes)

    def pack(self) -> PlusRound:
        users: Any = self.federation.users
        first = self._learners[0]
        return PlusRound(
            users=users.users,
            squares=users.squares,
            row_of=self.federation.row_of,
            model=stacked([learner.model for learner in self._learners]),
            model_of=self._model_of,
            exploration=first.exploration,
            centre=first.centre,
            recent=People.fading(self._people),
            kept=first.people.kept,
            grid=self.grid,
            constant=first.domain.constant or 0.0,
        )

    def count_events(self, state: PlusRound) -> None:
        """Nothing is sent between blocks."""

    def unpack(self, state: PlusRound) -> None:
        """The servers' arrays are slices of these, but for what has faded."""
        People.faded(self._people, state.recent)
