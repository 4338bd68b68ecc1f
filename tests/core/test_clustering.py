"""Deletion of edges, connected components and the merge, beside slow and obvious versions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.clustering import (
    UserGraph,
    adjusted_rand_index,
    complete_edges,
    components,
    merge,
    most_alike,
    number_by_first,
    sparse_degree,
    sparse_edges,
)

seeds = st.integers(0, 2**32 - 1)


def width(count: np.ndarray) -> np.ndarray:
    return np.sqrt((1 + np.log(1 + count)) / (1 + count))


def closure(adjacent: np.ndarray) -> np.ndarray:
    """Who reaches whom, by repeated squaring."""
    reach = adjacent | adjacent.T | np.eye(len(adjacent), dtype=bool)
    for _ in range(len(adjacent)):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    return reach


def same(labels: np.ndarray) -> np.ndarray:
    return labels[:, None] == labels[None, :]


@given(seeds, st.integers(1, 12), st.integers(0, 15))
def test_components(seed: int, nodes: int, edges: int) -> None:
    first, second = np.random.default_rng(seed).integers(nodes, size=(2, edges))
    adjacent = np.zeros((nodes, nodes), dtype=bool)
    adjacent[first, second] = True
    labels = components(nodes, first, second)
    np.testing.assert_array_equal(same(labels), closure(adjacent))
    np.testing.assert_array_equal(labels, number_by_first(labels))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20))
def test_number_by_first(labels: list[int]) -> None:
    numbered = number_by_first(np.array(labels))
    np.testing.assert_array_equal(same(numbered), same(np.array(labels)))
    assert numbered[0] == 0
    assert all(numbered[i] <= numbered[:i].max() + 1 for i in range(1, len(labels)))


@given(seeds, st.integers(1, 10), st.floats(0, 3))
def test_deletion_is_equation_3_and_permanent(seed: int, users: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    graph = UserGraph(users, rng)
    alive = ~np.eye(users, dtype=bool)
    for _ in range(3):
        theta, count = rng.standard_normal((users, 3)), rng.integers(0, 50, size=users)
        before = len(graph)
        deleted = graph.delete_far(theta, count, factor)
        apart = np.linalg.norm(theta[:, None] - theta[None, :], axis=-1)
        alive &= ~(apart > factor * (width(count)[:, None] + width(count)[None, :]))
        assert len(graph) == before - deleted == np.count_nonzero(alive) // 2
        np.testing.assert_array_equal(same(graph.components()), closure(alive))


def test_infinite_factor_deletes_nothing() -> None:
    graph = UserGraph(6, np.random.default_rng(0))
    assert graph.delete_far(1e9 * np.arange(12.0).reshape(6, 2), np.full(6, 10**6), np.inf) == 0


@given(seeds, st.integers(1, 10), st.floats(0, 3))
def test_merge_is_equation_4_between_servers(seed: int, rows: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    theta, count = rng.standard_normal((rows, 2)), rng.integers(0, 50, size=rows)
    server = rng.integers(3, size=rows)
    apart = np.linalg.norm(theta[:, None] - theta[None, :], axis=-1)
    close = apart < factor * (width(count)[:, None] + width(count)[None, :])
    close &= server[:, None] != server[None, :]
    groups = merge(theta, count, server, factor)
    np.testing.assert_array_equal(same(groups), closure(close))


def test_clusters_of_one_server_meet_only_through_another() -> None:
    theta, count = np.zeros((3, 2)), np.zeros(3, dtype=np.int64)
    assert merge(theta[:2], count[:2], np.array([0, 0]), 1.0).tolist() == [0, 1]
    assert merge(theta, count, np.array([0, 0, 1]), 1.0).tolist() == [0, 0, 0]


@given(seeds, st.integers(2, 200), st.integers(1, 5))
def test_sparse_graph_has_n_log_n_proper_pairs(seed: int, users: int, clusters: int) -> None:
    first, second = sparse_edges(users, clusters, np.random.default_rng(seed))
    assert len(first) == users * sparse_degree(users, clusters) // 2
    assert np.all(first != second)
    assert min(first.min(), second.min()) >= 0
    assert max(first.max(), second.max()) < users


def test_sparse_graph_connects_every_cluster() -> None:
    """400 users in 4 clusters, edges between clusters removed: what remains has 4 components."""
    truth = np.arange(400) % 4
    for seed in range(20):
        graph = UserGraph(400, np.random.default_rng(seed), sparse=True, sparse_clusters=4)
        inside = truth[graph.first] == truth[graph.second]
        labels = components(400, graph.first[inside], graph.second[inside])
        assert adjusted_rand_index(labels, truth) == 1.0


@pytest.mark.parametrize("sparse", [True, False])
def test_users_may_join_later(sparse: bool) -> None:
    graph = UserGraph(1, np.random.default_rng(0), sparse=sparse)
    for new in range(1, 30):
        assert graph.add_user() == new
        graph.link(new, range(new))
        assert graph.users == new + 1
        assert set(graph.components()) == {0}
    pairs = set(zip(graph.first.tolist(), graph.second.tolist(), strict=True))
    assert len(pairs) == len(graph)
    if not sparse:
        assert pairs == set(zip(*(edge.tolist() for edge in complete_edges(30)), strict=True))


def test_arrivals_do_not_copy_the_edges() -> None:
    """The edges that are there stay the same memory until somebody looks."""
    graph = UserGraph(300, np.random.default_rng(0))
    before = graph.first
    for _ in range(3):
        graph.link(graph.add_user(), [0, 1])
    assert graph._portions[0][0] is before
    assert len(graph) == len(before) + 6 == len(graph.first) == len(graph.second)


@given(seeds, st.integers(1, 6), st.integers(1, 4))
def test_most_alike_has_the_least_squared_error(seed: int, observations: int, clusters: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((observations, 3)), rng.standard_normal(observations)
    theta, count = rng.standard_normal((clusters, 3)), rng.integers(9, size=clusters)
    errors = ((y[:, None] - x @ theta.T) ** 2).sum(axis=0)
    assert most_alike(x.T @ x, x.T @ y, theta, count) == np.argmin(errors)
    assert most_alike(np.zeros((3, 3)), np.zeros(3), theta, count) == np.argmax(count)


def pair_counting_ari(found: np.ndarray, true: np.ndarray) -> float:
    upper = np.triu_indices(len(found), k=1)
    a, b = same(found)[upper], same(true)[upper]
    expected = a.sum() * b.sum() / max(1, len(a))
    largest = (a.sum() + b.sum()) / 2
    return 1.0 if largest == expected else ((a & b).sum() - expected) / (largest - expected)


@given(seeds, st.integers(1, 30))
def test_adjusted_rand_index_counts_pairs(seed: int, users: int) -> None:
    found, true = np.random.default_rng(seed).integers(4, size=(2, users))
    assert adjusted_rand_index(found, true) == pytest.approx(pair_counting_ari(found, true))
    assert adjusted_rand_index(found, found) == 1.0
