"""Users, and clusters of other servers: what is known of their own vectors, and of their centres.

An item's likelihood is proportional to exp(qᵀθ − ½θᵀQθ) in its own vector θ = c + w. For a user the
deviation w ~ N(0, W) has W = ρΣ. With M = (Q + W⁻¹)⁻¹ and A = I − MQ, integrating over w leaves

    √(det W⁻¹ det M) · exp(½qᵀMq) · exp((Aᵀq)ᵀc − ½cᵀQA c)

so that QA and Aᵀq are the item's information about its centre. Given the centre,
θ ~ N(c + M(q − Qc), M). With W = 0 both vectors are the same: M = 0 and A = I.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import (
    add_matrix,
    cholesky,
    dot,
    invert,
    multiply,
    product,
    set_matrix,
    set_vector,
)
from fclub.core.plus.population import Population
from fclub.core.types import Floats, Matrix, Vector


class Items(NamedTuple):
    """Q, q of every item; QA, Aᵀq, M and A as long as the population stays what it is.

    `left_out` is the log evidence of the deviations, which information about centres does not have.
    An item of `people` users who count alike varies about its centre by ρΣ/people.
    """

    precision: Floats
    vector: Floats
    people: Floats
    centre_precision: Floats
    centre_vector: Floats
    own: Floats
    kept: Floats
    left_out: Floats

    @staticmethod
    def of(precision: Floats, vector: Floats, people: Floats) -> Items:
        """Items of which so much is known; arrays of shape (n, d, d), (n, d), (n,)."""
        centre_precision, own, kept = (np.empty_like(precision) for _ in range(3))
        centre_vector, left_out = np.empty_like(vector), np.zeros(len(vector))
        return Items(precision, vector, people, centre_precision, centre_vector, own, kept, left_out)


@compiled
def look_at_centres(items: Items, population: Population) -> None:
    """Fill in what depends on the population."""
    count, d = items.vector.shape
    spread = population.spread[0]
    if spread == 0.0:
        for u in range(count):
            set_matrix(items.centre_precision[u], items.precision[u])
            set_vector(items.centre_vector[u], items.vector[u])
            items.left_out[u] = 0.0
        return
    P, half = np.empty((d, d)), np.empty(d)
    logdet_precision = cholesky(population.precision, P)
    for u in range(count):
        Q, q, M, A = items.precision[u], items.vector[u], items.own[u], items.kept[u]
        weight = items.people[u] / spread
        set_matrix(P, Q)
        add_matrix(P, population.precision, weight)
        logdet = invert(P, M)
        multiply(M, q, half)
        product(M, Q, A)
        for i in range(d):
            for j in range(d):
                A[i, j] = -A[i, j]
            A[i, i] += 1.0
            items.centre_vector[u, i] = q[i] - dot(Q[i], half)
        product(Q, A, items.centre_precision[u])
        _symmetrise(items.centre_precision[u])
        logdet -= logdet_precision + d * log(weight)
        items.left_out[u] = 0.5 * (dot(q, half) - logdet)


@inner
def _symmetrise(matrix: Matrix) -> None:
    for i in range(matrix.shape[0]):
        for j in range(i):
            mean = 0.5 * (matrix[i, j] + matrix[j, i])
            matrix[i, j] = mean
            matrix[j, i] = mean


@inner
def draw_deviation(
    items: Items, u: int, centre: Vector, rng: np.random.Generator, lower: Matrix, out: Vector
) -> None:
    """Where an item lies about its centre, in units in which all vary by ρΣ; ρ > 0."""
    d = centre.shape[0]
    apart, noise = np.empty(d), np.empty(d)
    cholesky(items.own[u], lower)
    for i in range(d):
        apart[i] = items.vector[u, i] - dot(items.precision[u, i], centre)
        noise[i] = rng.standard_normal()
    multiply(items.own[u], apart, out)
    for i in range(d):
        for j in range(i + 1):
            out[i] += lower[i, j] * noise[j]
        out[i] *= np.sqrt(items.people[u])


@inner
def add_moments(
    items: Items, u: int, centre: Vector, covariance: Matrix, equal: bool, mean: Vector, second: Matrix
) -> None:
    """Add mean and second moment of an item's vector, whose centre is N(centre, covariance)."""
    d = centre.shape[0]
    if equal:
        for i in range(d):
            mean[i] += centre[i]
            for j in range(d):
                second[i, j] += covariance[i, j] + centre[i] * centre[j]
        return
    M, A = items.own[u], items.kept[u]
    apart, theta, AC = np.empty(d), np.empty(d), np.empty((d, d))
    for i in range(d):
        apart[i] = items.vector[u, i] - dot(items.precision[u, i], centre)
    multiply(M, apart, theta)
    product(A, covariance, AC)
    for i in range(d):
        theta[i] += centre[i]
        mean[i] += theta[i]
    for i in range(d):
        for j in range(d):
            second[i, j] += M[i, j] + dot(AC[i], A[j]) + theta[i] * theta[j]
