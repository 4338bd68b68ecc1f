"""Contributions to the population: beside plain NumPy, bounded, and unbiased at the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.population.contribution import (
    INFORMATION_WEIGHT,
    MEAN_WEIGHT,
    MOST,
    PublicPoint,
    Room,
    _make_whole,
    add_contributions,
    release_length,
)
from fclub.core.population.filter import smat, svec, symmetric_product, triangle
from fclub.core.population.model import (
    VARIANCE,
    Population,
    PublicModel,
    active,
    clip_norm,
    expected_information,
    present,
    public_point,
    visit_numbers,
)
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Vector

DIM, HALF = 3, float(np.sqrt(0.5))
MODEL = PublicModel(DIM, HALF)
LENGTH = release_length(DIM)
STEPS, COUNT = 50_000, 15_000


def some_users(seed: int, visits: list[int]) -> Packed:
    rng = np.random.default_rng(seed)
    users = Packed.zeros(len(visits), DIM)
    for u, count in enumerate(visits):
        X = np.column_stack([rng.uniform(-0.4, 0.4, (count, DIM - 1)), np.full(count, HALF)])
        y = rng.integers(0, 2, count) - 0.5
        users.gram[u], users.moment[u], users.counts[u] = X.T @ X, X.T @ y, count
    return users


def some_population(rng: np.random.Generator, size: float = 1.0) -> Population:
    root = size * (np.eye(DIM) + 0.3 * rng.standard_normal((DIM, DIM)))
    return Population(size * rng.standard_normal(DIM), root @ root.T + 0.01 * np.eye(DIM))


def summed(point: PublicPoint, users: Packed, most: float) -> Counts:
    total = np.zeros(LENGTH, dtype=np.int64)
    add_contributions(point, users, most, STEPS, COUNT, total)
    return total


def one(users: Packed, u: int) -> Packed:
    return users.slice(u, u + 1)


def slopes(point: PublicPoint, gram: Vector, moment: Vector) -> Vector:
    """The contribution before it is clipped, by inverses and outer products."""
    R, m = point.root, point.root @ point.mean
    S = R @ R.T
    K = np.linalg.inv(np.linalg.inv(S) + gram / point.variance)
    taken = np.eye(DIM) - np.linalg.solve(R, K) @ np.linalg.inv(R).T
    z = np.linalg.solve(R, K @ (moment / point.variance - gram @ m / point.variance))
    rest = svec(0.5 * (np.outer(z, z) - taken))
    return np.concatenate([MEAN_WEIGHT * z, rest, INFORMATION_WEIGHT * svec(taken)])


@pytest.mark.parametrize("most", [0.05, 0.5, 50.0])
def test_a_contribution_equals_the_slow_one(most: float) -> None:
    rng = np.random.default_rng(3)
    users = some_users(1, [3, 10, 40, 0])
    for population in (Population.start(DIM), some_population(rng)):
        point = public_point(MODEL, population)
        for u in range(3):
            values = slopes(point, users.gram[u], users.moment[u])
            values *= min(1.0, most / float(np.linalg.norm(values))) * STEPS / most
            found = summed(point, one(users, u), most)
            assert np.abs(found[:-1] - np.trunc(values)).max() <= 1, "but for one step of rounding"
            assert found[-1] == COUNT
        assert not summed(point, one(users, 3), most).any(), "no data, no contribution and no count"


def log_likelihood(gram: Vector, moment: Vector, mean: Vector, covariance: Vector) -> float:
    P = np.linalg.inv(covariance)
    h = moment / VARIANCE + P @ mean
    B = np.linalg.inv(gram / VARIANCE + P)
    volume = np.linalg.slogdet(np.eye(DIM) + covariance @ gram / VARIANCE)[1]
    return float(0.5 * (h @ B @ h - mean @ P @ mean - volume))


def test_slopes_are_derivatives_of_the_log_marginal_likelihood() -> None:
    point = public_point(MODEL, some_population(np.random.default_rng(5)))
    users, R = some_users(2, [7]), point.root
    gram, moment = users.gram[0], users.moment[0]
    values = slopes(point, gram, moment)

    def at(mean: Vector, spread: Vector) -> float:
        """In units in which the point is (R⁻¹m, I)."""
        return log_likelihood(gram, moment, R @ (point.mean + mean), R @ (np.eye(DIM) + spread) @ R.T)

    step, still = 1e-5, np.zeros(DIM)
    for i in range(DIM):
        e = step * np.eye(DIM)[i]
        slope = (at(e, np.zeros((DIM, DIM))) - at(-e, np.zeros((DIM, DIM)))) / (2 * step)
        assert values[i] / MEAN_WEIGHT == pytest.approx(slope, abs=1e-6)
    for i in range(DIM * (DIM + 1) // 2):
        E = smat(step * np.eye(DIM * (DIM + 1) // 2)[i], DIM)
        slope = (at(still, E) - at(still, -E)) / (2 * step)
        assert values[DIM + i] == pytest.approx(slope, abs=1e-6)


def test_slopes_are_zero_in_expectation_at_the_truth_and_point_to_it_elsewhere() -> None:
    """Whatever was shown: here a user's second item depends on its first reward."""
    rng, users = np.random.default_rng(8), 4_000
    truth = Population(np.array([0.4, -0.3, 0.5]), np.diag([0.5, 1.5, 1.0]))
    point, start = (public_point(MODEL, p) for p in (truth, Population.start(DIM)))
    theta = (MODEL.unit * truth.mean) + rng.standard_normal((users, DIM)) * (
        MODEL.unit * np.sqrt(np.diag(truth.covariance))
    )
    X = rng.standard_normal((users, 2, DIM))
    first = np.einsum("ud,ud->u", X[:, 0], theta) + np.sqrt(VARIANCE) * rng.standard_normal(users)
    X[first > 0, 1] *= 0.1
    second = np.einsum("ud,ud->u", X[:, 1], theta) + np.sqrt(VARIANCE) * rng.standard_normal(users)
    y = np.stack([first, second], axis=1)
    packed = Packed(np.einsum("uki,ukj->uij", X, X), np.einsum("uk,uki->ui", y, X), np.full(users, 2))
    size = DIM + DIM * (DIM + 1) // 2
    at_truth = summed(point, packed, 50.0)[:size] * 50.0 / STEPS / users
    assert np.abs(at_truth).max() < 5 * 0.7 / np.sqrt(users)
    at_start = summed(start, packed, 50.0)[:DIM]
    assert np.all(np.sign(at_start) == np.sign(truth.mean))


