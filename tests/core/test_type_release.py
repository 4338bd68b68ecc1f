"""Releases of whole users: what one user adds, beside plain NumPy, and what released sums say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.plus.type_filter import (
    FilterRules,
    ReleasedTypes,
    Sums,
    add_sums,
    first_types,
    learn_types,
    moved_to,
    read_release,
    release_point,
)
from fclub.core.plus.type_release import (
    MOST,
    ReleasePoint,
    Room,
    _make_whole,
    add_contributions,
    release_length,
)
from fclub.core.statistics import Packed
from fclub.core.types import Counts

DIM, TYPES, HALF = 3, 4, float(np.sqrt(0.5))
RULES = FilterRules(TYPES, DIM, HALF)
LENGTH = release_length(TYPES, DIM)
STEPS = 50_000


def some_users(seed: int, visits: list[int]) -> Packed:
    rng = np.random.default_rng(seed)
    users = Packed.zeros(len(visits), DIM)
    for u, count in enumerate(visits):
        X = np.column_stack([rng.uniform(-0.4, 0.4, (count, DIM - 1)), np.full(count, HALF)])
        y = rng.integers(0, 2, count) - 0.5
        users.gram[u], users.moment[u], users.counts[u] = X.T @ X, X.T @ y, count
    return users


def summed(point: ReleasePoint, users: Packed, most: float, steps: int = STEPS) -> Counts:
    total = np.zeros(LENGTH, dtype=np.int64)
    add_contributions(point, users, most, steps, total)
    return total


def one(users: Packed, u: int) -> Packed:
    return users.slice(u, u + 1)


def slowly(point: ReleasePoint, users: Packed, u: int, most: float) -> Counts:
    """The same by inverses and outer products."""
    if users.counts[u] == 0:
        return np.zeros(LENGTH, dtype=np.int64)
    W = np.diag(1.0 / point.within)
    Q = np.linalg.inv(np.linalg.inv(users.gram[u] / point.variance + 1e-300) + W)
    q = Q @ np.linalg.solve(users.gram[u], users.moment[u])
    evidence = [w + q @ c - 0.5 * c @ Q @ c for w, c in zip(point.weights, point.centres, strict=True)]
    weights = np.exp(np.array(evidence) - max(evidence))
    weights /= weights.sum()
    parts = []
    for w, c in zip(weights, point.centres, strict=True):
        parts += [*(w * (q - Q @ c) * point.scale), w * point.share]
    scaled = point.gram * Q * np.outer(point.scale, point.scale)
    values = np.array([*parts, *scaled[np.triu_indices(DIM)]])
    values *= min(1.0, most / np.linalg.norm(values))
    return np.trunc(values * STEPS / most).astype(np.int64)


@pytest.mark.parametrize("most", [0.3, 2.0, 50.0])
def test_a_contribution_equals_the_slow_one(most: float) -> None:
    point, users = release_point(first_types(RULES), RULES), some_users(1, [3, 10, 40, 0])
    expected = [slowly(point, users, u, most) for u in range(4)]
    for u in range(4):
        found = summed(point, one(users, u), most)
        assert np.abs(found - expected[u]).max() <= 1, "but for one step of rounding"
        assert found @ found <= STEPS**2
    assert np.abs(summed(point, users, most) - sum(expected)).max() <= 4


def invented(rng: np.random.Generator, size: float) -> ReleasePoint:
    """Types that a dishonest global server may have sent."""
    shares = rng.dirichlet(np.ones(TYPES))
    types = first_types(RULES)._replace(centres=size * rng.standard_normal((TYPES, DIM)), shares=shares)
    return release_point(types, RULES)


@given(seed=st.integers(0, 10_000), size=st.sampled_from([0.1, 1.0, 100.0]), most=st.floats(0.01, 9.0))
def test_no_user_adds_more_than_the_bound_whatever_the_global_server_says(
    seed: int, size: float, most: float
) -> None:
    rng = np.random.default_rng(seed)
    users = some_users(seed, [*rng.integers(0, 60, 6)])
    point = invented(rng, size)
    total = np.zeros(LENGTH, dtype=np.int64)
    for u in range(6):
        added = summed(point, one(users, u), most)
        assert int((added**2).sum()) <= STEPS**2
        assert users.counts[u] or not added.any()
        total += added
    assert np.array_equal(summed(point, users, most), total), "users do not touch each other"


@given(seed=st.integers(0, 10_000), which=st.integers(0, 4))
def test_neighbours_differ_by_one_bounded_vector(seed: int, which: int) -> None:
    """Withdrawn: at most the bound; replaced: at most twice the bound, and nobody else's part moves."""
    point = invented(np.random.default_rng(seed), 0.5)
    users, others = some_users(seed, [5] * 5), some_users(seed + 1, [9] * 5)
    whole = summed(point, users, 1.0)
    withdrawn = users.copy()
    withdrawn.clear(which)
    shift = whole - summed(point, withdrawn, 1.0)
    assert np.array_equal(shift, summed(point, one(users, which), 1.0))
    assert int((shift**2).sum()) <= STEPS**2
    for array, other in zip(withdrawn, others, strict=True):
        array[which] = other[which]
    shift = whole - summed(point, withdrawn, 1.0)
    assert int((shift**2).sum()) <= 4 * STEPS**2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0 * MOST, -1e300, 1e300])
