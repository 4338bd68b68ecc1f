"""The tree of Alg. 5: its sums with constant noise, its scale by a test of the distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fclub.config import Privacy, Protocol
from fclub.core.lattice import is_whole
from fclub.core.noise import advance_tree, draw_symmetric
from fclub.core.paper.ucb import tree_bounds


def partial_sums(leaves: int, depth: int, draw: object, side: int = 3) -> list[np.ndarray]:
    nodes, out = np.zeros((depth, side, side)), np.zeros((side, side))
    sums = []
    for leaf in range(1, leaves + 1):
        advance_tree(nodes, leaf, draw(leaf), out)  # type: ignore[operator]
        sums.append(out.copy())
    return sums


def test_constant_noise_counts_the_nodes_of_a_partial_sum() -> None:
    """With every draw equal to 1, a partial sum over k leaves holds one node per binary one of k."""
    sums = partial_sums(300, 9, lambda _: np.ones((3, 3)))
    for k, total in enumerate(sums, start=1):
        np.testing.assert_array_equal(total, k.bit_count())


@given(st.integers(1, 200))
def test_partial_sums_add_the_right_nodes(leaves: int) -> None:
    """Draw k is the noise of the node that leaf k closes: the sum takes them along the set bits."""
    last = partial_sums(leaves, 8, lambda k: np.full((3, 3), float(k)))[-1]
    closing, rest = [], leaves
    while rest:
        closing.append(rest)
        rest &= rest - 1
    np.testing.assert_array_equal(last, sum(closing))


def drawn(rng: np.random.Generator, std: float, side: int) -> np.ndarray:
    out = np.empty((side, side))
    draw_symmetric(rng, std, out)
    return out


@given(st.integers(0, 2**32), st.floats(0.1, 100))
def test_noise_is_symmetric_and_on_the_lattice(seed: int, std: float) -> None:
    out = drawn(np.random.default_rng(seed), std, 4)
    np.testing.assert_array_equal(out, out.T)
    assert is_whole(out)
    assert out[3, 3] == 0.0
    normal = np.zeros((4, 4))
    normal[np.triu_indices(4)] = np.random.default_rng(seed).standard_normal(10)
    scale = std * np.where(np.eye(4), np.sqrt(2.0), 1.0)
    np.testing.assert_allclose(
        out[:3, :3], (scale * (normal + np.triu(normal, 1).T))[:3, :3], atol=2e-8
    )


def scale_is_plausible(samples: np.ndarray, std: float) -> bool:
    """A chi-square test of the variance at level 10⁻⁶."""
    statistic = float(np.sum((samples / std) ** 2))
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], df=len(samples))
    return bool(low < statistic < high)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_scale_of_a_release(epsilon: float) -> None:
    """Gram and moment noise of the k-th partial sum, at two budgets with σ far from 1."""
    privacy = Privacy(epsilon=epsilon, delta=0.1, horizon=1000)
    bounds = tree_bounds(3, 4, Protocol(upload_ratio=2.0, download_ratio=2.0), privacy)
    std = np.sqrt(64 * bounds.depth) * np.log(2 / 0.1) / epsilon
    assert bounds.noise_std == pytest.approx(std)
    rng, k = np.random.default_rng(7), 7
    draws = [
        partial_sums(k, bounds.depth, lambda _: drawn(rng, bounds.noise_std, 4), 4)[-1]
        for _ in range(2000)
    ]
    released = np.array(draws)
    expected = std * np.sqrt(k.bit_count())
    for i, j in ((0, 1), (1, 2), (0, 3), (2, 3)):
        assert scale_is_plausible(released[:, i, j], expected)
        assert not scale_is_plausible(released[:, i, j], std**2 * np.sqrt(k.bit_count()))
        assert not scale_is_plausible(released[:, i, j], np.sqrt(std) * np.sqrt(k.bit_count()))
    for i in range(3):
        assert scale_is_plausible(released[:, i, i], np.sqrt(2) * expected)
        assert not scale_is_plausible(released[:, i, i], expected)


def test_increments_are_not_independent_of_the_past() -> None:
    """Noise telescopes: the sum of all increments is the last partial sum, not their variance's sum."""
    rng = np.random.default_rng(0)
    sums = partial_sums(64, 7, lambda _: drawn(rng, 1.0, 3))
    increments = np.diff(np.array([np.zeros((3, 3)), *sums]), axis=0)
    np.testing.assert_array_equal(increments.sum(axis=0), sums[-1])
    assert np.all(np.abs(sums[-1]) < 8)


def test_no_entries_need_no_noise() -> None:
    nothing = np.empty((0, 0))
    draw_symmetric(np.random.default_rng(0), 1.0, nothing)
    assert nothing.shape == (0, 0)
