"""Nothing is lost or counted twice between users, buffers, global and pending statistics."""

from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import RecordingLink
from tests.parts import edges, is_a, merger, packed, present
from tests.protocol.told import ids_of

import fclub
from fclub.config import Problem
from fclub.core.paper.ucb import delay_factor
from fclub.policies.federated.families import FederatedPolicy
from fclub.protocol.exchanges.clusters import Download, Upload
from fclub.protocol.messages import read_id
from fclub.protocol.rows.paper import PaperFamily, WithClusters, WithDelays, WithTree

ratios = st.one_of(st.just(1.0), st.floats(1.001, 3.0))


def made(detection: str, noise: str, **parameters: float) -> FederatedPolicy:
    """The printed algorithm with delays and these switches, at the theory's values."""
    bases = [WithClusters] * (detection == "edges") + [WithDelays] + [WithTree] * (noise == "tree")
    kind: type[FederatedPolicy] = type("Test", (*bases, FederatedPolicy), {})
    assert kind.switches == {"detection": detection, "trigger": "determinant", "noise": noise}
    return kind(**parameters)


def federation(
    detection: str, noise: str, servers: int, dim: int, seed: int, **parameters: float
) -> tuple[FederatedPolicy, fclub.Environment]:
    environment = fclub.make_environment(
        "synthetic", users=2 * servers + 1, clusters=2, servers=servers, dim=dim, placement="spread"
    )
    environment.start(seed)
    policy = made(detection, noise, **parameters)
    policy.start(environment.problem, environment.server_of, seed=seed)
    return policy, environment


def step(policy: FederatedPolicy, environment: fclub.Environment) -> None:
    user, items = environment.visit()
    index = policy.recommend(user, items)
    policy.update(user, items[index], environment.feedback(index).reward)


def check_books(policy: FederatedPolicy) -> None:
    """The conservation law and the invariant of Alg. 4, for every global cluster."""
    state, world, rules = (
        packed(policy),
        merger(policy.federation.hub).clusters,
        is_a(PaperFamily, policy.family).rules,
    )
    local, eye = state.local, np.eye(policy.problem.dim)
    d = policy.problem.dim
    for k in range(len(world.counts)):
        members = np.flatnonzero(world.group == k)
        scale = 1e-9 * max(1.0, float(np.abs(world.gram[k]).max()))
        for c in members:
            gram = local.gram[c] + world.pending_gram[c]
            moment = local.moment[c] + world.pending_moment[c]
            np.testing.assert_allclose(gram, world.gram[k], atol=scale)
            np.testing.assert_allclose(moment, world.moment[k], atol=scale)
            assert local.counts[c] + world.pending_count[c] == world.counts[k]
        rows = np.isin(state.cluster_of, members)
        gram = world.gram[k] + local.buffer_gram[members].sum(axis=0)
        moment = world.moment[k] + local.buffer_moment[members].sum(axis=0)
        for c in members:
            gram = gram - rules.report_shift * eye
            if rules.noise_std > 0:
                gram = gram - rules.upload_shift * (local.leaves[c] - 1) * eye - local.noise[c, :d, :d]
                moment = moment - local.noise[c, :d, d]
        np.testing.assert_allclose(gram, state.users.gram[rows].sum(axis=0), atol=scale)
        np.testing.assert_allclose(moment, state.users.moment[rows].sum(axis=0), atol=scale)
        observed = world.counts[k] + local.buffer_count[members].sum()
        assert observed == state.users.counts[rows].sum()
    assert state.users.counts.sum() == policy.observations


@settings(max_examples=12)
@given(st.integers(0, 2**32), ratios, ratios, st.integers(1, 4), st.integers(2, 5), st.floats(0.2, 1.5))
def test_exact_statistics(seed: int, U: float, D: float, L: int, d: int, deletion: float) -> None:
    policy, environment = federation(
        "edges", "none", L, d, seed, upload_ratio=U, download_ratio=D, deletion=deletion, merging=0.8
    )
    for _ in range(90):
        step(policy, environment)
        check_books(policy)


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.floats(1.001, 2.0), st.floats(1.001, 2.0), st.integers(1, 3))
def test_noisy_statistics(seed: int, U: float, D: float, L: int) -> None:
    policy, environment = federation(
        "edges", "tree", L, 3, seed, upload_ratio=U, download_ratio=D, deletion=0.5, epsilon=20.0
    )
    for _ in range(100):
        step(policy, environment)
        check_books(policy)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("noise", ["none", "tree"])
@pytest.mark.parametrize(("U", "D"), [(1.01, 1.01), (1.3, 1.1), (1.05, 1.6)])
def test_events_of_a_phase_are_bounded_by_its_growth(noise: str, U: float, D: float) -> None:
    """Each event of a local cluster multiplies its determinant by at least min(U, D)."""
    policy, environment = federation("edges", noise, 3, 4, 5, upload_ratio=U, download_ratio=D)
    for phase in range(1, 10):
        assert policy.federation.clock.phase == phase
        before = {
            (k, number): np.linalg.slogdet(edges(s).clusters.gram[c])[1]
            for k, s in policy.servers.items()
            for c, number in enumerate(ids_of(s))
        }
        is_a(RecordingLink, policy.federation.link).sent.clear()
        while policy.observations < policy.federation.clock.next_start - 1:
            step(policy, environment)
        events = [
            (sent.server, read_id(sent.message.cluster))
            for sent in is_a(RecordingLink, policy.federation.link).sent
            if isinstance(sent.message, Upload | Download)
        ]
        assert set(events) <= before.keys()
        for k, s in policy.servers.items():
            for c, number in enumerate(ids_of(s)):
                growth = np.linalg.slogdet(edges(s).clusters.gram[c])[1] - before[k, number]
                assert events.count((k, number)) <= growth / log(min(U, D)) + 1e-6
        step(policy, environment)


