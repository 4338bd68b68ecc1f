"""`cdp-homo`: one private model for all users, with noise that is accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from fclub.config import Delta, Epsilon, Privacy
from fclub.core import pooled
from fclub.core.lattice import STEP
from fclub.core.packing import flatten, rebuild
from fclub.core.pooled import Gaussians, PooledRound, Visitors
from fclub.core.statistics import Packed
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import Flag, level_named
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.exchanges import streams
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.exchanges.streams import StreamGlobal, StreamLocal
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Constants, Place, Price, Shape
from fclub.protocol.learners.pooled import Pooled, PooledRules
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.rows.types import LevelName
from fclub.protocol.servers import GlobalServer, LocalServer

FLAGS = {"cdp": (Flag.RAW_CHOICES,), "transcript": (Flag.RAW_CHOICES,), "interactive": ()}
"""What each level leaves to raw data: there is no partition, and counts decide about releases."""


Variance = Annotated[float, meaning("variance of a reward around its mean", "squared reward", above=0)]
Prior = Annotated[float, meaning("expected squared norm of a user's centred vector", above=0)]
Deviations = Annotated[
    float, meaning("posterior deviations that are added to an item's score", least=0)
]


class PooledConstants(Constants):
    """One model, the promise about what leaves, and the schedule of a server's stream."""

    name = "cdp-homo"
    switches: ClassVar[Mapping[str, str]] = {
        "detection": "off",
        "trigger": "count",
        "noise": "increments",
        "scoring": "fused",
    }

    variance: Variance = 0.17
    prior: Prior = 0.7
    exploration: Deviations = 0.5
    ratio: Annotated[
        float, meaning("growth of the number of visits from look to look at what is due", above=1)
    ] = 1.1
    epsilon: Epsilon = 1.0
    delta: Delta = 1e-5
    level: LevelName = "transcript"
    first_release: Annotated[
        int, meaning("visits to a server before anything leaves it", "visits", least=1)
    ] = 100
    release_ratio: Annotated[
        float, meaning("growth of a server's visits from release to release", above=1)
    ] = 2.0

    def make_family(self, shape: Shape) -> PooledFamily:
        return PooledFamily(self, shape)


class PooledFamily:
    """Every server keeps one model and is one stream."""

    def __init__(self, constants: PooledConstants, shape: Shape) -> None:
        self.constants, self.shape = constants, shape
        self.level = level_named(constants.level)
        self.privacy = Privacy(constants.epsilon, constants.delta)
        self.domain = Domain.of(shape.constant)

    @cached_property
    def plan(self) -> StreamPlan:
        """Noise and schedule of a server's stream."""
        first, ratio = self.constants.first_release, self.constants.release_ratio
        budget = (self.privacy.epsilon, self.privacy.delta)
        return plan_stream(*budget, self.domain, self.shape.dim, "increments", first, ratio)

    @cached_property
    def rules(self) -> PooledRules:
        """What all servers agree on."""
        return PooledRules(
            prior=np.eye(self.shape.dim) * self.shape.dim / self.constants.prior,
            variance=self.constants.variance,
            released_only=self.level.name == "interactive",
            least_noise=self.plan.least_std**2,
            most_noise=float(self.plan.last_std**2 / self.plan.schedule[0]),
        )

    decode = staticmethod(streams.decode)

    def fingerprint(self) -> dict[str, Any]:
        agreed = {"prior": self.rules.prior.tolist(), "centre": self.domain.low}
        return asdict(self.rules) | agreed | {"step": STEP}

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger:
        flags = FLAGS[self.level.name]
        return Ledger(self.level, self.privacy.epsilon, self.privacy.delta, flags, seeded, keep=keep)

    def price(self) -> Price:
        """A stream is a server, which is paid for once and in full."""
        return Price(self.plan.mu, self.plan.distance)

    def clock(self) -> GeometricClock:
        return GeometricClock(ratio=self.constants.ratio)

    def users(self, count: int) -> Visitors:
        return Visitors(np.zeros(count, dtype=np.int64))

    def _model(self) -> Gaussians:
        d, weight = self.shape.dim, 1.0 / self.constants.variance
        return Gaussians(
            users=Packed.zeros(1, d),
            covariance=np.zeros((1, d, d)),
            vector=np.zeros((1, d)),
            theta=np.zeros((1, d)),
            squares=np.zeros(1),
            row_of=np.zeros(1, dtype=np.int64),
            exploration=self.constants.exploration,
            weight=np.full(1, 0.0 if self.rules.released_only else weight),
            centre=CENTRE if self.domain.constant is not None else 0.0,
            constant=self.domain.constant or 0.0,
        )

    def local_server(self, place: Place, users: Visitors, live: bool) -> LocalServer:
        assert place.ledger is not None
        learner = Pooled(users, self._model(), self.rules, self.domain, live)
        noise = self.plan, place.noise, place.ledger, place.name
        releases = PrivateReleases(learner.model.users, *noise)
        clock = self.clock() if live else None
        return LocalServer(learner, StreamLocal(learner, releases, self.rules, place.link, clock))

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        return GlobalServer(StreamGlobal(servers, self.rules, link))

    def compiled(self, federation: Federation) -> PooledRounds:
        return PooledRounds(federation)


class PooledRounds:
    """The models of all servers side by side; they talk between blocks only."""

    kernels = (pooled.recommend, pooled.feedback)

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        servers: Any = federation.servers.values()
        self._learners: list[Pooled] = [server.learner for server in servers]
        sizes = [len(learner.counts) for learner in self._learners]
        self._place_of = np.repeat(np.arange(len(sizes)), sizes)[federation.row_of]

    def pack(self) -> PooledRound:
        users: Any = self.federation.users
        parts = [flatten(learner.model) for learner in self._learners]
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        models = rebuild(self._learners[0].model, arrays)._replace(row_of=self._place_of)
        return PooledRound(users, self.federation.row_of, models)

    def count_events(self, state: PooledRound) -> None:
        """Nothing is sent between blocks."""

    def unpack(self, state: PooledRound) -> None:
        learned = flatten(state.models._replace(row_of=np.zeros(len(self._learners), dtype=np.int64)))
        for place, learner in enumerate(self._learners):
            for name, array in flatten(learner.model).items():
                array[...] = learned[name][place : place + 1]


ROWS: tuple[type[Constants], ...] = (PooledConstants,)
