"""The paper's bounds with the constants of its appendix, and whether they say anything.

At the paper's own setting they do not: the clusters are only proven to be found after about 10⁹
rounds. They are computed as printed (docs/errata.md lists the slips in their constants) and shown
beside what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, log2, sqrt

from fclub.config import Privacy, Problem, Protocol, require
from fclub.core.paper.ucb import NoiseBounds, delay_factor, tree_bounds


@dataclass(frozen=True)
class UpperBound:
    """A number that something cannot exceed, beside what is possible at all."""

    value: float
    trivial: float

    @property
    def vacuous(self) -> bool:
        """A bound that allows everything, or more."""
        return self.value >= self.trivial

    def __str__(self) -> str:
        return f"{self.value:.4g}{' (vacuous)' if self.vacuous else ''}"


@dataclass(frozen=True)
class DetectionTime:
    """T̄_i = max(A, B, C, D, E) observations of every user, and the round T₀ when all have them."""

    A: float
    B: float
    C: float
    D: float
    E: float
    per_user: float
    rounds: float


@dataclass(frozen=True)
class Theory:
    """What the paper proves about one setting.

    `clusters` is m, `gap` is γ (the least distance of two different θ), `item_eigenvalue` is λ_x (the
    least eigenvalue of E[x xᵀ]), `rounds` is T.
    """

    problem: Problem
    clusters: int
    gap: float
    item_eigenvalue: float
    rounds: int
    protocol: Protocol
    privacy: Privacy

    def __post_init__(self) -> None:
        require(1 <= self.clusters <= self.problem.users, "clusters must be from 1 to n", self.clusters)
        require(0 < self.gap <= 2, "gap must be in (0, 2]", self.gap)
        require(
            0 < self.item_eigenvalue <= 1, "item_eigenvalue must be in (0, 1]", self.item_eigenvalue
        )
        require(self.rounds >= 2, "rounds must be at least 2", self.rounds)

    def noise(self, alpha: float) -> NoiseBounds:
        """ρ_min, ρ_max, κ of Definition 2 at failure probability α, with the true mL."""
        protocol = Protocol(**vars(self.protocol) | {"alpha": alpha})
        return tree_bounds(self.problem.dim, self._local_clusters, protocol, self.privacy)

    @property
    def _local_clusters(self) -> int:
        return self.clusters * self.problem.servers

    @property
    def gamma(self) -> float:
        """Γ of the delay lemma, for a cluster with users on all L servers."""
        p = self.protocol
        return delay_factor(self.problem.servers, p.upload_ratio, p.download_ratio)

    def detection_time(self, alpha: float | None = None) -> DetectionTime:
        """T₀(α) = 16n log(T/α) + 4n·max(A, …, E); the default is the theorem's α = 1/(8T)."""
        alpha = alpha or 1 / (8 * self.rounds)
        n, d, lam, gap = self.problem.users, self.problem.dim, self.item_eigenvalue, self.gap
        s, scale = self.protocol.sigma_0**2, self.item_eigenvalue * self.gap**2
        noise = sqrt(2) * self.noise(alpha).depth * log(4 / self.privacy.delta)
        noise *= 192**2 / (self.privacy.epsilon * scale)
        A = 96**2 * s * log(2 / alpha) / scale
        B = 96**2 * s * d / scale * log(4608 * s / (lam * gap**2))
        C = 6 * noise * sqrt(d)
        D = 3 * noise * log(2 * self._local_clusters / alpha)
        E = 1024 / lam**2 * log(512 * n * d / (lam**2 * alpha))
        most = max(A, B, C, D, E)
        return DetectionTime(A, B, C, D, E, most, 16 * n * log(self.rounds / alpha) + 4 * n * most)

    def cluster_regret(self, visits: float, alpha: float | None = None) -> UpperBound:
        """R_j(T_j) of the proposition: regret of one true cluster once the partition is right."""
        alpha = alpha or 1 / self.rounds
        d, L, T = self.problem.dim, self.problem.servers, self.rounds
        noise = self.noise(alpha / 8)
        ratio = noise.rho_max / noise.rho_min + visits / (d * noise.rho_min)
        beta = self.protocol.sigma_0 * sqrt(2 * log(8 * self._local_clusters / alpha) + d * log(ratio))
        beta += sqrt(L * noise.rho_max) + sqrt(L) * noise.kappa
        potential = sqrt(d * log(1 + T / (d * noise.rho_min)))
        return UpperBound(beta * potential * self.gamma * sqrt(visits), visits)

    def regret(self, visits: Sequence[float] | None = None) -> UpperBound:
        """R(T) of Theorem 1: everything until 2T₀, then the sum of R_j.

        `visits` are T_1, …, T_m; by default all clusters are visited equally often, which is the
        largest sum for a given T.
        """
        shares = visits or [self.rounds / self.clusters] * self.clusters
        later = sum(self.cluster_regret(share).value for share in shares)
        return UpperBound(2 * self.detection_time().rounds + later, self.rounds)

    @property
    def lower_bound(self) -> float:
        """Ω(√(dmT)) without its constant: no policy can be better on all problems."""
        return sqrt(self.problem.dim * self.clusters * self.rounds)

    def communication(self) -> UpperBound:
        """C(T) of the communication proposition.

        Trivially possible are one upload and L−1 downloads a round, and a report and a plan of mL
        local clusters a phase.
        """
        T, found = self.rounds, 2 * self.detection_time().rounds
        later = self._events(T)
        before = self._events(found) * log(found)
        phases = 2 * self._local_clusters * log2(T + 2)
        bound = self._local_clusters * (log(T) + later + before)
        return UpperBound(bound, T * self.problem.servers + phases)

    def _events(self, rounds: float) -> float:
        """Uploads and downloads of a local cluster while its statistics collect `rounds` rounds."""
        d, noise = self.problem.dim, self.noise(1 / (8 * self.rounds))
        growth = d * log(noise.rho_max / noise.rho_min + rounds / (d * noise.rho_min))
        step = log(min(self.protocol.upload_ratio, self.protocol.download_ratio))
        return growth / step if step > 0 else inf
