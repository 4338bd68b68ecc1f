"""What noised sums by type say of the types: a Kalman filter over all centres together.

A release holds, for every type, Σ_u w_uk(q_w − Q_w c_k) at the centres c that were released before. If
the true centres were θ, its expectation is about Σ_j A_kj Q̄(θ_j − c_j), where A is Σ_u w_u w_uᵀ and Q̄
the mean of Q_w: users who cannot be told apart yet pull at several centres at once. A is worked out by
drawing users of these types. Everything here is made from released and public values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fclub.core.plus.beliefs import seeds
from fclub.core.plus.type_release import ReleasePoint, release_length
from fclub.core.threads import one_thread
from fclub.core.types import Floats, Matrix, Vector


@dataclass(frozen=True)
class FilterRules:
    """Public constants: they are chosen without looking at data.

    `prior` is the expected squared norm of a taste, `variance` that of a reward and `within` the share
    of a taste that is not its type's. `constant` is the last feature of all items, if they share one;
    tastes differ `constant_scale` times as much there. `share` and `gram` weigh a release's counts and
    its Gram matrix against its residuals. Before each release the centres are believed to have moved by
    `drift` of the prior; none moves further than `longest` at once. `draws` users are drawn for A.
    """

    types: int
    dim: int
    constant: float | None = None
    prior: float = 0.5
    variance: float = 0.2
    within: float = 0.05
    constant_scale: float = 0.3
    share: float = 1.5
    gram: float = 0.05
    drift: float = 0.05
    longest: float = 0.3
    draws: int = 2000

    @property
    def scale(self) -> Vector:
        """What residuals are multiplied with before they are noised."""
        scale = np.ones(self.dim)
        if self.constant is not None:
            scale[-1] = self.constant_scale
        return scale

    @property
    def spread(self) -> Vector:
        """S before any data: a diagonal."""
        return np.asarray(self.prior / self.dim * self.scale**2, dtype=np.float64)

    def expected(self, visits: float) -> Matrix:
        """Q̄ that users with so many visits would have if items were spread evenly."""
        gram = np.full(self.dim, 1.0 / self.dim)
        if self.constant is not None:
            gram[:-1] = (1.0 - self.constant**2) / max(self.dim - 1, 1)
            gram[-1] = self.constant**2
        known = 1.0 / np.maximum(gram * visits / self.variance, 1e-9)
        return np.diag(1.0 / (known + self.within * self.spread))


class ReleasedTypes(NamedTuple):
    """Centres, the covariance of all their coordinates, and the types' shares of all users."""

    centres: Floats
    covariance: Floats
    shares: Floats

    def uncertainty(self, k: int) -> Matrix:
        """The covariance of one centre."""
        d = self.centres.shape[1]
        return self.covariance[k * d : (k + 1) * d, k * d : (k + 1) * d]


class Sums(NamedTuple):
    """Of one or several servers' releases: noised sums, and what is known of them.

    `residuals` and `users` by type, `gram` ΣQ_w. `people` have made about `visits` visits each; the
    noise has the variance `noise` before anything is divided by its scale.
    """

    residuals: Floats
    users: Floats
    gram: Matrix
    people: float
    visits: float
    noise: float


def first_types(rules: FilterRules) -> ReleasedTypes:
    """Before any release."""
    types, spread = rules.types, rules.spread
    return ReleasedTypes(
        centres=seeds(types, rules.dim) * np.sqrt(spread),
        covariance=np.asarray(np.kron(np.eye(types), np.diag(spread)), dtype=np.float64),
        shares=np.full(types, 1.0 / types),
    )


def release_point(types: ReleasedTypes, rules: FilterRules) -> ReleasePoint:
    """Where users take their contributions next."""
    within = 1.0 / (rules.within * rules.spread)
    constants = rules.scale, rules.share, rules.gram
    return ReleasePoint(rules.variance, within, np.log(types.shares), types.centres, *constants)


def read_release(
    values: Floats, people: float, visits: float, noise: float, rules: FilterRules
) -> Sums:
    """Take a release apart; `values` are in the units in which contributions are bounded."""
    K, d, scale = rules.types, rules.dim, rules.scale
    assert len(values) == release_length(K, d)
    body = values[: K * (d + 1)].reshape(K, d + 1)
    gram = np.zeros((d, d))
    gram[np.triu_indices(d)] = values[K * (d + 1) :]
    gram = (gram + np.triu(gram, 1).T) / (rules.gram * np.outer(scale, scale))
    return Sums(body[:, :d] / scale, body[:, d] / rules.share, gram, people, visits, noise)


