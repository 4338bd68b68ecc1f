"""The audit of whole policies: what the local server of a private policy really sends."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.random import SeedSequence

from fclub.core.types import Matrix
from fclub.errors import UnknownName
from fclub.policies.federated import FederatedPolicy
from fclub.policies.mixture import MixturePolicy
from fclub.privacy.audit import audit
from fclub.privacy.noise import SeededNoise
from fclub.protocol.releases import ExactReleases
from fclub.simulation.attack import MixtureTarget, PolicyTarget, PrintedTarget, make_target

TRIALS = 300


class Weak:
    """A source with half the deviation that the privatizer counts on."""

    seeded = True

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def gaussian(self, side: int) -> Matrix:
        return 0.5 * self.rng.standard_normal((side, side))


class WeakTarget(PrintedTarget):
    def prepare(self, policy: FederatedPolicy) -> None:
        source = policy.servers[0].noise
        assert isinstance(source, SeededNoise)
        policy.servers[0].noise = Weak(source.rng)


class WeakMixture(MixtureTarget):
    def prepare(self, policy: MixturePolicy) -> None:
        releases = policy.servers[0].releases
        releases.source = Weak(releases.source.rng)


class RawMixture(MixtureTarget):
    """A server that reports its users' exact statistics, to a global server that does not mind."""

    def prepare(self, policy: MixturePolicy) -> None:
        server = policy.servers[0]
        server.releases = ExactReleases(server.state.users)
        policy.hub.rules = replace(policy.hub.rules, least_noise=0.0)


def failed(target: PolicyTarget) -> set[str]:
    findings = audit(target, trials=TRIALS, names=("worst",))
    return {finding.test for finding in findings if not finding.passed}


def test_the_printed_policy_sends_the_noise_it_claims() -> None:
    assert failed(PrintedTarget(1.0, 0.1, seeds=SeedSequence(1))) == set()


def test_weaker_noise_in_the_server_is_noticed() -> None:
    assert "trace" in failed(WeakTarget(1.0, 0.1, seeds=SeedSequence(2)))


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_mixture_sends_the_noise_it_claims(epsilon: float) -> None:
    assert failed(MixtureTarget(epsilon, 1e-5, seeds=SeedSequence(1))) == set()


def test_a_mixture_with_weaker_noise_or_none_is_noticed() -> None:
    assert "trace" in failed(WeakMixture(1.0, 0.1, seeds=SeedSequence(2)))
    assert {"trace", "least eigenvalue"} <= failed(RawMixture(1.0, 0.1, seeds=SeedSequence(3)))


def test_targets_by_name() -> None:
    assert make_target("cdp-fclub-dc", 1.0, 0.1).observations == 5
    assert make_target("cdp-fclub-plus", 1.0, 0.1).observations == 40
    with pytest.raises(UnknownName):
        make_target("cdp", 1.0, 0.1)
