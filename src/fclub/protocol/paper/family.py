"""The paper's five policies: one implementation, one table of switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from math import inf
from typing import Any

import numpy as np

from fclub.config import Parameter, Privacy, Protocol, require
from fclub.core.clustering import UserGraph
from fclub.core.paper.ucb import NoiseBounds, Rules, make_rules, ridge_bounds, tree_bounds
from fclub.core.statistics import Packed
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import CDP, Flag
from fclub.privacy.mechanisms import Tree
from fclub.privacy.sensitivity import Domain
from fclub.protocol.federation import Federation
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Message
from fclub.protocol.paper import messages
from fclub.protocol.paper.accounts import Accounts, NoAccounts, TreeAccounts
from fclub.protocol.paper.compiled import PaperRounds
from fclub.protocol.paper.detection import Detector, EdgeDeletion, OneCluster
from fclub.protocol.paper.global_server import PaperGlobal
from fclub.protocol.paper.local_server import PaperLocal
from fclub.protocol.phase import PhaseClock
from fclub.protocol.seam import Forecast, Place, Preset, Price, Rehearsal, Shape


@dataclass(frozen=True)
class Switches:
    """What tells the policies of this family apart."""

    detection: str
    trigger: str
    noise: str


DEFAULTS: dict[str, Parameter] = {
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
"""The theory's own values; exploration = 1 is what the proofs need."""


@dataclass(frozen=True)
class PaperConstants:
    """Constants of Algorithms 1 to 4, the budget, and how large graphs start."""

    switches: Switches
    protocol: Protocol
    privacy: Privacy | None
    sparse: bool | None
    sparse_clusters: int

    @classmethod
    def of(cls, switches: Switches, parameters: Mapping[str, Parameter]) -> PaperConstants:
        p: dict[str, Any] = dict(parameters)
        if switches.trigger == "every-round":
            p["upload_ratio"] = p["download_ratio"] = 1.0
        if switches.detection == "off":
            p["merging"] = inf
        require(p["sparse"] in (None, True, False), "sparse must be true, false or null", p["sparse"])
        keys = ("epsilon", "delta", "horizon")
        return cls(
            switches=switches,
            privacy=Privacy(**{k: p[k] for k in keys}) if switches.noise == "tree" else None,
            protocol=Protocol(**{k: p[k] for k in Protocol.__dataclass_fields__}),
            sparse=p["sparse"],
            sparse_clusters=p["sparse_clusters"],
        )

    def family(self, shape: Shape) -> PaperFamily:
        return PaperFamily(self, shape)


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
        return tree_bounds(self.shape.dim, self.clusters, self.protocol, self.privacy)

    @cached_property
    def rules(self) -> Rules:
        return make_rules(self.clusters, self.protocol, self.bounds)

    def decode(self, data: bytes) -> Message:
        return messages.decode(data)

    def fingerprint(self) -> list[float]:
        return list(self.rules)

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
        return Price(ledger.mu, phases_add_up=True)

    def clock(self) -> PhaseClock:
        return PhaseClock()

    def users(self, count: int) -> Packed:
        return Packed.zeros(count, self.shape.dim)

    def local_server(self, place: Place, users: Packed, live: bool) -> PaperLocal:
        return PaperLocal(
            place.name,
            users,
            self.rules,
            self.bounds.depth,
            self._detector(len(users.counts), place.rng),
            place.noise,
            self._accounts(place.ledger, place.name),
            place.link,
        )

    def global_server(self, servers: list[int], link: Downlink) -> PaperGlobal:
        return PaperGlobal(self.shape.dim, servers, self.rules, self.protocol.merging, link)

    def compiled(self, federation: Federation) -> PaperRounds | None:
        """None where noise must not come from a generator: compiled code has no other source."""
        if self.privacy is not None and not federation.seeded:
            return None
        return PaperRounds(federation, self.rules)

    def _accounts(self, ledger: Ledger | None, name: str) -> Accounts:
        if ledger is None:
            return NoAccounts()
        return TreeAccounts(ledger, self.bounds.uploads, self.bounds.noise_std, name)

    def _detector(self, users: int, rng: np.random.Generator) -> Detector:
        if self.constants.switches.detection == "off":
            return OneCluster()
        graph = UserGraph(users, rng, self.constants.sparse, self.constants.sparse_clusters)
        return EdgeDeletion(graph, self.protocol.deletion, self.protocol.ridge)


def _forecast(family: PaperFamily) -> Forecast:
    """Five observations: the report that opens the tree, every upload, one later report.

    Phase 2 starts after two observations and, as nothing changed, only releases again what was there:
    the tree of phase 1 goes on, and the new report's noise is a release of its own.
    """
    uploads, again = 5, 3
    weights = np.eye(uploads + 1)[:, 1:]
    growth = np.diff(Tree(uploads + 1, 1.0).factor(uploads + 1), axis=0, prepend=0.0)
    across = np.insert(np.insert(growth @ growth.T, again, 0.0, axis=0), again, 0.0, axis=1)
    across[again, again] = 1.0
    weights = np.insert(weights, again, weights[:again].sum(axis=0), axis=0)
    return Forecast(weights, across, family.bounds.noise_std)


def preset(switches: Switches, summary: str, tuned: Mapping[str, Parameter] | None = None) -> Preset:
    """A row of the table."""
    check = partial(PaperConstants.of, switches)
    rehearsal = Rehearsal(_forecast) if switches.noise == "tree" else None
    return Preset(summary, asdict(switches), DEFAULTS, check, tuned or {}, rehearsal)


_POOLED: dict[str, Parameter] = {"exploration": 0.15, "ridge": 1.0, "sigma_0": 0.5}
_CLUSTERED: dict[str, Parameter] = {"deletion": 2.0, "merging": 2.0, **_POOLED}

SWITCHES = {
    "cdp-fclub-dc": Switches("edges", "determinant", "tree"),
    "fclub-dc": Switches("edges", "determinant", "none"),
    "fclub": Switches("edges", "every-round", "none"),
    "homo-dc": Switches("off", "determinant", "none"),
    "homo": Switches("off", "every-round", "none"),
}

_SUMMARIES = {
    "cdp-fclub-dc": "the paper's algorithm as printed: clusters, delayed communication, tree noise",
    "fclub-dc": "the same without noise",
    "fclub": "the same without noise, every observation shared at once",
    "homo-dc": "all users treated as one cluster, delayed communication",
    "homo": "all users treated as one cluster, every observation shared at once",
}

PRESETS = {
    name: preset(row, _SUMMARIES[name], _POOLED if row.detection == "off" else _CLUSTERED)
    for name, row in SWITCHES.items()
}
