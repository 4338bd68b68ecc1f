"""Rewards in the application's unit, and rewards that never come."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fclub import AsyncClient, Client
from fclub.client import Observation
from fclub.errors import CannotReplace, InvalidFile, InvalidSetting, OtherReward, RequestFailed
from fclub.service.nodes.importing import learn_offline
from fclub.service.nodes.local_node import ASSUMED, LocalNode
from fclub.service.nodes.parts import check_store, local_node
from fclub.service.serve import local_app
from fclub.service.settings import Feedback, LocalSettings, Model, load_settings

from .conftest import DIM, TOKEN, local_settings, serving, wait_for
from .federation import Pump

ITEMS = {"a": [1.0, 0, 0, 0], "b": [0, 1.0, 0, 0]}
LATER = 4e9


def stars(path: Path, **changes: Any) -> LocalSettings:
    return local_settings(path, model=Model(dim=DIM, reward=(1.0, 5.0), **changes))


async def best_range(url: str) -> tuple[float, float]:
    async with AsyncClient(url, TOKEN) as shop:
        return (await shop.recommend_several("ann", 2, ITEMS)).reward_range


def test_rewards_are_told_and_answered_in_their_unit(tmp_path: Path) -> None:
    settings = stars(tmp_path)
    with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
        shown = shop.recommend("ann", ITEMS)
        for outside in (0.5, 6.0):
            with pytest.raises(RequestFailed, match=r"422: reward .* is not from 1 to 5"):
                shop.feedback(shown.decision, outside)
        assert shop.feedback(shown.decision, 4.0)
        assert not shop.feedback(shown.decision, 4.0)
        told = shop.observe([Observation("x", "ann", 2.0, features=[0, 0, 1.0, 0])])
        assert told == [True]
        (refused,) = shop.observe([Observation("y", "ann", 0.0, features=[0, 0, 1.0, 0])])
        assert isinstance(refused, RequestFailed)
        data = shop.user_data("ann")
        assert data["reward_range"] == [1.0, 5.0]
        assert [one["reward"] for one in data["decisions"]] == [4.0]
        assert data["past"] == [{"id": "x", "reward": 2.0, "item": None}]
        body = {
            "user": "ann",
            "items": [{"id": k, "features": x} for k, x in ITEMS.items()],
            "count": 2,
        }
        several = client.post("/v1/recommend", json=body).json()
        assert several["reward_range"] == [1.0, 5.0]
        best = shop.recommend_several("ann", 2, ITEMS)
        assert best.reward_range == asyncio.run(best_range(str(client.base_url))) == (1.0, 5.0)
        assert [one.score for one in best] == [one["score"] for one in several["shown"]]
        assert all(one["score"] >= 1.0 for one in several["shown"])
        reward = client.get("/openapi.json").json()["components"]["schemas"]["FeedbackRequest"]
        number = {"type": "number", "minimum": 1.0, "maximum": 5.0}
        assert reward["properties"]["reward"] == {"anyOf": [number, {"type": "null"}]}
    node = local_node(settings)
    bodies = [
        body for (body,) in node.store.reader.execute("SELECT body FROM log WHERE kind = 'observe'")
    ]
    node.store.close()
    assert [struct.unpack_from("<d", body, 8)[0] for body in bodies] in ([], [0.75, 0.25])


def test_rewards_outside_may_be_clipped(tmp_path: Path) -> None:
    app, _ = local_app(stars(tmp_path, clip=True))
    with serving(app) as client, Client(str(client.base_url), TOKEN) as shop:
        assert shop.feedback(shop.recommend("ann", ITEMS).decision, 100.0)
        assert [one["reward"] for one in shop.user_data("ann")["decisions"]] == [5.0]


def test_a_store_belongs_to_its_range_and_imports_in_it(tmp_path: Path) -> None:
    settings = stars(tmp_path)
    node = local_node(settings)
    node.put_items(["a"], np.array([[1.0, 0, 0, 0]]))
    node.commit()
    node.store.close()
    past = [Observation("1", "ann", 3.0, item="a"), Observation("2", "ann", 9.0, item="a")]
    learned, refused = learn_offline(Path(settings.store), past)
    assert learned is True
    assert isinstance(refused, Exception)
    with pytest.raises(InvalidFile, match="reward"):
        local_node(local_settings(tmp_path))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"model.reward": [5, 1]}, "the lower one first"),
        ({"model.reward": [1]}, "length 2"),
        ({"feedback.none_is": 2}, "none_is must be in the range"),
        ({"feedback.none_after": 0.5}, "none_after"),
    ],
)
def test_a_wrong_range_is_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        load_settings(LocalSettings, None, {"store": "a.db", "model.dim": 3} | given, {})


def shown_to(node: LocalNode, user: str, count: int = 1) -> list[str]:
    ids, items = list(ITEMS), np.array(list(ITEMS.values()))
    return [node.recommend(user, items, ids).id for _ in range(count)]


def state_of(node: LocalNode) -> dict[str, bytes]:
    return {key: array.tobytes() for key, array in node.server.state()[0].items()}


def test_what_never_comes_counts_as_declared_and_a_restart_knows(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    node = local_node(settings)
    answered, *silent = shown_to(node, "ann", 120)
    node.rewards.feedback(answered, 1.0)
    node.commit()
    assert not node.rewards.assume(before=1.0, reward=0.25), "they are not old enough"
    while node.rewards.assume(LATER, 0.25):
        node.commit()
    assert node.server.counts.tolist() == [120]
    sources = "SELECT source, count(*) FROM log WHERE kind = 'observe' GROUP BY source ORDER BY source"
    assert node.store.reader.execute(sources).fetchall() == [("", 1), (ASSUMED, 119)]
    before = state_of(node)
    node.store.close()
    again = local_node(settings)
    assert state_of(again) == before
    assert not again.rewards.assume(LATER, 0.25)
    found = [again.decisions.find(bytes.fromhex(key)) for key in silent]
    assert {(one.reward, bool(one.assumed)) for one in found if one} == {(0.25, True)}
    again.store.close()
    assert check_store(settings)["observations"] == 120


def test_the_real_reward_replaces_an_assumed_one(tmp_path: Path) -> None:
    """Bit by bit as if it had come in time, on the lattice; a restart replays it."""
    settings = local_settings(tmp_path)
    node = local_node(settings)
    late, same = shown_to(node, "ann", 2)
    node.commit()
    node.rewards.assume(LATER, 0.0)
    assert node.rewards.feedback(late, 1.0)
    assert node.rewards.feedback(same, 0.0)
    node.commit()
    assert not node.rewards.feedback(late, 1.0)
    assert not node.rewards.feedback(same, 0.0)
    with pytest.raises(OtherReward):
        node.rewards.feedback(late, 0.0)
    assert node.server.counts.tolist() == [2]
    moment, before = node.server.stored(0).moment, state_of(node)
    node.store.close()
    again = local_node(settings)
    assert state_of(again) == before
    again.store.close()
    other = local_node(local_settings(tmp_path, store=str(tmp_path / "other.db")))
    first, second = shown_to(other, "ann", 2)
    other.rewards.feedback(first, 1.0)
    other.rewards.feedback(second, 0.0)
    np.testing.assert_allclose(other.server.stored(0).moment, moment, atol=1e-12)
    other.store.close()


def test_the_real_reward_of_a_user_among_many_is_in_later_snapshots(tmp_path: Path) -> None:
    """They write only the rows of users of whom something has changed."""
    settings = local_settings(tmp_path, model=Model(dim=DIM))
    node = local_node(settings)
    late, *_ = (shown_to(node, user)[0] for user in ("ann", "bob", "eve"))
    node.commit()
    node.rewards.assume(LATER, 0.0)
    node.journal.snapshot()
    node.commit()
    assert node.rewards.feedback(late, 1.0)
    node.commit()
    for _ in range(2):
        before = state_of(node)
        node.journal.snapshot()
        node.commit()
        node.store.close()
        node = local_node(settings)
        assert state_of(node) == before
    node.store.close()


def test_it_is_refused_where_learning_it_has_sent_it(tmp_path: Path) -> None:
    """The assumed reward made a release due, which holds it."""
    parameters: dict[str, Any] = {"unit": "event", "first_release": 2}
    pump = Pump(tmp_path, Model(dim=DIM, parameters=parameters), 1)
    node, refused = pump.locals["s0"], 0
    for _ in range(60):
        (late,) = shown_to(node, "ann")
        pump.run()
        sent = node.books.sent
        node.rewards.assume(LATER, 0.0)
        while (part := node.part()) is not None:
            part()
        if node.books.sent > sent:
            refused += 1
            with pytest.raises(CannotReplace, match="has sent messages since"):
                node.rewards.feedback(late, 1.0)
        pump.run()
    assert refused
    pump.close()


def test_it_is_refused_once_sent_where_the_promise_is_about_rewards(
    tmp_path: Path,
) -> None:
    node = local_node(local_settings(tmp_path, model=Model(dim=DIM, parameters={"unit": "event"})))
    late, same = shown_to(node, "ann", 2)
    node.commit()
    node.rewards.assume(LATER, 0.0)
    node.commit()
    node.books.sent += 1
    before = state_of(node)
    with pytest.raises(CannotReplace, match="has sent messages since"):
        node.rewards.feedback(late, 1.0)
    assert state_of(node) == before
    assert node.rewards.feedback(same, 0.0), "the same reward changes nothing"
    node.store.close()


def test_where_the_promise_is_about_users_it_is_never_too_late(tmp_path: Path) -> None:
    node = local_node(local_settings(tmp_path))
    (late,) = shown_to(node, "ann")
    node.commit()
    node.rewards.assume(LATER, 0.0)
    node.commit()
    node.books.sent += 1
    before = node.server.stored(0).moment
    assert node.rewards.feedback(late, 1.0)
    assert not np.array_equal(node.server.stored(0).moment, before)
    node.store.close()


def test_the_printed_policy_cannot_take_it_back(tmp_path: Path) -> None:
    node = local_node(local_settings(tmp_path, model=Model(dim=DIM, policy="fclub-dc")))
    (late,) = shown_to(node, "ann")
    node.commit()
    node.rewards.assume(LATER, 0.0)
    with pytest.raises(CannotReplace, match="adds rewards up"):
        node.rewards.feedback(late, 1.0)
    node.store.close()


def test_a_forgotten_user_is_not_assumed(tmp_path: Path) -> None:
    node = local_node(local_settings(tmp_path))
    shown_to(node, "ann", 3)
    node.commit()
    node.users.forget("ann")
    node.rewards.assume(LATER, 0.0)
    node.commit()
    assert node.server.counts.tolist() == [0]
    node.store.close()


def test_a_running_server_assumes_by_itself(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, feedback=Feedback(none_after=1.0, none_is=0.5))
    with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
        shop.recommend("ann", ITEMS)
        wait_for(lambda: client.get("/v1/users/ann").json()["observations"] == 1)
        (shown,) = shop.user_data("ann")["decisions"]
        assert (shown["reward"], shown["assumed"]) == (0.5, True)
        assert shop.feedback(shown["decision"], 1.0)
        (shown,) = shop.user_data("ann")["decisions"]
        assert (shown["reward"], shown["assumed"]) == (1.0, False)
