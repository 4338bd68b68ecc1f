"""Several events of one decision, whose reward grows until it is final."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fclub import AsyncClient, Client
from fclub.client import Event
from fclub.errors import CannotReplace, InvalidSetting, OtherReward, RequestFailed
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import check_store, local_node
from fclub.service.serve import local_app
from fclub.service.settings import Feedback, LocalSettings, Model, load_settings

from .conftest import DIM, TOKEN, local_settings, serving

ITEMS = {"a": [1.0, 0, 0, 0], "b": [0, 1.0, 0, 0]}
VALUES = {"view": 1.0, "click": 2.0, "purchase": 5.0}


def shown_to(node: LocalNode, user: str = "ann") -> str:
    decision = node.recommend(user, np.array(list(ITEMS.values())), list(ITEMS)).id
    node.commit()
    return decision


def state_of(node: LocalNode) -> dict[str, bytes]:
    return {key: array.tobytes() for key, array in node.server.state()[0].items()}


@pytest.mark.parametrize(
    ("how", "told", "wanted"),
    [
        ("max", [("click", None), ("view", None)], [2.0, 2.0]),
        ("sum", [("view", None), ("click", 1.5), ("purchase", None)], [1.0, 2.5, 5.0]),
        ("last", [("purchase", None), ("view", 1.25)], [5.0, 1.25]),
    ],
)
def test_the_reward_is_what_is_declared_of_the_events(
    tmp_path: Path, how: Any, told: list[tuple[str, float | None]], wanted: list[float]
) -> None:
    settings = local_settings(
        tmp_path,
        model=Model(dim=DIM, reward=(0.5, 5.0)),
        feedback=Feedback(events=VALUES, reward_is=how),
    )
    with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
        decision = shop.recommend("ann", ITEMS).decision
        for (name, value), reward in zip(told, wanted, strict=True):
            assert shop.event(decision, name, value)
            assert not shop.event(decision, name, value), "a repeated request counts once"
            (stored,) = shop.user_data("ann")["decisions"]
            assert stored["reward"] == pytest.approx(reward)
            assert stored["assumed"] is False
        assert [one["event"] for one in stored["events"]] == [name for name, _ in told]
        assert shop.user_data("ann")["statistics"]["observations"] == 1
        assert shop.forget("ann").observations == 1
    assert check_store(settings)["observations"] == 0


def test_one_that_grew_is_learned_as_if_it_had_come_at_once(tmp_path: Path) -> None:
    """Bit by bit, and a restart replays it."""
    settings = local_settings(tmp_path)
    node = local_node(settings)
    decision = shown_to(node)
    for name, value in (("view", 0.25), ("click", 0.5), ("purchase", 1.0)):
        assert node.rewards.event(decision, name, value, max)
        if name == "purchase":
            node.commit()
    moment, before = node.server.stored(0).moment, state_of(node)
    assert node.server.counts.tolist() == [1]
    node.store.close()
    again = local_node(settings)
    assert state_of(again) == before
    assert not again.rewards.event(decision, "click", 0.5, max)
    with pytest.raises(OtherReward, match="a click of another value"):
        again.rewards.event(decision, "click", 0.75, max)
    again.store.close()
    other = local_node(local_settings(tmp_path, store=str(tmp_path / "other.db")))
    other.rewards.feedback(shown_to(other), 1.0)
    np.testing.assert_allclose(other.server.stored(0).moment, moment, atol=1e-12)
    other.store.close()
    assert check_store(settings)["observations"] == 1


def test_what_may_have_left_does_not_grow_any_more_where_the_promise_is_about_rewards(
    tmp_path: Path,
) -> None:
    node = local_node(local_settings(tmp_path, model=Model(dim=DIM, parameters={"unit": "event"})))
    decision = shown_to(node)
    node.rewards.event(decision, "click", 0.5, max)
    node.commit()
    node.books.sent += 1
    before = state_of(node)
    with pytest.raises(CannotReplace, match="has sent messages since"):
        node.rewards.event(decision, "purchase", 1.0, max)
    assert node.rewards.event(decision, "view", 0.1, max), "that changes no reward"
    with pytest.raises(CannotReplace):
        node.rewards.feedback(decision, 1.0)
    assert state_of(node) == before
    node.store.close()


def test_it_is_final_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = local_node(local_settings(tmp_path))
    decision = shown_to(node)
    node.rewards.event(decision, "click", 0.5, max, final_after=60.0)
    monkeypatch.setattr("fclub.service.nodes.local_node.time.time", lambda: 9e9)
    with pytest.raises(CannotReplace, match="is final"):
        node.rewards.event(decision, "purchase", 1.0, max, final_after=60.0)
    assert not node.rewards.event(decision, "click", 0.5, max, final_after=60.0)
    node.store.close()


def test_events_and_rewards_go_together(tmp_path: Path) -> None:
    """An event takes the place of an assumed reward; a reward is the last word."""
    node = local_node(local_settings(tmp_path))
    silent, rewarded, grown = (shown_to(node) for _ in range(3))
    node.rewards.feedback(rewarded, 0.0)
    node.rewards.event(grown, "click", 0.5, max)
    node.commit()
    node.rewards.assume(9e9, 0.25)
    assert node.rewards.event(silent, "click", 0.5, max)
    with pytest.raises(OtherReward, match="already has a reward"):
        node.rewards.event(rewarded, "click", 0.5, max)
    assert node.rewards.feedback(grown, 1.0)
    node.commit()
    with pytest.raises(OtherReward):
        node.rewards.event(grown, "purchase", 1.0, max)
    assert node.server.counts.tolist() == [3]
    found = [node.decisions.find(bytes.fromhex(key)) for key in (silent, rewarded, grown)]
    assert [one.reward for one in found if one] == [0.5, 0.0, 1.0]
    node.store.close()


@pytest.fixture
def client(tmp_path: Path) -> Any:
    feedback = Feedback(events={"click": 0.5, "purchase": 1.0})
    with serving(local_app(local_settings(tmp_path, feedback=feedback))[0]) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "either a reward or an event"),
        ({"reward": 1.0, "event": "click"}, "either a reward or an event"),
        ({"reward": 1.0, "value": 1.0}, "a value belongs to an event"),
        ({"event": "sneeze"}, r"feedback.events (click, purchase), got 'sneeze'"),
        ({"event": "click", "value": 2.0}, "reward 2 is not from 0 to 1"),
    ],
)
def test_what_is_no_feedback_is_named(client: httpx.Client, body: dict[str, Any], reason: str) -> None:
    with Client(str(client.base_url), TOKEN) as shop:
        decision = shop.recommend("ann", ITEMS).decision
        answer = client.post("/v1/feedback", json={"decision": decision} | body)
        assert answer.status_code == 422
        assert reason in answer.json()["error"]
        assert shop.user_data("ann")["decisions"][0]["reward"] is None


def test_batches_and_the_async_client_tell_events(client: httpx.Client) -> None:
    async def play() -> None:
        async with AsyncClient(str(client.base_url), TOKEN, split=True) as shop:
            first = (await shop.recommend("ann", ITEMS)).decision
            second = (await shop.recommend("bob", ITEMS)).decision
            assert await shop.event(first, "click")
            told = [Event(first, "purchase"), Event(second, "click", 0.75), Event("00", "click")]
            *known, unknown = await shop.event_batch(told)
            assert known == [True, True]
            assert isinstance(unknown, RequestFailed)
            assert (await shop.user_data("ann"))["decisions"][0]["reward"] == 1.0

    asyncio.run(play())


def test_values_are_in_the_range_of_rewards() -> None:
    given = {"store": "a.db", "model.dim": 3, "feedback.events": {"click": 2.0}}
    with pytest.raises(InvalidSetting, match="click must be in the range"):
        load_settings(LocalSettings, None, given, {})
