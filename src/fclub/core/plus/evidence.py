"""What data say of a vector, and how well the data of several fit one vector.

Every item (a user, or a cluster of other servers) is known by its information about its own vector θ: a
precision Q and a vector q such that its likelihood is proportional to exp(qᵀθ − ½θᵀQθ). A cluster's
vector has the prior N(0, P₀⁻¹); with P = P₀ + ΣQ and r = Σq over its items, its evidence is

    log Z = ½ log det P₀ − ½ log det P + ½ rᵀP⁻¹r.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lgamma, log, nan
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import add_matrix, add_scaled
from fclub.core.types import Floats, Indices, Matrix, Vector


@compiled
def log_evidence(precision: Matrix, vector: Vector, work: Matrix) -> float:
    """−½ log det P + ½ rᵀP⁻¹r; nan if P is not positive definite.

    Gaussian elimination of the upper triangle beside r: pivots p_k multiply to the determinant, and
    what is left of r has rᵀP⁻¹r = Σ r_k²/p_k. `work` (d, d) is overwritten.
    """
    d = vector.shape[0]
    rest = np.empty(d)
    for i in range(d):
        rest[i] = vector[i]
        for j in range(i, d):
            work[i, j] = precision[i, j]
    logdet, product, square = 0.0, 1.0, 0.0
    for k in range(d):
        pivot = work[k, k]
        if not pivot > 0.0:
            return nan
        product *= pivot
        if not 1e-100 < product < 1e100:
            logdet += log(product)
            product = 1.0
        scale = 1.0 / pivot
        square += rest[k] * rest[k] * scale
        for i in range(k + 1, d):
            factor = work[k, i] * scale
            rest[i] -= factor * rest[k]
            for j in range(i, d):
                work[i, j] -= factor * work[k, j]
    return 0.5 * (square - logdet - log(product))


@compiled
def agglomerate(
    prior: Matrix, information: Floats, vectors: Floats, gamma: float, margin: float
) -> Indices:
    """Merge items greedily while the log odds of the best merge exceed `margin`; one label per item.

    Merging clusters of a and b items gains log Z_ab − log Z_a − log Z_b + log Γ(a+b)/(γΓ(a)Γ(b)).
    """
    n, d = vectors.shape
    Q, q, labels = information.copy(), vectors.copy(), np.arange(n)
    size, evidence, work = np.ones(n), np.empty(n), np.empty((d, d))
    nothing = log_evidence(prior, np.zeros(d), work)
    for i in range(n):
        evidence[i] = log_evidence(prior + Q[i], q[i], work) - nothing
    gain = np.full((n, n), -np.inf)
    changed = -1
    while True:
        for i in range(n):
            for j in range(i + 1, n):
                alive = size[i] > 0.0 and size[j] > 0.0
                if alive and (changed < 0 or i == changed or j == changed):
                    both = log_evidence(prior + Q[i] + Q[j], q[i] + q[j], work) - nothing
                    odds = lgamma(size[i] + size[j]) - lgamma(size[i]) - lgamma(size[j]) - log(gamma)
                    gain[i, j] = both - evidence[i] - evidence[j] + odds
        best = np.argmax(gain)
        i, j = best // n, best % n
        if gain[i, j] <= margin:
            return labels
        add_matrix(Q[i], Q[j], 1.0)
        add_scaled(q[i], q[j], 1.0)
        size[i] += size[j]
        size[j] = 0.0
        evidence[i] = log_evidence(prior + Q[i], q[i], work) - nothing
        gain[j, :] = -np.inf
        gain[:, j] = -np.inf
        labels[labels == j] = i
        changed = i


class Noise(NamedTuple):
    """What noise does to a Gram matrix and moment, and how large the vectors are that it hides.

    `entries` (d+1, d+1) are the variances of the entries of the matrix of both, where the stated
    variance is 1; `sizes` are E[θ_i²].
    """

    entries: Matrix
    sizes: Vector

    def of_moment(self, stated: float) -> Vector:
        """Var(b̂ − Ĝθ) by coordinate, without the rewards' own: the moment's noise, and that in Ĝθ."""
        d = len(self.sizes)
        variances: Vector = stated * (self.entries[:d, d] + self.entries[:d, :d] @ self.sizes)
        return variances


def noisy_information(
    gram: Matrix, moment: Vector, stated: float, variance: float, noise: Noise
) -> tuple[Matrix, Vector]:
    """Information about θ in released statistics whose entries carry noise of the stated variance.

    Errors in variables: b̂ = Ĝθ + rewards' noise + released noise, with covariance Ω = `variance`·G + D.
    The nearest Gram matrix G₊ stands for G, which has no negative eigenvalue. Then Q = G₊Ω⁻¹G₊ and
    q = G₊Ω⁻¹b̂. A direction of which Ĝ knows nothing but noise gets little weight, since D is large
    beside it; without noise these are G/v and b/v.
    """
    if stated == 0.0:
        return gram / variance, moment / variance
    eigenvalues, U = np.linalg.eigh(gram)
    nearest = (U * np.maximum(eigenvalues, 0.0)) @ U.T
    weighted = np.linalg.solve(variance * nearest + np.diag(noise.of_moment(stated)), nearest)
    Q = nearest @ weighted
    return 0.5 * (Q + Q.T), weighted.T @ moment


def all_information(
    known: Iterable[tuple[Matrix, Vector, float]], variance: float, noise: Noise
) -> tuple[Floats, Floats]:
    """`noisy_information` of many (gram, moment, stated variance), as arrays of one row each."""
    pairs = [noisy_information(*released, variance, noise) for released in known]
    dim = len(noise.sizes)
    return (
        np.array([Q for Q, _ in pairs]).reshape(-1, dim, dim),
        np.array([q for _, q in pairs]).reshape(-1, dim),
    )
