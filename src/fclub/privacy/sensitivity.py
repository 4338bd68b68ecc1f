"""How far one observation can move the statistics, measured in units of the noise.

The noise on the (d+1)×(d+1) matrix of Gram matrix and moment is σ(N̄+N̄ᵀ)/√2: standard deviation σ off
the diagonal, √2σ on it; the corner (d+1, d+1) is never released. docs/privacy.md has the proofs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import isfinite, sqrt

import numpy as np

from fclub.config import require
from fclub.core.inputs import NORM_TOLERANCE
from fclub.core.lattice import GRID, on_grid
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.errors import InvalidFeatures, InvalidReward

CENTRE = 0.5
"""What is subtracted from a reward in [0, 1] where the domain allows it."""


@dataclass(frozen=True)
class Domain:
    """The observations (x, y) for which a sensitivity is promised.

    ‖x‖ ≤ `norm` (up to the tolerance of the input checks), `low` ≤ y ≤ `high`, and, unless `constant`
    is None, the last coordinate of every x is exactly `constant`. `relief` ≥ 1 is the factor by which
    the noise in the constant's row and in its moment is larger than elsewhere: those entries carry
    little that tells items apart, and noising them more lets everything else be noised less.
    """

    norm: float = 1.0
    low: float = 0.0
    high: float = 1.0
    constant: float | None = None
    relief: float = 1.0

    def __post_init__(self) -> None:
        require(self.norm > 0.0 and isfinite(self.norm), "norm must be above 0", self.norm)
        require(isfinite(self.high) and self.low <= self.high, "low must be at most high", self.low)
        require(self.relief >= 1.0 and isfinite(self.relief), "relief must be at least 1", self.relief)
        if self.constant is None:
            require(self.relief == 1.0, "relief needs a shared constant coordinate", self.relief)
        else:
            inside = GRID <= self.constant <= self.norm
            limits = f"{GRID:g} to {self.norm:g}"
            require(inside, f"constant must be from {limits}", self.constant)

    @staticmethod
    def of(constant: float | None, relief: float = 2.0) -> Domain:
        """Rewards in [0, 1]; centred, with the constant's entries relieved, where there is one."""
        if constant is None:
            return Domain()
        return Domain(1.0, -CENTRE, 1.0 - CENTRE, constant, relief)

    @property
    def centre(self) -> float:
        """What is subtracted from a reward before it is summed."""
        return 0.0 if self.constant is None else CENTRE

    def check_items(self, items: Matrix) -> None:
        """Refuse an offer with an item that could not be learned from; norms were checked before."""
        if self.constant is not None and np.any(items[:, -1] != self.constant):
            raise InvalidFeatures(f"the last feature must be {self.constant!r}", items[:, -1])

    def check(self, x: Vector, y: float) -> None:
        """Refuse an observation for which the sensitivity does not hold."""
        if not float(np.linalg.norm(x)) <= self.norm + NORM_TOLERANCE:
            raise InvalidFeatures(f"features have norm above {self.norm:g}", x)
        if self.constant is not None and x[-1] != self.constant:
            raise InvalidFeatures(f"the last feature must be {self.constant!r}", float(x[-1]))
        if not self.low <= y <= self.high:
            raise InvalidReward(f"reward {y!r} is outside [{self.low:g}, {self.high:g}]", y)


@dataclass(frozen=True)
class _Worst:
    """Squared distance, inner product ⟨v, v′⟩ and rewards of the two observations furthest apart."""

    square: float
    inner: float
    rewards: tuple[float, float]


def _worst(domain: Domain, dim: int) -> _Worst:
    """Maximise the squared whitened distance of rounded observations; see `sensitivity`."""
    a = domain.constant or 0.0
    free = max(0.0, (domain.norm + NORM_TOLERANCE) ** 2 - max(0.0, a - NORM_TOLERANCE) ** 2)
    R = (sqrt(free) + sqrt(dim) * GRID / 2.0) ** 2
    wa = (on_grid(a) / domain.relief) ** 2
    rewards = on_grid(domain.low), on_grid(domain.high)
    most = _Worst(0.0, 0.0, rewards)
    for y, z in product(rewards, repeat=2):
        p = min(max(-(wa + y * z), -R), R)
        gram = R * R - p * p + 2.0 * wa * (R - p)
        moment = R * (y * y + z * z) - 2.0 * y * z * p + wa * (y - z) ** 2
        if gram + moment > most.square:
            most = _Worst(gram + moment, p, (y, z))
    return most


