"""What statistics with noise say of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fclub.core.types import Floats, Matrix, Vector


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


def all_information(
    known: Sequence[tuple[Matrix, Vector, float]], variance: float, noise: Noise
) -> tuple[Floats, Floats]:
    """Information Q, q about θ in each (gram, moment, variance that is stated for their noise).

    The likelihood of θ is proportional to exp(qᵀθ − ½θᵀQθ). Errors in variables: b̂ = Ĝθ + rewards'
    noise + released noise, with covariance Ω = `variance`·G + D. The nearest Gram matrix G₊ stands for
    G, which has no negative eigenvalue. Then Q = G₊Ω⁻¹G₊ and q = G₊Ω⁻¹b̂. A direction of which Ĝ knows
    nothing but noise gets little weight, since D is large beside it; without noise these are G/v, b/v.
    """
    d = len(noise.sizes)
    gram = np.array([released[0] for released in known]).reshape(-1, d, d)
    moment = np.array([released[1] for released in known]).reshape(-1, d)
    stated = np.array([released[2] for released in known])
    eigenvalues, U = np.linalg.eigh(gram)
    nearest = (U * np.maximum(eigenvalues, 0.0)[:, None, :]) @ U.transpose(0, 2, 1)
    omega = variance * nearest + stated[:, None, None] * np.diag(noise.of_moment(1.0))
    exact = stated == 0.0
    omega[exact] = np.eye(d)
    weighted = np.linalg.solve(omega, nearest)
    Q, q = nearest @ weighted, np.einsum("uji,uj->ui", weighted, moment)
    Q[exact], q[exact] = gram[exact] / variance, moment[exact] / variance
    return 0.5 * (Q + Q.transpose(0, 2, 1)), q


def noisy_information(
    gram: Matrix, moment: Vector, stated: float, variance: float, noise: Noise
) -> tuple[Matrix, Vector]:
    """`all_information` of one."""
    Q, q = all_information([(gram, moment, stated)], variance, noise)
    return Q[0], q[0]
