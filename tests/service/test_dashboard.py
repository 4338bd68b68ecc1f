"""What the pages are made of: history, changes, limits, views, routes and the stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parts import edges, merger
from tests.protocol.told import ids_of

from fclub.core.paper.federation import GlobalClusters
from fclub.core.statistics import Statistics
from fclub.environments.synthetic import Synthetic
from fclub.environments.world import HALF
from fclub.parameters import Parameter
from fclub.privacy.noise import DiscreteNoise
from fclub.privacy.plan import make_plan
from fclub.service.dashboard.recorder import Samples, compare
from fclub.service.dashboard.views import GlobalView, LocalView
from fclub.service.fleet import Server
from fclub.service.http.pages import TYPES, read_files
from fclub.service.monitoring import Monitor
from fclub.service.serve import local_app
from fclub.service.settings import Model
from fclub.visitors import Earnings, make_rivals

from .conftest import ADMIN_TOKEN, DIM, HEADERS, TOKEN, local_settings, serving, visit
from .federation import Pump, name_of

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}

members = st.tuples(st.sampled_from(["s0", "s1", "s2"]), st.integers(0, 5))
partitions = st.dictionaries(members, st.integers(0, 4), max_size=12)


@given(partitions)
def test_a_partition_that_stays_has_no_changes(partition: dict[tuple[str, int], int]) -> None:
    assert compare(partition, partition) == []


@given(partitions, partitions)
def test_changes_say_what_the_partitions_say(
    old: dict[tuple[str, int], int], new: dict[tuple[str, int], int]
) -> None:
    kinds = {change.kind for change in compare(old, new)}

    def known(member: tuple[str, int]) -> tuple[str, int]:
        """A server's only cluster is told by its server, all others by their ids."""
        numbers = [sum(server == member[0] for server, _ in one) for one in (old, new)]
        return (member[0], -1) if numbers == [1, 1] else member

    def together(partition: dict[tuple[str, int], int]) -> set[frozenset[tuple[str, int]]]:
        pairs = [(a, b) for a in partition for b in partition if a < b]
        alike = [pair for pair in pairs if partition[pair[0]] == partition[pair[1]]]
        return {frozenset(map(known, pair)) for pair in alike}

    assert ("merged" in kinds) == bool(together(new) - together(old))
    names = set(map(known, new))
    kept = {pair for pair in together(old) if pair <= names}
    assert ("parted" in kinds) == bool(kept - together(new))


def test_a_new_id_of_the_only_cluster_is_no_change() -> None:
    assert compare({("s0", 1): 0, ("s1", 2): 0}, {("s0", 7): 3, ("s1", 9): 3}) == []
    (change,) = compare({("s0", 1): 0, ("s1", 2): 0}, {("s0", 7): 3, ("s1", 9): 4})
    assert change.kind == "parted"


@given(st.lists(st.floats(0.5, 50.0), min_size=1, max_size=300), st.integers(2, 20))
def test_a_history_is_bounded_and_reaches_back_to_the_start(gaps: list[float], limit: int) -> None:
    history, times = Samples(limit), np.cumsum([1000.0, *gaps])
    for time in times:
        history.add({"t": float(time)})
    kept = [sample["t"] for sample in history.samples]
    assert kept[0] == times[0]
    assert len(kept) <= limit
    assert all(a < b for a, b in pairwise(kept))
    assert times[-1] - kept[-1] <= 2.0 * history.step + max(gaps)
    assert Samples.load(history.dump(), limit).samples == history.samples


def test_a_history_goes_on_where_the_clock_is_set_back() -> None:
    history = Samples()
    for time in (100.0, 110.0, 50.0, 60.0, 1000.0):
        history.add({"t": time})
    assert [sample["t"] for sample in history.samples] == [40.0, 50.0, 60.0, 1000.0]


