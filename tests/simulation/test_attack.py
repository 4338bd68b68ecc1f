"""The audit of whole policies: what the local server of a private policy really sends."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.random import SeedSequence

from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.errors import UnknownName
from fclub.privacy.audit import audit
from fclub.privacy.noise import SeededNoise
from fclub.protocol.federation import Federation
from fclub.protocol.plus.messages import Digest
from fclub.protocol.plus.releases import ExactReleases
from fclub.simulation.attack import PolicyTarget, make_target

TRIALS = 300


class Weak:
    """A source with half the deviation that the privatizer counts on."""

    seeded = True

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def integers(self, deviations: Floats) -> Whole:
        return SeededNoise(self.rng).integers(0.5 * deviations)


class WeakPrinted(PolicyTarget):
    def prepare(self, federation: Federation) -> None:
        server = federation.servers[0]
        assert isinstance(server.noise, SeededNoise)
        server.noise = Weak(server.noise.rng)


class WeakPlus(PolicyTarget):
    def prepare(self, federation: Federation) -> None:
        releases = federation.servers[0].releases
        releases.source = Weak(releases.source.rng)


class Repeating(SeededNoise):
    """Every draw is handed out twice: to two streams, if two release one after the other."""

    last: Whole | None = None

    def integers(self, deviations: Floats) -> Whole:
        again, self.last = self.last, None
        if again is None:
            again = self.last = super().integers(deviations)
        return again


class SharedDraws(PolicyTarget):
    def prepare(self, federation: Federation) -> None:
        releases = federation.servers[0].releases
        releases.source = Repeating(releases.source.rng)


class OrderedByRewards(PolicyTarget):
    """Entries of a digest in the order of their users' raw rewards."""

    def prepare(self, federation: Federation) -> None:
        server, send = federation.servers[0], federation.servers[0].link.to_global

        def reordered(message: Digest) -> None:
            order = np.argsort(server.users.moment[:, -1], kind="stable")
            send(Digest(message.phase, message.present, tuple(message.news[i] for i in order)))

        server.link = SimpleNamespace(to_global=reordered)


class RawPlus(PolicyTarget):
    """A server that reports its users' exact statistics, to a global server that does not mind."""

    def prepare(self, federation: Federation) -> None:
        server = federation.servers[0]
        server.releases = ExactReleases(server.users)
        federation.hub.rules = replace(federation.hub.rules, least_noise=0.0)


def failed(target: PolicyTarget) -> set[str]:
    findings = audit(target, trials=TRIALS, names=("worst",))
    return {finding.test for finding in findings if not finding.passed}


def test_the_printed_policy_sends_the_noise_it_claims() -> None:
    assert failed(PolicyTarget("cdp-fclub-dc", 1.0, 0.1, seeds=SeedSequence(1))) == set()


def test_weaker_noise_in_the_server_is_noticed() -> None:
    assert "trace" in failed(WeakPrinted("cdp-fclub-dc", 1.0, 0.1, seeds=SeedSequence(2)))


@pytest.mark.parametrize("policy", ["cdp-fclub-plus", "cdp-homo"])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_streams_send_the_noise_that_they_claim(policy: str, epsilon: float) -> None:
    assert failed(PolicyTarget(policy, epsilon, 1e-5, seeds=SeedSequence(1))) == set()


def test_weaker_noise_of_a_stream_or_none_is_noticed() -> None:
    for policy in ("cdp-fclub-plus", "cdp-homo"):
        assert "trace" in failed(WeakPlus(policy, 1.0, 0.1, seeds=SeedSequence(2)))
    assert {"trace", "least eigenvalue"} <= failed(
        RawPlus("cdp-fclub-plus", 1.0, 0.1, seeds=SeedSequence(3))
    )


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_noise_that_two_streams_share_is_noticed(epsilon: float) -> None:
    target = SharedDraws("cdp-fclub-plus", epsilon, 1e-5, seeds=SeedSequence(4))
    assert "least eigenvalue" in failed(target)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_entries_in_the_order_of_raw_rewards_are_noticed(epsilon: float) -> None:
    target = OrderedByRewards("cdp-fclub-plus", epsilon, 1e-5, seeds=SeedSequence(5))
    findings = audit(target, trials=TRIALS, names=("reward",))
    assert "un-noised fields" in {finding.test for finding in findings if not finding.passed}


def test_targets_by_name() -> None:
    assert make_target("cdp-fclub-dc", 1.0, 0.1).observations == 5
    assert make_target("cdp-fclub-plus", 1.0, 0.1).observations == 40
    with pytest.raises(UnknownName):
        make_target("cdp", 1.0, 0.1)