@pytest.mark.parametrize("where", ["moment", "gram", "diagonal"])
def test_what_is_no_sum_adds_nothing_and_stops_nobody(value: float, where: str) -> None:
    point, users = release_point(first_types(RULES), RULES), some_users(2, [5, 5])
    expected = summed(point, one(users, 1), 1.0)
    if where == "moment":
        users.moment[0, 1] = value
    else:
        users.gram[0, 1, 1 if where == "diagonal" else 2] = value
    assert np.array_equal(summed(point, users, 1.0), expected)


def test_an_impossible_gram_matrix_adds_nothing() -> None:
    point, users = release_point(first_types(RULES), RULES), some_users(2, [5])
    users.gram[0] = -1e6 * np.eye(DIM)
    assert not summed(point, users, 1.0).any()


def test_a_vector_that_is_longer_than_it_was_said_to_be_adds_nothing() -> None:
    """The last test is in whole numbers, whatever doubles have said before."""
    make_whole: Any = getattr(_make_whole, "py_func", _make_whole)
    none, square = np.zeros(0), np.zeros((0, 0))
    values, whole = np.array([0.6, 0.8]), np.zeros(2, dtype=np.int64)
    room = Room(square, square, none, none, square, values, whole)
    assert make_whole(1.0, 1.0, 1000, room)
    assert room.whole.tolist() == [600, 800]
    assert not make_whole(0.99, 0.99, 1000, room)
    assert not make_whole(0.5, 0.5, 1000, room), "one entry alone is too long"


def test_types_that_are_no_numbers_add_nothing() -> None:
    point = release_point(first_types(RULES), RULES)._replace(
        centres=np.full((TYPES, DIM), np.nan), weights=np.zeros(TYPES)
    )
    assert not summed(point, some_users(2, [5]), 1.0).any()
    huge = some_users(3, [5])
    huge.moment[0] = MOST
    point = release_point(first_types(RULES), RULES)
    found = summed(point, huge, 1.0, 2**30)
    assert sum(int(entry) ** 2 for entry in found) <= 2**60


def exact_sums(types: ReleasedTypes, users: Packed, rules: FilterRules, noise: float = 1e-12) -> Sums:
    total = np.zeros(release_length(rules.types, rules.dim), dtype=np.int64)
    most, steps = 1000.0, 2**30
    add_contributions(release_point(types, rules), users, most, steps, total)
    people = float(len(users.counts))
    return read_release(
        (most / steps) * total.astype(np.float64), people, float(users.counts.mean()), noise, rules
    )


