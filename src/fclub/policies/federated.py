"""The paper's five federated policies: one implementation, one table of switches."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Privacy, Problem, Protocol, require
from fclub.core.clustering import UserGraph
from fclub.core.paper.federation import GlobalClusters, LocalClusters
from fclub.core.paper.ucb import NoiseBounds, Rules, make_rules, ridge_bounds, tree_bounds
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Indices
from fclub.errors import NumericalError
from fclub.policies.base import Parameter
from fclub.policies.rows import Rows
from fclub.policies.servers import ServersPolicy
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import CDP, Flag
from fclub.privacy.noise import NoiseSource, NoNoise, SecureNoise, SeededNoise
from fclub.protocol.accounts import Accounts, NoAccounts, TreeAccounts
from fclub.protocol.detection import Detector, EdgeDeletion, OneCluster
from fclub.protocol.global_server import GlobalServer
from fclub.protocol.link import Communications, InProcessLink
from fclub.protocol.local_server import LocalServer
from fclub.protocol.phase import PhaseClock


@dataclass(frozen=True)
class Switches:
    """A row of the policy table."""

    detection: str
    trigger: str
    noise: str


TABLE: dict[str, Switches] = {
    "cdp-fclub-dc": Switches("edges", "determinant", "tree"),
    "fclub-dc": Switches("edges", "determinant", "none"),
    "fclub": Switches("edges", "every-round", "none"),
    "homo-dc": Switches("off", "determinant", "none"),
    "homo": Switches("off", "every-round", "none"),
}


class Federation(NamedTuple):
    """The arrays of all servers together, for compiled code.

    Local cluster c is row c of `local` and member c of `world`; users are in rows sorted by server.
    """

    users: Packed
    local: LocalClusters
    world: GlobalClusters
    row_of: Indices
    cluster_of: Indices
    events: Counts
    noise: np.random.Generator
    rules: Rules


class FederatedPolicy(ServersPolicy):
    """Local servers, a global server and an in-process link between them."""

    defaults: ClassVar[dict[str, Parameter]] = {
        "upload_ratio": 1.01,
        "download_ratio": 1.01,
        "deletion": 1.5,
        "merging": 2.0,
        "ridge": 1.0,
        "sigma_0": 0.5,
        "alpha": 0.01,
        "exploration": 1.0,
        "cluster_bound": None,
        "epsilon": 1.0,
        "delta": 0.1,
        "horizon": 100_000,
        "sparse": None,
        "sparse_clusters": 4,
    }

    def __init__(self, name: str, switches: Switches, **parameters: Parameter) -> None:
        super().__init__(name, **parameters)
        self.switches = switches
        p: dict[str, Any] = dict(self._parameters)
        if switches.trigger == "every-round":
            p["upload_ratio"] = p["download_ratio"] = 1.0
        if switches.detection == "off":
            p["merging"] = inf
        require(p["sparse"] in (None, True, False), "sparse must be true, false or null", p["sparse"])
        keys = ("epsilon", "delta", "horizon")
        self.privacy = Privacy(**{k: p[k] for k in keys}) if switches.noise == "tree" else None
        self.protocol = Protocol(**{k: p[k] for k in Protocol.__dataclass_fields__})

    def bounds(self, problem: Problem) -> NoiseBounds:
        """ρ, ρ_min, ρ_max, κ of this policy on this problem."""
        if self.privacy is None:
            return ridge_bounds(self.protocol)
        return tree_bounds(problem, self.protocol, self.privacy)

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        noise_seed, graph_seed = seed.spawn(2)
        bounds = self.bounds(problem)
        self.rules = make_rules(problem, self.protocol, bounds)
        self.rows = Rows.by_server(server_of, problem.servers)
        self._users = Packed.zeros(problem.users, problem.dim)
        self._rng = np.random.default_rng(noise_seed)
        noise = self._noise_source(seeded)
        self.ledger = self.open_ledger(seeded) if bounds.noise_std > 0.0 else None
        self.link = InProcessLink()
        graph_rngs = [np.random.default_rng(s) for s in graph_seed.spawn(problem.servers)]
        self.servers = [
            LocalServer(
                server,
                self._users.slice(int(self.rows.first[server]), int(self.rows.first[server + 1])),
                self.rules,
                bounds.depth,
                self.detector(int(np.diff(self.rows.first)[server]), graph_rngs[server]),
                noise,
                self.accounts(self.ledger, bounds, str(server)),
                self.link,
            )
            for server in range(problem.servers)
        ]
        occupied = [s.server for s in self.servers if len(s.users.counts)]
        merging = self.protocol.merging
        self.hub = GlobalServer(problem.dim, occupied, self.rules, merging, self.link)
        self.link.connect(self.hub, dict(enumerate(self.servers)))
        self.clock = PhaseClock()
        self._begin_phase_if_due(0)

    def _noise_source(self, seeded: bool) -> NoiseSource:
        if self.privacy is None:
            return NoNoise()
        return SeededNoise(self._rng) if seeded else SecureNoise()

    def open_ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        """Trigger and partition are functions of raw data, which no noise accounts for."""
        if self.privacy is None:
            return None
        flags = (Flag.RAW_TRIGGER, Flag.RAW_PARTITION)
        return Ledger(CDP, self.privacy.epsilon, self.privacy.delta, flags, seeded, keep=keep)

    @staticmethod
    def accounts(ledger: Ledger | None, bounds: NoiseBounds, name: str) -> Accounts:
        if ledger is None:
            return NoAccounts()
        return TreeAccounts(ledger, bounds.uploads, bounds.noise_std, name)

    def detector(self, users: int, rng: np.random.Generator) -> Detector:
        if self.switches.detection == "off":
            return OneCluster()
        sparse: Any = self._parameters["sparse"]
        expected: Any = self._parameters["sparse_clusters"]
        graph = UserGraph(users, rng, sparse, expected)
        return EdgeDeletion(graph, self.protocol.deletion, self.protocol.ridge)

    def _by_user(self, values: list[Any]) -> Any:
        """Concatenate per-row arrays of the servers and put them in the order of users."""
        return np.concatenate(values)[self.rows.row_of]

    @property
    def labels_(self) -> Indices:
        groups = [np.array(s.groups, dtype=np.int64)[s.cluster_of] for s in self.servers]
        return self._by_user(groups)  # type: ignore[no-any-return]

    @property
    def theta_(self) -> Floats:
        estimates = []
        for server in self.servers:
            solved = [
                np.linalg.solve(gram, moment)
                for gram, moment in zip(server.clusters.gram, server.clusters.moment, strict=True)
            ]
            estimates.append(np.array(solved).reshape(-1, self.problem.dim)[server.cluster_of])
        return self._by_user(estimates)  # type: ignore[no-any-return]

    def pack(self) -> Federation | None:
        if self.privacy is not None and not self.seeded:
            return None
        starts = np.cumsum([0] + [len(s.ids) for s in self.servers])
        cluster_of = [s.cluster_of + start for s, start in zip(self.servers, starts, strict=False)]
        parts = zip(*(server.clusters for server in self.servers), strict=True)
        return Federation(
            users=self._users,
            local=LocalClusters(*(np.concatenate(part) for part in parts)),
            world=self.hub.state,
            row_of=self.rows.row_of,
            cluster_of=np.concatenate(cluster_of),
            events=np.zeros(2, dtype=np.int64),
            noise=self._rng,
            rules=self.rules,
        )

    def unpack(self, state: Federation) -> None:
        if np.any(np.isnan(state.local.growth)):
            raise NumericalError("statistics of a cluster are indefinite")
        start = 0
        for server in self.servers:
            stop = start + len(server.ids)
            rows: Any = (array[start:stop].copy() for array in state.local)
            server.clusters = LocalClusters(*rows)
            server.enter_uploads()
            start = stop

    def count_events(self, state: Federation) -> None:
        uploads, downloads = int(state.events[0]), int(state.events[1])
        self.link.communications.count_events(uploads, downloads, self.problem.dim)
        state.events[:] = 0

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, values = self.hub.state_of()
        saved: dict[str, Any] = {
            "phase": self.clock.phase,
            "hub": values,
            "communications": vars(self.communications),
            "noise": self._rng.bit_generator.state if self.privacy and self.seeded else None,
            "ledger": self.ledger_entries(),
            "servers": [],
        }
        for number, server in enumerate(self.servers):
            own, values = server.state_of()
            arrays |= {f"server{number}.{name}": array for name, array in own.items()}
            saved["servers"].append(values)
        return arrays, saved

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.clock = PhaseClock(values["phase"])
        self.hub.restore(arrays, values["hub"])
        self.link.communications = Communications(**values["communications"])
        if values["noise"] is not None:
            self._rng.bit_generator.state = values["noise"]
        self.restore_ledger(values["ledger"])
        for number, (server, saved) in enumerate(zip(self.servers, values["servers"], strict=True)):
            prefix = f"server{number}."
            own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            server.restore(own, saved)
