"""Policies that must coincide, and the special cases of the paper's discussion."""

from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parts import packed

import fclub
from fclub.core.lattice import GRID
from fclub.core.paper.ucb import NoiseBounds, ridge_bounds
from fclub.core.types import Matrix
from fclub.environments.synthetic import Synthetic
from fclub.policies.registry import POLICIES
from fclub.protocol.interfaces.family import Shape
from fclub.protocol.rows.paper import PaperFamily

THEORY: dict[str, Any] = {"exploration": 1.0, "ridge": 1.0}
"""The proofs' constants, in place of each policy's tuned ones."""

sizes = {"users": 10, "clusters": 2, "servers": 3, "dim": 4, "items": 6}


def play_together(
    policies: list[fclub.Policy], environment: fclub.Environment, rounds: int, seed: int = 1
) -> None:
    """All policies see the same visits and must agree on every choice.

    They learn from features on the lattice, which private policies round to and others do not.
    """
    environment.start(seed)
    for policy in policies:
        policy.reveal(np.zeros(environment.problem.users, dtype=np.int64))
        policy.start(environment.problem, environment.server_of, seed=seed)
    for _ in range(rounds):
        user, items = environment.visit()
        choices = [policy.recommend(user, items) for policy in policies]
        assert len(set(choices)) == 1
        reward = environment.feedback(choices[0]).reward
        for policy in policies:
            policy.update(user, np.trunc(items[choices[0]] / GRID) * GRID, reward)


class NullPrivatizer(PaperFamily):
    """`cdp-fclub-dc` with noise scaled to nothing, 2ρ → λ, 3ρ → 0 and the non-private β.

    The standard deviation is the smallest that still runs the tree: it vanishes in any sum.
    """

    def ledger(self, seeded: bool, keep: bool = True) -> None:
        """Nothing is promised, so nothing is accounted for."""

    @cached_property
    def bounds(self) -> NoiseBounds:
        real, exact = super().bounds, ridge_bounds(self.protocol)
        return NoiseBounds(
            rho_min=exact.rho_min,
            rho_max=exact.rho_max,
            kappa=0.0,
            report_shift=exact.report_shift,
            upload_shift=0.0,
            noise_std=1e-300,
            uploads=real.uploads,
            depth=real.depth,
        )


class Null(fclub.CdpFclubDC):
    def make_family(self, shape: Shape) -> NullPrivatizer:
        return NullPrivatizer(self, shape)


@pytest.mark.parametrize("placement", ["blocks", "spread"])
def test_null_privatizer(placement: str) -> None:
    environment = fclub.make_environment("synthetic", **sizes, placement=placement)
    null = Null(deletion=0.7, **THEORY)
    exact = fclub.make_policy("fclub-dc", deletion=0.7, **THEORY)
    play_together([null, exact], environment, 400)
    assert packed(null).local.leaves.max() > 3, "the tree was not used"
    assert null.communications == exact.communications
    np.testing.assert_allclose(null.theta_, exact.theta_, atol=1e-12)
    np.testing.assert_array_equal(null.labels_, exact.labels_)
    real = fclub.make_policy("cdp-fclub-dc", deletion=0.7, **THEORY)
    with pytest.raises(AssertionError):
        play_together([real, fclub.make_policy("fclub-dc", deletion=0.7, **THEORY)], environment, 400)


@settings(max_examples=5)
@given(st.integers(0, 10**6), st.floats(0.3, 2.0), st.sampled_from(["blocks", "spread"]))
def test_no_delay_is_fclub(seed: int, deletion: float, placement: str) -> None:
    environment = fclub.make_environment("synthetic", **sizes, placement=placement)
    delayed = fclub.make_policy("fclub-dc", upload_ratio=1.0, download_ratio=1.0, deletion=deletion)
    instant = fclub.make_policy("fclub", deletion=deletion)
    play_together([delayed, instant], environment, 150, seed)
    assert delayed.communications == instant.communications
    np.testing.assert_array_equal(delayed.theta_, instant.theta_)


