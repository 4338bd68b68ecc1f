"""Ridge regressions kept by rank-one updates equal fresh solves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.compiling import compiled
from fclub.core.models import (
    Independent,
    Models,
    add_user,
    clear_model,
    estimate_all,
    feedback,
    learn,
    recommend,
    refresh_model,
    ridge_radius,
)
from fclub.core.types import Matrix, Vector


def state_of(rows: int, d: int, ridge: float) -> Independent:
    return Independent(
        Models.zeros(rows, d, ridge), np.arange(rows) % rows, ridge, 0.5, 0.01 / rows, 1.0
    )


@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(0.1, 5.0))
def test_models_are_ridge_regressions(seed: int, d: int, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    state = state_of(2, d, ridge)
    for _ in range(60):
        x = rng.standard_normal(d)
        feedback(state, int(rng.integers(2)), x / np.linalg.norm(x), float(rng.random()))
    models = state.models
    for row in range(2):
        fresh = np.linalg.inv(models.gram[row] + ridge * np.eye(d))
        np.testing.assert_allclose(models.inverse[row], fresh, atol=1e-9)
        np.testing.assert_allclose(models.theta[row], fresh @ models.moment[row], atol=1e-9)
    theta = np.empty_like(models.moment)
    estimate_all(models.gram, models.moment, ridge, theta)
    np.testing.assert_allclose(theta, models.theta, atol=1e-9)


@compiled
def sum_two_users(users: Models, clusters: Models, rows: Matrix, rewards: Vector, ridge: float) -> None:
    """Cluster 1 learns what users 0, 1, 1 observe; cluster 0 forgets another one and adds them up.

    Kernels that only other kernels call cannot be called from Python.
    """
    for place in range(3):
        learn(users, min(place, 1), rows[place], rewards[place], ridge)
        learn(clusters, 1, rows[place], rewards[place], ridge)
    learn(clusters, 0, rows[3], rewards[3], ridge)
    clear_model(clusters, 0)
    for user in range(2):
        add_user(clusters, 0, users, user)
    refresh_model(clusters, 0, ridge)


def test_a_cluster_is_the_sum_of_its_users() -> None:
    ridge, rows = 0.5, np.random.default_rng(3).standard_normal((4, 3))
    users, clusters = Models.zeros(2, 3, ridge), Models.zeros(2, 3, ridge)
    sum_two_users(users, clusters, rows, np.array([1.0, 0.25, 0.75, 1.0]), ridge)
    for both in clusters:
        np.testing.assert_allclose(both[0], both[1], atol=1e-12)


def test_recommend_adds_the_radius() -> None:
    state = state_of(1, 2, 1.0)
    for _ in range(50):
        feedback(state, 0, np.array([1.0, 0.0]), 0.1)
    items = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert recommend(state, 0, items) == 1
    assert recommend(state._replace(exploration=0.0), 0, items) == 0
    expected = 0.5 * np.sqrt(2 * np.log(100) + 2 * np.log(1 + 50 / 2)) + 1
    assert ridge_radius(50.0, 2, 1.0, 0.5, 0.01) == pytest.approx(expected)


def drift(rounds: int) -> float:
    """The largest entry of inverse·(λI+V) − I after so many rank-one updates of one model."""
    d, rng = 10, np.random.default_rng(0)
    state = state_of(1, d, 1.0)
    rows = rng.standard_normal((4096, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for t in range(rounds):
        feedback(state, 0, rows[t % len(rows)], 1.0)
    shifted = state.models.gram[0] + np.eye(d)
    return float(np.abs(state.models.inverse[0] @ shifted - np.eye(d)).max())


def test_no_drift_across_a_refresh() -> None:
    assert drift(3 * 1024 + 500) < 1e-11


@pytest.mark.slow
def test_no_drift_in_a_million_rounds() -> None:
    assert drift(1_000_500) < 1e-9


def test_a_stated_width_takes_the_place_of_the_radius() -> None:
    """Item 0 is the better one as far as is known, item 1 the less known one by far."""
    state, items = state_of(1, 2, 1.0), np.eye(2)
    for _ in range(50):
        feedback(state, 0, items[0], 0.9)
    assert recommend(state._replace(width=0.0), 0, items) == 0
    assert recommend(state._replace(width=10.0), 0, items) == 1
