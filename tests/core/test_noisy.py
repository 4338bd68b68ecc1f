"""What noisy statistics say of a vector."""

import numpy as np
import pytest

from fclub.core.noisy import Noise, all_information, noisy_information


def noisy(
    rng: np.random.Generator, gram: np.ndarray, moment: np.ndarray, std: float
) -> tuple[np.ndarray, np.ndarray]:
    N = rng.standard_normal(gram.shape)
    return gram + std * (N + N.T) / np.sqrt(2), moment + std * rng.standard_normal(len(moment))


def even(theta: np.ndarray) -> Noise:
    """As much noise in every entry, twice as much on the diagonal; vectors as large as this one."""
    d = len(theta)
    return Noise(1.0 + np.eye(d + 1), np.full(d, theta @ theta / d))


def test_information_without_noise_is_exact_and_the_limit_of_little_noise() -> None:
    rng = np.random.default_rng(0)
    X, noise = rng.standard_normal((50, 3)), even(np.ones(3))
    gram, moment = X.T @ X, X.T @ rng.standard_normal(50)
    Q, q = noisy_information(gram, moment, 0.0, 0.2, noise)
    np.testing.assert_array_equal(Q, gram / 0.2)
    np.testing.assert_array_equal(q, moment / 0.2)
    near_Q, near_q = noisy_information(gram, moment, 1e-12, 0.2, noise)
    np.testing.assert_allclose(near_Q, Q, rtol=1e-9)
    np.testing.assert_allclose(near_q, q, rtol=1e-9)


def test_directions_within_the_noise_have_little_weight() -> None:
    """Data in one direction only: of the others, which carry noise alone, little is believed."""
    rng = np.random.default_rng(1)
    theta = np.array([0.3, 0.4, 0.0])
    gram, moment = np.diag([400.0, 0.0, 0.0]), np.array([120.0, 0.0, 0.0])
    Q, q = noisy_information(*noisy(rng, gram, moment, 2.0), 4.0, 0.2, even(theta))
    prior = np.eye(3) / 0.1
    assert Q[0, 0] > 100.0
    assert np.linalg.solve(prior + Q, q)[0] == pytest.approx(0.3, abs=0.05)
    assert np.trace(Q) - Q[0, 0] < 10.0
    nothing, _ = noisy_information(*noisy(rng, 0.0 * gram, 0.0 * moment, 2.0), 4.0, 0.2, even(theta))
    assert np.linalg.eigvalsh(nothing)[-1] < 10.0


def test_noise_in_an_entry_counts_where_it_is() -> None:
    """Noisier moments and rows of the Gram matrix weigh less; the size of vectors matters too."""
    entries = np.ones((3, 3))
    entries[1, :] = entries[:, 1] = 4.0
    noise = Noise(entries, np.array([0.5, 0.25]))
    np.testing.assert_allclose(noise.of_moment(2.0), [2 * (1 + 0.5 + 1.0), 2 * (4 + 2.0 + 1.0)])
    Q, _ = noisy_information(100.0 * np.eye(2), np.zeros(2), 2.0, 0.2, noise)
    np.testing.assert_allclose(np.diag(Q), [1e4 / (20 + 5), 1e4 / (20 + 14)])


@pytest.mark.parametrize("std", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("count", [500, 5000])
@pytest.mark.parametrize("norm", [np.sqrt(0.5), 2.0])
def test_noisy_information_is_not_overconfident(std: float, count: int, norm: float) -> None:
    """(q − Qθ)ᵀQ⁺(q − Qθ) is at most a χ² of the rank, on average, for vectors of this norm."""
    rng = np.random.default_rng(int(std) + count)
    d, variance, total, ranks = 4, 0.17, 0.0, 0
    for _ in range(300):
        theta = rng.standard_normal(d)
        theta *= norm / np.linalg.norm(theta)
        X = rng.standard_normal((count, d))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        y = X @ theta + np.sqrt(variance) * rng.standard_normal(count)
        released = noisy(rng, X.T @ X, X.T @ y, std)
        Q, q = noisy_information(*released, std**2, variance, even(theta))
        error = q - Q @ theta
        total += float(error @ np.linalg.pinv(Q, hermitian=True) @ error)
        ranks += int(np.linalg.matrix_rank(Q))
    assert ranks > 300, "some directions are known"
    assert total < ranks * (1.0 + 4.0 * np.sqrt(2.0 / ranks))


def test_many_at_once_are_each_as_alone() -> None:
    """Against the equations, one by one; exact ones are among them."""
    rng = np.random.default_rng(3)
    noise, known = Noise(1.0 + np.eye(4), np.array([0.1, 0.2, 0.3])), []
    for stated in (0.0, 1.0, 25.0):
        X = rng.standard_normal((30, 3))
        known.append((*noisy(rng, X.T @ X, X.T @ rng.random(30), np.sqrt(stated)), stated))
    Q, q = all_information(known, 0.2, noise)
    for one, (gram, moment, stated) in enumerate(known):
        eigenvalues, U = np.linalg.eigh(gram)
        G = U @ np.diag(np.maximum(eigenvalues, 0.0)) @ U.T
        weighted = G @ np.linalg.inv(0.2 * G + np.diag(noise.of_moment(stated)))
        np.testing.assert_allclose(Q[one], weighted @ G, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(q[one], weighted @ moment, rtol=1e-9, atol=1e-9)