@settings(max_examples=5)
@given(st.integers(0, 10**6), st.sampled_from([("fclub", "homo"), ("fclub-dc", "homo-dc")]))
def test_without_detection_everybody_is_alike(seed: int, names: tuple[str, str]) -> None:
    environment = fclub.make_environment("synthetic", **sizes)
    never = fclub.make_policy(names[0], deletion=np.inf, merging=np.inf)
    homo = fclub.make_policy(names[1])
    play_together([never, homo], environment, 150, seed)
    np.testing.assert_array_equal(never.theta_, homo.theta_)
    assert set(never.labels_) == {0}


def test_one_server_without_detection_is_linucb_on_pooled_data() -> None:
    environment = fclub.make_environment("synthetic", **sizes | {"servers": 1})
    never = fclub.make_policy("fclub", deletion=np.inf, merging=np.inf, cluster_bound=1, **THEORY)
    pooled = fclub.make_policy("oracle-pooled", **THEORY)
    play_together([never, pooled], environment, 500)
    np.testing.assert_allclose(never.theta_, pooled.theta_, atol=1e-10)
    assert never.communications.downloads == 0


def test_one_user_is_linucb() -> None:
    environment = fclub.make_environment("synthetic", users=1, clusters=1, servers=1, dim=3)
    names = ["linucb", "oracle-local", "oracle-pooled", "fclub", "homo", "fclub-dc", "homo-dc"]
    delays = {"fclub-dc", "homo-dc"}
    undelayed = {"upload_ratio": 1.0, "download_ratio": 1.0}
    policies = [fclub.make_policy(n, **THEORY, **(undelayed if n in delays else {})) for n in names]
    play_together(policies, environment, 200)


class RoundRobin(Synthetic):
    """Users come in turn."""

    def start(self, seed: object) -> None:
        super().start(seed)  # type: ignore[arg-type]
        self._turn = -1

    def visit(self) -> tuple[int, Matrix]:
        _, items = super().visit()
        self._turn = (self._turn + 1) % self.problem.users
        self._user = self._turn
        return self._user, items

    def pack(self) -> Any:
        """Compiled code draws its own arrivals."""


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "environment",
    [
        Synthetic(users=8, clusters=1, servers=1, dim=3),
        Synthetic(users=8, clusters=2, servers=1, dim=3),
        RoundRobin(users=4, clusters=1, servers=4, dim=3),
        Synthetic(users=3, clusters=3, servers=3, dim=2, items=1),
        Synthetic(users=4, clusters=1, servers=2, dim=1, kind="orthogonal"),
    ],
    ids=["m=L=1", "L=1", "round-robin", "m=L=n", "d=1"],
)
def test_special_cases_run(name: str, environment: fclub.Environment) -> None:
    trace = fclub.simulate(name, environment, 300, seed=2)
    assert np.all(np.diff(trace.regret) >= -1e-12)
    assert 0.0 <= trace.regret[-1] <= 300
    assert np.isfinite(trace.clusters["ari"]).all()


@pytest.mark.parametrize("name", POLICIES)
def test_late_rewards_are_taken(name: str) -> None:
    """Decisions are passed explicitly, so rewards may come in any order."""
    environment = fclub.make_environment("synthetic", **sizes)
    environment.start(3)
    policy = fclub.make_policy(name)
    policy.reveal(environment.labels, environment.vectors)
    policy.start(environment.problem, environment.server_of, seed=0)
    waiting = []
    for _ in range(200):
        user, items = environment.visit()
        index = policy.recommend(user, items)
        waiting.append((user, items[index], environment.feedback(index).reward))
        if len(waiting) == 10:
            for late in reversed(waiting):
                policy.update(*late)
            waiting = []
    assert policy.observations == 200
