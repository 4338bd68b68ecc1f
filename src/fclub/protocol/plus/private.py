"""`cdp-fclub-plus`: its promise, and a family whose servers release whole users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from fclub.config import Delta, Epsilon, Privacy, require
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.fading import keep_share
from fclub.core.plus.rounds import MixtureRound
from fclub.core.plus.type_filter import FilterRules
from fclub.core.plus.type_release import release_length
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import USER, check_pair, level_named
from fclub.privacy.slots import SlotPlan, plan_slots
from fclub.protocol.exchanges.releases import ExactReleases
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.family import (
    FLAGS,
    SWITCHES,
    LevelName,
    PlusConstants,
    PlusFamily,
    Promise,
)
from fclub.protocol.plus.growing import GrowingUsers
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.slots import SlotReleases
from fclub.protocol.plus.user_global import UserGlobal
from fclub.protocol.plus.user_local import UserLocal
from fclub.protocol.seam import Constants, Place, Price, Shape


class PrivatePlusConstants(PlusConstants):
    """The same, the promise about what leaves, and the schedule of releases."""

    name = "cdp-fclub-plus"
    switches: ClassVar[Mapping[str, str]] = SWITCHES | {"noise": "increments"}

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

    def make_family(self, shape: Shape) -> PlusFamily:
        return (UserFamily if self.unit == USER else PlusFamily)(self, shape)


class UserFamily(PlusFamily):
    """Local servers release whole users, in slots; a server with few users keeps to itself."""

    constants: PrivatePlusConstants

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        super().__init__(constants, shape)
        self.claim = constants.promise()
        self.released_only = self.claim.level.name == "interactive"

    @cached_property
    def plan(self) -> None:
        """No stream of a single user leaves."""

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

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger:
        (budget, level), flags = self.claim[:2], FLAGS[self.claim.level.name]
        claimed = level, budget.epsilon, budget.delta, flags, seeded
        return Ledger(*claimed, keep=keep, unit=USER)

    def price(self) -> Price:
        """A stream is the slots of a server."""
        distance = self.slots.mechanism.distance(self.slots.releases)
        return Price(self.slots.mu, distance)

    def local_server(
        self, place: Place, users: MixtureRound, live: bool
    ) -> PlusLocal | UserLocal | GrowingUsers:
        """With few users sums as noisy as these are of no use: the server learns clusters, alone.

        Where everybody is served from own data and released values only, it cannot learn any.
        """
        crowd, few = Crowd(users.users, users.squares), self.few
        if self.released_only or len(crowd.squares) > few:
            return self._with_slots(place, crowd, self.clock() if live else None)
        clock, releases = self.clock() if live else None, ExactReleases(users.users)
        silent = replace(self.rules, share=False)
        alone = PlusLocal(users, silent, self.domain, releases, place.rng, place.link, clock)
        if not live:
            return alone
        return GrowingUsers(
            alone, few, lambda crowd: self._with_slots(place, crowd, self.clock()), self.slots
        )

    def _with_slots(self, place: Place, crowd: Crowd, clock: GeometricClock | None) -> UserLocal:
        """Its own clock, if any, starts from the present count."""
        rules, slots = TypeRules(types=self.rules.types, dim=self.shape.dim), None
        if self.constants.share and place.ledger is not None:
            slots = SlotReleases(self.slots, self.public, place.noise, place.ledger, place.name)
        told = self.constants.type_exploration, self.public, slots, self.released_only
        kept = keep_share(self.constants.half_life)
        return UserLocal(crowd, rules, *told, self.domain, place.link, clock, kept)

    def global_server(self, servers: list[int], link: Downlink) -> UserGlobal:
        return UserGlobal(servers, self.public, self.slots, link)


ROWS: tuple[type[Constants], ...] = (PlusConstants, PrivatePlusConstants)
