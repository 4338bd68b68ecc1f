"""Worst-case neighbours attain the sensitivity, and what guesses prove is never too much."""

import numpy as np
import pytest
from scipy.stats import beta
from tests.privacy.whitening import whiten

from fclub.privacy.audit import canaries, mu_lower_bound, upper_bound
from fclub.privacy.sensitivity import Domain, sensitivity

CONFIDENCE = 0.999


@pytest.mark.parametrize("domain", [Domain(), Domain.of(0.5**0.5)])
def test_the_worst_canary_attains_the_sensitivity(domain: Domain) -> None:
    worst = canaries(domain, 3, 4)[0]
    white = [
        whiten(x[:, None] * x, y * x, domain)
        for x, y in ((side.features[0], side.rewards[0]) for side in (worst.first, worst.second))
    ]
    assert np.linalg.norm(white[0] - white[1]) == pytest.approx(sensitivity(domain, 3), rel=1e-3)
    for canary in canaries(domain, 3, 4):
        for side in (canary.first, canary.second):
            for x, y in zip(*side, strict=True):
                domain.check(x, float(y))
        assert np.array_equal(canary.first.features[1:], canary.second.features[1:])


def test_clopper_pearson() -> None:
    bounds = upper_bound(np.array([3, 100]), 100, 0.01)
    np.testing.assert_allclose(bounds, [beta.ppf(0.99, 4, 97), 1.0])


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_lower_bound_is_below_and_near_the_truth(mu: float) -> None:
    rng = np.random.default_rng(9)
    first, second = rng.standard_normal(40_000), rng.standard_normal(40_000) + mu
    bound = mu_lower_bound((first[::2], second[::2]), (first[1::2], second[1::2]), CONFIDENCE)
    assert mu - 0.25 <= bound <= max(mu, 0.01)


def test_hopeless_scores_prove_nothing() -> None:
    same = np.zeros(100)
    assert mu_lower_bound((same, same), (same, same), CONFIDENCE) == 0.0
