"""Nodes with stores and channels do what the simulation's objects do, and lose nothing."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from fclub.environments.synthetic import Synthetic
from fclub.errors import UnknownDecision
from fclub.service.settings import Model
from fclub.service.store.decisions import FORGOTTEN_AT_ONCE

from .conftest import wait_for
from .federation import Pump, in_process, model_of, play, register, totals, visits


@pytest.mark.parametrize("name", ["fclub", "fclub-dc", "homo-dc"])
def test_a_federation_of_nodes_equals_the_simulation(tmp_path: Path, name: str) -> None:
    environment = Synthetic(users=8, clusters=2, servers=3, dim=4, items=5)
    environment.start(1)
    pump = Pump(tmp_path, model_of(environment, name), 3)
    register(pump, environment)
    pump.run()
    choices = play(pump, environment, 400)
    environment.start(1)
    policy = in_process(name, environment)
    expected = []
    for user, items, reward in visits(environment, 400):
        index = policy.recommend(user, items)
        policy.update(user, items[index], reward(index))
        expected.append(index)
    assert choices == expected
    assert policy.hub.phase == pump.hub.server.phase
    assert policy.hub.exchange.members == pump.hub.server.exchange.members
    for ours, theirs in zip(
        pump.hub.server.exchange.clusters, policy.hub.exchange.clusters, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert pump.hub.communications.uploads == policy.communications.uploads
    pump.close()


def test_what_was_held_back_with_noise_is_believed(tmp_path: Path) -> None:
    """Uploads that were due while a plan was awaited come one by one, each with its own noise."""
    environment = Synthetic(users=6, clusters=2, servers=2, dim=3, items=4)
    environment.start(4)
    pump = Pump(tmp_path, model_of(environment, "cdp-fclub-dc"), 2)
    play(pump, environment, 30)
    for _ in range(6):
        pump.away.add("s1")
        play(pump, environment, 30)
        pump.hub.close_phase()
        pump.come_back("s1")
    assert all(peer.offences == 0 for peer in pump.hub.peers.values())
    own, reported, waiting = totals(pump)
    assert own == reported + waiting == 210
    pump.close()


def test_counts_are_conserved_and_a_server_that_was_cut_off_catches_up(tmp_path: Path) -> None:
    environment = Synthetic(users=12, clusters=2, servers=3, dim=4, items=5)
    environment.start(2)
    pump = Pump(tmp_path, model_of(environment, "fclub-dc"), 3)
    play(pump, environment, 100)
    pump.away.add("s1")
    learned = pump.locals["s1"].server.learner.clusters.counts.sum()
    for _ in range(20):
        play(pump, environment, 20)
        pump.hub.close_phase()
        own, reported, waiting = totals(pump)
        assert reported + waiting <= own
    assert pump.locals["s1"].server.learner.clusters.counts.sum() > learned, (
        "cut off, it goes on learning"
    )
    assert pump.hub.server.phase > 6, "nobody waited for it"
    pump.come_back("s1")
    play(pump, environment, 50)
    own, reported, waiting = totals(pump)
    assert own == reported + waiting == 550
    check_invariant(pump)
    pump.close()


def check_invariant(pump: Pump) -> None:
    """What a local cluster holds, plus what waits for it, is the statistics of its global cluster."""
    hub = pump.hub.server
    for row, (number, cluster) in enumerate(hub.exchange.members):
        local = pump.locals[f"s{number}"].server
        c, k = local.ids.index(cluster), hub.exchange.clusters.group[row]
        assert (
            local.learner.clusters.counts[c] + hub.exchange.clusters.pending_count[row]
            == hub.exchange.clusters.counts[k]
        )
        held = local.learner.clusters.gram[c] + hub.exchange.clusters.pending_gram[row]
        np.testing.assert_allclose(held, hub.exchange.clusters.gram[k], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("policy", ["fclub-dc", "cdp-fclub-dc"])
def test_a_restart_at_any_moment_changes_nothing(tmp_path: Path, policy: str) -> None:
    """Every node is reopened from its store again and again; the replay must be exact."""
    environment = Synthetic(users=6, clusters=2, servers=2, dim=3, items=4)
    environment.start(3)
    pump = Pump(tmp_path, model_of(environment, policy), 2)
    for step in range(12):
        play(pump, environment, 10)
        before = [*pump.hub.server.exchange.clusters, *pump.locals["s0"].server.learner.clusters]
        pump.restart(snapshot=step % 3 == 2)
        after = [*pump.hub.server.exchange.clusters, *pump.locals["s0"].server.learner.clusters]
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(old, new)
    own, reported, waiting = totals(pump)
    assert own == reported + waiting == 120
    check_invariant(pump)
    pump.close()


def test_old_decisions_are_forgotten_portion_by_portion(tmp_path: Path) -> None:
    pump = Pump(tmp_path, Model(policy="fclub-dc", dim=3), 1)
    node, items = pump.locals["s0"], np.eye(3)[:1]
    old = [node.recommend("ann", items, ["i"]).id for _ in range(2 * FORGOTTEN_AT_ONCE + 1)]
    now = time.time()
    wait_for(lambda: time.time() > now + 0.002)
    young = node.recommend("ann", items, ["i"]).id
    pump.run()
    portions = 0
    while node.forget(now + 0.001):
        portions += 1
        pump.run()
    assert portions == 3
    assert not node.forget(now - 60.0)
    for decision in (old[0], old[-1]):
        with pytest.raises(UnknownDecision):
            node.rewards.feedback(decision, 1.0)
    assert node.rewards.feedback(young, 1.0)
    pump.close()


def test_a_server_that_waits_for_a_plan_can_be_stopped_and_started(tmp_path: Path) -> None:
    environment = Synthetic(users=4, clusters=2, servers=2, dim=3, items=4)
    environment.start(0)
    pump = Pump(tmp_path, model_of(environment, "fclub-dc"), 2)
    register(pump, environment)
    pump.run()
    pump.away.add("s1")
    play(pump, environment, 40)
    node = pump.locals["s0"]
    assert node.server.exchange.staged is not None
    node.journal.snapshot()
    pump.run()
    node.store.close()
    pump.locals["s0"] = pump.open_local("s0")
    again = pump.locals["s0"].server.exchange.staged
    assert again is not None
    assert again.ids == node.server.exchange.staged.ids
    np.testing.assert_array_equal(again.totals.gram, node.server.exchange.staged.totals.gram)
    pump.come_back("s1")
    assert pump.locals["s0"].server.exchange.staged is None
    pump.close()
