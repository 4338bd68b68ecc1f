"""Noise sources draw whole numbers of the right distribution, and say whether one can repeat them."""

import sys
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from fclub.core.lattice import STEP, is_whole
from fclub.core.noise import draw_symmetric
from fclub.errors import ExtraMissing, PrivacyError
from fclub.privacy.noise import (
    DiscreteNoise,
    NoiseSource,
    NoNoise,
    SeededNoise,
    require_exact,
    symmetric,
)


def seeded(seed: int) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def discrete_gaussian(deviation: float, most: int) -> NDArray[np.float64]:
    """Probabilities of −most, …, most: exp(−k²/2s²), normalised over far more than can be drawn."""
    k = np.arange(-200, 201)
    mass = np.exp(-0.5 * (k / deviation) ** 2)
    return np.asarray((mass / mass.sum())[200 - most : 201 + most])


@pytest.mark.parametrize("source", [seeded(5), DiscreteNoise()], ids=["seeded", "discrete"])
def test_wide_noise_is_normal_and_independent(source: NoiseSource) -> None:
    deviations = np.tile([2.0**20, 2.0**34 * sqrt(2.0)], (2_500, 1))
    drawn = source.integers(deviations)
    assert drawn.dtype == np.int64
    for column in (drawn / deviations).T:
        assert kstest(column, "norm").pvalue > 1e-6
    unit = (drawn / deviations).ravel()
    assert abs(np.corrcoef(unit[1:], unit[:-1])[0, 1]) < 5 / sqrt(unit.size)
    assert np.abs(unit).max() > 3.0


@pytest.mark.parametrize("deviation", [0.5, 1.0, 3.0])
def test_discrete_noise_has_the_exact_probabilities(deviation: float) -> None:
    """By chi-square, with both tails in cells of their own; the variance is below that of a normal."""
    drawn, most = DiscreteNoise().integers(np.full(20_000, deviation)), round(2.5 * deviation)
    counts = np.array([np.count_nonzero(drawn == k) for k in range(-most, most + 1)])
    inside = discrete_gaussian(deviation, most)
    tail = (1.0 - inside.sum()) / 2.0
    seen = [np.count_nonzero(drawn < -most), *counts, np.count_nonzero(drawn > most)]
    expected = 20_000 * np.array([tail, *inside, tail])
    assert chisquare(seen, expected).pvalue > 1e-6
    rounded = np.rint(deviation * np.random.default_rng(1).standard_normal(20_000))
    if deviation == 0.5:
        others = [np.count_nonzero(rounded == k) for k in range(-most, most + 1)]
        others = [np.count_nonzero(rounded < -most), *others, np.count_nonzero(rounded > most)]
        assert chisquare(others, expected).pvalue < 1e-6


def test_tails_are_those_of_a_gaussian() -> None:
    drawn = np.abs(DiscreteNoise().integers(np.full(40_000, 1e6))) / 1e6
    for bound, tail in ((2.0, 0.0455), (3.0, 0.0027), (4.0, 6.3e-5)):
        hits = np.count_nonzero(drawn > bound)
        assert abs(hits - 40_000 * tail) < 6.0 * sqrt(40_000 * tail) + 3
    assert drawn.max() < 8.0


@pytest.mark.slow
def test_tails_are_not_cut_off_far_out() -> None:
    """Of so many draws 25 are beyond four deviations; a cut there would cost more than δ = 10⁻⁵."""
    drawn = np.abs(DiscreteNoise().integers(np.full(400_000, 1e6))) / 1e6
    assert 5 <= np.count_nonzero(drawn > 4.0) <= 60


@pytest.mark.parametrize("source", [seeded(1), DiscreteNoise(), NoNoise()])
def test_there_is_no_noise_without_a_deviation(source: NoiseSource) -> None:
    drawn = source.integers(np.array([[0.0, 1e9], [1e9, 0.0]]))
    assert drawn[0, 0] == drawn[1, 1] == 0
    assert (drawn[0, 1] == 0) == isinstance(source, NoNoise)


@pytest.mark.parametrize("source", [seeded(1), DiscreteNoise()])
@pytest.mark.parametrize("deviation", [-1.0, float("nan"), float("inf"), 2.0**60])
def test_impossible_deviations_are_refused(source: NoiseSource, deviation: float) -> None:
    with pytest.raises(PrivacyError, match="64 bits"):
        source.integers(np.array([1.0, deviation]))


def test_many_deviations_are_drawn_at_once() -> None:
    drawn = DiscreteNoise().integers(np.linspace(1e6, 2e6, 300))
    assert np.count_nonzero(drawn) > 290


def test_only_the_seeded_source_repeats() -> None:
    wide = np.full(4, 1e9)
    np.testing.assert_array_equal(seeded(1).integers(wide), seeded(1).integers(wide))
    assert not np.array_equal(DiscreteNoise().integers(wide), DiscreteNoise().integers(wide))


@pytest.mark.parametrize("source", [seeded(3), DiscreteNoise()])
def test_symmetric_noise_draws_each_entry_once(source: NoiseSource) -> None:
    """The diagonal is drawn with √2 times the deviation, and not as the sum of two draws."""
    deviations = np.array([[1.0, 2.0], [2.0, 0.0]])
    drawn = np.array([symmetric(source, deviations) for _ in range(4_000)])
    np.testing.assert_array_equal(drawn, drawn.swapaxes(1, 2))
    assert is_whole(drawn)
    assert not np.any(drawn[:, 1, 1])
    for found, expected in ((drawn[:, 0, 0], sqrt(2.0)), (drawn[:, 0, 1], 2.0)):
        assert found.var() == pytest.approx(expected**2, rel=6 * sqrt(2 / 4_000))
    assert symmetric(source, np.zeros((0, 0))).shape == (0, 0)


def test_compiled_rounds_draw_the_same() -> None:
    deviations, out = np.full((4, 4), 7.3), np.empty((4, 4))
    deviations[3, 3] = 0.0
    rng = np.random.default_rng(8)
    for _ in range(50):
        draw_symmetric(rng, 7.3, out)
    source = seeded(8)
    for _ in range(50):
        expected = symmetric(source, deviations)
    np.testing.assert_array_equal(out, expected)
    assert np.abs(out / STEP).max() > 2.0**26


def test_without_opendp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp", None)
    with pytest.raises(ExtraMissing, match=r"fclub\[service\]"):
        DiscreteNoise(("without",))


def test_a_deployment_takes_exact_noise_only() -> None:
    require_exact(DiscreteNoise())
    for source in (seeded(0), NoNoise()):
        with pytest.raises(PrivacyError, match="exact noise"):
            require_exact(source)
