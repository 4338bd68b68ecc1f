"""What users have in common: deviations integrated out, draws from the posterior, rewards' variance."""

import numpy as np
import pytest

from fclub.core.plus import population as module
from fclub.core.plus.items import Items, look_at_centres
from fclub.core.plus.mixture import make_slots, sample_partitions
from fclub.core.plus.population import SPREADS, Population, draw_population
from fclub.core.plus.variance import learn_variance
from fclub.core.statistics import Packed


def random_items(seed: int, count: int, dim: int, people: float = 1.0) -> Items:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((count, dim, dim + 2))
    return Items.of(
        root @ root.transpose(0, 2, 1), rng.standard_normal((count, dim)), np.full(count, people)
    )


def made(covariance: np.ndarray, spread: float) -> Population:
    population = Population.expecting(np.diag(covariance).copy(), -1)
    population.precision[:], population.spread[0] = np.linalg.inv(covariance), spread
    return population


SIGMA = np.array([[0.5, 0.2, 0.0], [0.2, 0.4, 0.1], [0.0, 0.1, 0.7]])


@pytest.mark.parametrize("people", [1.0, 3.5])
@pytest.mark.parametrize("spread", [0.003, 0.3, 0.9])
def test_information_about_a_centre_is_what_deviations_leave(spread: float, people: float) -> None:
    """(Q⁻¹ + W)⁻¹, with the item's own estimate Q⁻¹q of it."""
    items = random_items(1, 4, 3, people)
    look_at_centres(items, made(SIGMA, spread))
    W = spread / people * SIGMA
    for u in range(4):
        own = np.linalg.inv(items.precision[u])
        expected = np.linalg.inv(own + W)
        np.testing.assert_allclose(items.centre_precision[u], expected, rtol=1e-9)
        np.testing.assert_allclose(items.centre_vector[u], expected @ own @ items.vector[u], rtol=1e-8)


def test_the_evidence_left_out_is_that_of_the_deviations() -> None:
    """∫ exp(qθ − ½Qθ²) N(θ; c, W) dθ on a grid, in one dimension, at several centres."""
    items, population = random_items(2, 1, 1), made(np.array([[0.8]]), 0.5)
    look_at_centres(items, population)
    (Q,), (q,), W = items.precision[0, 0], items.vector[0], 0.4
    w = np.linspace(-8.0, 8.0, 160_001)
    for c in (-0.7, 0.0, 1.3):
        theta = c + w
        exponent = q * theta - 0.5 * Q * theta**2 - 0.5 * w**2 / W - 0.5 * np.log(2 * np.pi * W)
        integral = np.log(np.exp(exponent).sum() * (w[1] - w[0]))
        centre = items.centre_vector[0, 0] * c - 0.5 * items.centre_precision[0, 0, 0] * c**2
        assert items.left_out[0] + centre == pytest.approx(integral, abs=1e-9)


def test_turning_all_coordinates_turns_everything() -> None:
    items, population = random_items(3, 5, 3), made(SIGMA, 0.3)
    R = np.linalg.qr(np.random.default_rng(4).standard_normal((3, 3)))[0]
    turned = Items.of(R @ items.precision @ R.T, items.vector @ R.T, items.people)
    look_at_centres(items, population)
    look_at_centres(turned, made(R @ SIGMA @ R.T, 0.3))
    assert turned.left_out == pytest.approx(items.left_out)
    np.testing.assert_allclose(turned.centre_precision, R @ items.centre_precision @ R.T, atol=1e-9)
    np.testing.assert_allclose(turned.centre_vector, items.centre_vector @ R.T, atol=1e-9)


