"""The audit passes the real mechanisms and fails every sabotage."""

import numpy as np
import pytest
from scipy.stats import beta
from tests.privacy.sabotage import sabotages
from tests.privacy.whitening import whiten

from fclub.errors import InvalidSetting, UnknownName
from fclub.privacy.audit import Finding, audit, canaries, mu_lower_bound, upper_bound
from fclub.privacy.calibration import mu_of
from fclub.privacy.noise import SeededNoise
from fclub.privacy.sensitivity import Domain, sensitivity
from fclub.privacy.targets import StreamTarget, stream_target

BUDGETS = [(8.0, 1e-5), (0.5, 1e-5)]
DOMAINS = {"plain": Domain(), "centred": Domain.of(0.5**0.5)}
SCHEDULE = (2, 4, 7)


def noise(seed: int) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def honest(
    budget: tuple[float, float], domain: str, name: str = "increments", seed: int = 1
) -> StreamTarget:
    return stream_target(name, mu_of(*budget), DOMAINS[domain], 3, SCHEDULE, noise(seed))


SABOTAGES = list(sabotages(honest(BUDGETS[0], "plain")))


def failures(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.passed]


@pytest.mark.parametrize("name", ["increments", "tree"])
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_real_mechanisms_pass(name: str, domain: str, budget: tuple[float, float]) -> None:
    assert failures(audit(honest(budget, domain, name), trials=1500)) == []


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", SABOTAGES)
def test_every_sabotage_fails(name: str, domain: str, budget: tuple[float, float]) -> None:
    target = sabotages(honest(budget, domain, seed=2))[name]
    assert failures(audit(target, trials=400))


@pytest.mark.parametrize("name", ["no_noise", "fresh_noise_on_resent_data", "wrong_sensitivity"])
def test_leakage_is_proved_by_guessing_alone(name: str) -> None:
    """Without looking at covariances, the bound on μ exceeds the claim."""
    target = sabotages(honest((8.0, 1e-5), "plain"))[name]
    tests = {f.test for f in failures(audit(target, trials=3000, names=("worst",)))}
    assert any(test.startswith("μ") for test in tests)


@pytest.mark.slow
def test_false_alarms_are_below_one_percent() -> None:
    targets = [honest((8.0, 1e-5), "centred", seed=seed) for seed in range(400)]
    alarms = sum(bool(failures(audit(target, trials=400))) for target in targets)
    assert alarms <= 4


@pytest.mark.parametrize("domain", DOMAINS.values())
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
    bound = mu_lower_bound((first[::2], second[::2]), (first[1::2], second[1::2]))
    assert mu - 0.25 <= bound <= max(mu, 0.01)


def test_hopeless_scores_prove_nothing() -> None:
    same = np.zeros(100)
    assert mu_lower_bound((same, same), (same, same)) == 0.0


def test_bad_requests() -> None:
    with pytest.raises(InvalidSetting, match="100 trials"):
        audit(honest(BUDGETS[0], "plain"), trials=10)
    with pytest.raises(UnknownName):
        stream_target("rumour", 1.0, Domain(), 3, SCHEDULE, noise(0))
