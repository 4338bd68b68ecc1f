"""Small dense linear algebra on one user's or one cluster's statistics, compiled.

Matrices are symmetric; `matrix` and `inverse` are C-contiguous float64. Nothing here allocates in
proportion to anything but d, draws a random number, or checks its input.
"""

from __future__ import annotations

from math import log, log1p, nan, sqrt

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.types import Matrix, Vector


@compiled
def width(count: float) -> float:
    """F(T) = √((1 + ln(1+T)) / (1+T)) of Eq. 3 and 4."""
    return sqrt((1.0 + log(1.0 + count)) / (1.0 + count))


@compiled
def invert(matrix: Matrix, inverse: Matrix) -> float:
    """Write matrix⁻¹ into `inverse` and return log det(matrix); nan if it is not positive definite.

    Gauss–Jordan without pivoting, which is stable for positive definite matrices, and whose pivots
    multiply to the determinant.
    """
    d = matrix.shape[0]
    for i in range(d):
        for j in range(d):
            inverse[i, j] = matrix[i, j]
    logdet = 0.0
    for k in range(d):
        pivot = inverse[k, k]
        if not pivot > 0.0:
            return nan
        logdet += log(pivot)
        for i in range(d):
            if i != k:
                factor = inverse[i, k] / pivot
                for j in range(d):
                    inverse[i, j] -= factor * inverse[k, j]
                inverse[i, k] = -factor
        for j in range(d):
            inverse[k, j] /= pivot
        inverse[k, k] = 1.0 / pivot
    for i in range(d):
        for j in range(i):
            mean = 0.5 * (inverse[i, j] + inverse[j, i])
            inverse[i, j] = mean
            inverse[j, i] = mean
    return logdet


@compiled
def cholesky(matrix: Matrix, lower: Matrix) -> float:
    """Write the lower factor of matrix = L Lᵀ and return log det; nan if it is not positive definite.

    Only the lower triangles of both are used.
    """
    d = matrix.shape[0]
    total = 0.0
    for i in range(d):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            if i == j:
                if not rest > 0.0:
                    return nan
                total += log(rest)
                lower[i, i] = sqrt(rest)
            else:
                lower[i, j] = rest / lower[j, j]
    return total


@compiled
def log_determinant(matrix: Matrix) -> float:
    """log det by Cholesky factorisation; nan if the matrix is not positive definite."""
    return cholesky(matrix, np.empty_like(matrix))


@compiled
def solve_lower(lower: Matrix, vector: Vector, out: Vector) -> None:
    """out = L⁻¹·vector."""
    for i in range(vector.shape[0]):
        rest = vector[i]
        for k in range(i):
            rest -= lower[i, k] * out[k]
        out[i] = rest / lower[i, i]


@compiled
def solve_upper(lower: Matrix, vector: Vector, out: Vector) -> None:
    """out = L⁻ᵀ·vector; `out` may be `vector`."""
    d = vector.shape[0]
    for i in range(d - 1, -1, -1):
        rest = vector[i]
        for k in range(i + 1, d):
            rest -= lower[k, i] * out[k]
        out[i] = rest / lower[i, i]


@compiled
def multiply(matrix: Matrix, vector: Vector, out: Vector) -> None:
    """out = matrix · vector."""
    d = vector.shape[0]
    for i in range(d):
        total = 0.0
        for j in range(d):
            total += matrix[i, j] * vector[j]
        out[i] = total


@compiled
def product(left: Matrix, right: Matrix, out: Matrix) -> None:
    """out = left · right."""
    d = left.shape[0]
    for i in range(d):
        for j in range(d):
            out[i, j] = 0.0
        for k in range(d):
            factor = left[i, k]
            for j in range(d):
                out[i, j] += factor * right[k, j]


@compiled
def dot(a: Vector, b: Vector) -> float:
    """⟨a, b⟩, summed from left to right."""
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@compiled
def largest_entry(matrix: Matrix) -> float:
    """The largest absolute value of an entry; all of them are finite."""
    largest = 0.0
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            largest = max(largest, abs(matrix[i, j]))
    return largest


@compiled
def trace(matrix: Matrix) -> float:
    """Σᵢ matrixᵢᵢ."""
    total = 0.0
    for i in range(matrix.shape[0]):
        total += matrix[i, i]
    return total


@compiled
def distance(a: Vector, b: Vector) -> float:
    """‖a − b‖₂."""
    total = 0.0
    for i in range(a.shape[0]):
        total += (a[i] - b[i]) * (a[i] - b[i])
    return sqrt(total)


@compiled
def add_outer(matrix: Matrix, x: Vector, weight: float) -> None:
    """matrix += weight · x xᵀ."""
    d = x.shape[0]
    for i in range(d):
        scaled = weight * x[i]
        for j in range(d):
            matrix[i, j] += scaled * x[j]


@compiled
def add_scaled(vector: Vector, x: Vector, weight: float) -> None:
    """vector += weight · x."""
    for i in range(x.shape[0]):
        vector[i] += weight * x[i]


@compiled
def add_matrix(target: Matrix, source: Matrix, weight: float) -> None:
    """target += weight · source."""
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            target[i, j] += weight * source[i, j]


@compiled
def set_matrix(target: Matrix, source: Matrix) -> None:
    """target[:] = source."""
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            target[i, j] = source[i, j]


@compiled
def set_vector(target: Vector, source: Vector) -> None:
    """target[:] = source."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@compiled
def clear(matrix: Matrix, vector: Vector) -> None:
    """Set both to zero."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            matrix[i, j] = 0.0
    for i in range(vector.shape[0]):
        vector[i] = 0.0


@compiled
def grow_inverse(inverse: Matrix, x: Vector, weight: float) -> float:
    """A⁻¹ → (A + weight·x xᵀ)⁻¹ (Sherman–Morrison); returns the growth of log det A.

    The growth is log(1 + weight · xᵀA⁻¹x), by the matrix determinant lemma.
    """
    d = x.shape[0]
    column = np.empty(d)
    multiply(inverse, x, column)
    form = weight * dot(x, column)
    scale = weight / (1.0 + form)
    for i in range(d):
        scaled = scale * column[i]
        for j in range(d):
            inverse[i, j] -= scaled * column[j]
    return log1p(form)


@compiled
def choose(items: Matrix, theta: Vector, inverse: Matrix, radius: float, most: float = np.inf) -> int:
    """argmax over items of xᵀθ + radius·‖x‖ in the norm of A⁻¹ (Alg. 1); the first of equals wins.

    No item is worth more than `most`: of several whose scores reach it, that of the greatest mean wins.
    """
    count, d = items.shape
    best, best_score, best_mean = 0, -np.inf, -np.inf
    for k in range(count):
        mean, half = 0.0, 0.0
        for i in range(d):
            row = 0.5 * inverse[i, i] * items[k, i]
            for j in range(i):
                row += inverse[i, j] * items[k, j]
            half += items[k, i] * row
            mean += items[k, i] * theta[i]
        score = min(mean + radius * sqrt(max(2.0 * half, 0.0)), most)
        if score > best_score or (score == most and mean > best_mean):
            best, best_score, best_mean = k, score, mean
    return best
