"""Confidence radii: ρ, ρ_min, ρ_max, κ of the printed privatizer and β of Lemma 1."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, log2, sqrt
from typing import NamedTuple

from fclub.config import Privacy, Protocol, require
from fclub.core.compiling import compiled
from fclub.core.lattice import STEP

LARGEST_SHIFT = 2.0**24
"""With a shift below this, and noise that is much smaller, sums that are sent stay below the limit."""


@dataclass(frozen=True)
class NoiseBounds:
    """Definition 2: spectral bounds of what is added to a local cluster's Gram matrix.

    Without privacy the only thing added is the ridge: ρ_min = ρ_max = λ and κ = 0.
    """

    rho_min: float
    rho_max: float
    kappa: float
    report_shift: float
    upload_shift: float
    noise_std: float
    uploads: int
    depth: int


def ridge_bounds(protocol: Protocol) -> NoiseBounds:
    """The non-private forms: λI per local cluster instead of 2ρI, nothing per upload."""
    return NoiseBounds(protocol.ridge, protocol.ridge, 0.0, protocol.ridge, 0.0, 0.0, 0, 0)


def max_uploads(dim: int, protocol: Protocol, privacy: Privacy) -> int:
    """t_c: at most d·log T / log min(U, D) events can happen to a local cluster (Section 4)."""
    ratio = min(protocol.upload_ratio, protocol.download_ratio)
    require(ratio > 1.0, "the tree-based privatizer needs upload and download ratios above 1", ratio)
    return max(1, ceil(dim * log(privacy.horizon) / log(ratio)))


def tree_depth(uploads: int) -> int:
    """ν = ⌈log₂(t_c + 1)⌉ + 1 (Alg. 5)."""
    return ceil(log2(uploads + 1)) + 1


def node_std(privacy: Privacy, depth: int) -> float:
    """Standard deviation of an entry of a tree node: the printed value is its square."""
    return sqrt(64.0 * depth) * log(2.0 / privacy.delta) / privacy.epsilon


def _whole(shift: float) -> float:
    """The nearest multiple of the lattice's step, so that shifted sums stay on it."""
    return round(shift / STEP) * STEP


def tree_bounds(dim: int, clusters: int, protocol: Protocol, privacy: Privacy) -> NoiseBounds:
    """ρ of Section 3, ρ_min and ρ_max of Section 4, κ in the closed form of the appendix.

    `clusters` is the paper's mL, a bound on the number of all local clusters.
    """
    uploads = max_uploads(dim, protocol, privacy)
    nu = tree_depth(uploads)
    d, tail = dim, 2.0 * log(2.0 * clusters / protocol.alpha)
    rho = 8.0 * sqrt(2.0) * nu * log(4.0 / privacy.delta) * (4.0 * sqrt(d) + tail) / privacy.epsilon
    require(3.0 * rho < LARGEST_SHIFT, "epsilon is too small for exact sums", privacy.epsilon)
    kappa = sqrt(2.0 * nu * (sqrt(d) + tail) / (sqrt(2.0) * privacy.epsilon))
    return NoiseBounds(
        rho_min=rho,
        rho_max=3.0 * rho + 3.0 * rho * uploads,
        kappa=kappa,
        report_shift=_whole(2.0 * rho),
        upload_shift=_whole(3.0 * rho),
        noise_std=node_std(privacy, nu),
        uploads=uploads,
        depth=nu,
    )


class Rules(NamedTuple):
    """The constants that the kernels of a round need, as plain numbers."""

    log_upload: float
    log_download: float
    ridge: float
    sigma_0: float
    log_clusters_alpha: float
    exploration: float
    rho_min: float
    rho_max: float
    kappa: float
    report_shift: float
    upload_shift: float
    noise_std: float
    uploads: int


def make_rules(clusters: int, protocol: Protocol, bounds: NoiseBounds) -> Rules:
    """Everything a round needs, worked out once."""
    return Rules(
        log_upload=log(protocol.upload_ratio),
        log_download=log(protocol.download_ratio),
        ridge=float(protocol.ridge),
        sigma_0=float(protocol.sigma_0),
        log_clusters_alpha=log(clusters / protocol.alpha),
        exploration=float(protocol.exploration),
        rho_min=float(bounds.rho_min),
        rho_max=float(bounds.rho_max),
        kappa=float(bounds.kappa),
        report_shift=float(bounds.report_shift),
        upload_shift=float(bounds.upload_shift),
        noise_std=float(bounds.noise_std),
        uploads=int(bounds.uploads),
    )


@compiled
def confidence_radius(count: float, sharing: float, dim: int, rules: Rules) -> float:
    """β^ℓ_{t,j} of Lemma 1 for T = count observations shared by L′ = sharing local clusters."""
    T, d, L = count, dim, sharing
    growth = 2.0 * rules.log_clusters_alpha + d * log(
        rules.rho_max / rules.rho_min + T / (d * L * rules.rho_min)
    )
    return (
        rules.sigma_0 * sqrt(growth) + sqrt(L * rules.rho_max) + sqrt(L) * rules.kappa
    ) * rules.exploration


def delay_factor(sharing: int, upload_ratio: float, download_ratio: float) -> float:
    """Γ = √(D(1 + (L′−1)(U−1)) + U − 1), the price of delayed communication."""
    U, D = upload_ratio, download_ratio
    return sqrt(D * (1.0 + (sharing - 1) * (U - 1.0)) + U - 1.0)