def test_with_much_data_a_slope_is_the_user_beside_the_population() -> None:
    """G → ∞: Ω → I, z → R⁻¹(θ − m)."""
    rng = np.random.default_rng(9)
    point, theta = public_point(MODEL, some_population(rng)), rng.standard_normal(DIM)
    gram = 1e8 * np.eye(DIM)
    users = Packed(gram[None], (gram @ theta)[None], np.array([10**9]))
    found = summed(point, users, 100.0) * 100.0 / STEPS
    z = np.linalg.solve(point.root, theta) - point.mean
    size = DIM * (DIM + 1) // 2
    assert np.allclose(found[:DIM] / MEAN_WEIGHT, z, atol=0.02)
    assert np.allclose(found[DIM + size : -1] / INFORMATION_WEIGHT, svec(np.eye(DIM)), atol=0.02)


@given(seed=st.integers(0, 10_000), size=st.sampled_from([1e-3, 1.0, 1e3]), most=st.floats(1e-6, 9.0))
def test_no_user_adds_more_than_the_bound_whatever_the_point_and_the_data(
    seed: int, size: float, most: float
) -> None:
    rng = np.random.default_rng(seed)
    users = some_users(seed, [*rng.integers(0, 60, 8)])
    users.moment[1] *= 1e6
    users.gram[2], users.moment[3, 0], users.gram[4, 0, 0] = np.inf, np.nan, -1e3
    users.gram[5], users.moment[6] = MOST * 10.0 ** rng.integers(-9, 2), -2 * MOST
    point, total = public_point(MODEL, some_population(rng, size)), np.zeros(LENGTH, dtype=np.int64)
    for u in range(8):
        added = summed(point, one(users, u), most)
        assert sum(int(value) ** 2 for value in added) <= STEPS**2 + COUNT**2
        assert added[-1] in (0, COUNT)
        assert added[-1] == COUNT or not added.any(), "a user counts with all of its numbers or not"
        assert users.counts[u] or not added.any()
        total += added
    assert np.array_equal(summed(point, users, most), total), "users do not touch each other"


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e300, 0.0])
def test_a_dishonest_point_cannot_break_the_bound(poison: float) -> None:
    users = some_users(4, [5, 9])
    point = public_point(MODEL, Population.start(DIM))
    root, mean = point.root.copy(), point.mean.copy()
    root[1, 1], mean[0] = poison, poison
    for bad in (point._replace(root=root), point._replace(mean=mean), point._replace(variance=poison)):
        with np.errstate(all="ignore"):
            added = summed(bad, one(users, 0), 0.3)
        assert sum(int(value) ** 2 for value in added) <= STEPS**2 + COUNT**2


