"""The audit of a whole policy: what the local server of `cdp-fclub-dc` really sends."""

import numpy as np
import pytest
from numpy.random import SeedSequence

from fclub.core.types import Matrix
from fclub.errors import UnknownName
from fclub.policies.federated import FederatedPolicy
from fclub.privacy.audit import audit
from fclub.privacy.noise import SeededNoise
from fclub.simulation.attack import PrintedTarget, make_target

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


def failed(target: PrintedTarget) -> set[str]:
    findings = audit(target, trials=TRIALS, names=("worst",))
    return {finding.test for finding in findings if not finding.passed}


def test_the_printed_policy_sends_the_noise_it_claims() -> None:
    assert failed(PrintedTarget(1.0, 0.1, seeds=SeedSequence(1))) == set()


def test_weaker_noise_in_the_server_is_noticed() -> None:
    assert "trace" in failed(WeakTarget(1.0, 0.1, seeds=SeedSequence(2)))


def test_targets_by_name() -> None:
    assert make_target("cdp-fclub-dc", 1.0, 0.1).observations == 5
    with pytest.raises(UnknownName):
        make_target("cdp", 1.0, 0.1)
