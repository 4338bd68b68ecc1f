"""Types that all servers share, and what a user's data say under them.

A user's vector is θ ~ Σ_k π_k N(c_k, W) with probability 1 − `own`, and θ ~ N(μ, S), a vector of its
own, otherwise. A reward is xᵀθ plus noise of variance v. With Q = G/v and q = b/v of the user's data,

    A = (Q + W⁻¹)⁻¹,   D = AW⁻¹,   Q_w = DᵀQ = (Q⁻¹ + W)⁻¹,   q_w = Dᵀq,

its log evidence for type k is a constant plus q_wᵀc_k − ½ c_kᵀQ_w c_k: a *row* (q_w, Q_w) of the user
times a column of the type. W is the same for all types, so that one factorisation serves all of them.
The uncertainty of a centre does not enter: to first order its effect is ½(eᵀCe − tr CQ_w) with
e = q_w − Q_w c_k, whose expectation under the model is zero.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import invert, product
from fclub.core.types import Floats, Matrix, Vector


def row_length(dim: int) -> int:
    """Numbers in a row: a vector, and the upper triangle of a symmetric matrix."""
    return dim + dim * (dim + 1) // 2


class TypeModel(NamedTuple):
    """The models of one or more servers, ready for use: the first axis is the server.

    `within` is W⁻¹, `precision` S⁻¹, `vector` S⁻¹μ. `offset` holds the constants of log evidence for
    all types together and for a vector of one's own; `weights` log (1 − own)π_k and, last, log own. A
    column of `features` is (c_k, −½ c_k c_kᵀ), a row of `moments` is (c_k, c_k c_kᵀ + C_k); C_k is the
    covariance of the centre.
    """

    variance: Floats
    within: Floats
    precision: Floats
    vector: Floats
    offset: Floats
    weights: Floats
    features: Floats
    moments: Floats

    @staticmethod
    def zeros(servers: int, types: int, dim: int) -> TypeModel:
        s, k, d, row = servers, types, dim, row_length(dim)
        return TypeModel(
            variance=np.zeros(s),
            within=np.zeros((s, d, d)),
            precision=np.zeros((s, d, d)),
            vector=np.zeros((s, d)),
            offset=np.zeros((s, 2)),
            weights=np.zeros((s, k + 1)),
            features=np.zeros((s, row, k)),
            moments=np.zeros((s, k, row)),
        )


NOWHERE = -1e30
"""The log weight of a type that nobody is served from."""


def stacked(models: list[TypeModel]) -> TypeModel:
    """The models of several servers as one, with as many types as the largest has.

    What fills up the others has no weight at all, not even where no type of a server has any.
    """
    types, d = max(model.moments.shape[1] for model in models), models[0].vector.shape[1]
    together = TypeModel.zeros(len(models), types, d)
    together.weights[:] = -np.inf
    for server, model in enumerate(models):
        found = model.moments.shape[1]
        for name in ("variance", "within", "precision", "vector", "offset"):
            getattr(together, name)[server] = getattr(model, name)[0]
        together.weights[server, :found] = model.weights[0, :found]
        together.weights[server, types] = model.weights[0, found]
        together.features[server, :, :found] = model.features[0]
        together.moments[server, :found] = model.moments[0]
    return together


class Work(NamedTuple):
    """Room for one user's matrices: Q, A, B = (Q + S⁻¹)⁻¹, D and a spare one; q and the row."""

    information: Matrix
    typical: Matrix
    single: Matrix
    pull: Matrix
    spare: Matrix
    vector: Vector
    row: Vector


