"""The mixture of a user whose types are known, against the posterior of all its data at once."""

import numpy as np
import pytest

from fclub.policies.local.oracle_types import KnownTypes, feedback, mixture_means, recommend

VARIANCE = 0.17


def some_types(within: float) -> KnownTypes:
    """Three users; four types in three dimensions."""
    rng = np.random.default_rng(5)
    spread = within * rng.standard_normal((3, 3))
    return KnownTypes(
        evidence=np.tile(np.log([0.4, 0.3, 0.2, 0.1]), (3, 1)),
        means=np.tile(0.5 * rng.standard_normal((4, 3)), (3, 1, 1)),
        covariance=np.tile(spread @ spread.T, (3, 1, 1)),
        variance=VARIANCE,
        exploration=0.7,
    )


@pytest.mark.parametrize("within", [0.0, 0.4])
def test_conditioning_step_by_step_is_conditioning_at_once(within: float) -> None:
    start, state = some_types(within), some_types(within)
    rng = np.random.default_rng(6)
    X, y = 0.5 * rng.standard_normal((20, 3)), rng.random(20)
    for x, reward in zip(X, y, strict=True):
        feedback(state, 1, x, reward)
    W, mu = start.covariance[1], start.means[1]
    joint = X @ W @ X.T + VARIANCE * np.eye(20)
    rest = y - mu @ X.T
    evidence = start.evidence[1] - 0.5 * np.einsum("ki,ij,kj->k", rest, np.linalg.inv(joint), rest)
    gain = W @ X.T @ np.linalg.inv(joint)
    np.testing.assert_allclose(
        state.evidence[1] - state.evidence[1].max(), evidence - evidence.max(), atol=1e-9
    )
    np.testing.assert_allclose(state.means[1], mu + rest @ gain.T, atol=1e-9)
    np.testing.assert_allclose(state.covariance[1], W - gain @ X @ W, atol=1e-9)
    for other in (0, 2):
        np.testing.assert_array_equal(state.evidence[other], start.evidence[other])
        np.testing.assert_array_equal(state.means[other], start.means[other])


@pytest.mark.parametrize("within", [0.0, 0.4])
def test_score_is_mean_and_deviation_of_the_mixture(within: float) -> None:
    state, rng = some_types(within), np.random.default_rng(7)
    weights, means, C = np.exp(state.evidence[0]), state.means[0], state.covariance[0]
    np.testing.assert_allclose(mixture_means(state)[0], weights @ means)
    for _ in range(50):
        items = rng.standard_normal((6, 3))
        values = items @ means.T
        mean = values @ weights
        variance = (values**2) @ weights - mean**2 + np.einsum("ki,ij,kj->k", items, C, items)
        assert recommend(state, 0, items) == np.argmax(mean + 0.7 * np.sqrt(variance))
