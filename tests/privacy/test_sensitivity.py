"""The sensitivity is an upper bound that a search comes close to and never beats."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from tests.privacy.whitening import whiten

from fclub.core.inputs import NORM_TOLERANCE
from fclub.core.lattice import GRID
from fclub.errors import InvalidFeatures, InvalidReward, InvalidSetting
from fclub.privacy.sensitivity import Domain, entry_std, sensitivity

HALF = 0.5**0.5
DOMAINS = [
    Domain(),
    Domain(low=-0.5, high=0.5),
    Domain(constant=HALF),
    Domain(low=-0.5, high=0.5, constant=HALF),
    Domain(low=-0.5, high=0.5, constant=HALF, relief=2.0),
    Domain(low=-0.5, high=0.5, constant=0.2, relief=3.0),
    Domain(low=-0.5, high=0.5, constant=0.9, relief=1.5),
    Domain(norm=0.7, low=-1.0, high=0.3),
    Domain(norm=2.0, low=0.2, high=0.2, constant=1.0),
]


def observations(free: NDArray[np.float64], domain: Domain) -> tuple[Any, Any]:
    """Any numbers as points of the domain: directions scaled into the ball, rewards into the range."""
    v, y = free[..., :-1], free[..., -1]
    room = domain.norm**2 - (domain.constant or 0.0) ** 2
    length = np.linalg.norm(v, axis=-1, keepdims=True)
    v = v / np.maximum(length, 1e-12) * np.sqrt(room) * np.minimum(length, 1.0)
    if domain.constant is not None:
        v = np.concatenate([v, np.full((*v.shape[:-1], 1), domain.constant)], axis=-1)
    return v, domain.low + (domain.high - domain.low) * 0.5 * (1.0 + np.sin(y))


def rounded(x: NDArray[np.float64], y: NDArray[np.float64], domain: Domain) -> tuple[Any, Any]:
    """Observations as servers sum them."""
    x = np.rint(x / GRID) * GRID
    if domain.constant is not None:
        x[..., -1] = np.rint(domain.constant / GRID) * GRID
    return x, np.rint(y / GRID) * GRID


def white(free: NDArray[np.float64], domain: Domain) -> NDArray[np.float64]:
    x, y = rounded(*observations(free, domain), domain)
    return whiten(x[..., :, None] * x[..., None, :], y[..., None] * x, domain)


def distances(free: NDArray[np.float64], domain: Domain) -> NDArray[np.float64]:
    return np.linalg.norm(white(free[..., 0, :], domain) - white(free[..., 1, :], domain), axis=-1)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_search_cannot_beat_it_but_comes_close(domain: Domain) -> None:
    rng = np.random.default_rng(7)
    free = 2.0 * rng.standard_normal((20_000, 2, 4))
    found = distances(free, domain)
    assert found.max() <= sensitivity(domain, 3 + (domain.constant is not None))
    best = 0.0
    for start in free[np.argsort(found)[-5:]]:
        result = minimize(
            lambda z: -float(distances(z.reshape(2, 4), domain)), start.ravel(), method="Nelder-Mead"
        )
        best = max(best, -result.fun)
    bound = sensitivity(domain, 3 + (domain.constant is not None))
    assert 0.97 * bound <= best <= bound


@given(
    seed=st.integers(0, 2**32),
    dim=st.integers(2, 8),
    constant=st.one_of(st.none(), st.floats(GRID, 1.0)),
    low=st.floats(-1.0, 1.0),
    width=st.floats(0.0, 2.0),
    relief=st.floats(1.0, 5.0),
)
def test_no_pair_of_any_domain_is_further_apart(
    seed: int, dim: int, constant: float | None, low: float, width: float, relief: float
) -> None:
    domain = Domain(1.0, low, low + width, constant, relief if constant else 1.0)
    free = 3.0 * np.random.default_rng(seed).standard_normal((200, 2, dim + 1))
    bound = sensitivity(domain, dim + (constant is not None))
    assert distances(free, domain).max() <= bound * (1.0 + 1e-12)


def test_values_of_the_notes() -> None:
    near: dict[str, Any] = {"rel": 10 * GRID}
    assert sensitivity(Domain(), 3) == pytest.approx(2.0, **near)
    assert sensitivity(Domain(low=-0.5, high=0.5), 3) == pytest.approx(1.25, **near)
    assert sensitivity(Domain(low=-0.5, high=0.5, constant=HALF), 3) == pytest.approx(1.25, **near)
    assert sensitivity(Domain(constant=HALF), 3) == pytest.approx(3.0**0.5, **near)
    assert sensitivity(Domain.of(HALF), 3) == pytest.approx(0.875, **near)
    assert Domain.of(None) == Domain()


@given(constant=st.floats(0.05, 0.99), relief=st.floats(1.0, 4.0))
def test_closed_form_of_centred_rewards(constant: float, relief: float) -> None:
    shared, room = (constant / relief) ** 2, 1.0 - constant**2
    found = sensitivity(Domain(low=-0.5, high=0.5, constant=constant, relief=relief), 3)
    if abs(0.25 - shared) <= room:
        assert found == pytest.approx(1.25 - (1.0 - relief**-2) * constant**2, rel=40 * GRID)
    else:
        assert found <= (room + 0.25 + shared) * (1.0 + 40 * GRID)


@given(
    seed=st.integers(0, 2**32),
    dim=st.integers(2, 12),
    constant=st.one_of(st.none(), st.floats(0.1, 0.9)),
    low=st.floats(-1.0, 1.0),
)
def test_no_extreme_pair_is_further_apart_after_rounding(
    seed: int, dim: int, constant: float | None, low: float
) -> None:
    """Observations at the very edge of what is accepted, where rounding makes them longer."""
    domain = Domain(1.0, low, low + 0.9, constant, 2.0 if constant else 1.0)
    rng, free = np.random.default_rng(seed), dim - (constant is not None)
    longest = np.sqrt((1.0 + NORM_TOLERANCE) ** 2 - ((constant or 0.0) - NORM_TOLERANCE) ** 2)
    v = rng.choice([-1.0, 1.0], (64, 2, free)) * rng.choice([0.0, 1.0, 1e-4], (64, 2, free))
    v[..., 0] = 1.0
    v *= longest / np.linalg.norm(v, axis=-1, keepdims=True)
    x = np.concatenate([v, np.full((64, 2, dim - free), constant or 0.0)], axis=-1)
    y = rng.choice([domain.low, domain.high], (64, 2))
    x, y = rounded(x, y, domain)
    both = whiten(x[..., :, None] * x[..., None, :], y[..., None] * x, domain)
    assert np.linalg.norm(both[:, 0] - both[:, 1], axis=-1).max() <= sensitivity(domain, dim)


def test_only_what_all_items_share_goes_without_noise() -> None:
    scale = entry_std(Domain(constant=HALF, relief=2.0), 3, 1.5)
    expected = [[1.5, 1.5, 3, 1.5], [1.5, 1.5, 3, 1.5], [3, 3, 0, 3], [1.5, 1.5, 3, 0]]
    np.testing.assert_array_equal(scale, expected)
    assert np.count_nonzero(entry_std(Domain(), 3, 1.0) == 0.0) == 1


def test_observations_outside_the_domain_are_refused() -> None:
    domain = Domain.of(HALF)
    domain.check(np.array([-0.5, HALF]), 0.5)
    with pytest.raises(InvalidFeatures):
        domain.check(np.array([0.9, HALF]), 0.0)
    with pytest.raises(InvalidFeatures):
        domain.check(np.array([0.1, 0.7]), 0.0)
    with pytest.raises(InvalidFeatures):
        domain.check(np.array([np.nan, HALF]), 0.0)
    with pytest.raises(InvalidReward):
        domain.check(np.array([0.1, HALF]), 0.6)


@pytest.mark.parametrize(
    "settings",
    [{"norm": 0.0}, {"low": 2.0}, {"relief": 2.0}, {"constant": 1.5}, {"constant": 0.5, "relief": 0.5}],
)
def test_refuses_impossible_domains(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting):
        Domain(**settings)