@inner
def make_work(dim: int) -> Work:
    matrices = np.empty((5, dim, dim))
    vectors = np.empty(dim), np.empty(dim + dim * (dim + 1) // 2)
    return Work(matrices[0], matrices[1], matrices[2], matrices[3], matrices[4], vectors[0], vectors[1])


@inner
def product_transposed(a: Matrix, b: Matrix, out: Matrix) -> None:
    """out = aᵀb."""
    d = a.shape[0]
    for i in range(d):
        for j in range(d):
            out[i, j] = 0.0
    for k in range(d):
        for i in range(d):
            factor = a[k, i]
            for j in range(d):
                out[i, j] += factor * b[k, j]


@inner
def quadratic(matrix: Matrix, vector: Vector) -> float:
    """vᵀMv."""
    total = 0.0
    for i in range(vector.shape[0]):
        inside = 0.0
        for j in range(vector.shape[0]):
            inside += matrix[i, j] * vector[j]
        total += vector[i] * inside
    return total


@inner
def learn_row(model: TypeModel, server: int, gram: Matrix, moment: Vector, work: Work) -> float:
    """Fill `work` with what a user's data say; returns log evidence of "own" minus the types' constant.

    The row holds q_w and the triangle of Q_w with entries beside the diagonal doubled, so that
    row · (c, −½ccᵀ) is the evidence of a centre c.
    """
    d, v = moment.shape[0], model.variance[server]
    within, precision = model.within[server], model.precision[server]
    Q, q, row, spare = work.information, work.vector, work.row, work.spare
    for i in range(d):
        q[i] = moment[i] / v
        for j in range(d):
            Q[i, j] = gram[i, j] / v
            spare[i, j] = Q[i, j] + within[i, j]
    types = -0.5 * invert(spare, work.typical)
    for i in range(d):
        for j in range(d):
            spare[i, j] = Q[i, j] + precision[i, j]
    own = -0.5 * invert(spare, work.single)
    types += 0.5 * quadratic(work.typical, q) + model.offset[server, 0]
    own += 0.5 * quadratic(work.single, q + model.vector[server]) + model.offset[server, 1]
    product(work.typical, within, work.pull)
    product_transposed(work.pull, Q, spare)
    place = d
    for i in range(d):
        row[i] = 0.0
        row[place] = spare[i, i]
        for j in range(i + 1, d):
            row[place + j - i] = spare[i, j] + spare[j, i]
        place += d - i
    for k in range(d):
        for i in range(d):
            row[i] += work.pull[k, i] * q[k]
    return float(own - types)


@inner
def weigh_types(model: TypeModel, server: int, row: Vector, weights: Vector) -> float:
    """Write the probabilities of the types, given that one of them; returns log of their evidence.

    The evidence lacks the constant that `learn_row` takes off that of "own".
    """
    types = weights.shape[0]
    for k in range(types):
        weights[k] = model.weights[server, k]
    for place in range(row.shape[0]):
        value = row[place]
        for k in range(types):
            weights[k] += value * model.features[server, place, k]
    largest = weights[0]
    for k in range(types):
        largest = max(largest, weights[k])
    total = 0.0
    for k in range(types):
        weights[k] = exp(weights[k] - largest)
        total += weights[k]
    for k in range(types):
        weights[k] /= total
    return float(largest + log(total))


@inner
def own_share(model: TypeModel, server: int, own: float, types: float) -> float:
    """The probability of a vector of one's own, from `learn_row`'s and `weigh_types`' log evidences."""
    odds = types - own - model.weights[server, model.weights.shape[1] - 1]
    return 1.0 / (1.0 + exp(min(odds, 700.0)))


@compiled
def serve(
    model: TypeModel, server: int, gram: Matrix, moment: Vector, mean: Vector, covariance: Matrix
) -> None:
    """Mean and covariance of a user's vector given all its data."""
    d, types = moment.shape[0], model.moments.shape[1]
    work = make_work(d)
    own = learn_row(model, server, gram, moment, work)
    weights = np.empty(types)
    single = own_share(model, server, own, weigh_types(model, server, work.row, weights))
    average = np.zeros(work.row.shape[0])
    for k in range(types):
        for place in range(average.shape[0]):
            average[place] += weights[k] * model.moments[server, k, place]
    _between(average, work.information)
    typical, alone = np.zeros(d), np.zeros(d)
    for j in range(d):
        for i in range(d):
            typical[i] += work.typical[j, i] * work.vector[j] + work.pull[i, j] * average[j]
            alone[i] += work.single[j, i] * (work.vector[j] + model.vector[server, j])
    product(work.pull, work.information, work.spare)
    for i in range(d):
        mean[i] = typical[i] + single * (alone[i] - typical[i])
    for i in range(d):
        for j in range(i + 1):
            inside = work.typical[i, j]
            for k in range(d):
                inside += work.spare[i, k] * work.pull[j, k]
            between = (alone[i] - typical[i]) * (alone[j] - typical[j])
            total = inside + single * (work.single[i, j] - inside + (1.0 - single) * between)
            covariance[i, j] = total
            covariance[j, i] = total


@inner
def _between(average: Vector, matrix: Matrix) -> None:
    """The covariance of the centres, from their first and second moments."""
    d = matrix.shape[0]
    place = d
    for i in range(d):
        for j in range(i, d):
            entry = average[place] - average[i] * average[j]
            matrix[i, j] = entry
            matrix[j, i] = entry
            place += 1
