"""The paper's five policies: one implementation, one table of switches."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np

from fclub.config import (
    Alpha,
    ClusterBound,
    Deletion,
    Delta,
    DownloadRatio,
    Epsilon,
    Exploration,
    Horizon,
    Merging,
    Privacy,
    Protocol,
    Ridge,
    Sigma0,
    Sparse,
    SparseClusters,
    UploadRatio,
)
from fclub.core.clustering import UserGraph
from fclub.core.lattice import STEP
from fclub.core.paper import rounds
from fclub.core.paper.federation import LocalClusters
from fclub.core.paper.rounds import FederatedRound
from fclub.core.paper.ucb import (
    NoiseBounds,
    Rules,
    make_rules,
    max_uploads,
    node_std,
    ridge_bounds,
    tree_bounds,
    tree_depth,
)
from fclub.core.statistics import Packed
from fclub.errors import NumericalError
from fclub.privacy.calibration import LARGEST_EPSILON, mu_within
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import CDP, Flag
from fclub.privacy.sensitivity import Domain, sensitivity
from fclub.protocol.exchanges.clusters import (
    Accounts,
    ClusterGlobal,
    ClusterLocal,
    PhaseClock,
    TreeAccounts,
    decode,
    event_size,
    phase_tree,
)
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Constants, Place, Price, Shape
from fclub.protocol.learners.edges import Detector, EdgeDeletion, Edges, OneCluster
from fclub.protocol.link import Downlink
from fclub.protocol.servers import GlobalServer, LocalServer


class PaperConstants(Constants):
    """One cluster, every observation shared at once, no noise: what the switches start from."""

    switch: ClassVar[dict[str, str]] = {"detection": "off", "trigger": "every-round", "noise": "none"}

    ridge: Ridge = 1.0
    sigma_0: Sigma0 = 0.5
    alpha: Alpha = 0.01
    exploration: Exploration = 1.0
    cluster_bound: ClusterBound = None

    def __init_subclass__(cls) -> None:
        """Each base class sets a switch of its own."""
        super().__init_subclass__()
        set_by = [vars(base).get("switch", {}) for base in reversed(cls.__mro__)]
        cls.switches = {key: value for switch in set_by for key, value in switch.items()}

    @property
    def protocol(self) -> Protocol:
        off = {"upload_ratio": 1.0, "download_ratio": 1.0, "merging": inf}
        known: Any = {k: v for k, v in self.get_params().items() if k in Protocol.__dataclass_fields__}
        return Protocol(**off | known)

    @property
    def privacy(self) -> Privacy | None:
        return None

    def detector(self, users: int, rng: np.random.Generator) -> Detector:
        return OneCluster()

    def make_family(self, shape: Shape) -> PaperFamily:
        return PaperFamily(self, shape)


class WithDelays(PaperConstants):
    """Uploads and downloads when a determinant has grown (Eq. 5, 6)."""

    switch: ClassVar[dict[str, str]] = {"trigger": "determinant"}

    upload_ratio: UploadRatio = 1.01
    download_ratio: DownloadRatio = 1.01


class WithClusters(PaperConstants):
    """Edges of users are deleted, clusters of servers merged (Eq. 3, 4)."""

    switch: ClassVar[dict[str, str]] = {"detection": "edges"}

    deletion: Deletion = 1.5
    merging: Merging = 2.0
    sparse: Sparse = None
    sparse_clusters: SparseClusters = 4

    def detector(self, users: int, rng: np.random.Generator) -> Detector:
        graph = UserGraph(users, rng, self.sparse, self.sparse_clusters)
        return EdgeDeletion(graph, self.deletion, self.ridge)


class WithTree(PaperConstants):
    """Noise of a tree on everything that is uploaded (Alg. 5)."""

    switch: ClassVar[dict[str, str]] = {"noise": "tree"}

    epsilon: Epsilon = 1.0
    delta: Delta = 0.1
    horizon: Horizon = 100_000

    @property
    def privacy(self) -> Privacy:
        return Privacy(self.epsilon, self.delta, self.horizon)


class PaperFamily:
    """Clusters of users, phases, uploads and downloads; noise of a tree per cluster and phase."""

    domain = Domain()

    def __init__(self, constants: PaperConstants, shape: Shape) -> None:
        self.constants, self.shape = constants, shape
        self.privacy, self.protocol = constants.privacy, constants.protocol

    @property
    def clusters(self) -> int:
        """The paper's mL: a bound given as a parameter, else that of the shape."""
        return self.protocol.cluster_bound or self.shape.clusters

    @cached_property
    def bounds(self) -> NoiseBounds:
        """ρ, ρ_min, ρ_max, κ."""
        if self.privacy is None:
            return ridge_bounds(self.protocol)
        privacy = affordable(self.privacy, self.shape.dim, self.protocol)
        return tree_bounds(self.shape.dim, self.clusters, self.protocol, privacy)

    @cached_property
    def rules(self) -> Rules:
        return make_rules(self.clusters, self.protocol, self.bounds)

    decode = staticmethod(decode)

    def fingerprint(self) -> list[float]:
        return [*self.rules, STEP] if self.privacy is not None else list(self.rules)

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        """Trigger and partition are functions of raw data, which no noise accounts for."""
        if self.privacy is None:
            return None
        flags = (Flag.RAW_TRIGGER, Flag.RAW_PARTITION)
        return Ledger(CDP, self.privacy.epsilon, self.privacy.delta, flags, seeded, keep=keep)

    def price(self) -> Price | None:
        """A phase releases everything again under noise that is paid when it begins."""
        ledger = self.ledger(seeded=False)
        if ledger is None:
            return None
        self._accounts(ledger, "any").report(phase=1, cluster=0, observations=1)
        return Price(ledger.mu, ledger.distance)

    def clock(self) -> PhaseClock:
        return PhaseClock()

    def users(self, count: int) -> Packed:
        return Packed.zeros(count, self.shape.dim)

    def local_server(self, place: Place, users: Packed, live: bool) -> LocalServer:
        detector = self.constants.detector(len(users.counts), place.rng)
        learner = Edges(users, self.rules, self.bounds.depth, detector)
        accounts = self._accounts(place.ledger, place.name)
        exchange = ClusterLocal(learner, self.rules, place.noise, accounts, place.link)
        return LocalServer(learner, exchange)

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        merging = self.protocol.merging
        return GlobalServer(ClusterGlobal(self.shape.dim, servers, self.rules, merging, link))

    def compiled(self, federation: Federation) -> PaperRounds | None:
        """None where noise must not come from a generator: compiled code has no other source."""
        if self.privacy is not None and not federation.seeded:
            return None
        return PaperRounds(federation, self.rules)

    def _accounts(self, ledger: Ledger | None, name: str) -> Accounts:
        if ledger is None:
            return Accounts()
        return TreeAccounts(ledger, self.bounds.uploads, self.bounds.noise_std, self.shape.dim, name)


