"""`fclub-plus` and `cdp-fclub-plus`: soft clusters by Bayesian mixture, sharing released sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fclub.config import Parameter, Privacy, require
from fclub.core.plus import rounds, type_rounds
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.rounds import MixtureRound
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import PlusRound
from fclub.core.statistics import Packed
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import Flag, level_named
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.federation import Federation
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Message
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus import messages
from fclub.protocol.plus.global_server import PlusGlobal
from fclub.protocol.plus.growing import GrowingLocal
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.releases import ExactReleases, PrivateReleases, Releases
from fclub.protocol.plus.rules import PlusRules
from fclub.protocol.plus.type_local import Crowd, TypeLocal
from fclub.protocol.seam import Forecast, Kernels, Place, Preset, Price, Rehearsal, Shape

FLAGS = {
    "cdp": (Flag.RAW_PARTITION, Flag.RAW_CHOICES),
    "transcript": (Flag.RAW_CHOICES,),
    "interactive": (),
}
"""What each level leaves to raw data: see docs/privacy.md."""


@dataclass(frozen=True)
class PlusConstants:
    """Parameters of the mixture, of sharing and, where it is private, of the promise.

    `variance` of a reward, `prior` (expected squared norm of a centred θ), `exploration` and `margin`
    are the constants; `ratio` spaces detections. `share` off keeps every server to itself, `centre`
    off keeps rewards as they are. With noise, `epsilon`, `delta` and `level` are the promise and
    `first_release`, `release_ratio` the count schedule of a user's stream.

    A server with more users than `few` learns so many `types` with all others (`type_local`); its
    score adds `type_exploration` deviations.
    """

    variance: float = 0.17
    prior: float = 0.7
    exploration: float = 0.5
    margin: float = 3.0
    ratio: float = 1.1
    sweeps: int = 20
    share: bool = True
    centre: bool = True
    epsilon: float = 1.0
    delta: float = 0.1
    level: str = "cdp"
    first_release: int = 100
    release_ratio: float = 2.0
    few: int = 64
    types: int = 20
    type_exploration: float = 1.0
    private: bool = False

    def __post_init__(self) -> None:
        if self.private:
            Privacy(self.epsilon, self.delta)
        level_named(self.level)
        for key in ("variance", "prior", "ratio", "release_ratio"):
            least, value = (1.0 if key.endswith("ratio") else 0.0), getattr(self, key)
            require(value > least, f"{key} must be above {least:g}", value)
        require(self.sweeps >= 4, "sweeps must be at least 4", self.sweeps)
        for key in ("exploration", "type_exploration"):
            require(getattr(self, key) >= 0, f"{key} must be at least 0", getattr(self, key))
        for key, least in (("few", 0), ("types", 2)):
            require(getattr(self, key) >= least, f"{key} must be at least {least}", getattr(self, key))

    def family(self, shape: Shape) -> PlusFamily:
        return PlusFamily(self, shape)


class PlusFamily:
    """Local servers infer soft clusters of their users, helped by what others have released."""

    def __init__(self, constants: PlusConstants, shape: Shape) -> None:
        self.constants, self.shape = constants, shape
        self.level = level_named(constants.level)
        claim = Privacy(constants.epsilon, constants.delta) if constants.private else None
        self.privacy: Privacy | None = claim
        self.domain = Domain.of(shape.constant) if constants.centre else Domain()

    @cached_property
    def plan(self) -> StreamPlan | None:
        """Noise and schedule of a user's stream; None where exact statistics leave."""
        if self.privacy is None:
            return None
        first, ratio = int(self.constants.first_release), float(self.constants.release_ratio)
        budget = (self.privacy.epsilon, self.privacy.delta)
        return plan_stream(*budget, self.domain, "increments", first, ratio)

    @cached_property
    def rules(self) -> PlusRules:
        """What all servers agree on."""
        least = most = 0.0
        if self.plan is not None:
            least = self.plan.mechanism.std**2
            most = float(self.plan.last_std**2 / self.plan.schedule[0])
        private, level = self.privacy is not None, self.level.name
        return PlusRules(
            prior=np.eye(self.shape.dim) * self.shape.dim / self.constants.prior,
            variance=float(self.constants.variance),
            sweeps=int(self.constants.sweeps),
            share=bool(self.constants.share),
            separate=private and level != "cdp",
            released_only=private and level == "interactive",
            least_noise=least,
            most_noise=most,
            few=int(self.constants.few),
            types=int(self.constants.types),
        )

    def decode(self, data: bytes) -> Message:
        return messages.decode(data)

    def fingerprint(self) -> dict[str, Any]:
        return asdict(self.rules) | {"prior": self.rules.prior.tolist(), "centre": self.domain.low}

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        if self.privacy is None:
            return None
        flags = FLAGS[self.level.name]
        return Ledger(self.level, self.privacy.epsilon, self.privacy.delta, flags, seeded, keep=keep)

    def price(self) -> Price | None:
        """Streams are users, who are paid for once and in full."""
        return None if self.plan is None else Price(self.plan.mu, phases_add_up=False)

    def clock(self) -> GeometricClock:
        return GeometricClock(ratio=float(self.constants.ratio))

    def users(self, count: int) -> MixtureRound:
        n, d, variance = count, self.shape.dim, self.constants.variance
        return MixtureRound(
            users=Packed.zeros(n, d),
            covariance=np.zeros((n, d, d)),
            vector=np.zeros((n, d)),
            theta=np.zeros((n, d)),
            squares=np.zeros(n),
            row_of=np.arange(n),
            exploration=float(self.constants.exploration),
            weight=0.0 if self.rules.released_only else 1.0 / variance,
            centre=CENTRE if self.domain.constant is not None else 0.0,
        )

    def local_server(
        self, place: Place, users: MixtureRound, live: bool
    ) -> PlusLocal | TypeLocal | GrowingLocal:
        """Types where there are many users; a live server has none yet, so it may grow."""
        crowd = Crowd(users.users, users.squares)
        if self.privacy is None and len(crowd.squares) > self.rules.few:
            return self._with_types(place, crowd, None)
        clock, releases = self.clock() if live else None, self._releases(place, users.users)
        clusters = PlusLocal(users, self.rules, self.domain, releases, place.rng, place.link, clock)
        if not live or self.privacy is not None:
            return clusters
        return GrowingLocal(
            clusters, self.rules.few, lambda crowd: self._with_types(place, crowd, self.clock())
        )

    def _with_types(self, place: Place, crowd: Crowd, clock: GeometricClock | None) -> TypeLocal:
        """Its own clock, if any, starts from the present count."""
        rules = TypeRules(types=self.rules.types, dim=self.shape.dim)
        told = float(self.constants.type_exploration), bool(self.constants.share)
        return TypeLocal(crowd, rules, *told, self.domain, place.link, clock)

    def global_server(self, servers: list[int], link: Downlink) -> PlusGlobal:
        return PlusGlobal(servers, self.rules, float(self.constants.margin), link)

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
        servers = federation.servers.values()
        self._types = [server for server in servers if isinstance(server, TypeLocal)]
        sizes = [len(server.counts) for server in servers]
        places = np.cumsum([isinstance(server, TypeLocal) for server in servers]) - 1
        large = [isinstance(server, TypeLocal) for server in servers]
        self._model_of = np.repeat(np.where(large, places, -1), sizes)

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
        return PlusRound(gaussians, model, self._model_of, self._types[0].exploration)

    def count_events(self, state: MixtureRound | PlusRound) -> None:
        """Nothing is sent between blocks."""

    def unpack(self, state: MixtureRound | PlusRound) -> None:
        """The servers' arrays are slices of these."""


