"""Nodes with stores and channels do what the simulation's objects do, and lose nothing."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from tests.parts import edges, federated, merger, present, sender
from tests.protocol.told import ids_of

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
    assert federated(policy).federation.hub.phase == pump.hub.server.phase
    assert merger(federated(policy).federation.hub).members == merger(pump.hub.server).members
    for ours, theirs in zip(
        merger(pump.hub.server).clusters, merger(federated(policy).federation.hub).clusters, strict=True
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
    learned = edges(pump.locals["s1"].server).clusters.counts.sum()
    for _ in range(20):
        play(pump, environment, 20)
        pump.hub.close_phase()
        own, reported, waiting = totals(pump)
        assert reported + waiting <= own
    assert edges(pump.locals["s1"].server).clusters.counts.sum() > learned, (
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
    for row, (number, cluster) in enumerate(merger(hub).members):
        local = pump.locals[f"s{number}"].server
        c, k = ids_of(local).index(cluster), merger(hub).clusters.group[row]
        assert (
            edges(local).clusters.counts[c] + merger(hub).clusters.pending_count[row]
            == merger(hub).clusters.counts[k]
        )
        held = edges(local).clusters.gram[c] + merger(hub).clusters.pending_gram[row]
        np.testing.assert_allclose(held, merger(hub).clusters.gram[k], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("policy", ["fclub-dc", "cdp-fclub-dc"])
def test_a_restart_at_any_moment_changes_nothing(tmp_path: Path, policy: str) -> None:
    """Every node is reopened from its store again and again; the replay must be exact."""
    environment = Synthetic(users=6, clusters=2, servers=2, dim=3, items=4)
    environment.start(3)
    pump = Pump(tmp_path, model_of(environment, policy), 2)
    for step in range(12):
        play(pump, environment, 10)
        before = [*merger(pump.hub.server).clusters, *edges(pump.locals["s0"].server).clusters]
        pump.restart(snapshot=step % 3 == 2)
        after = [*merger(pump.hub.server).clusters, *edges(pump.locals["s0"].server).clusters]
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
    staged = present(sender(node.server).staged)
    node.journal.snapshot()
    pump.run()
    node.store.close()
    pump.locals["s0"] = pump.open_local("s0")
    again = present(sender(pump.locals["s0"].server).staged)
    assert again.ids == staged.ids
    np.testing.assert_array_equal(again.totals.gram, staged.totals.gram)
    pump.come_back("s1")
    assert sender(pump.locals["s0"].server).staged is None
    pump.close()
