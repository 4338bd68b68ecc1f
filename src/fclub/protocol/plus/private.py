"""`cdp-fclub-plus`: its promise, and families whose servers release streams or whole users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fclub.config import Delta, Epsilon, Privacy, require
from fclub.core.lattice import STEP
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.fading import keep_share
from fclub.core.plus.type_filter import FilterRules
from fclub.core.plus.type_release import release_length
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import USER, Flag, Level, check_pair, level_named
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.slots import SlotPlan, plan_slots
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.event_global import EventGlobal
from fclub.protocol.plus.event_local import EventLocal
from fclub.protocol.plus.family import SWITCHES, LevelName, PlusConstants, PlusFamily
from fclub.protocol.plus.growing import GrowingUsers
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.rules import StreamLimits
from fclub.protocol.plus.slots import SlotReleases
from fclub.protocol.plus.user_global import UserGlobal
from fclub.protocol.plus.user_local import UserLocal
from fclub.protocol.seam import Constants, GlobalServer, LocalServer, Place, Price, Shape

FLAGS = {
    "cdp": (Flag.RAW_PARTITION, Flag.RAW_CHOICES),
    "transcript": (Flag.RAW_CHOICES,),
    "interactive": (),
}
"""What each level leaves to raw data: see docs/privacy.md."""


class Promise(NamedTuple):
    """What is promised about a user's stream, and when it is released."""

    privacy: Privacy
    level: Level
    first_release: int
    release_ratio: float


class PrivatePlusConstants(PlusConstants):
    """The same, the promise about what leaves, and the schedule of releases."""

    name = "cdp-fclub-plus"
    switches: ClassVar[Mapping[str, str]] = SWITCHES | {"noise": "increments"}

    few: Annotated[
        int,
        meaning("unit user: most users of a server that keeps to itself", least=0),
    ] = 64
    types: Annotated[int, meaning("types of users that all large servers learn together", least=2)] = 20
    epsilon: Epsilon = 1.0
    delta: Delta = 1e-5
    unit: Annotated[
        Literal["event", "user"],
        meaning("whose data the promise is about: one observation, or all of a user's"),
    ] = "user"
    level: LevelName = "transcript"
    first_release: Annotated[
        int,
        meaning("unit event: visits of a user before anything about it leaves", "visits", least=1),
    ] = 100
    release_ratio: Annotated[
        float, meaning("unit event: growth of a user's visits from release to release", above=1)
    ] = 2.0
    contribution: Annotated[
        float,
        meaning("unit user: longest vector that a user with one visit adds to a release", above=0),
    ] = 0.5
    slots: Annotated[
        int, meaning("unit user: releases of a server in a period, fixed in advance", least=1)
    ] = 24
    period: Annotated[
        float,
        meaning(
            "unit user, live: time after which budget and slots begin again; 0: never", "days", least=0
        ),
    ] = 0.0

    def _check(self) -> None:
        super()._check()
        check_pair(self.unit, self.level)
        whole = self.unit == USER or self.half_life == 0.0
        require(whole, "half_life needs unit user: streams of one user do not fade", self.half_life)

    def promise(self) -> Promise:
        budget = Privacy(self.epsilon, self.delta)
        return Promise(budget, level_named(self.level), self.first_release, self.release_ratio)

    def make_family(self, shape: Shape) -> PrivateFamily:
        return (UserFamily if self.unit == USER else StreamFamily)(self, shape)


class PrivateFamily(PlusFamily):
    """What is released, and how, is promised."""

    constants: PrivatePlusConstants

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        super().__init__(constants, shape)
        self.claim = constants.promise()
        self.privacy = self.claim.privacy

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger:
        (budget, level), flags = self.claim[:2], FLAGS[self.claim.level.name]
        claimed = level, budget.epsilon, budget.delta, flags, seeded
        return Ledger(*claimed, keep=keep, unit=self.constants.unit)


class StreamFamily(PrivateFamily):
    """Local servers release a stream of each user, and learn types with what others have released."""

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        super().__init__(constants, shape)
        self.grid = constants.share

    @cached_property
    def plan(self) -> StreamPlan:
        """Noise and schedule of a user's stream."""
        budget = self.claim.privacy.epsilon, self.claim.privacy.delta
        first, ratio = self.claim.first_release, self.claim.release_ratio
        return plan_stream(*budget, self.domain, self.shape.dim, "increments", first, ratio)

    @cached_property
    def limits(self) -> StreamLimits:
        """What streams may look like."""
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
            return self._with_types(place, users, live, share=False)
        assert place.ledger is not None
        releases = PrivateReleases(users.users, self.plan, place.noise, place.ledger, place.name)
        told = self.constants.type_exploration, releases, self.limits, self.domain, place.link
        return EventLocal(users, self.type_rules, *told, self.clock() if live else None)

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        return EventGlobal(servers, self.limits, link)


class UserFamily(PrivateFamily):
    """Local servers release whole users, in slots; a server with few users keeps to itself."""

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        super().__init__(constants, shape)
        self.released_only = self.claim.level.name == "interactive"

    @cached_property
    def slots(self) -> SlotPlan:
        """Noise and schedule of releases."""
        budget = self.claim.privacy.epsilon, self.claim.privacy.delta
        entries = release_length(self.constants.types, self.shape.dim)
        size = self.constants.contribution, self.constants.slots
        return plan_slots(*budget, entries, *size, days=self.constants.period)

    @cached_property
    def public(self) -> FilterRules:
        """What released users are taken for: constants that no data have changed."""
        return FilterRules(self.constants.types, self.shape.dim, self.domain.constant)

    def fingerprint(self) -> dict[str, Any]:
        promised = {"level": self.claim.level.name, "slots": asdict(self.slots)}
        return super().fingerprint() | promised | {"public": asdict(self.public)}

    def price(self) -> Price:
        """A stream is the slots of a server."""
        distance = self.slots.mechanism.distance(self.slots.releases)
        return Price(self.slots.mu, distance)

    def local_server(self, place: Place, users: Crowd, live: bool) -> LocalServer:
        """With few users sums as noisy as these are of no use: the server learns types, alone.

        Where everybody is served from own data and released values only, it cannot learn any.
        """
        few = 0 if self.constants.half_life > 0.0 else self.constants.few
        if self.released_only or len(users.squares) > few:
            return self._with_slots(place, users, self.clock() if live else None)
        alone = self._with_types(place, users, live, share=False)
        if not live:
            return alone
        return GrowingUsers(
            alone, few, lambda crowd: self._with_slots(place, crowd, self.clock()), self.slots
        )

    def _with_slots(self, place: Place, crowd: Crowd, clock: GeometricClock | None) -> UserLocal:
        """Its own clock, if any, starts from the present count."""
        rules, slots = TypeRules(types=self.constants.types, dim=self.shape.dim), None
        if self.constants.share and place.ledger is not None:
            slots = SlotReleases(self.slots, self.public, place.noise, place.ledger, place.name)
        told = self.constants.type_exploration, self.public, slots, self.released_only
        kept = keep_share(self.constants.half_life)
        return UserLocal(crowd, rules, *told, self.domain, place.link, clock, kept)

    def global_server(self, servers: list[int], link: Downlink) -> UserGlobal:
        return UserGlobal(servers, self.public, self.slots, link)


ROWS: tuple[type[Constants], ...] = (PlusConstants, PrivatePlusConstants)