def test_a_release_is_taken_apart_as_it_was_put_together() -> None:
    types, users = first_types(RULES), some_users(4, [4, 9, 30])
    sums = exact_sums(types, users, RULES)
    assert sums.users.sum() == pytest.approx(3.0, abs=1e-5)
    assert sums.visits == pytest.approx(43 / 3)
    W = RULES.within * np.diag(RULES.spread)
    expected = sum(np.linalg.inv(np.linalg.inv(gram / RULES.variance) + W) for gram in users.gram)
    assert sums.gram == pytest.approx(expected, abs=1e-3)
    assert add_sums([sums, sums]).people == 6.0
    assert add_sums([sums, sums]).noise == 2e-12
    assert add_sums([sums, sums]).visits == pytest.approx(sums.visits)


def a_population(rng: np.random.Generator, centres: np.ndarray, users: int, visits: int) -> Packed:
    found = Packed.zeros(users, DIM)
    for u in range(users):
        X = np.column_stack([rng.uniform(-0.5, 0.5, (visits, DIM - 1)), np.full(visits, HALF)])
        y = (rng.random(visits) < 0.5 + X @ centres[u % len(centres)]) - 0.5
        found.gram[u], found.moment[u], found.counts[u] = X.T @ X, X.T @ y, visits
    return found


def test_the_filter_finds_the_types() -> None:
    rng = np.random.default_rng(0)
    true = np.array([[0.7, 0.0, 0.0], [-0.4, 0.6, 0.0], [0.0, -0.7, 0.0]])
    types = first_types(RULES)
    uncertain = np.trace(types.covariance)
    for visits in (10, 20, 40, 60, 80):
        users = a_population(rng, true, 900, visits)
        types = learn_types(types, exact_sums(types, users, RULES), RULES)
    for centre in true:
        assert np.linalg.norm(types.centres - centre, axis=1).min() < 0.15
    assert np.trace(types.covariance) < 0.3 * uncertain
    assert types.shares.sum() == pytest.approx(1.0)
    assert types.uncertainty(1).shape == (DIM, DIM)


def test_noise_alone_moves_little() -> None:
    """Where the noise is far larger than what users can add, beliefs stay what they were."""
    types, rng = first_types(RULES), np.random.default_rng(1)
    noise = 1e6
    values = np.sqrt(noise) * rng.standard_normal(LENGTH)
    moved = learn_types(types, read_release(values, 100.0, 5.0, noise, RULES), RULES)
    assert np.abs(moved.centres - types.centres).max() < 0.05
    assert np.linalg.eigvalsh(moved.covariance).min() > 0.0


def test_a_release_taken_at_earlier_centres_is_moved() -> None:
    rng = np.random.default_rng(2)
    true = np.array([[0.7, 0.0, 0.0], [-0.4, 0.6, 0.0]])
    users = a_population(rng, true, 400, 200)
    before = ReleasedTypes(*(array.copy() for array in first_types(RULES)))
    before.centres[:2], before.shares[:] = true + 0.05, [0.45, 0.45, 0.05, 0.05]
    now = before._replace(centres=before.centres.copy())
    now.centres[0] += [0.03, -0.02, 0.01]
    old, fresh = (exact_sums(types, users, RULES) for types in (before, now))
    assert moved_to(fresh, now.centres, now, RULES) is fresh
    moved = moved_to(old, before.centres, now, RULES)
    apart = np.linalg.norm(moved.residuals - fresh.residuals)
    assert apart < 0.4 * np.linalg.norm(old.residuals - fresh.residuals)


def test_without_a_constant_all_coordinates_are_alike() -> None:
    rules = FilterRules(TYPES, DIM)
    assert np.array_equal(rules.scale, np.ones(DIM))
    expected = rules.expected(10.0)
    assert np.array_equal(expected, np.diag(np.diag(expected)))
    assert np.ptp(np.diag(expected)) == 0.0
