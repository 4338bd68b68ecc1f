"""What the proofs assume of the service, and the service keeps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fclub.client import Observation
from fclub.errors import InvalidFeatures, InvalidReward, NoiseFailed, WasForgotten
from fclub.parameters import Parameter
from fclub.privacy.noise import DiscreteNoise, Library, SeededNoise
from fclub.service.nodes.importing import learn_offline
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import check_store, forget_user, local_node, node_with_noise
from fclub.service.serve import local_app
from fclub.service.settings import LocalSettings, Model
from fclub.service.store.books import read_books

from .conftest import DIM, HEADERS, HTTP, ITEMS, local_settings, serving
from .federation import Pump

SOON: dict[str, Parameter] = {"first_release": 10, "release_ratio": 1.5}
EVENT: dict[str, Parameter] = {"unit": "event", "level": "transcript"}
BY_USER = Model(dim=DIM, parameters={"unit": "user", "level": "interactive"})
POOLED = Model(policy="cdp-homo", dim=DIM, parameters=SOON)
BY_EVENT = Model(dim=DIM, parameters=EVENT | SOON)
X = np.eye(DIM)


def counted(settings: LocalSettings) -> int:
    """How many users the server of this store knows."""
    node = local_node(settings, create=False)
    found = len(node.server.counts)
    node.store.close()
    return found


def ask(settings: LocalSettings, path: str, *bodies: Any) -> list[httpx.Response]:
    with serving(local_app(settings)[0]) as client:
        return [
            client.post(path, headers=HEADERS, content=body)
            if isinstance(body, bytes)
            else client.post(path, headers=HEADERS, json=body)
            for body in bodies
        ]


LONG = [{"id": "a", "features": [1.0 + 1e-6, 0.0, 0.0, 0.0]}]
VISITS: dict[str, tuple[Any, int]] = {
    "shown": ({"user": "ann", "items": ITEMS}, 200),
    "nothing left": ({"user": "ann", "items": ITEMS, "exclude": ["0", "1", "2"]}, 200),
    "an empty catalogue": ({"user": "ann", "exclude_seen": True}, 200),
    "no items": ({"user": "ann", "items": []}, 422),
    "too long": ({"user": "ann", "items": LONG}, 422),
    "too many": ({"user": "ann", "items": ITEMS, "count": 21}, 413),
    "twice": ({"user": "ann", "items": [ITEMS[0], ITEMS[0]]}, 422),
    "unknown field": ({"user": "ann", "items": ITEMS, "why": 1}, 422),
    "unknown item": ({"user": "ann", "items": ["none"]}, 422),
    "no number": ({"user": "ann", "items": [{"id": "a", "features": ["x"] * DIM}]}, 422),
}


@pytest.mark.parametrize("name", VISITS)
def test_a_visitor_is_known_before_anything_of_a_visit_is_looked_at(tmp_path: Path, name: str) -> None:
    """What can be shown, and whether a request is refused, follows from data. Who is known must not."""
    settings, (body, status) = local_settings(tmp_path, model=BY_USER), VISITS[name]
    (answer,) = ask(settings, "/v1/recommend", body)
    assert answer.status_code == status
    if status == 200 and name != "shown":
        assert answer.json()["shown"] == []
    assert counted(settings) == 1


def test_a_visit_without_a_name_adds_nobody(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, model=BY_USER)
    bodies = [b"no json", b" " * (HTTP.max_body_bytes + 1), {"user": "", "items": ITEMS}]
    answers = ask(settings, "/v1/recommend", *bodies)
    assert [answer.status_code for answer in answers] == [400, 413, 422]
    assert counted(settings) == 0


def test_every_visitor_of_a_batch_is_known(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, model=BY_USER)
    good, bad = {"user": "ann", "items": ITEMS}, {"user": "bob", "items": LONG}
    unreadable = {"user": "eve", "items": []}
    bodies: list[Any] = [{"requests": [good, bad]}, {"requests": [good, unreadable]}]
    bodies.append({"requests": [good] * (HTTP.max_batch + 1)})
    answers = ask(settings, "/v1/recommend/batch", *bodies)
    assert [answer.status_code for answer in answers] == [200, 422, 413]
    assert counted(settings) == 3


PAST = {"id": "1", "user": "ann", "reward": 1.0}
IMPORTS: dict[str, dict[str, Any]] = {
    "learned": PAST | {"features": [0.1] * DIM},
    "too long": PAST | {"features": LONG[0]["features"]},
    "unknown item": PAST | {"item": "none"},
    "reward out of range": PAST | {"features": [0.1] * DIM, "reward": 2.0},
    "no reward": PAST | {"features": [0.1] * DIM, "reward": None},
    "nothing": PAST,
}


@pytest.mark.parametrize("name", IMPORTS)
def test_how_many_users_there_are_does_not_follow_from_what_is_refused(
    tmp_path: Path, name: str
) -> None:
    settings = local_settings(tmp_path, model=BY_USER)
    ask(settings, "/v1/observations", {"observations": [IMPORTS[name]]})
    assert counted(settings) == 1


@pytest.mark.parametrize("model", [POOLED, BY_EVENT, BY_USER], ids=["pooled", "event", "user"])
def test_an_observation_outside_the_domain_is_refused_behind_the_edge(
    tmp_path: Path, model: Model
) -> None:
    """A sensitivity is proved for a domain: what is outside must not get into any sum."""
    node = local_node(local_settings(tmp_path, model=model))
    decision = node.recommend("ann", 30.0 * X[:1], ["a"]).id
    good = node.recommend("ann", X[:1], ["a"]).id
    for wrong, error in (((decision, 1.0), InvalidFeatures), ((good, 30.0), InvalidReward)):
        with pytest.raises(error):
            node.rewards.feedback(*wrong)
    with pytest.raises(InvalidFeatures):
        node.rewards.learn_past("1", "ann", 30.0 * X[0], 1.0)
    assert node.feedbacks == node.server.counts.sum() == 0
    assert node.rewards.feedback(good, 1.0)
    node.store.close()


@pytest.mark.parametrize("model", [POOLED, BY_EVENT], ids=["pooled", "event"])
def test_the_servers_themselves_refuse_it_too(tmp_path: Path, model: Model) -> None:
    node = local_node(local_settings(tmp_path, model=model))
    row = node.users.row_of_new("ann")
    with pytest.raises(InvalidFeatures):
        node.server.observe(row, 30.0 * X[0], 1.0)
    assert node.server.counts.sum() == 0
    node.store.close()


def released(pump: Pump) -> int:
    """Observations that the ledger says have left."""
    pump.run()
    return sum(event.observations for event in read_books(pump.path / "s0.db").events)


def bring(node: LocalNode, user: str, count: int, done: Callable[[], None] = lambda: None) -> None:
    """A nightly import: always the same observations."""
    rng = np.random.default_rng(1)
    for number in range(count):
        x = rng.standard_normal(DIM)
        node.rewards.learn_past(f"{user}-{number}", user, x / np.linalg.norm(x), float(number % 2))
    done()


@pytest.mark.parametrize("model", [POOLED, BY_EVENT], ids=["pooled", "event"])
def test_what_was_released_is_never_released_again_however_often_it_returns(
    tmp_path: Path, model: Model
) -> None:
    pump = Pump(tmp_path, model, 1)
    node, most = pump.locals["s0"], 60
    bring(node, "ann", most)
    bring(node, "bob", most)
    assert 0 < released(pump) <= 2 * most
    for _ in range(7):
        node.users.forget("ann")
        pump.run()
        bring(node, "ann", most)
        pump.run()
    assert released(pump) <= 2 * most
    pump.close()


def test_a_forgotten_user_who_comes_back_alive_is_released_again(tmp_path: Path) -> None:
    """New observations are new data."""
    pump = Pump(tmp_path, POOLED, 1)
    node = pump.locals["s0"]
    bring(node, "ann", 30)
    before = released(pump)
    node.users.forget("ann")
    for _ in range(60):
        node.rewards.feedback(node.recommend("ann", X[:2], ["a", "b"]).id, 1.0)
    assert released(pump) > before
    pump.close()


def test_imports_for_a_forgotten_user_are_refused_for_as_long_as_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = local_settings(tmp_path, model=BY_USER, refuse_forgotten_days=30.0)
    node = local_node(settings)
    bring(node, "Zebedee", 3)
    node.users.forget("Zebedee")
    with pytest.raises(WasForgotten, match=r"another 30\.0 days"):
        bring(node, "Zebedee", 1)
    assert "Zebedee" not in node.users.rows
    node.commit()
    node.store.close()
    raw = b"".join(path.read_bytes() for path in tmp_path.glob("local.db*"))
    assert b"Zebedee" not in raw
    again = IMPORTS["learned"] | {"user": "Zebedee"}
    answers = ask(settings, "/v1/observations", {"observations": [again]})
    assert "was forgotten" in answers[0].json()["results"][0]["error"]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 31 * 86_400)
    node = local_node(settings)
    bring(node, "Zebedee", 1)
    assert "Zebedee" in node.users.rows
    assert node.users.names_forgotten.find("Zebedee") is None
    node.store.close()


def test_a_store_that_nobody_serves_keeps_the_list_too(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, model=BY_USER, refuse_forgotten_days=30.0)
    node = local_node(settings)
    node.put_items(["a"], X[:1])
    bring(node, "ann", 3)
    node.commit()
    node.store.close()
    store = Path(settings.store)
    forget_user(store, "ann")
    (refused,) = learn_offline(store, [Observation("9", "ann", 1.0, item="a")])
    assert isinstance(refused, WasForgotten)
    assert check_store(settings)["users"] == 0


def test_an_import_that_is_not_released_is_learned_and_counted(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, model=BY_EVENT)
    node = local_node(settings)
    bring(node, "ann", 5)
    node.users.forget("ann")
    bring(node, "ann", 5)
    node.commit()
    node.store.close()
    assert check_store(settings)["feedbacks"] == 5


def test_a_ledger_tells_whether_its_noise_can_be_repeated(tmp_path: Path) -> None:
    settings, rng = local_settings(tmp_path, model=POOLED), np.random.default_rng(0)
    node = node_with_noise(settings, SeededNoise(rng), rng)
    assert node.books.ledger is not None
    assert node.books.ledger.seeded
    node.store.close()
    assert read_books(Path(settings.store)).seeded


PROGRAM = """
import json
while "map" in (request := json.loads(input())):
    scale, distance = request["map"]
    print(json.dumps({"answer": (distance / scale) ** 2 / 2}), flush=True)