@settings(max_examples=8)
@given(st.integers(0, 2**32), ratios, ratios, st.integers(1, 4))
def test_delay_costs_at_most_gamma(seed: int, U: float, D: float, L: int) -> None:
    """P_t ≤ Γ: what all servers know together against what one is served from, m = 1."""
    policy, environment = federation("off", "none", L, 3, seed, upload_ratio=U, download_ratio=D)
    for _ in range(90):
        step(policy, environment)
        local, world = packed(policy).local, merger(policy.federation.hub).clusters
        together = world.gram[0] + local.buffer_gram.sum(axis=0)
        for own in local.gram:
            ratio = np.linalg.eigvals(np.linalg.solve(own, together)).real.max()
            assert np.sqrt(ratio) <= delay_factor(L, U, D) + 1e-9


def farthest(policy: FederatedPolicy, theta: np.ndarray) -> float:
    """The distance of θ from a local cluster's estimate as a share of its radius, the largest."""
    for server in policy.servers.values():
        for row in range(len(edges(server).users.counts)):
            server.recommend(row, np.zeros((1, policy.problem.dim)))
    local = packed(policy).local
    shares = []
    for gram, moment, radius in zip(local.gram, local.moment, local.radius, strict=True):
        error = theta - np.linalg.solve(gram, moment)
        shares.append(np.sqrt(error @ gram @ error) / radius)
    return max(shares)


ALL_UPLOADS = {"horizon": 2, "upload_ratio": 1.1, "download_ratio": 1.1, "epsilon": 8.0}
"""A tree that is provisioned for so few uploads that a run uses most or all of them."""


@pytest.mark.parametrize(
    ("noise", "servers", "parameters", "reached"),
    [("none", 3, {}, 0.45), ("tree", 1, ALL_UPLOADS, 0.9), ("tree", 3, ALL_UPLOADS, 0.6)],
    ids=["none", "tree", "tree-shared"],
)
def test_lemma_1_covers_theta(
    noise: str, servers: int, parameters: dict[str, float], reached: float
) -> None:
    """At most a fraction 2α of runs ever leaves the confidence sets, and all come close to leaving.

    With the tree, what is added to S by all uploads together pulls the estimate to zero, as far as
    √(L′ρ_max) allows: a radius that were a tenth (one server) or two fifths (three, whose common S
    needs fewer uploads of each) smaller would be left in every run.
    """
    alpha, runs = 0.1, 10
    shares = []
    for seed in range(runs):
        environment = fclub.make_environment("synthetic", users=6, clusters=1, servers=servers, dim=3)
        environment.start(seed)
        policy = made("off", noise, alpha=alpha, **parameters)
        policy.start(environment.problem, environment.server_of, seed=seed)
        share = 0.0
        for _ in range(100):
            step(policy, environment)
            share = max(share, farthest(policy, present(environment.vectors)[0]))
        shares.append(share)
    assert sum(share > 1.0 for share in shares) <= 2 * alpha * runs
    assert min(shares) > reached


def test_a_server_without_users_takes_no_part() -> None:
    policy: Any = fclub.make_policy("fclub-dc")
    policy.start(Problem(3, 3, 2), [0, 0, 2], seed=0)
    for user in (0, 1, 2, 2, 1, 0, 0):
        index = policy.recommend(user, np.eye(2))
        policy.update(user, np.eye(2)[index], 1.0)
    assert policy.communications.uploads > 0
    assert policy.labels_.shape == (3,)
    check_books(policy)


def test_a_full_tree_keeps_data_back() -> None:
    """After t_c uploads the printed queue is empty: nothing more is sent until a new phase renews."""
    environment = fclub.make_environment("synthetic", users=2, clusters=1, servers=1, dim=2)
    environment.start(0)
    policy = made("off", "tree", horizon=2, upload_ratio=3.0, download_ratio=3.0)
    policy.start(environment.problem, environment.server_of, seed=0)
    allowed = is_a(PaperFamily, policy.family).bounds.uploads
    assert allowed == np.ceil(2 * log(2) / log(3.0))
    for _ in range(400):
        step(policy, environment)
        check_books(policy)
    assert policy.communications.uploads <= allowed
    assert packed(policy).local.buffer_count[0] > 0


@pytest.mark.parametrize("name", ["cdp-fclub-dc", "fclub-dc"])
def test_compiled_rounds_are_those_of_servers(name: str) -> None:
    """Private ones round observations before they learn them, as servers do."""
    environment = fclub.make_environment("synthetic", users=4, clusters=2, servers=2, dim=3, items=3)
    fast, readable = (
        fclub.simulate(name, environment, 40, seed=1, fast=fast) for fast in (True, False)
    )
    assert fast.regret[-1] == readable.regret[-1]
