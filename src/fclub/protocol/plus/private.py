"""`cdp-fclub-plus`: its promise, and families whose servers release streams or whole users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fclub.config import Delta, Epsilon, Privacy, require
from fclub.core.lattice import STEP
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.evidence import Noise
from fclub.core.plus.fading import keep_share
from fclub.core.plus.rounds import MixtureRound
from fclub.core.plus.type_filter import FilterRules
from fclub.core.plus.type_release import release_length
from fclub.core.statistics import Packed
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import USER, Flag, Level, check_pair, level_named
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.sensitivity import variances_by_entry
from fclub.privacy.slots import SlotPlan, plan_slots
from fclub.protocol.exchanges.releases import ExactReleases, PrivateReleases, Releases
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.family import (
    SWITCHES,
    Deviations,
    LevelName,
    PlusConstants,
    PlusFamily,
    Prior,
    Variance,
)
from fclub.protocol.plus.global_server import PlusGlobal
from fclub.protocol.plus.growing import GrowingUsers
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.rules import PlusRules
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

    variance: Variance = 0.17
    prior: Prior = 0.7
    exploration: Deviations = 0.5
    margin: Annotated[
        float, meaning("evidence from which on clusters of two servers are taken for one", "nats")
    ] = 3.0
    sweeps: Annotated[int, meaning("times that a detection goes through all users", least=4)] = 20
    few: Annotated[
        int, meaning("users that a server serves from clusters; with more, it learns types", least=0)
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

    def make_family(self, shape: Shape) -> StreamFamily:
        return (UserFamily if self.unit == USER else StreamFamily)(self, shape)


class StreamFamily(PlusFamily):
    """Local servers infer soft clusters of their users, helped by streams that others have released."""

    constants: PrivatePlusConstants

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        super().__init__(constants, shape)
        self.claim = constants.promise()
        self.privacy = self.claim.privacy

    @cached_property
    def plan(self) -> StreamPlan | None:
        """Noise and schedule of a user's stream; None where none leaves."""
        budget = self.claim.privacy.epsilon, self.claim.privacy.delta
        first, ratio = self.claim.first_release, self.claim.release_ratio
        return plan_stream(*budget, self.domain, self.shape.dim, "increments", first, ratio)

    @cached_property
    def rules(self) -> PlusRules:
        """What all servers agree on."""
        least = most = 0.0
        if self.plan is not None:
            least = self.plan.least_std**2
            most = float(self.plan.last_std**2 / self.plan.schedule[0])
        return PlusRules(
            prior=np.eye(self.shape.dim) * self.shape.dim / self.constants.prior,
            variance=self.constants.variance,
            sweeps=self.constants.sweeps,
            share=self.constants.share,
            separate=self.claim.level.name == "transcript",
            least_noise=least,
            most_noise=most,
            few=self.constants.few,
            types=self.constants.types,
        )

    @property
    def few(self) -> int:
        """Users who are served from clusters, in which nothing fades."""
        return 0 if self.constants.half_life > 0.0 else self.rules.few

    def fingerprint(self) -> dict[str, Any]:
        agreed = {"prior": self.rules.prior.tolist(), "centre": self.domain.low, "step": STEP}
        return asdict(self.rules) | agreed

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        (budget, level), flags = self.claim[:2], FLAGS[self.claim.level.name]
        return Ledger(level, budget.epsilon, budget.delta, flags, seeded, keep=keep)

    def price(self) -> Price | None:
        """Streams are users, who are paid for once and in full."""
        assert self.plan is not None
        return Price(self.plan.mu, self.plan.distance)

    def users(self, count: int) -> MixtureRound:
        weight = np.full(count, 1.0 / self.constants.variance)
        return (
            super()
            .users(count)
            ._replace(exploration=self.constants.exploration, weight=weight, grid=self.plan is not None)
        )

    def local_server(self, place: Place, users: MixtureRound, live: bool) -> LocalServer:
        return self._with_clusters(place, users, live, self.rules, self._releases(place, users.users))

    def _with_clusters(
        self, place: Place, users: MixtureRound, live: bool, rules: PlusRules, releases: Releases
    ) -> PlusLocal:
        clock = self.clock() if live else None
        return PlusLocal(users, rules, self.domain, releases, place.rng, place.link, clock)

    def _releases(self, place: Place, users: Packed) -> Releases:
        assert self.plan is not None
        if place.ledger is None:
            return ExactReleases(users)
        return PrivateReleases(users, self.plan, place.noise, place.ledger, place.name)

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        expected = 1.0 / np.diag(self.rules.prior)
        noise = Noise(variances_by_entry(self.domain, self.shape.dim), expected)
        return PlusGlobal(servers, self.rules, noise, self.constants.margin, link)


class UserFamily(StreamFamily):
    """Local servers release whole users, in slots; a server with few users keeps to itself."""

    constants: PrivatePlusConstants

    def __init__(self, constants: PrivatePlusConstants, shape: Shape) -> None:
        super().__init__(constants, shape)
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
        silent, releases = replace(self.rules, share=False), ExactReleases(users.users)
        alone = self._with_clusters(place, users, live, silent, releases)
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