"""
"""Answers what a stream costs, and ends when it is asked for noise."""


def test_where_no_noise_can_be_drawn_nothing_is_stored_or_sent(tmp_path: Path) -> None:
    program = tmp_path / "drawing.py"
    program.write_text(PROGRAM)
    pump = Pump(tmp_path, POOLED, 1, DiscreteNoise((sys.executable, "-P", str(program))))
    with pytest.raises(RuntimeError) as failure:
        bring(pump.locals["s0"], "ann", 60, pump.run)
    assert isinstance(failure.value.__cause__ or failure.value, NoiseFailed)
    pump.close()
    pump = Pump(tmp_path, POOLED, 1)
    assert released(pump) == 0
    bring(pump.locals["s0"], "ann", 60)
    assert released(pump) > 0
    pump.close()


def test_a_server_without_noise_stops_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over HTTP: from then on nothing is acknowledged."""

    def draw(self: Library, wanted: Any) -> Any:
        raise NoiseFailed("no noise")

    settings = local_settings(tmp_path, model=POOLED)
    app, _ = local_app(settings)
    monkeypatch.setattr(Library, "draw", draw)
    with serving(app) as client:
        answers: list[int] = []
        # Nothing is released before the global server has answered: a release may fail later only.
        while 503 not in answers and len(answers) < 5_000:
            past = {"id": str(len(answers)), "user": "ann", "reward": 1.0, "features": [0.5] * DIM}
            answer = client.post("/v1/observations", headers=HEADERS, json={"observations": [past]})
            answers.append(answer.status_code)
        assert set(answers) == {200, 503}
        assert client.get("/readyz").status_code == 503, client.get("/healthz").text
        past = {"id": "late", "user": "ann", "reward": 1.0, "features": [0.5] * DIM}
        late = client.post("/v1/observations", headers=HEADERS, json={"observations": [past]})
        assert late.status_code == 503
    monkeypatch.undo()
    node = local_node(settings)
    assert node.books.messages() == {}
    node.store.close()
    assert {"error": "NoiseFailed"} in [vars(record).get("facts") for record in caplog.records]
