"""Sufficient statistics: packed rows, read-only views, sums by label."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.packing import flatten, rebuild
from fclub.core.statistics import Packed, Statistics, observe, total_by_label


def filled(rng: np.random.Generator, rows: int, d: int, visits: int) -> Packed:
    packed = Packed.zeros(rows, d)
    for _ in range(visits):
        observe(packed, int(rng.integers(rows)), rng.standard_normal(d), float(rng.random()))
    return packed


def test_observe_is_a_rank_one_update() -> None:
    packed, x = Packed.zeros(2, 3), np.array([0.1, 0.2, 0.3])
    observe(packed, 1, x, 0.5)
    np.testing.assert_allclose(packed.gram[1], np.outer(x, x))
    np.testing.assert_allclose(packed.moment[1], 0.5 * x)
    assert packed.counts.tolist() == [0, 1]
    assert not packed.gram[0].any()


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 5), st.integers(1, 4))
def test_total_by_label(seed: int, rows: int, d: int, clusters: int) -> None:
    rng = np.random.default_rng(seed)
    packed = filled(rng, rows, d, 20)
    labels = rng.integers(clusters, size=rows)
    totals = total_by_label(packed, labels, clusters)
    for c in range(clusters):
        np.testing.assert_allclose(totals.gram[c], packed.gram[labels == c].sum(axis=0), atol=1e-12)
        np.testing.assert_allclose(totals.moment[c], packed.moment[labels == c].sum(axis=0), atol=1e-12)
        assert totals.counts[c] == packed.counts[labels == c].sum()


def test_values_cannot_be_written_through() -> None:
    packed = filled(np.random.default_rng(0), 2, 3, 10)
    view = Statistics.of(packed, 0)
    with pytest.raises(ValueError, match="read-only"):
        view.gram[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        view.moment[0] = 1.0
    packed.gram[0] += 1.0
    np.testing.assert_array_equal(view.gram, packed.gram[0])


def test_sums_and_differences_are_new_values() -> None:
    packed = filled(np.random.default_rng(1), 2, 3, 10)
    a, b = Statistics.of(packed, 0), Statistics.of(packed, 1)
    back = (a + b) - b
    np.testing.assert_allclose(back.gram, a.gram, atol=1e-12)
    np.testing.assert_allclose(back.moment, a.moment, atol=1e-12)
    assert back.count == a.count
    assert back.dim == 3
    np.testing.assert_allclose(a.shifted(2.0).gram, a.gram + 2 * np.eye(3))
    assert not Statistics.zeros(3).gram.any()


def test_slice_shares_memory() -> None:
    packed = Packed.zeros(4, 2)
    observe(packed.slice(1, 3), 0, np.ones(2) / 2, 1.0)
    assert packed.counts.tolist() == [0, 1, 0, 0]


def test_rebuild_refuses_arrays_of_another_state() -> None:
    packed = filled(np.random.default_rng(2), 2, 3, 10)
    arrays = flatten(packed)
    assert rebuild(Packed.zeros(5, 3), arrays).counts.sum() == 10
    with pytest.raises(ValueError, match="gram"):
        rebuild(Packed.zeros(2, 4), arrays)
    with pytest.raises(ValueError, match="counts"):
        rebuild(packed, arrays | {"counts": arrays["counts"].astype(float)})