def affordable(privacy: Privacy, dim: int, protocol: Protocol) -> Privacy:
    """This claim, or one with a smaller ε whose printed noise pays for all phases of the horizon.

    The printed σ falls with 1/ε, the μ that (ε, δ) allows grows only with √ε: at δ=0.1 printed noise is
    too small for 17 phases from ε≈12 on, and for a single one from ε≈280 on.
    """
    uploads, epsilon = max_uploads(dim, protocol, privacy), min(privacy.epsilon, LARGEST_EPSILON)
    std = node_std(replace(privacy, epsilon=epsilon), tree_depth(uploads))
    tree, phases = phase_tree(uploads, std, dim), PhaseClock.phases(privacy.horizon)
    allowed = mu_within(epsilon, privacy.delta, phases * tree.distance(uploads + 1))
    cost = sqrt(phases) * tree.cost(sensitivity(Domain(), dim), uploads + 1)
    return replace(privacy, epsilon=epsilon * min(1.0, allowed / cost))


class PaperRounds:
    """Packs the clusters of all servers together; the users' arrays are shared anyway."""

    kernels = (rounds.recommend, rounds.feedback)

    def __init__(self, federation: Federation, rules: Rules) -> None:
        self.federation, self.rules = federation, rules
        servers: Any = federation.servers.values()
        self._learners: list[Edges] = [server.learner for server in servers]
        self._exchanges: list[ClusterLocal] = [server.exchange for server in servers]
        hub: Any = federation.hub
        self._hub: ClusterGlobal = hub.exchange

    def pack(self) -> FederatedRound:
        starts = np.cumsum([0] + [len(exchange.ids) for exchange in self._exchanges])
        cluster_of = [
            learner.cluster_of + start for learner, start in zip(self._learners, starts, strict=False)
        ]
        parts = zip(*(learner.clusters for learner in self._learners), strict=True)
        users: Any = self.federation.users
        return FederatedRound(
            users=users,
            local=LocalClusters(*(np.concatenate(part) for part in parts)),
            merged=self._hub.clusters,
            row_of=self.federation.row_of,
            cluster_of=np.concatenate(cluster_of),
            events=np.zeros(2, dtype=np.int64),
            noise=self.federation.rng,
            rules=self.rules,
        )

    def count_events(self, state: FederatedRound) -> None:
        uploads, downloads = int(state.events[0]), int(state.events[1])
        sizes = event_size(state.users.moment.shape[1])
        self.federation.link.communications.count_events(uploads, downloads, sizes)
        state.events[:] = 0

    def unpack(self, state: FederatedRound) -> None:
        if np.any(np.isnan(state.local.growth)):
            raise NumericalError("statistics of a cluster are indefinite")
        start = 0
        for learner, exchange in zip(self._learners, self._exchanges, strict=True):
            stop = start + len(exchange.ids)
            rows: Any = (array[start:stop].copy() for array in state.local)
            learner.clusters = LocalClusters(*rows)
            exchange.enter_uploads()
            start = stop


class Printed(WithClusters, WithDelays, WithTree):
    """The whole algorithm, at the constants that benchmarks/tune.py found best, like the rows below."""

    name = "cdp-fclub-dc"
    deletion = 2.0
    exploration = 0.15


class Delayed(WithClusters, WithDelays):
    """Without noise; tuned constants."""

    name = "fclub-dc"
    deletion = 2.0
    exploration = 0.15


class Instant(WithClusters):
    """Without noise and delays."""

    name = "fclub"
    deletion = 2.0
    exploration = 0.15


class PooledDelayed(WithDelays):
    """One cluster, without noise."""

    name = "homo-dc"
    exploration = 0.15


class PooledInstant(PaperConstants):
    """One cluster, without noise and delays."""

    name = "homo"
    exploration = 0.15


ROWS: tuple[type[Constants], ...] = (Printed, Delayed, Instant, PooledDelayed, PooledInstant)
