"""`fclub-plus` and `cdp-fclub-plus`: soft clusters by Bayesian mixture, sharing released sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fclub.config import Privacy
from fclub.core.lattice import STEP
from fclub.core.plus import rounds, type_rounds
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.evidence import Noise
from fclub.core.plus.fading import keep_share
from fclub.core.plus.rounds import MixtureRound
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import PlusRound
from fclub.core.statistics import Packed
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import Flag, Level
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.sensitivity import CENTRE, Domain, variances_by_entry
from fclub.protocol.exchanges.releases import (
    ExactReleases,
    PrivateReleases,
    Releases,
)
from fclub.protocol.federation import Federation
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus import messages
from fclub.protocol.plus.global_server import PlusGlobal
from fclub.protocol.plus.growing import GrowingLocal
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.rules import PlusRules
from fclub.protocol.plus.type_local import TypeLocal
from fclub.protocol.seam import (
    Constants,
    GlobalServer,
    Kernels,
    Place,
    Price,
    Shape,
)

FLAGS = {
    "cdp": (Flag.RAW_PARTITION, Flag.RAW_CHOICES),
    "transcript": (Flag.RAW_CHOICES,),
    "interactive": (),
}
"""What each level leaves to raw data: see docs/privacy.md."""

Variance = Annotated[float, meaning("variance of a reward around its mean", "squared reward", above=0)]
Prior = Annotated[float, meaning("expected squared norm of a user's centred vector", above=0)]
Deviations = Annotated[
    float, meaning("posterior deviations that are added to an item's score", least=0)
]
LevelName = Annotated[
    Literal["cdp", "transcript", "interactive"],
    meaning("what the promise covers: values (cdp), all messages, or choices as well"),
]

SWITCHES = {"detection": "mixture", "trigger": "count", "scoring": "fused"}


class Promise(NamedTuple):
    """What is promised about a user's stream, and when it is released."""

    privacy: Privacy
    level: Level
    first_release: int
    release_ratio: float


class PlusConstants(Constants):
    """Parameters of the mixture and of sharing."""

    name = "fclub-plus"
    switches: ClassVar[Mapping[str, str]] = SWITCHES | {"noise": "none"}

    variance: Variance = 0.17
    prior: Prior = 0.7
    exploration: Deviations = 0.5
    margin: Annotated[
        float, meaning("evidence from which on clusters of two servers are taken for one", "nats")
    ] = 3.0
    ratio: Annotated[
        float, meaning("growth of the number of visits from detection to detection", above=1)
    ] = 1.1
    sweeps: Annotated[int, meaning("times that a detection goes through all users", least=4)] = 20
    share: Annotated[bool, meaning("let servers learn from each other; off: each stays alone")] = True
    centre: Annotated[
        bool, meaning("take 1/2 off every reward where all items share a constant feature")
    ] = True
    few: Annotated[
        int, meaning("users that a server serves from clusters; with more, it learns types", least=0)
    ] = 64
    types: Annotated[int, meaning("types of users that all large servers learn together", least=2)] = 20
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

    def promise(self) -> Promise | None:
        """None where exact statistics leave."""
        return None

    def make_family(self, shape: Shape) -> PlusFamily:
        return PlusFamily(self, shape)