def test_rounding_that_passes_the_bound_is_refused() -> None:
    """Entries that are each within the bound, but together are not, or that are none at all."""
    values = np.array([1.0, 1.0])
    matrix, vector, whole = np.zeros((1, 1)), np.zeros(1), np.zeros(2, dtype=np.int64)
    room = Room(matrix, matrix, matrix, vector, vector, values, whole)
    make_whole: Any = getattr(_make_whole, "py_func", _make_whole)
    assert not make_whole(1.0, 1.0, STEPS, room)
    assert make_whole(np.sqrt(2.0), 1.0, STEPS, room)
    values[0] = np.nan
    assert not make_whole(1.0, 1.0, STEPS, room)


def test_svec_keeps_norms_and_its_product_is_that_of_matrices() -> None:
    rng = np.random.default_rng(2)
    X, M = rng.standard_normal((2, 4, 4))
    X = X + X.T
    assert np.linalg.norm(svec(X)) == pytest.approx(np.linalg.norm(X))
    assert np.allclose(smat(svec(X), 4), X)
    assert np.allclose(symmetric_product(M) @ svec(X), svec(M @ X @ M.T))
    assert len(triangle(4)[0]) == 10


def test_clip_norms_are_those_of_the_specification() -> None:
    model = PublicModel(10, HALF)
    found = [clip_norm(model, visits) for visits in (0.6, 2.65, 8.1, 17.0, 75.0)]
    assert np.allclose(found, [0.157, 0.268, 0.598, 1.066, 2.742], atol=5e-4)


def test_the_public_model_is_an_average_over_poisson_visitors() -> None:
    model, rng = PublicModel(4), np.random.default_rng(1)
    assert np.array_equal(model.unit, np.full(4, np.sqrt(0.125)))
    assert np.array_equal(model.item, np.full(4, 0.25))
    population, visits = Population(np.zeros(4), np.diag([0.5, 1.0, 2.0, 3.0])), 2.5
    k = rng.poisson(visits, 40_000)
    rate = 0.25 * 0.125 * np.diag(population.covariance) / VARIANCE
    shares = np.outer(k[k > 0], rate)
    expected = np.diag((shares / (1.0 + shares)).mean(axis=0))
    assert np.allclose(expected_information(model, population, visits), expected, atol=0.003)
    shares = np.outer(k + 3.0, rate)
    expected = np.diag((shares / (1.0 + shares)).mean(axis=0))
    assert np.allclose(expected_information(model, population, visits, 3.0), expected, atol=0.003)
    assert present(visits) == active(visits) == pytest.approx((k > 0).mean(), abs=0.01)
    assert present(visits, 3.0) == 1.0
    assert visit_numbers(visits)[1].sum() == pytest.approx(active(visits), abs=1e-9)
    assert clip_norm(model, visits, 20.0) > clip_norm(model, visits)