def play(pump: Pump, rounds: int, users: int = 8) -> None:
    world = Synthetic(users=users, servers=len(pump.names), dim=pump.model.dim)
    world.start(0)
    for _ in range(rounds):
        user, items = world.visit()
        node = pump.locals[f"s{world.server_of[user]}"]
        decision = node.recommend(name_of(user), items, [str(k) for k in range(len(items))])
        pump.run()
        node.rewards.feedback(decision.id, world.feedback(decision.index).reward)
        pump.run()


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[Pump]:
    pump = Pump(tmp_path, Model(policy="fclub-dc", dim=10), servers=2)
    play(pump, 600)
    yield pump
    pump.close()


def test_the_global_view_counts_what_was_exchanged(pump: Pump) -> None:
    view = GlobalView(pump.hub, pump.model)
    state, sample = view.state(), view.sample()
    for name, server in zip(pump.names, state["servers"], strict=True):
        (sent,) = (
            pump.locals[name]
            .store.reader.execute("SELECT count(*) FROM sent WHERE kind = 'upload'")
            .fetchone()
        )
        assert server["uploads"] == sent > 0
    assert sum(server["downloads"] for server in state["servers"]) == sample["downloads"]
    assert len(state["members"]) == sum(len(ids_of(n.server)) for n in pump.locals.values())
    assert sum(server["released"] for server in state["servers"]) == sample["reported"]
    assert view.changes() == []


def test_own_and_others_data_add_up_to_the_estimate(pump: Pump) -> None:
    released = sum(server["uploads"] for server in GlobalView(pump.hub, pump.model).state()["servers"])
    assert released
    for node in pump.locals.values():
        clusters = LocalView(node, pump.model, Monitor("local")).state()["clusters"]
        counts = edges(node.server).clusters.counts
        assert [one["own"] + one["others"] for one in clusters] == counts.tolist()
        own = sum(one["own"] + one["waiting"] for one in clusters)
        assert own == node.feedbacks
        assert sum(one["users"] for one in clusters) == len(node.users.rows)


def test_counts_of_servers_survive_a_restart(pump: Pump) -> None:
    before = {name: peer.communications for name, peer in pump.hub.peers.items()}
    pump.hub.journal.snapshot()
    pump.run()
    pump.hub.store.close()
    pump.hub = pump.open_hub()
    assert {name: peer.communications for name, peer in pump.hub.peers.items()} == before


def test_a_stream_spends_less_than_its_budget(tmp_path: Path) -> None:
    model = Model(policy="cdp-fclub-dc", dim=4, parameters={"delta": 0.1})
    pump = Pump(tmp_path, model, servers=1, noise=DiscreteNoise())
    play(pump, 60, users=4)
    node = pump.locals["s0"]
    privacy = LocalView(node, pump.model, Monitor("local")).state()["privacy"]
    assert privacy["claimed"] == [1.0, 0.1]
    leaves = edges(node.server).clusters.leaves
    assert sorted(s["releases"] for s in privacy["streams"]) == sorted((leaves - 1).tolist())
    assert privacy["open"] == len(leaves)
    for spent in privacy["streams"]:
        assert 0.0 < spent["share"] <= privacy["server"]["share"] <= 1.0
        assert spent["epsilon"] <= privacy["server"]["epsilon"] <= 1.0
        assert spent["epsilon"] <= spent["strict"]
    known = GlobalView(pump.hub, pump.model).state()["privacy"]
    assert known["claimed"] == privacy["claimed"]
    limit = known["servers"]["s0"]["share"]
    assert limit >= privacy["server"]["share"], "the global server knows a limit"
    assert privacy["phases"] == pump.hub.server.phase
    pump.close()


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_plus_servers_are_shown_in_the_same_words(tmp_path: Path, name: str) -> None:
    given: dict[str, Parameter] = {} if name == "fclub-plus" else {"unit": "event"}
    model = Model(policy=name, dim=10, constant=HALF, parameters=given)
    pump = Pump(tmp_path, model, servers=2, noise=DiscreteNoise())
    play(pump, 800)
    hub, node = GlobalView(pump.hub, pump.model), pump.locals["s0"]
    state, local = hub.state(), LocalView(node, pump.model, Monitor("local")).state()
    assert state["phase"] is None
    assert len(state["members"]) > 0
    assert sum(one["own"] for one in local["clusters"]) == node.feedbacks
    if name == "fclub-plus":
        assert state["privacy"] is local["privacy"] is None
    else:
        assert state["privacy"]["servers"]["s0"]["share"] == pytest.approx(1.0)
        assert (state["privacy"]["unit"], state["privacy"]["level"]) == ("event", "transcript")
        assert 0.0 < local["privacy"]["server"]["share"] <= 1.0 + 1e-9
        assert local["privacy"]["open"] == len(local["privacy"]["streams"]) > 0
    pump.close()


