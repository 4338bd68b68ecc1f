"""What clusters like, what an item is thought of, and what a user would be shown, for the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from fclub import Client
from fclub.client import Observation
from fclub.errors import NotFound
from fclub.service.http.choosing import Chooser
from fclub.service.http.shop import Shop
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import local_node
from fclub.service.serve import local_app
from fclub.service.settings import Http, LocalSettings, Model
from fclub.service.store.popular import likes_by_cluster

from .conftest import ADMIN, DIM, TOKEN, local_settings, offer, serving, wait_for

ITEMS = {one["id"]: one["features"] for one in offer(np.random.default_rng(0), 6)}
SORTS: dict[str, Any] = {
    key: {"categories": ["tea" if k < 2 else "cake"], "tags": ["new"]} for k, key in enumerate(ITEMS)
}


def told(client: httpx.Client, path: str) -> Any:
    answer = client.get(path, headers=ADMIN)
    assert answer.is_success, answer.text
    return answer.json()


def visited(shop: Client) -> None:
    """Users 0 to 2 like item-1, users 3 to 5 item-2; two of them also had item-0, and liked it not."""
    shop.put_items(ITEMS, SORTS)
    for k in range(6):
        liked = "item-1" if k < 3 else "item-2"
        shop.observe([Observation(f"past-{k}", f"u{k}", 1.0, item=liked)])
    for k in (0, 3):
        shop.feedback(shop.recommend(f"u{k}", ["item-0"]).decision, 0.0)


def test_what_a_cluster_likes_is_shrunk_towards_what_everybody_likes(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    app, runner = local_app(settings)
    assert isinstance(runner.node, LocalNode)
    with serving(app) as client, Client(str(client.base_url), TOKEN) as shop:
        visited(shop)
        rows = runner.node.users.rows
        cluster_of = np.array([rows[f"u{k}"] >= 3 for k in range(6)], dtype=np.int64)
        likes = likes_by_cluster(Path(settings.store), cluster_of, [1, 0])
    rates, place = likes.rates(), {name: k for k, name in enumerate(likes.names)}
    everybody = (10 * 7 / 10 + 3) / 13
    assert rates[2, place["item-2"]] == pytest.approx(everybody)
    assert rates[0, place["item-2"]] == pytest.approx((10 * everybody + 3) / 13)
    assert rates[1, place["item-2"]] == pytest.approx(everybody)
    assert [likes.names[k] for k in likes.best(rates, 0, 5)] == ["item-2", "item-0"]
    assert [likes.names[k] for k in likes.best(rates, 1, 1)] == ["item-1"]
    assert likes.counts[2].sum() == 8


def test_pages_tell_what_clusters_like(tmp_path: Path) -> None:
    with serving(local_app(local_settings(tmp_path, http=Http()))[0]) as client:
        assert told(client, "/v1/clusters/liked")["clusters"] == []
        with Client(str(client.base_url), TOKEN) as shop:
            visited(shop)
            shop.delete_item("item-2")
        routes = "fclub.service.http.shop.FRESH_SECONDS"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(routes, 0.0)
            (one,) = told(client, "/v1/clusters/liked?count=5")["clusters"]
            liked = told(client, "/v1/items/item-1/liked")
        assert (one["users"], one["share"]) == (6, 1.0)
        names = [(found["name"], found["observations"]) for found in one["items"]]
        assert names == [("item-1", 3), ("item-0", 2)]
        sorts = {found["name"]: found["observations"] for found in one["categories"]}
        assert sorts == {"tea": 5}
        assert liked["item"]["categories"] == ["tea"]
        assert [found["cluster"] for found in liked["opinions"]] == [one["cluster"], None]
        assert [found["observations"] for found in liked["opinions"]] == [3, 3]
        assert len(liked["similar"]) == 4
        assert client.get("/v1/items/none/liked", headers=ADMIN).status_code == 404


@pytest.mark.parametrize("policy", ["fclub-dc", "fclub-plus"])
def test_a_preview_is_what_is_shown_next_and_changes_nothing(policy: str, tmp_path: Path) -> None:
    model = Model(dim=DIM, policy=policy)
    app, runner = local_app(local_settings(tmp_path, model=model, http=Http()))
    node = runner.node
    assert isinstance(node, LocalNode)
    with serving(app) as client, Client(str(client.base_url), TOKEN) as shop:
        visited(shop)
        wait_for(lambda: not node.server.busy)
        before = told(client, "/v1/users/u0"), node.journal.entry
        found = told(client, "/v1/users/u0/preview?count=3")
        assert (told(client, "/v1/users/u0"), node.journal.entry) == before
        assert found["observations"] == 2
        shown = shop.recommend_several("u0", 3)
        numbers = [(one.item, one.score, one.mean, one.deviation) for one in shown]
        keys = ("item", "score", "mean", "deviation")
        assert numbers == [tuple(one[key] for key in keys) for one in found["items"]]
        rest = told(client, "/v1/users/u0/preview?category=tea")
        assert rest["items"] == []
        effect = told(client, "/v1/items/item-0/liked")["effect"]
        assert (effect is None) == (policy == "fclub-dc")
        assert effect is None or (effect["mean"] < 0.0 and 0.0 < effect["deviation"] < 1.0)
        for path in ("/v1/users/nobody/preview", "/v1/users/u0/preview?count=0"):
            assert client.get(path, headers=ADMIN).status_code in (404, 422)


class Meanwhile:
    """A commit during which something else happens, once."""

    def __init__(self, node: LocalNode, what: Callable[[], Any]) -> None:
        self._node, self._what = node, [what]

    async def commit(self) -> None:
        while self._what:
            self._what.pop()()
        self._node.commit()


def shop_of(path: Path) -> tuple[LocalSettings, LocalNode, Shop, Any]:
    """The routes of a shop that is not served, and a request for one of its items."""
    settings = local_settings(path, model=Model(dim=DIM, policy="fclub-plus"))
    node = local_node(settings)
    node.put_items([*ITEMS], np.array([*ITEMS.values()]))
    for k, item in enumerate(ITEMS):
        node.rewards.learn_past(f"past-{k}", "ann", np.array(ITEMS[item]), k % 2, item)
    node.commit()
    asked = SimpleNamespace(query_params={}, path_params={"item": "item-1"})
    nothing: Any = None
    shop = Shop(settings, node, nothing, nothing, lambda handle, entry: handle(entry))
    return settings, node, shop, asked


def test_the_catalogue_may_change_while_likes_are_counted(tmp_path: Path) -> None:
    _, node, shop, asked = shop_of(tmp_path)
    again = partial(node.put_items, [*ITEMS], np.array([*ITEMS.values()]))
    shop.runner = shop._likes._runner = cast(Any, Meanwhile(node, again))
    (one,) = asyncio.run(shop.liked(asked)).clusters
    assert {found.name for found in one.items} == {*ITEMS}
    gone = partial(node.delete_item, "item-1")
    shop.runner, shop._likes._runner = (cast(Any, Meanwhile(node, what)) for what in (int, gone))
    shop._likes._found = None
    assert asyncio.run(shop.opinions(asked)).effect is None
    node.store.close()


def test_who_is_forgotten_meanwhile_is_no_user_of_a_preview(tmp_path: Path) -> None:
    settings, node, _, _ = shop_of(tmp_path)
    gone = cast(Any, Meanwhile(node, partial(node.users.forget, "ann")))
    with pytest.raises(NotFound, match="there is no user 'ann'"):
        asyncio.run(Chooser(settings, node, gone).preview("ann", 3, None))
    assert not node.users.rows
    node.store.close()


def test_at_level_interactive_only_previews_are_told(tmp_path: Path) -> None:
    model = Model(dim=DIM, parameters={"level": "interactive"})
    with (
        serving(local_app(local_settings(tmp_path, model=model, http=Http()))[0]) as client,
        Client(str(client.base_url), TOKEN) as shop,
    ):
        visited(shop)
        for path in ("/v1/clusters/liked", "/v1/items/item-1/liked"):
            assert client.get(path, headers=ADMIN).status_code == 403
        assert told(client, "/v1/users/u0/preview")["items"]