@one_thread()
def moved_to(sums: Sums, before: Floats, types: ReleasedTypes, rules: FilterRules) -> Sums:
    """The same release as if it had been taken at the present centres instead of those `before`."""
    if np.array_equal(before, types.centres):
        return sums
    Q = _mean_information(sums, rules)
    A = _together(types, Q, rules) * sums.people
    return sums._replace(residuals=sums.residuals - A @ (types.centres - before) @ Q)


def add_sums(parts: list[Sums]) -> Sums:
    """Of several servers; visits are those of the average user."""
    people = sum(part.people for part in parts)
    return Sums(
        residuals=np.sum([part.residuals for part in parts], axis=0),
        users=np.sum([part.users for part in parts], axis=0),
        gram=np.sum([part.gram for part in parts], axis=0),
        people=people,
        visits=sum(part.people * part.visits for part in parts) / people,
        noise=sum(part.noise for part in parts),
    )


@one_thread()
def learn_types(types: ReleasedTypes, sums: Sums, rules: FilterRules) -> ReleasedTypes:
    """One step of the filter."""
    K, d = types.centres.shape
    Q = _mean_information(sums, rules)
    types = types._replace(shares=_learn_shares(types.shares, sums, rules))
    A = _together(types, Q, rules) * sums.people
    P = types.covariance + rules.drift * np.kron(np.eye(K), np.diag(rules.spread))
    FP = _both(A, Q, P)
    total = _both(A, Q, FP.T)
    total += np.kron(A, Q)
    total[np.diag_indices(K * d)] += np.tile(sums.noise / rules.scale**2, K)
    gain = cho_solve(cho_factor(total, lower=True), FP).T
    step = (gain @ sums.residuals.ravel()).reshape(K, d)
    length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-12)
    covariance = P - gain @ FP
    return ReleasedTypes(
        centres=types.centres + step * np.minimum(1.0, rules.longest / length),
        covariance=0.5 * (covariance + covariance.T),
        shares=types.shares,
    )


def _both(A: Matrix, Q: Matrix, matrix: Matrix) -> Matrix:
    """(A ⊗ Q) times a matrix."""
    K, d = len(A), len(Q)
    inner = Q @ matrix.reshape(K, d, K * d)
    product: Matrix = (A @ inner.reshape(K, -1)).reshape(K * d, K * d)
    return product


def _mean_information(sums: Sums, rules: FilterRules) -> Matrix:
    """Q̄: what was released, drawn towards what is expected where its noise is large."""
    expected, scale = rules.expected(sums.visits), np.outer(rules.scale, rules.scale)
    noise = sums.noise / (rules.gram * scale * sums.people) ** 2
    diagonal = np.diag(expected)
    usual = 0.25 * np.outer(diagonal, diagonal)
    found = expected + usual / (usual + noise) * (sums.gram / sums.people - expected)
    eigenvalues, U = np.linalg.eigh(found)
    matrix: Matrix = (U * np.maximum(eigenvalues, 0.2 * diagonal.min())) @ U.T
    return matrix


def _learn_shares(shares: Vector, sums: Sums, rules: FilterRules) -> Vector:
    """Moved by as much of the released counts as is probably not their noise."""
    usual = (0.5 / rules.types) ** 2
    noise = sums.noise / (rules.share * sums.people) ** 2
    moved = shares + usual / (usual + noise) * (sums.users / sums.people - shares)
    moved = np.clip(moved, 0.1 / rules.types, 5.0 / rules.types)
    return np.asarray(moved / moved.sum(), dtype=np.float64)


def _together(types: ReleasedTypes, Q: Matrix, rules: FilterRules) -> Matrix:
    """E wwᵀ of users of these types, about each of whom Q is known."""
    rng, centres = np.random.default_rng(0), types.centres
    counts = rng.multinomial(rules.draws, types.shares)
    estimates = np.repeat(centres, counts, axis=0)
    deviations = np.linalg.inv(np.linalg.cholesky(Q))
    estimates = estimates + rng.standard_normal((rules.draws, rules.dim)) @ deviations
    evidence = estimates @ (Q @ centres.T) + np.log(types.shares)
    evidence -= 0.5 * np.einsum("ki,ij,kj->k", centres, Q, centres)
    weights = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    together: Matrix = weights.T @ weights / rules.draws
    return together