def _forecast(family: PlusFamily) -> Forecast:
    """Detections follow 20, 30 and 40 observations; each finds the user's next release due."""
    assert family.plan is not None
    detections, mechanism = (20, 30, 40), family.plan.mechanism
    factor = mechanism.factor(len(detections))
    weights = np.array([[float(t < count) for t in range(detections[-1])] for count in detections])
    return Forecast(weights, factor @ factor.T, mechanism.std)


REHEARSAL = Rehearsal(
    _forecast, {"first_release": 8, "release_ratio": 1.1}, constant=float(np.sqrt(0.5))
)


def _preset(private: bool, summary: str) -> Preset:
    noise = "increments" if private else "none"
    switches = {"detection": "mixture", "trigger": "count", "noise": noise, "scoring": "fused"}

    def check(parameters: Mapping[str, Parameter]) -> PlusConstants:
        known: dict[str, Any] = dict(parameters)
        return PlusConstants(private=private, **known)

    return Preset(summary, switches, DEFAULTS, check, {}, REHEARSAL if private else None)


DEFAULTS: dict[str, Parameter] = {
    key: value for key, value in asdict(PlusConstants()).items() if key != "private"
}

PRESETS = {
    "fclub-plus": _preset(False, "ours: soft clusters shared between servers"),
    "cdp-fclub-plus": _preset(True, "ours: the same, released with noise that is accounted for"),
}
