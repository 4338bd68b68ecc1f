"""The synthetic environment: placement, vectors, items, rewards and refusals."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fclub
from fclub.checks import check_environment
from fclub.environments.base import LinearEnvironment
from fclub.errors import InvalidInput, InvalidSetting, NotStarted, UnknownName

kinds = st.sampled_from(["authors", "orthogonal"])


def started(seed: int = 0, **parameters: Any) -> LinearEnvironment:
    environment = fclub.make_environment("synthetic", **parameters)
    environment.start(seed)
    return environment  # type: ignore[return-value]


@settings(max_examples=20)
@given(kinds, st.sampled_from(["blocks", "spread"]), st.floats(0, 2), st.integers(4, 8))
def test_conforms(kind: str, placement: str, spread: float, dim: int) -> None:
    parameters = {"kind": kind, "placement": placement, "spread": spread, "dim": dim}
    check_environment(fclub.make_environment("synthetic", **parameters), visits=20)


@given(st.integers(0, 10**6), kinds)
def test_rewards_are_probabilities_for_every_user_and_item(seed: int, kind: str) -> None:
    environment = started(seed, kind=kind)
    for _ in range(5):
        _, items = environment.visit()
        means = environment.theta @ items.T
        assert means.min() >= -1e-12
        assert means.max() <= 1 + 1e-12
        np.testing.assert_allclose(np.linalg.norm(items, axis=1), 1.0)
        if kind == "authors":
            np.testing.assert_allclose(items[:, -1], np.sqrt(0.5))


@given(st.integers(0, 10**6), kinds, st.floats(0, 1))
def test_spread_bounds_the_distance_within_a_cluster(seed: int, kind: str, spread: float) -> None:
    environment = started(seed, kind=kind, spread=spread)
    theta, labels = environment.theta, environment.labels
    apart = np.linalg.norm(theta[:, None] - theta[None, :], axis=-1)
    inside = labels[:, None] == labels[None, :]
    assert apart[inside].max() <= spread + 1e-9
    np.testing.assert_allclose(np.linalg.norm(theta, axis=1), 1.0)
    if spread == 0.0:
        assert len(np.unique(theta.round(9), axis=0)) == 4


def test_orthogonal_clusters_have_the_papers_gap() -> None:
    theta = np.unique(started(kind="orthogonal").theta, axis=0)
    np.testing.assert_allclose(theta @ theta.T, np.eye(4), atol=1e-12)
    assert np.linalg.norm(theta[0] - theta[1]) == pytest.approx(np.sqrt(2))


def test_placement() -> None:
    blocks, spread = (started(placement=p) for p in ("blocks", "spread"))
    assert np.bincount(blocks.server_of).tolist() == [8] * 5
    assert np.bincount(spread.server_of).tolist() == [8] * 5
    assert np.all(np.diff(blocks.server_of) >= 0)
    for server in range(5):
        assert set(spread.labels[spread.server_of == server]) == {0, 1, 2, 3}
        assert len(set(blocks.labels[blocks.server_of == server])) <= 2


def test_users_arrive_uniformly_and_rewards_follow_the_means() -> None:
    environment = started(users=4, clusters=2, servers=2)
    visits, surplus, variance = np.zeros(4), 0.0, 0.0
    for _ in range(3000):
        user, items = environment.visit()
        visits[user] += 1
        mean = float(environment.theta[user] @ items[0])
        surplus += environment.feedback(0).reward - mean
        variance += mean * (1 - mean)
    assert np.abs(visits - 750).max() < 5 * np.sqrt(3000 * 0.25 * 0.75)
    assert abs(surplus) < 5 * np.sqrt(variance)


def test_regret_is_the_distance_to_the_best_item() -> None:
    environment = started()
    for _ in range(50):
        user, items = environment.visit()
        means = items @ environment.theta[user]
        assert environment.feedback(3).regret == pytest.approx(means.max() - means[3])


@pytest.mark.parametrize("index", [-1, 10, 10**6])
def test_items_that_were_not_offered_are_refused(index: int) -> None:
    environment = started()
    environment.visit()
    with pytest.raises(InvalidInput) as refusal:
        environment.feedback(index)
    assert refusal.value.value == index


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("clusters", 41),
        ("clusters", 0),
        ("servers", 41),
        ("items", 0),
        ("spread", -0.1),
        ("spread", 2.1),
        ("placement", "random"),
        ("kind", "other"),
        ("dim", 1),
    ],
)
def test_impossible_settings(parameter: str, value: object) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        fclub.make_environment("synthetic", **{parameter: value})
    assert refusal.value.value == value


def test_more_clusters_than_orthogonal_directions() -> None:
    with pytest.raises(InvalidSetting, match="orthogonal"):
        fclub.make_environment("synthetic", kind="orthogonal", clusters=5, dim=4)


def test_names() -> None:
    with pytest.raises(UnknownName, match="synthetic"):
        fclub.make_environment("syntetic")
    with pytest.raises(UnknownName, match="users"):
        fclub.make_environment("synthetic", user=3)
    with pytest.raises(NotStarted):
        fclub.make_environment("synthetic").visit()
    parameters = started(users=12).get_params()
    assert fclub.make_environment("synthetic", **parameters).get_params() == parameters
