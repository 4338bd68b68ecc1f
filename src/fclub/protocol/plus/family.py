"""`fclub-plus`: types of users whose number adapts, learned by all servers together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fclub.config import Privacy
from fclub.core.plus import rounds, type_rounds
from fclub.core.plus.beliefs import TypeRules
from fclub.core.plus.fading import keep_share
from fclub.core.plus.rounds import MixtureRound
from fclub.core.plus.type_model import stacked
from fclub.core.plus.type_rounds import PlusRound
from fclub.core.statistics import Packed
from fclub.parameters import meaning
from fclub.privacy.ledger import Ledger
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.federation import Federation
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus import messages
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.split_global import SplitGlobal
from fclub.protocol.plus.split_local import SplitLocal
from fclub.protocol.plus.type_local import TypeLocal
from fclub.protocol.seam import (
    Constants,
    GlobalServer,
    Kernels,
    LocalServer,
    Place,
    Price,
    Shape,
)

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


class PlusConstants(Constants):
    """Parameters of types and of sharing."""

    name = "fclub-plus"
    switches: ClassVar[Mapping[str, str]] = SWITCHES | {"noise": "none"}

    ratio: Annotated[float, meaning("growth of the visits from phase to phase", above=1)] = 1.1
    share: Annotated[bool, meaning("let servers learn from each other; off: each stays alone")] = True
    centre: Annotated[
        bool, meaning("take 1/2 off every reward where all items share a constant feature")
    ] = True
    types: Annotated[int, meaning("most types of users that servers learn together", least=2)] = 20
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

    def make_family(self, shape: Shape) -> PlusFamily:
        return PlusFamily(self, shape)


class PlusFamily:
    """Local servers serve users from types that all of them learn together."""

    privacy: Privacy | None = None

    def __init__(self, constants: PlusConstants, shape: Shape) -> None:
        self.constants, self.shape = constants, shape
        self.domain = Domain.of(shape.constant) if constants.centre else Domain()

    @property
    def type_rules(self) -> TypeRules:
        """ω may be small, but no larger than at the start: else the spread within types would explain
        what types should."""
        return TypeRules(
            types=self.constants.types,
            dim=self.shape.dim,
            within_precision=1.0,
            least_within=1e-4,
            most_within=0.05,
            relaxation=1.0,
        )

    decode = staticmethod(messages.decode)

    def fingerprint(self) -> dict[str, Any]:
        return asdict(self.type_rules) | {"centre": self.domain.low, "share": self.constants.share}

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        return None

    def price(self) -> Price | None:
        return None

    def clock(self) -> GeometricClock:
        return GeometricClock(ratio=self.constants.ratio)

    def users(self, count: int) -> MixtureRound:
        return no_gaussians(count, self.shape.dim, self.domain)

    def local_server(self, place: Place, users: MixtureRound, live: bool) -> LocalServer:
        clock, kept = self.clock() if live else None, keep_share(self.constants.half_life)
        told = self.constants.type_exploration, self.constants.share, self.domain, place.link
        return SplitLocal(Crowd(users.users, users.squares), self.type_rules, *told, clock, kept)

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        return SplitGlobal(servers, self.constants.types, self.shape.dim, link)

    def compiled(self, federation: Federation) -> PlusRounds:
        return PlusRounds(federation)


def no_gaussians(count: int, dim: int, domain: Domain) -> MixtureRound:
    """Users who are served from types: nothing but their statistics is kept."""
    return MixtureRound(
        users=Packed.zeros(count, dim),
        covariance=np.zeros((count, dim, dim)),
        vector=np.zeros((count, dim)),
        theta=np.zeros((count, dim)),
        squares=np.zeros(count),
        row_of=np.arange(count),
        exploration=0.0,
        weight=np.zeros(count),
        centre=CENTRE if domain.constant is not None else 0.0,
        grid=False,
        constant=domain.constant or 0.0,
    )


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
        model = stacked([server.model for server in self._types])
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