def test_nothing_is_spent_before_anything_has_left(tmp_path: Path) -> None:
    """Both pages say so, and the local one says what it waits for."""
    pump = Pump(tmp_path, Model(policy="cdp-fclub-plus", dim=10, constant=HALF), servers=2)
    play(pump, 20)
    hub, local = (
        GlobalView(pump.hub, pump.model),
        LocalView(pump.locals["s0"], pump.model, Monitor("l")),
    )
    shown, own = hub.state(), local.state()
    assert [spent["share"] for spent in shown["privacy"]["servers"].values()] == [0.0, 0.0]
    assert own["privacy"]["server"]["share"] == 0.0
    assert own["messages"] == 0
    assert "this server has no plan" in own["next"]
    assert "all data of one user and covers all messages, for ever." in own["privacy"]["covers"]
    assert shown["notes"] == [{"good": True, "text": "All 2 local servers are heard and trusted."}]
    assert own["notes"][0]["good"]
    pump.close()


def test_pages_and_answers_number_clusters_alike(tmp_path: Path) -> None:
    """One population for all users of all servers."""
    plan = make_plan(
        epsilon=1.0,
        delta=1e-5,
        dim=10,
        users=8,
        members=2,
        visits=(1.0, 2.0, 3.0),
        secure=False,
        start=1000.0,
        seconds_per_visit=60.0,
    )
    parameters: dict[str, Parameter] = {"plan": plan.encode().decode()}
    model = Model(policy="cdp-fclub-plus", dim=10, constant=HALF, parameters=parameters)
    pump = Pump(tmp_path, model, servers=2, noise=DiscreteNoise())
    play(pump, 80)
    assert GlobalView(pump.hub, pump.model).state()["groups"] == []
    pump.tick(plan.begins[0])
    pump.tick(plan.ends[0])
    state = GlobalView(pump.hub, pump.model).state()
    assert [(group["number"], group["kind"]) for group in state["groups"]] == [(0, "cluster")]
    spent = state["privacy"]["servers"]
    for name, node in pump.locals.items():
        local = LocalView(node, pump.model, Monitor("local")).state()
        assert [one["group"] for one in local["clusters"]] == [0]
        assert 0.0 < local["privacy"]["server"]["share"] <= spent[name]["share"] + 1e-9 < 1.0
        assert "Slot 2 of 3 of the plan is on" in local["next"]
        assert local["clusters"][0]["users"] == len(node.users.rows)
    assert GlobalView(pump.hub, pump.model).changes() == [], "nothing is merged"
    pump.close()


def first_events(client: httpx.Client, number: int) -> list[tuple[str, Any]]:
    with client.stream("GET", "/v1/live", headers=ADMIN) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found: list[tuple[str, Any]] = []
        name = ""
        for line in answer.iter_lines():
            kind, _, rest = line.partition(": ")
            name = rest if kind == "event" else name
            if kind == "data":
                found.append((name, json.loads(rest)))
            if len(found) == number:
                return found
    raise AssertionError("the stream ended")


