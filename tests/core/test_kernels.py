"""Every kernel beside the one line of NumPy that it stands for."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core import kernels
from fclub.core.inputs import largest_square

seeds = st.integers(0, 2**32 - 1)
dims = st.integers(1, 12)


def positive(rng: np.random.Generator, d: int) -> np.ndarray:
    rows = rng.standard_normal((2 * d, d))
    return rows.T @ rows + 0.1 * np.eye(d)


@given(st.integers(0, 10**9))
def test_width(count: int) -> None:
    assert kernels.width(float(count)) == pytest.approx(
        np.sqrt((1 + np.log(1 + count)) / (1 + count)), rel=1e-14
    )


def test_width_shrinks() -> None:
    values = [kernels.width(float(count)) for count in range(2, 2000)]
    assert all(a > b for a, b in pairwise(values))


@given(seeds, dims)
def test_invert(seed: int, d: int) -> None:
    matrix = positive(np.random.default_rng(seed), d)
    inverse = np.empty((d, d))
    logdet = kernels.invert(matrix, inverse)
    np.testing.assert_allclose(inverse @ matrix, np.eye(d), atol=1e-9)
    np.testing.assert_array_equal(inverse, inverse.T)
    assert logdet == pytest.approx(np.linalg.slogdet(matrix)[1], abs=1e-9)
    assert kernels.log_determinant(matrix) == pytest.approx(logdet, abs=1e-9)


@given(seeds, dims)
def test_indefinite_is_nan(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = positive(rng, d)
    direction = rng.standard_normal(d)
    direction /= np.linalg.norm(direction)
    matrix -= 2 * (direction @ matrix @ direction) * np.outer(direction, direction)
    assert math.isnan(kernels.invert(matrix, np.empty((d, d))))
    assert math.isnan(kernels.log_determinant(matrix))


@given(seeds, dims)
def test_elementwise(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, other = rng.standard_normal((2, d, d))
    a, b = rng.standard_normal((2, d))
    weight = float(rng.standard_normal())
    out = np.empty(d)
    kernels.multiply(matrix, a, out)
    np.testing.assert_allclose(out, matrix @ a, atol=1e-12)
    assert kernels.dot(a, b) == pytest.approx(a @ b, abs=1e-12)
    assert kernels.distance(a, b) == pytest.approx(np.linalg.norm(a - b), abs=1e-12)
    pairs: list[tuple[Any, Any]] = [
        (kernels.add_outer, lambda: matrix + weight * np.outer(a, a)),
        (kernels.add_matrix, lambda: matrix + weight * other),
    ]
    for kernel, twin in pairs:
        expected, changed = twin(), matrix.copy()
        kernel(changed, a if kernel is kernels.add_outer else other, weight)
        np.testing.assert_allclose(changed, expected, atol=1e-12)
    vector = b.copy()
    kernels.add_scaled(vector, a, weight)
    np.testing.assert_allclose(vector, b + weight * a, atol=1e-12)
    kernels.set_matrix(matrix, other)
    kernels.set_vector(a, b)
    np.testing.assert_array_equal(matrix, other)
    np.testing.assert_array_equal(a, b)
    kernels.clear(matrix, a)
    assert not matrix.any()
    assert not a.any()


@given(seeds, dims, st.floats(0.1, 10.0))
def test_grow_inverse(seed: int, d: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    matrix, x = positive(rng, d), rng.standard_normal(d)
    inverse = np.linalg.inv(matrix)
    growth = kernels.grow_inverse(inverse, x, weight)
    grown = matrix + weight * np.outer(x, x)
    np.testing.assert_allclose(inverse @ grown, np.eye(d), atol=1e-8)
    expected = np.linalg.slogdet(grown)[1] - np.linalg.slogdet(matrix)[1]
    assert growth == pytest.approx(expected, abs=1e-9)


def scores(items: np.ndarray, theta: np.ndarray, inverse: np.ndarray, radius: float) -> np.ndarray:
    forms = np.einsum("ki,ij,kj->k", items, inverse, items)
    return items @ theta + radius * np.sqrt(np.maximum(forms, 0))


@given(seeds, dims, st.integers(1, 20), st.floats(0, 5))
def test_choose_maximises_the_upper_bound(seed: int, d: int, count: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    items, theta = rng.standard_normal((count, d)), rng.standard_normal(d)
    inverse = np.linalg.inv(positive(rng, d))
    values = scores(items, theta, inverse, radius)
    assert values[kernels.choose(items, theta, inverse, radius)] == pytest.approx(values.max())


@given(seeds, dims, st.integers(1, 12))
def test_permuting_items_permutes_the_choice(seed: int, d: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    items, theta = rng.standard_normal((count, d)), rng.standard_normal(d)
    inverse, order = np.linalg.inv(positive(rng, d)), rng.permutation(count)
    chosen = kernels.choose(items, theta, inverse, 1.0)
    assert order[kernels.choose(items[order], theta, inverse, 1.0)] == chosen


def test_first_of_equals_wins() -> None:
    items = np.ones((4, 3)) / 2
    assert kernels.choose(items, np.ones(3), np.eye(3), 1.0) == 0


@given(seeds, st.integers(0, 6), dims)
def test_largest(seed: int, count: int, d: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((count, d))
    assert largest_square(rows) == pytest.approx(max((rows**2).sum(axis=1), default=0.0))
    assert kernels.largest_entry(rows) == max(np.abs(rows).ravel(), default=0.0)


@given(seeds, dims)
def test_trace(seed: int, d: int) -> None:
    matrix = np.random.default_rng(seed).standard_normal((d, d))
    assert kernels.trace(matrix) == pytest.approx(np.trace(matrix))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_is_never_hidden_by_a_larger_row(place: int) -> None:
    rows = np.array([[3.0, 4.0], [1.0, 0.0], [6.0, 8.0]])
    rows[place, 0] = np.nan
    assert math.isnan(largest_square(rows))


@given(seeds, dims)
def test_solve_upper(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    lower, vector = np.linalg.cholesky(positive(rng, d)), rng.standard_normal(d)
    expected = np.linalg.solve(lower.T, vector)
    kernels.solve_upper(lower, vector, vector)
    np.testing.assert_allclose(vector, expected, rtol=1e-8, atol=1e-10)
