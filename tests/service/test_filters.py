"""Filters, boosts, limits by category, scores, similar and popular items, against a running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fclub import Client
from fclub.client import Observation, Recommendation, Several, Visit
from fclub.errors import RequestFailed
from fclub.service.http import shop as routes
from fclub.service.serve import local_app
from fclub.service.settings import Http, Model

from .conftest import DIM, TOKEN, local_settings, offer, serving


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(local_app(local_settings(tmp_path, http=Http()))[0]) as client:
        yield client


@pytest.fixture
def shop(client: httpx.Client) -> Iterator[Client]:
    with Client(str(client.base_url), TOKEN) as shop:
        yield shop


def stock(count: int) -> dict[str, list[float]]:
    """Items of different lengths: no two have the same score."""
    items = offer(np.random.default_rng(0), count)
    return {
        item["id"]: [(1.0 - k / 2 / count) * value for value in item["features"]]
        for k, item in enumerate(items)
    }


def shelf(count: int = 12) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
    """Items in three categories, at prices from 0 on; the last one is not there yet."""
    items = stock(count)
    attributes: dict[str, dict[str, Any]] = {
        key: {"categories": ["abc"[k % 3]], "numbers": {"price": float(k)}}
        for k, key in enumerate(items)
    }
    attributes["item-0"]["tags"] = ["new"]
    attributes[f"item-{count - 1}"]["available_from"] = 9e9
    return items, attributes


def test_items_have_attributes_that_filters_go_by(client: httpx.Client, shop: Client) -> None:
    items, attributes = shelf()
    shop.put_items(items, attributes)
    assert shop.request("GET", "/v1/items/item-0") == {
        "id": "item-0",
        "features": items["item-0"],
        "categories": ["a"],
        "tags": ["new"],
        "numbers": {"price": 0.0},
    }
    assert [one["categories"] for one in shop.request("GET", "/v1/items")["items"]][:2] == [
        ["a"],
        ["b"],
    ]

    def found(where: dict[str, Any], asked: list[str] | None = None) -> set[str]:
        shown = shop.recommend_several("ann", 20, asked, where=where, exclude_seen=False)
        return {one.item for one in shown}

    assert found({"category": "b"}) == {"item-1", "item-4", "item-7", "item-10"}
    assert found({"category": "c"}) == {"item-2", "item-5", "item-8"}, "one is not available yet"
    cheap = {"number": "price", "max": 4}
    assert found({"and": [{"category": "a"}, {"not": {"tag": "new"}}, cheap]}) == {"item-3"}
    assert found({"or": [{"tag": "new"}, {"number": "price", "min": 10}]}) == {"item-0", "item-10"}
    assert found({"category": "a"}, ["item-1", "item-3", "item-11"]) == {"item-3"}
    assert found({"not": {"or": []}}, ["item-1", "item-11"]) == {"item-1"}
    assert shop.recommend("bob", where={"tag": "new"}).item == "item-0"
    with pytest.raises(RequestFailed, match="nothing is left"):
        shop.recommend("bob", where={"tag": "new"})
    shop.put_items({"item-1": items["item-1"]})
    shop.delete_item("item-4")
    assert found({"category": "b"}) == {"item-7", "item-10"}
    for wrong in ({}, {"category": "a", "tag": "b"}, {"colour": "red"}, {"category": 1}):
        with pytest.raises(RequestFailed, match="422"):
            found(wrong)
    with pytest.raises(RequestFailed, match="422: only items of the catalogue have categories"):
        shop.recommend("ann", items, where={"tag": "new"})
    deep = b'{"user": "ann", "filter": %s{}%s}' % (b'{"not":' * 5000, b"}" * 5000)
    assert client.post("/v1/recommend", content=deep).status_code == 400


def test_attributes_survive_a_restart_and_many_changes(tmp_path: Path) -> None:
    settings, where = local_settings(tmp_path, http=Http()), {"category": "b"}
    items, attributes = shelf(90)
    for _ in range(2):
        with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
            for _ in range(3):
                shop.put_items(items, attributes)
                shown = shop.recommend_several("ann", 99, where=where, exclude_seen=False)
                assert {int(one.item[5:]) for one in shown} == set(range(1, 90, 3))
        with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
            shown = shop.recommend_several("ann", 99, where=where, exclude_seen=False)
            assert {int(one.item[5:]) for one in shown} == set(range(1, 90, 3))


def test_boosts_and_a_limit_by_category_change_the_order(shop: Client) -> None:
    items, attributes = shelf()
    shop.put_items(items, attributes)
    asked: dict[str, Any] = {"exclude_seen": False}
    plain = [one.item for one in shop.recommend_several("ann", 20, **asked)]
    every = shop.recommend_several("ann", 20, boosts={}, **asked)
    assert [one.item for one in every] == plain
    last = plain[-1]
    for boosts in ({"items": {last: 100.0, "none": 2.0}}, {"items": dict.fromkeys(plain[:-1], 0.01)}):
        assert shop.recommend("ann", boosts=boosts, **asked).item == last
        assert shop.recommend("ann", [plain[0], last], boosts=boosts, **asked).item == last
        own = {key: items[key] for key in plain}
        assert shop.recommend("ann", own, boosts=boosts).item == last
    first = shop.recommend_several("ann", 4, boosts={"categories": {"b": 100.0}}, **asked)
    assert {one.item for one in first} == {"item-1", "item-4", "item-7", "item-10"}
    two = shop.recommend_several("ann", 20, most_per_category=2, **asked)
    assert sorted(int(one.item[5:]) % 3 for one in two) == [0, 0, 1, 1, 2, 2]
    assert [one.item for one in two] == [key for key in plain if key in {one.item for one in two}]
    three = shop.recommend_several(
        "ann", 20, ["item-3", "item-6", "item-1"], most_per_category=1, **asked
    )
    assert len(three) == 2
    for wrong in ({"items": {"a": 0.0}}, {"categories": {"a": 101.0}}, {"tags": {"a": 2.0}}):
        with pytest.raises(RequestFailed, match="422"):
            shop.recommend("ann", boosts=wrong)


def test_scores_tell_mean_and_deviation(shop: Client) -> None:
    """What the policy hopes for of a newcomer is not cut off at the largest reward."""
    shop.put_items(stock(9))
    shown = shop.recommend_several("new", 5)
    assert len({one.score for one in shown}) == 5
    for one in shown:
        assert one.score == pytest.approx(one.mean + one.deviation)
        assert one.deviation > 0.0
    for _ in range(40):
        again = shop.recommend("new", ["item-0"], exclude_seen=False)
        shop.feedback(again.decision, 1.0)
    (known,) = shop.recommend_several("new", 1, ["item-0"], exclude_seen=False)
    (before,) = [one for one in shop.recommend_several("other", 9) if one.item == "item-0"]
    assert known.deviation < before.deviation
    assert known.mean > before.mean


def test_similar_items_have_similar_features(shop: Client) -> None:
    items, attributes = shelf()
    shop.put_items(items | {"a/similar": [0.0, 0.0, 0.0, 1.0]}, attributes)
    rows = {key: np.array(row) for key, row in items.items()}

    def cosine(key: str) -> float:
        x, y = rows["item-2"], rows[key]
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    others = sorted(rows.keys() - {"item-2", "item-11"}, key=cosine, reverse=True)
    found = [one for one in shop.similar("item-2", 20) if one.item in rows]
    assert [one.item for one in found] == others
    assert [one.similarity for one in found] == pytest.approx([cosine(key) for key in others])
    assert [one.item for one in shop.similar("item-2", 1, "b")] == [
        key for key in others if int(key[5:]) % 3 == 1
    ][:1]
    assert shop.item("a/similar") == [0.0, 0.0, 0.0, 1.0]
    assert len(shop.similar("a/similar")) == 10
    for wrong, status in (("item-2/similar?count=0", 422), ("item-2/similar?count=x", 422)):
        with pytest.raises(RequestFailed, match=str(status)):
            shop.request("GET", f"/v1/items/{wrong}")
    with pytest.raises(RequestFailed, match="413"):
        shop.similar("item-2", 1001)
    with pytest.raises(RequestFailed, match="404"):
        shop.similar("none")


def test_popular_items_are_those_that_most_like(shop: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "FRESH_SECONDS", 0.0)
    items, attributes = shelf(4)
    shop.put_items(items, attributes)
    assert shop.popular() == []
    for k in range(6):
        decision = shop.recommend(f"u{k}", ["item-1"]).decision
        shop.feedback(decision, 1.0)
        shop.observe([Observation(str(k), f"u{k}", 0.0, item="item-0")])
    mean = 7 / 14
    first, second = shop.popular()
    assert (first.item, first.observations) == ("item-1", 6)
    assert first.rate == pytest.approx((10 * mean + 6) / 16)
    assert second.rate == pytest.approx((10 * mean) / 16)
    assert [one.item for one in shop.popular(1)] == ["item-1"]
    assert [one.item for one in shop.popular(category="a")] == ["item-0"]
    shop.delete_item("item-1")
    shop.forget("u0")
    (left,) = shop.popular()
    assert (left.item, left.observations) == ("item-0", 5)


def test_nothing_is_told_of_popularity_at_level_interactive(tmp_path: Path) -> None:
    model = Model(dim=DIM, parameters={"level": "interactive"})
    with serving(local_app(local_settings(tmp_path, model=model))[0]) as client:
        answer = client.get("/v1/popular")
        assert answer.status_code == 403
        assert "use level transcript" in answer.json()["error"]


def test_a_batch_takes_what_single_requests_take(shop: Client) -> None:
    items, attributes = shelf()
    shop.put_items(items, attributes)
    one, several, refused = shop.recommend_batch(
        [
            Visit("ann", where={"tag": "new"}),
            Visit("bob", count=20, most_per_category=1, boosts={"items": {"item-6": 100.0}}),
            ("cat", ["none"]),
        ]
    )
    assert isinstance(one, Recommendation)
    assert one.item == "item-0"
    assert isinstance(several, Several)
    assert (several[0].item, len(several)) == ("item-6", 3)
    assert isinstance(refused, RequestFailed)