def sample(items: Items, population: Population, sweeps: int, learn: bool, seed: int = 0) -> np.ndarray:
    """Posterior means; the population is changed where it is learned."""
    n, d = items.vector.shape
    none = Items.of(np.empty((0, d, d)), np.empty((0, d)), np.empty(0))
    mean, covariance, labels = np.empty((n, d)), np.empty((n, d, d)), np.zeros(n, dtype=np.int64)
    state = (
        make_slots(np.empty(0), np.empty(0, dtype=np.bool_), d, n, 1.0, 1.0),
        items,
        none,
        population,
        labels,
    )
    rng = np.random.default_rng(seed)
    sample_partitions(*state, sweeps, sweeps // 4, learn, rng, mean, covariance, labels.copy())
    return mean


def test_almost_no_spread_is_no_spread() -> None:
    items = random_items(5, 6, 2)
    without, almost = (
        sample(items, made(SIGMA[:2, :2], spread), 200, learn=False) for spread in (0.0, 1e-12)
    )
    np.testing.assert_allclose(without, almost, atol=1e-9)


def test_draws_find_the_mean_and_the_covariance() -> None:
    """Many centres and deviations from a known population; averages over 300 draws."""
    rng, mu, count = np.random.default_rng(6), np.array([0.5, -0.3, 0.1]), 4000
    population = made(np.eye(3), 0.35)
    centres = rng.multivariate_normal(mu, 0.65 * SIGMA, count)
    deviations = rng.multivariate_normal(np.zeros(3), 0.35 * SIGMA, count)
    means, covariances = [], []
    for _ in range(300):
        draw_population(population, centres, deviations, rng)
        means.append(population.mean.copy())
        covariances.append(population.covariance)
    assert np.mean(means, axis=0) == pytest.approx(mu, abs=0.05)
    assert np.mean(covariances, axis=0) == pytest.approx(SIGMA, abs=0.04)
    assert np.std(means, axis=0) == pytest.approx(np.sqrt(0.65 * np.diag(SIGMA) / count), rel=0.25)


def test_without_data_draws_follow_the_priors() -> None:
    """Both scales' logarithms are N(0, DOUBT²), μ is N(0, Σ/MEMORY)."""
    rng, population = np.random.default_rng(7), Population.expecting(np.full(3, 0.2), 2)
    none, logs, means = np.empty((0, 3)), [], []
    for _ in range(60_000):
        draw_population(population, none, none, rng)
        logs.append(np.log(population.scale[1:] / 0.2))
        means.append(population.mean @ population.precision @ population.mean)
    assert np.mean(logs, axis=0) == pytest.approx([0.0, 0.0], abs=0.08)
    assert np.std(logs, axis=0) == pytest.approx([module.DOUBT, module.DOUBT], rel=0.1)
    assert np.corrcoef(np.transpose(logs))[0, 1] == pytest.approx(0.0, abs=0.1)
    assert np.mean(means) == pytest.approx(3 / module.MEMORY, rel=0.05)


def tastes(
    seed: int, spread: float, users: int = 40, clusters: int = 3, strength: float = 200.0
) -> Items:
    """Well-known users of a few clusters, of total variance 1 in each of three coordinates."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, 3)) * np.sqrt(1.0 - spread)
    theta = centres[np.arange(users) % clusters] + rng.standard_normal((users, 3)) * np.sqrt(spread)
    seen = theta + rng.standard_normal((users, 3)) / np.sqrt(strength)
    return Items.of(np.tile(strength * np.eye(3), (users, 1, 1)), strength * seen, np.ones(users))


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5])
def test_the_spread_within_clusters_is_learned(spread: float) -> None:
    """From equal users it stays exactly 0; else the deviations' covariance is about the true one."""
    population, found = Population.expecting(np.ones(3), -1), []
    for seed in range(30):
        sample(tastes(8, spread), population, 20, learn=True, seed=seed)
        found.append(population.spread[0] * np.trace(population.covariance) / 3)
    assert population.spread[0] in SPREADS
    if spread == 0.0:
        assert max(found[5:]) == 0.0
    else:
        assert 0.5 * spread < np.mean(found[5:]) < 2.0 * spread


@pytest.mark.parametrize("count", [15, 400])
def test_the_variance_of_rewards_is_learned(count: int) -> None:
    """Also from users of whom much less is known than d rewards would tell without a prior."""
    rng, d, users, true = np.random.default_rng(9), 6, 300, 0.05
    packed, squares = Packed.zeros(users, d), np.zeros(users)
    population = Population.expecting(np.full(d, 0.3), -1)
    for u in range(users):
        theta, X = rng.standard_normal(d) * np.sqrt(0.3), rng.standard_normal((count, d))
        y = X @ theta + np.sqrt(true) * rng.standard_normal(count)
        packed.gram[u], packed.moment[u], packed.counts[u] = X.T @ X, X.T @ y, count
        squares[u] = y @ y
    variance = 0.17
    for _ in range(10):
        variance = learn_variance(packed, squares, population, variance, 0.17)
    assert variance == pytest.approx(true, rel=0.1)


def test_without_rewards_their_variance_is_what_was_expected() -> None:
    population = Population.expecting(np.full(2, 0.3), -1)
    found = learn_variance(Packed.zeros(3, 2), np.zeros(3), population, 0.1, 0.17)
    assert found == pytest.approx(0.17)
