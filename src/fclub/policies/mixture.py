"""`fclub-plus` and `cdp-fclub-plus`: soft clusters by Bayesian mixture, sharing released sums."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Privacy, Problem, require
from fclub.core.plus.rounds import MixtureRound
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Indices, Vector
from fclub.policies.base import Parameter
from fclub.policies.rows import Rows
from fclub.policies.servers import ServersPolicy
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import Flag, level_named
from fclub.privacy.noise import NoiseSource, SecureNoise, SeededNoise
from fclub.privacy.plan import StreamPlan, plan_stream
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.link import Communications, InProcessLink, Link
from fclub.protocol.mixture_global import MixtureGlobal
from fclub.protocol.mixture_local import MixtureLocal
from fclub.protocol.mixture_rules import MixtureRules
from fclub.protocol.phase import GeometricClock
from fclub.protocol.releases import ExactReleases, PrivateReleases, Releases

FLAGS = {
    "cdp": (Flag.RAW_PARTITION, Flag.RAW_CHOICES),
    "transcript": (Flag.RAW_CHOICES,),
    "interactive": (),
}
"""What each level leaves to raw data: see docs/privacy.md."""


class MixturePolicy(ServersPolicy):
    """Local servers infer soft clusters of their users, helped by what others have released.

    `variance` of a reward, `prior` (expected squared norm of a centred θ), `exploration` and `margin`
    are the constants; `ratio` spaces detections. `share` off keeps every server to itself, `centre`
    off keeps rewards as they are. With noise, `epsilon`, `delta` and `level` are the promise and
    `first_release`, `release_ratio` the count schedule of a user's stream.
    """

    defaults: ClassVar[dict[str, Parameter]] = {
        "variance": 0.17,
        "prior": 0.7,
        "exploration": 0.5,
        "margin": 3.0,
        "ratio": 1.1,
        "sweeps": 20,
        "share": True,
        "centre": True,
        "epsilon": 1.0,
        "delta": 0.1,
        "level": "cdp",
        "first_release": 100,
        "release_ratio": 2.0,
    }

    def __init__(self, name: str, private: bool, **parameters: Parameter) -> None:
        super().__init__(name, **parameters)
        p: Any = self._parameters
        self.private = private
        self.privacy = Privacy(p["epsilon"], p["delta"]) if private else None
        self.level = level_named(p["level"])
        for key in ("variance", "prior", "ratio", "release_ratio"):
            least = 1.0 if key.endswith("ratio") else 0.0
            require(p[key] > least, f"{key} must be above {least:g}", p[key])
        require(p["sweeps"] >= 4, "sweeps must be at least 4", p["sweeps"])
        require(p["exploration"] >= 0, "exploration must be at least 0", p["exploration"])

    def domain_of(self, problem: Problem) -> Domain:
        """The observations that are promised for."""
        return Domain.of(problem) if self._parameters["centre"] else Domain()

    def plan_of(self, problem: Problem) -> StreamPlan | None:
        """Noise and schedule of a user's stream; None where exact statistics leave."""
        if self.privacy is None:
            return None
        p: Any = self._parameters
        first, ratio = int(p["first_release"]), float(p["release_ratio"])
        budget = (self.privacy.epsilon, self.privacy.delta)
        return plan_stream(*budget, self.domain_of(problem), "increments", first, ratio)

    def rules_of(self, problem: Problem) -> MixtureRules:
        """What all servers agree on."""
        p: Any = self._parameters
        plan, least, most = self.plan_of(problem), 0.0, 0.0
        if plan is not None:
            least, most = plan.mechanism.std**2, plan.last_std**2 / plan.schedule[0]
        return MixtureRules(
            prior=np.eye(problem.dim) * problem.dim / p["prior"],
            variance=float(p["variance"]),
            sweeps=int(p["sweeps"]),
            share=bool(p["share"]),
            separate=self.private and self.level.name != "cdp",
            released_only=self.private and self.level.name == "interactive",
            least_noise=least,
            most_noise=float(most),
        )

    def round_of(self, problem: Problem, row_of: Indices) -> MixtureRound:
        """Users of whom nothing is known, in these rows."""
        p: Any = self._parameters
        rules, n, d = self.rules_of(problem), len(row_of), problem.dim
        centred = self.domain_of(problem).constant is not None
        return MixtureRound(
            users=Packed.zeros(n, d),
            covariance=np.tile(np.linalg.inv(rules.prior), (n, 1, 1)),
            vector=np.zeros((n, d)),
            theta=np.zeros((n, d)),
            squares=np.zeros(n),
            row_of=row_of,
            exploration=float(p["exploration"]),
            weight=0.0 if rules.released_only else 1.0 / p["variance"],
            centre=CENTRE if centred else 0.0,
        )

    def open_ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        if self.privacy is None:
            return None
        epsilon, delta = self.privacy.epsilon, self.privacy.delta
        return Ledger(self.level, epsilon, delta, FLAGS[self.level.name], seeded, keep=keep)

    def hub_of(self, servers: list[int], problem: Problem, link: Link) -> MixtureGlobal:
        margin: Any = self._parameters["margin"]
        return MixtureGlobal(servers, self.rules_of(problem), float(margin), link)

    def clock_of(self) -> GeometricClock:
        ratio: Any = self._parameters["ratio"]
        return GeometricClock(ratio=float(ratio))

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        noise_seed, chain_seed = seed.spawn(2)
        self.domain = self.domain_of(problem)
        self.rows = Rows.by_server(server_of, problem.servers)
        self._state = self.round_of(problem, self.rows.row_of)
        self._rng = np.random.default_rng(noise_seed)
        self._source: NoiseSource = SeededNoise(self._rng) if seeded else SecureNoise()
        self.ledger = self.open_ledger(seeded)
        self.link = InProcessLink()
        chains = [np.random.default_rng(s) for s in chain_seed.spawn(problem.servers)]
        occupied = [s for s in range(problem.servers) if self.rows.first[s] < self.rows.first[s + 1]]
        self.servers = {s: self._server(s, problem, chains[s]) for s in occupied}
        self.hub = self.hub_of(occupied, problem, self.link)
        self.link.connect(self.hub, dict(self.servers))
        self.clock = self.clock_of()
        self._begin_phase_if_due(0)

    def _server(self, server: int, problem: Problem, chain: np.random.Generator) -> MixtureLocal:
        start, stop = int(self.rows.first[server]), int(self.rows.first[server + 1])
        state = self._state
        own = state._replace(
            users=state.users.slice(start, stop),
            covariance=state.covariance[start:stop],
            vector=state.vector[start:stop],
            theta=state.theta[start:stop],
            squares=state.squares[start:stop],
            row_of=np.arange(stop - start),
        )
        releases = self.releases_of(own.users, problem, self._source, self.ledger, str(server))
        return MixtureLocal(server, own, self.rules_of(problem), releases, chain, self.link)

    def releases_of(
        self, users: Packed, problem: Problem, source: NoiseSource, ledger: Ledger | None, name: str
    ) -> Releases:
        plan = self.plan_of(problem)
        if plan is None or ledger is None:
            return ExactReleases(users)
        return PrivateReleases(users, plan, source, ledger, name)

    def _update(self, user: int, x: Vector, y: float) -> None:
        self.domain.check(x, y - self._state.centre)
        super()._update(user, x, y)

    def pack(self) -> MixtureRound:
        return self._state

    @property
    def labels_(self) -> Indices:
        """Global clusters; users of clusters that no one has seen are labelled apart."""
        labels = np.zeros(len(self.rows.row_of), dtype=np.int64)
        apart = 1_000_000
        for number, server in self.servers.items():
            start, stop = int(self.rows.first[number]), int(self.rows.first[number + 1])
            own = server.group_labels()
            labels[start:stop] = np.where(own >= 0, own, apart * (number + 1) - own)
        return labels[self.rows.row_of]

    @property
    def theta_(self) -> Floats:
        theta = self._state.theta[self.rows.row_of].copy()
        if self.domain.constant is not None:
            theta[:, -1] += CENTRE / self.domain.constant
        return theta

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, hub = self.hub.state_of()
        saved: dict[str, Any] = {
            "clock": [self.clock.phase, self.clock.next_start],
            "hub": hub,
            "communications": vars(self.communications),
            "noise": self._rng.bit_generator.state if self.private and self.seeded else None,
            "ledger": self.ledger_entries(),
            "servers": {},
        }
        for number, server in self.servers.items():
            own, values = server.state_of()
            arrays |= {f"server{number}.{name}": array for name, array in own.items()}
            saved["servers"][str(number)] = values
        return arrays, saved

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.clock.phase, self.clock.next_start = values["clock"]
        self.hub.restore(arrays, values["hub"])
        self.link.communications = Communications(**values["communications"])
        if values["noise"] is not None:
            self._rng.bit_generator.state = values["noise"]
        self.restore_ledger(values["ledger"])
        for number, server in self.servers.items():
            prefix = f"server{number}."
            own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            server.restore(own, values["servers"][str(number)])