class PlusFamily:
    """Local servers infer soft clusters of their users, helped by what others have released."""

    def __init__(self, constants: PlusConstants, shape: Shape) -> None:
        self.constants, self.shape, self.promise = constants, shape, constants.promise()
        self.privacy: Privacy | None = self.promise.privacy if self.promise else None
        self.domain = Domain.of(shape.constant) if constants.centre else Domain()

    @cached_property
    def plan(self) -> StreamPlan | None:
        """Noise and schedule of a user's stream; None where exact statistics leave."""
        if self.promise is None:
            return None
        budget = (self.promise.privacy.epsilon, self.promise.privacy.delta)
        first, ratio = self.promise.first_release, self.promise.release_ratio
        return plan_stream(*budget, self.domain, self.shape.dim, "increments", first, ratio)

    @cached_property
    def rules(self) -> PlusRules:
        """What all servers agree on."""
        least = most = 0.0
        if self.plan is not None:
            least = self.plan.least_std**2
            most = float(self.plan.last_std**2 / self.plan.schedule[0])
        level = self.promise.level.name if self.promise else ""
        return PlusRules(
            prior=np.eye(self.shape.dim) * self.shape.dim / self.constants.prior,
            variance=self.constants.variance,
            sweeps=self.constants.sweeps,
            share=self.constants.share,
            separate=level == "transcript",
            least_noise=least,
            most_noise=most,
            few=self.constants.few,
            types=self.constants.types,
        )

    @property
    def few(self) -> int:
        """Users who are served from clusters, in which nothing fades."""
        return 0 if self.constants.half_life > 0.0 else self.rules.few

    decode = staticmethod(messages.decode)

    def fingerprint(self) -> dict[str, Any]:
        agreed = {"prior": self.rules.prior.tolist(), "centre": self.domain.low}
        return asdict(self.rules) | agreed | ({"step": STEP} if self.privacy is not None else {})

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        if self.promise is None:
            return None
        (budget, level), flags = self.promise[:2], FLAGS[self.promise.level.name]
        return Ledger(level, budget.epsilon, budget.delta, flags, seeded, keep=keep)

    def price(self) -> Price | None:
        """Streams are users, who are paid for once and in full."""
        if self.plan is None:
            return None
        return Price(self.plan.mu, self.plan.distance)

    def clock(self) -> GeometricClock:
        return GeometricClock(ratio=self.constants.ratio)

    def users(self, count: int) -> MixtureRound:
        n, d, variance = count, self.shape.dim, self.constants.variance
        return MixtureRound(
            users=Packed.zeros(n, d),
            covariance=np.zeros((n, d, d)),
            vector=np.zeros((n, d)),
            theta=np.zeros((n, d)),
            squares=np.zeros(n),
            row_of=np.arange(n),
            exploration=self.constants.exploration,
            weight=np.full(n, 1.0 / variance),
            centre=CENTRE if self.domain.constant is not None else 0.0,
            grid=self.plan is not None,
            constant=self.domain.constant or 0.0,
        )

    def local_server(
        self, place: Place, users: MixtureRound, live: bool
    ) -> PlusLocal | TypeLocal | GrowingLocal:
        """Types where there are many users; a live server has none yet, so it may grow."""
        crowd = Crowd(users.users, users.squares)
        if self.privacy is None and len(crowd.squares) > self.few:
            return self._with_types(place, crowd, None)
        clock, releases = self.clock() if live else None, self._releases(place, users.users)
        clusters = PlusLocal(users, self.rules, self.domain, releases, place.rng, place.link, clock)
        if not live or self.privacy is not None:
            return clusters
        return GrowingLocal(
            clusters, self.few, lambda crowd: self._with_types(place, crowd, self.clock())
        )

    def _with_types(self, place: Place, crowd: Crowd, clock: GeometricClock | None) -> TypeLocal:
        """Its own clock, if any, starts from the present count."""
        rules = TypeRules(types=self.rules.types, dim=self.shape.dim)
        told = self.constants.type_exploration, self.constants.share
        kept = keep_share(self.constants.half_life)
        return TypeLocal(crowd, rules, *told, self.domain, place.link, clock, kept)

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        expected = 1.0 / np.diag(self.rules.prior)
        noise = Noise(variances_by_entry(self.domain, self.shape.dim), expected)
        return PlusGlobal(servers, self.rules, noise, self.constants.margin, link)

    def compiled(self, federation: Federation) -> PlusRounds:
        return PlusRounds(federation)

    def _releases(self, place: Place, users: Packed) -> Releases:
        if self.plan is None or place.ledger is None:
            return ExactReleases(users)
        return PrivateReleases(users, self.plan, place.noise, place.ledger, place.name)


class PlusRounds:
    """Users are played one by one on the federation's own arrays; servers talk between blocks only."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        servers: Any = federation.servers.values()
        large = [server.model is not None for server in servers]
        self._types: list[TypeLocal] = [server for server in servers if server.model is not None]
        sizes = [len(server.counts) for server in servers]
        self._model_of = np.repeat(np.where(large, np.cumsum(large) - 1, -1), sizes)

    @property
    def kernels(self) -> Kernels:
        kind = type_rounds if self._types else rounds
        return kind.recommend, kind.feedback

    def pack(self) -> MixtureRound | PlusRound:
        users: Any = self.federation.users
        gaussians: MixtureRound = users._replace(row_of=self.federation.row_of)
        if not self._types:
            return gaussians
        parts = zip(*(server.model for server in self._types), strict=True)
        model = TypeModel(*(np.concatenate(part) for part in parts))
        recent = _stacked([server.people.recent for server in self._types])
        first = self._types[0]
        return PlusRound(gaussians, model, self._model_of, first.exploration, recent, first.people.kept)

    def count_events(self, state: MixtureRound | PlusRound) -> None:
        """Nothing is sent between blocks."""

    def unpack(self, state: MixtureRound | PlusRound) -> None:
        """The servers' arrays are slices of these, but for what has faded."""
        if isinstance(state, PlusRound) and state.kept < 1.0:
            start = 0
            for server in self._types:
                stop = start + len(server.counts)
                server.people.recent = state.recent.slice(start, stop)
                start = stop


def _stacked(parts: list[Packed]) -> Packed:
    """The rows of all of them, in order."""
    return Packed(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
