"""`cdp-fclub-plus`: its parameters, and the family whose servers release a stream of each user."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fclub.config import Delta, Epsilon, Privacy, require
from fclub.core.lattice import STEP
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import EVENT, USER, Flag, check_pair, level_named
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.protocol.exchanges import user_streams
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.exchanges.user_streams import StreamLimits, UserStreamGlobal, UserStreamLocal
from fclub.protocol.interfaces.family import Constants, Place, Price, Shape
from fclub.protocol.learners.people import Crowd
from fclub.protocol.learners.phases import PhasesAtHome
from fclub.protocol.link import Downlink
from fclub.protocol.rows.population import PopulationFamily
from fclub.protocol.rows.types import LevelName, PlusConstants, PlusFamily
from fclub.protocol.servers import GlobalServer, LocalServer

FLAGS = {
    "cdp": (Flag.RAW_PARTITION, Flag.RAW_CHOICES),
    "transcript": (Flag.RAW_CHOICES,),
    "interactive": (),
}
"""What each level leaves to raw data: see docs/privacy.md."""


class PrivatePlusConstants(PlusConstants):
    """What is guaranteed of whom, and what each unit needs: a plan, or a schedule of streams."""

    name = "cdp-fclub-plus"
    switches: ClassVar[Mapping[str, str]] = {
        "detection": "population",
        "trigger": "plan",
        "noise": "slots",
        "scoring": "fused",
    }

    epsilon: Epsilon = 1.0
    delta: Delta = 1e-5
    unit: Annotated[
        Literal["event", "user"],
        meaning("whose data the promise is about: one observation, or all of a user's"),
    ] = "user"
    level: LevelName = "transcript"
    plan: Annotated[
        str, meaning("unit user: file of a plan; a simulation makes one from these numbers")
    ] = ""
    visits: Annotated[
        float,
        meaning(
            "unit user: visits that a user is expected to make in the plan's time", "visits", above=0
        ),
    ] = 75.0
    past_visits: Annotated[
        float,
        meaning("unit user: visits of a user that were imported before the start", "visits", least=0),
    ] = 0.0
    secure: Annotated[
        bool,
        meaning("unit user: one noise per federation, if it has three servers; off: noise per server"),
    ] = True
    colluders: (
        Annotated[
            int, meaning("unit user: servers that may collude; null: a third of the others", least=1)
        ]
        | None
    ) = None
    epsilon_alone: (
        Annotated[
            float,
            meaning(
                "unit user: ε that is left of a secure sum if all other servers collude; "
                "null: 8, or epsilon if that is more",
                above=0,
            ),
        ]
        | None
    ) = None
    first_release: Annotated[
        int,
        meaning("unit event: visits of a user before anything about it leaves", "visits", least=1),
    ] = 100
    release_ratio: Annotated[
        float, meaning("unit event: growth of a user's visits from release to release", above=1)
    ] = 2.0

    def _check(self) -> None:
        super()._check()
        check_pair(self.unit, self.level)
        fades = (self.unit, self.level) == (USER, "transcript")
        fading = "half_life must be 0 unless unit is user and level is transcript"
        require(fades or self.half_life == 0.0, fading, self.half_life)

    def make_family(self, shape: Shape) -> PopulationFamily | StreamFamily:
        return (PopulationFamily if self.unit == USER else StreamFamily)(self, shape)


class StreamFamily(PlusFamily):
    """Local servers release a stream of each user, and learn types with what others have released."""

    constants: PrivatePlusConstants
    decode = staticmethod(user_streams.decode)

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        super().__init__(constants, shape)
        self.privacy = Privacy(constants.epsilon, constants.delta)
        self.grid = constants.share

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger:
        level, flags = level_named(self.constants.level), FLAGS[self.constants.level]
        budget = self.constants.epsilon, self.constants.delta
        return Ledger(level, *budget, flags, seeded, keep=keep, unit=EVENT)

    @cached_property
    def plan(self) -> StreamPlan:
        """Noise and schedule of a user's stream."""
        budget = self.constants.epsilon, self.constants.delta
        first, ratio = self.constants.first_release, self.constants.release_ratio
        return plan_stream(*budget, self.domain, self.shape.dim, "increments", first, ratio)

    @cached_property
    def limits(self) -> StreamLimits:
        rules, dim = self.type_rules, self.shape.dim
        return StreamLimits(
            prior=np.eye(dim) * dim / rules.prior,
            variance=rules.variance,
            least_noise=self.plan.least_std**2,
            most_noise=float(self.plan.last_std**2 / self.plan.schedule[0]),
        )

    def fingerprint(self) -> dict[str, Any]:
        noise = {"least_noise": self.limits.least_noise, "most_noise": self.limits.most_noise}
        return super().fingerprint() | noise | {"step": STEP}

    def price(self) -> Price:
        """Streams are users, who are paid for once and in full."""
        return Price(self.plan.mu, self.plan.distance)

    def local_server(self, place: Place, users: Crowd, live: bool) -> LocalServer:
        if not self.constants.share:
            return super().local_server(place, users, live)
        assert place.ledger is not None
        learner = self._learner(users, live)
        releases = PrivateReleases(users.users, self.plan, place.noise, place.ledger, place.name)
        clocks = (self.clock(), self.clock()) if live else (None, None)
        exchange = UserStreamLocal(learner, releases, self.limits, place.link, clocks[0])
        return LocalServer(learner, exchange, PhasesAtHome(learner, clocks[1]))

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        return GlobalServer(UserStreamGlobal(servers, self.limits, link))


ROWS: tuple[type[Constants], ...] = (PlusConstants, PrivatePlusConstants)
