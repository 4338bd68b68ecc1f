"""ρ, κ, β of Lemma 1 against their formulas, and the rest of core/paper/ucb.py."""

from math import ceil, log, log2, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.config import Privacy, Protocol
from fclub.core.models import ridge_radius
from fclub.core.paper.ucb import (
    confidence_radius,
    delay_factor,
    make_rules,
    ridge_bounds,
    tree_bounds,
)
from fclub.errors import InvalidSetting


def test_printed_privatizer_at_the_papers_setting() -> None:
    protocol, privacy = Protocol(), Privacy()
    t_c = ceil(10 * log(100_000) / log(1.01))
    nu = ceil(log2(t_c + 1)) + 1
    rho = 8 * sqrt(2) * nu * log(4 / 0.1) * (4 * sqrt(10) + 2 * log(2 * 20 / 0.01))
    bounds = tree_bounds(10, 20, protocol, privacy)
    assert (bounds.uploads, bounds.depth) == (t_c, nu) == (11571, 15)
    assert bounds.rho_min == pytest.approx(rho)
    assert bounds.rho_max == pytest.approx(3 * rho + 3 * rho * t_c)
    assert bounds.kappa == pytest.approx(sqrt(2 * nu * (sqrt(10) + 2 * log(4000)) / sqrt(2)))
    assert (bounds.report_shift, bounds.upload_shift) == pytest.approx((2 * rho, 3 * rho))
    assert bounds.noise_std**2 == pytest.approx(64 * nu * log(20) ** 2)


@given(st.floats(0.1, 20), st.floats(1e-6, 0.5))
def test_noise_falls_with_the_budget(epsilon: float, delta: float) -> None:
    tight = tree_bounds(10, 40, Protocol(), Privacy(epsilon, delta))
    loose = tree_bounds(10, 40, Protocol(), Privacy(2 * epsilon, delta))
    assert tight.noise_std == pytest.approx(2 * loose.noise_std)
    assert tight.rho_min == pytest.approx(2 * loose.rho_min)
    assert tight.kappa == pytest.approx(sqrt(2) * loose.kappa)


def test_the_tree_needs_a_delay() -> None:
    with pytest.raises(InvalidSetting) as refusal:
        tree_bounds(10, 40, Protocol(upload_ratio=1.0), Privacy())
    assert refusal.value.value == 1.0


@given(st.integers(0, 10**7), st.integers(1, 50), st.sampled_from([None, 20]), st.booleans())
def test_confidence_radius(count: int, sharing: int, bound: int | None, private: bool) -> None:
    protocol = Protocol(cluster_bound=bound, exploration=0.7, sigma_0=0.4, ridge=1.5)
    clusters = bound or 40
    bounds = tree_bounds(10, clusters, protocol, Privacy()) if private else ridge_bounds(protocol)
    low, high = bounds.rho_min, bounds.rho_max
    growth = 2 * log(clusters / 0.01) + 10 * log(high / low + count / (10 * sharing * low))
    expected = 0.4 * sqrt(growth) + sqrt(sharing * high) + sqrt(sharing) * bounds.kappa
    rules = make_rules(clusters, protocol, bounds)
    radius = confidence_radius(float(count), float(sharing), 10, rules)
    assert radius == pytest.approx(0.7 * expected)


@given(st.integers(0, 10**6))
def test_non_private_radius_of_one_cluster_is_that_of_ridge_regression(count: int) -> None:
    protocol = Protocol()
    rules = make_rules(1, protocol, ridge_bounds(protocol))
    expected = ridge_radius(float(count), 10, 1.0, 0.5, 0.01)
    assert confidence_radius(float(count), 1.0, 10, rules) == pytest.approx(expected)


def test_delay_factor() -> None:
    assert delay_factor(5, 1.0, 1.0) == 1.0
    assert delay_factor(1, 1.2, 1.3) == pytest.approx(sqrt(1.3 + 0.2))
    assert delay_factor(4, 1.2, 1.3) == pytest.approx(sqrt(1.3 * (1 + 3 * 0.2) + 0.2))