def sensitivity(domain: Domain, dim: int) -> float:
    """Δ: the largest whitened distance between two observations, so that one release costs μ = Δ/σ.

    Of observations as they are summed: on the grid, where rounding may have made v longer.

    With x = (v, a), R = max‖v‖², p = ⟨v, v′⟩ and w = 1/relief², the squared distance is at most
    R² − p² + 2wa²(R − p) + R(y² + y′²) − 2yy′p + wa²(y − y′)²: concave in p, convex in (y, y′), so the
    maximum is at an end of both reward ranges and at the clipped vertex p = −(wa² + yy′). Attained
    when v has at least two coordinates. Without a constant coordinate a = 0.
    """
    return sqrt(_worst(domain, dim).square)


def worst_pair(domain: Domain, dim: int) -> tuple[tuple[Vector, float], tuple[Vector, float]]:
    """Two observations (x, y) that attain the sensitivity, but for tolerance and rounding."""
    worst = _worst(domain, dim)
    room = domain.norm**2 - (domain.constant or 0.0) ** 2
    free = dim - (domain.constant is not None)
    require(free >= 2, "the worst pair needs two coordinates beside the constant", dim)
    cosine = max(-1.0, min(1.0, worst.inner / room)) if room > 0.0 else 1.0
    x, other = np.zeros(dim), np.zeros(dim)
    x[0] = sqrt(room)
    other[:2] = sqrt(room) * cosine, sqrt(room) * sqrt(1.0 - cosine * cosine)
    if domain.constant is not None:
        x[-1] = other[-1] = domain.constant
    return (x, worst.rewards[0]), (other, worst.rewards[1])


def entry_std(domain: Domain, dim: int, std: float) -> Matrix:
    """Standard deviation by entry that symmetric noise is scaled with; (d+1)×(d+1).

    The square of the constant is the same for all items and the corner is not released: both zero.
    """
    scale = np.full((dim + 1, dim + 1), std)
    scale[dim, dim] = 0.0
    if domain.constant is not None:
        scale[dim - 1, :] *= domain.relief
        scale[:, dim - 1] = scale[dim - 1, :]
        scale[dim - 1, dim - 1] = 0.0
    return scale


@cache
def released_places(dim: int) -> tuple[Indices, Indices]:
    """Rows and columns of the entries that are released: the upper triangle without its corner."""
    rows, columns = (side[:-1].astype(np.int64) for side in np.triu_indices(dim + 1))
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


def released_entries(gram: Floats, moment: Floats) -> Floats:
    """The distinct entries of one (or many: leading axes) pair, in a row."""
    dim = moment.shape[-1]
    both = np.zeros((*moment.shape[:-1], dim + 1, dim + 1))
    both[..., :dim, :dim] = gram
    both[..., :dim, dim] = moment
    rows, columns = released_places(dim)
    return both[..., rows, columns]


def pair_of(entries: Floats, dim: int) -> tuple[Floats, Floats]:
    """The inverse of `released_entries`."""
    rows, columns = released_places(dim)
    both = np.zeros((*entries.shape[:-1], dim + 1, dim + 1))
    both[..., rows, columns] = both[..., columns, rows] = entries
    return both[..., :dim, :dim], both[..., :dim, dim]


def released_std(domain: Domain, dim: int, std: float) -> Vector:
    """Deviation of each of the released entries: √2 times more on the diagonal."""
    rows, columns = released_places(dim)
    scale: Vector = np.where(rows == columns, sqrt(2.0), 1.0)
    return entry_std(domain, dim, std)[rows, columns] * scale


def noised_places(domain: Domain, dim: int) -> tuple[Indices, Indices]:
    """Rows and columns of those that carry noise: all but constant²."""
    rows, columns = released_places(dim)
    noised = released_std(domain, dim, 1.0) > 0.0
    return rows[noised], columns[noised]


def noised_entries(gram: Floats, moment: Floats, domain: Domain) -> Floats:
    """The entries that carry noise, in a row."""
    noised = released_std(domain, moment.shape[-1], 1.0) > 0.0
    return released_entries(gram, moment)[..., noised]


def variances_by_entry(domain: Domain, dim: int) -> Matrix:
    """Of the noise in Gram matrix and moment, (d+1)×(d+1), where the stated variance is 1."""
    variances: Matrix = entry_std(domain, dim, 1.0) ** 2 * (1.0 + np.eye(dim + 1))
    return variances
