"""The mixture policies live: the simulation's choices, nothing lost, the same after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.parts import federated, is_a, present

from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidFeatures, InvalidMessage, InvalidSetting
from fclub.protocol.exchanges.user_streams import UserStreamGlobal, UserStreamLocal
from fclub.protocol.families import FAMILIES
from fclub.protocol.learners.types import Types
from fclub.protocol.messages import PhaseStart
from fclub.service.dashboard.views import GlobalView, LocalView
from fclub.service.http.local_status import privacy_view
from fclub.service.monitoring import Monitor
from fclub.service.nodes.parts import local_node
from fclub.service.serve import local_app
from fclub.service.settings import Model
from fclub.service.store.books import read_books

from .conftest import ADMIN, DIM, local_settings, offer, serving
from .federation import Pump, in_process, model_of, name_of, play, register, states, totals, visits

BOTH = pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
SOON: dict[str, Any] = {"first_release": 5, "release_ratio": 1.5, "unit": "event"}
"""So that a short test has releases."""


def soon(name: str) -> dict[str, Any]:
    """What of it the policy has."""
    return {key: value for key, value in SOON.items() if key in FAMILIES[name].defaults}


def world(seed: int, servers: int = 3, users: int = 8) -> Synthetic:
    environment = Synthetic(
        users=users, clusters=2, servers=servers, dim=4, items=5, placement="spread"
    )
    environment.start(seed)
    return environment


def test_a_federation_of_nodes_equals_the_simulation(tmp_path: Path) -> None:
    environment = world(1)
    pump = Pump(tmp_path, model_of(environment, "fclub-plus"), 3)
    register(pump, environment)
    pump.run()
    choices = play(pump, environment, 400)
    environment = world(1)
    policy, expected = in_process("fclub-plus", environment), []
    for user, items, reward in visits(environment, 400):
        index = policy.recommend(user, items)
        policy.update(user, items[index], reward(index))
        expected.append(index)
    assert choices == expected
    (ours, mine), (theirs, yours) = pump.hub.server.state(), federated(policy).federation.hub.state()
    assert mine == yours
    assert len(mine["types"]["known"]) == 3
    for key in ours:
        np.testing.assert_array_equal(ours[key], theirs[key])
    assert pump.hub.communications == policy.communications
    pump.close()


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus", "cdp-homo"])
def test_a_restart_at_any_moment_changes_nothing(tmp_path: Path, name: str) -> None:
    environment = world(3, servers=2)
    pump = Pump(tmp_path, model_of(environment, name, **soon(name)), 2)
    for step in range(8):
        play(pump, environment, 25)
        before = states(pump)
        pump.restart(snapshot=step % 3 == 2)
        assert states(pump) == before
    own, reported, waiting = totals(pump)
    assert own == reported + waiting == 200
    assert reported > 50
    pump.close()


@BOTH
def test_counts_are_conserved_and_a_server_that_was_cut_off_catches_up(
    tmp_path: Path, name: str
) -> None:
    environment = world(2)
    pump = Pump(tmp_path, model_of(environment, name, **soon(name)), 3)
    play(pump, environment, 100)
    pump.away.add("s1")
    before, estimate = pump.hub.server.released_by(1), pump.locals["s1"].server.learner.theta().copy()
    play(pump, environment, 200)
    assert pump.hub.server.released_by(1) == before
    assert np.any(pump.locals["s1"].server.learner.theta() != estimate), "it goes on learning"
    assert pump.locals["s1"].server.status().unanswered
    pump.come_back("s1")
    for number, node in enumerate(pump.locals.values()):
        known = pump.hub.server.released_by(number)
        assert int(node.server.counts.sum()) == known + node.server.status().waiting
        if name != "fclub-plus":
            statistics = [
                s
                for (o, _), (s, *_) in is_a(UserStreamGlobal, pump.hub.server.exchange).known.items()
                if o == number
            ]
            assert known == sum(s.count for s in statistics)
    assert pump.hub.server.released_by(1) > before
    late = pump.locals["s1"].server
    assert not late.status().unanswered
    assert all(peer.offences == 0 for peer in pump.hub.peers.values())
    pump.close()


@pytest.mark.parametrize("level", ["cdp", "transcript"])
def test_every_stream_is_in_the_ledger_and_costs_no_more_than_was_claimed(
    tmp_path: Path, level: str
) -> None:
    environment = world(5, servers=2)
    pump = Pump(tmp_path, model_of(environment, "cdp-fclub-plus", level=level, **SOON), 2)
    play(pump, environment, 150)
    node = pump.locals["s0"]
    view = privacy_view(node.books)
    assert view.level == level
    assert view.spent[0].epsilon == pytest.approx(1.0)
    assert {stream.mechanism for stream in view.streams} == {"increments"}
    assert (
        sum(stream.observations for stream in view.streams)
        == is_a(UserStreamLocal, node.server.exchange).releases.released.counts.sum()
    )
    assert read_books(tmp_path / "s0.db").mu == present(node.books.ledger).mu
    clusters = node.server.overview()
    assert sum(one.users for one in clusters) == len(node.users.rows)
    assert sum(one.own for one in clusters) == node.feedbacks
    assert sum(one.waiting for one in clusters) == node.server.status().waiting
    pump.close()


def test_clusters_are_shown_as_for_the_other_policies(tmp_path: Path) -> None:
    environment = world(6, servers=2)
    model = model_of(environment, "fclub-plus")
    pump = Pump(tmp_path, model, 2)
    view = GlobalView(pump.hub, model)
    play(pump, environment, 1500)
    groups = pump.hub.server.overview()
    assert sum(group.observations for group in groups) == pump.hub.server.reported
    state, sample = view.state(), view.sample()
    assert sample["clusters"] == len(groups) == len(state["groups"])
    view.changes()
    assert view.changes() == []
    assert pump.hub.summary()["members"] == len(state["members"])
    helped = False
    for number, node in enumerate(pump.locals.values()):
        own = {one.cluster: one.group for one in node.server.overview()}
        known = {c: k for k, group in enumerate(groups) for s, c in group.members if s == number}
        assert own.keys() & known.keys(), (
            "types that changed since its last phase it hears of in the next"
        )
        local = LocalView(node, model, Monitor("local")).state()
        assert [one["cluster"] for one in local["clusters"]] == list(own)
        helped |= any(one["others"] for one in local["clusters"])
    assert helped, "others' data serve somebody"
    pump.close()


def test_newcomers_may_come_at_any_time(tmp_path: Path) -> None:
    """Also to a server that had none when the others had long begun."""
    environment = world(7, servers=2)
    pump = Pump(tmp_path, model_of(environment, "fclub-plus"), 2)
    for user, items, reward in visits(environment, 200):
        if environment.server_of[user] == 0:
            node = pump.locals["s0"]
            shown = node.recommend(name_of(user), items, list("abcde"))
            node.rewards.feedback(shown.id, reward(shown.index))
            pump.run()
    assert not pump.locals["s1"].users.rows
    play(pump, environment, 100)
    assert len(pump.locals["s1"].users.rows) == 4
    assert is_a(Types, pump.locals["s1"].server.learner).sharing == 1, (
        "it knows of the other server's users"
    )
    own, reported, waiting = totals(pump)
    assert own == reported + waiting
    pump.close()


def test_a_server_with_its_own_clock_lets_nobody_start_its_phases(tmp_path: Path) -> None:
    environment = world(8, servers=1)
    pump = Pump(tmp_path, model_of(environment, "cdp-fclub-plus"), 1)
    with pytest.raises(InvalidMessage, match="PhaseStart"):
        pump.locals["s0"].server.receive(PhaseStart(1))
    pump.hub.close_phase()
    pump.close()


def test_items_outside_the_declared_domain_are_refused(tmp_path: Path) -> None:
    """The noise is enough only for items with the declared constant."""
    settings = local_settings(tmp_path, model=Model(policy="cdp-fclub-plus", dim=DIM, constant=0.5))
    node = local_node(settings)
    items = np.full((2, DIM), 0.5)
    node.recommend("ann", items, ["a", "b"])
    items[1, -1] = 0.4
    with pytest.raises(InvalidFeatures, match=r"0\.5"):
        node.recommend("ben", items, ["a", "b"])
    assert list(node.users.rows) == ["ann", "ben"], "arrivals count before requests are looked at"
    assert node.server.counts.sum() == 0
    node.store.close()


def test_a_federation_that_shares_nothing_is_refused(tmp_path: Path) -> None:
    model = Model(policy="fclub-plus", dim=DIM, parameters={"share": False})
    with pytest.raises(InvalidSetting, match="share"):
        local_node(local_settings(tmp_path, model=model))
    with pytest.raises(InvalidSetting, match="club is not one of"):
        local_node(local_settings(tmp_path, model=Model(policy="club", dim=DIM)))


def test_over_http(tmp_path: Path) -> None:
    model = Model(policy="cdp-fclub-plus", dim=DIM, parameters=dict(SOON))
    rng = np.random.default_rng(0)

    def visit(client: httpx.Client, k: int) -> None:
        body = {"user": f"u{k % 3}", "items": offer(rng)}
        decision = client.post("/v1/recommend", json=body).json()["decision"]
        assert client.post("/v1/feedback", json={"decision": decision, "reward": 1.0}).is_success

    with serving(local_app(local_settings(tmp_path, model=model))[0]) as client:
        for k in range(60):
            visit(client, k)
        clusters = client.get("/v1/clusters", headers=ADMIN).json()
        assert sum(one["users"] for one in clusters) == 3
        assert client.get("/v1/users/u1").json()["observations"] == 20
        view = client.get("/v1/privacy").json()
        assert view["messages"] == {"digest": view["messages"]["digest"]}
        assert view["spent"][0]["epsilon"] == pytest.approx(1.0)
        assert client.get("/metrics").is_success