def test_the_stream_agrees_with_the_metrics_and_outlives_a_restart(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    with serving(local_app(settings)[0]) as client:
        for seed in range(5):
            visit(client, seed)
        totals = {"visits": 5, "policies": {"fclub-dc": {"reward": 5.0, "regret": 0.5}}}
        assert client.post("/v1/visitors", json=totals).status_code == 200
        (_, history), *events = first_events(client, 3)
        name, body = events[-1]
        assert name == "now"
        assert body["sample"]["observations"] == 5
        assert body["sample"]["regret of fclub-dc"] == 0.5
        metrics = client.get("/metrics").text
        for key in ("feedback", "decisions"):
            assert f"fclub_{key}_total {body['sample'][key]}" in metrics
        assert body["sample"]["reward"] == 5.0
        assert body["state"]["clusters"][0]["users"] == 3
    with serving(local_app(settings)[0]) as client:
        visit(client, 5)
        (_, longer), *events = first_events(client, 3)
        sample = events[-1][1]["sample"]
        assert (sample["feedback"], sample["reward"]) == (6, 6.0), "the curve goes on"
    assert longer[: len(history)] == history
    assert longer[-1]["observations"] >= 5


def test_pages_need_no_token_and_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    del client.headers["Authorization"]
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name, data in read_files().items():
        answer = client.get(f"/static/{name}")
        assert answer.content == data
        assert answer.headers["content-type"].startswith(TYPES[name.rpartition(".")[2]])
        assert not re.findall(rb"https?://(?!www\.w3\.org/2000/svg)", data), name
    assert client.get("/static/../routes.py").status_code == 404
    assert client.get("/static/none.js").status_code == 404
    assert client.get("/v1/live").status_code == 401
    assert client.get("/v1/live", headers=HEADERS).status_code == 403, "it shows exact sums of rewards"
    assert client.post("/v1/visitors", json={}, headers=HEADERS).status_code == 422


def test_a_large_federation_is_described_quickly(pump: Pump) -> None:
    """Fifty servers and two thousand local clusters: an event of well under a megabyte."""
    rng = np.random.default_rng(0)
    merger(pump.hub.server).members = [(k % 2, k) for k in range(2000)]
    merger(pump.hub.server).released = [Statistics.zeros(DIM)] * 2000
    merger(pump.hub.server).clusters = GlobalClusters.zeros(rng.integers(0, 300, 2000), DIM)
    assert len(json.dumps(GlobalView(pump.hub, pump.model).state())) < 200_000


@pytest.mark.slow
def test_an_open_page_does_not_keep_a_server_from_stopping(tmp_path: Path) -> None:
    settings = {"model__dim": 4, "model__policy": "fclub-dc", "store": str(tmp_path / "local.db")}
    server = Server("local", "local", tmp_path, settings, TOKEN)
    server.start()
    server.wait_until_ready()
    process = server.process
    assert process is not None
    with httpx.stream("GET", f"{server.url}/v1/live", headers=HEADERS, timeout=30) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: history"
        assert any(line.startswith("event: now") for line in lines)
        process.terminate()
        assert list(lines)[-1:] in ([], [""]), "the stream ends between two events"
    process.wait(60)
    server.stop()


def test_rivals_meet_the_same_visits() -> None:
    """A rival with the same policy earns the same, visit by visit; chance earns less in the end."""

    def twin() -> Synthetic:
        world = Synthetic(users=6, servers=2, dim=5)
        world.start(3)
        return world

    linucb, chance = make_rivals(twin, seed=0)
    same, _ = make_rivals(twin, seed=1)
    rivals = [replace(linucb, name="one"), replace(same, name="other"), chance]
    tally = Earnings("one")
    for _ in range(400):
        tally.add({one.name: one.visit() for one in rivals})
    assert tally.policies["one"] == tally.policies["other"] == tally.earned
    assert tally.policies["random"].regret > tally.earned.regret
    assert set(tally.as_dict()["rivals"]) == {"other", "random"}
    assert tally.body()["visits"] == 400
