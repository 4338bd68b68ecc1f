"""The catalogue, several answers and past data, against a running server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.parts import is_a
from typer.testing import CliRunner

from fclub import AsyncClient, Client
from fclub.cli.features import app as features_app
from fclub.cli.import_ import app
from fclub.client import Observation, Ranked
from fclub.errors import InvalidFile, InvalidInput, RequestFailed
from fclub.service.nodes.importing import learn_offline, read_past
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import check_store, local_node
from fclub.service.nodes.parts import stock as put_stock
from fclub.service.serve import local_app
from fclub.service.settings import Feedback, Http, Model
from fclub.service.store import items_file
from fclub.service.store.forgotten import DAY

from .conftest import DIM, TOKEN, local_settings, offer, serving, wait_for


def stock(count: int, seed: int = 0) -> dict[str, list[float]]:
    return {item["id"]: item["features"] for item in offer(np.random.default_rng(seed), count)}


@pytest.fixture
def shop(client: httpx.Client) -> Iterator[Client]:
    with Client(str(client.base_url), TOKEN) as shop:
        yield shop


def put(client: httpx.Client, *items: Any) -> httpx.Response:
    return client.put("/v1/items", json={"items": items})


def test_a_catalogue_is_put_read_replaced_and_deleted(shop: Client) -> None:
    items = stock(45)
    assert [shop.put_items(dict(list(items.items())[k : k + 10])) for k in range(0, 45, 10)] == (
        [10, 10, 10, 10, 5]
    )
    assert shop.items() == items
    assert shop.put_items({"item-7": [0, 0, 0, 1.0], "new": [1.0, 0, 0, 0]}) == 1
    assert shop.item("item-7") == [0, 0, 0, 1.0]
    shop.delete_item("item-7")
    for again in (shop.item, shop.delete_item):
        with pytest.raises(RequestFailed, match="404"):
            again("item-7")
    assert shop.items().keys() == items.keys() - {"item-7"} | {"new"}


def test_a_catalogue_survives_a_restart_and_many_changes(tmp_path: Path) -> None:
    settings, kept = local_settings(tmp_path), stock(0 + 10)
    for seed in range(30):
        node = local_node(settings)
        rng = np.random.default_rng(seed)
        changed = stock(7, seed)
        kept |= changed
        node.put_items(list(changed), np.array(list(changed.values())))
        gone = f"item-{rng.integers(10)}"
        if gone in node.catalogue:
            node.delete_item(gone)
            del kept[gone]
        if seed == 0:
            first = stock(10)
            node.put_items(list(first), np.array(list(first.values())))
            kept |= first
        node.store.write(node.take().statements)
        items = node.catalogue.offer()
        there = {
            k: v.tolist() for k, v, on in zip(items.ids, items.items, items.there, strict=True) if on
        }
        assert there == kept
        assert len(node.catalogue) == len(kept)
        node.store.close()


@pytest.mark.parametrize(
    ("items", "status"),
    [
        ([], 422),
        ([{"id": "", "features": [0.0] * DIM}], 422),
        ([{"id": "a", "features": [0.0] * (DIM + 1)}], 422),
        ([{"id": "a", "features": [2.0] * DIM}], 422),
        ([{"id": "a", "features": [0.1] * DIM}, {"id": "a", "features": [0.2] * DIM}], 422),
        ([{"id": str(k), "features": [0.1] * DIM} for k in range(11)], 413),
    ],
)
def test_refused_items_change_nothing(client: httpx.Client, items: list[Any], status: int) -> None:
    assert put(client, *items).status_code == status
    assert client.get("/v1/items").json() == {"count": 0, "items": [], "next": None}


def test_a_catalogue_has_a_limit(tmp_path: Path) -> None:
    http = Http(max_catalogue=3)
    with serving(local_app(local_settings(tmp_path, http=http))[0]) as client:
        items = offer(np.random.default_rng(0), 4)
        assert put(client, *items[:3]).status_code == 200
        assert put(client, items[3]).status_code == 413
        assert put(client, *items[:3]).json() == {"inserted": 0, "replaced": 3, "count": 3}


def test_the_constant_feature_is_checked(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, model=Model(dim=2, constant=0.5))
    with serving(local_app(settings)[0]) as client:
        assert put(client, {"id": "a", "features": [0.5, 0.4]}).status_code == 422
        assert put(client, {"id": "a", "features": [0.5, 0.5]}).status_code == 200


@pytest.mark.parametrize("effects", [False, True])
def test_items_by_id_are_as_good_as_with_their_features(tmp_path: Path, effects: bool) -> None:
    """Only items of the catalogue have effects of their own."""
    items, model = stock(8), Model(dim=DIM, parameters={"item_effects": effects})
    served, runner = local_app(local_settings(tmp_path, model=model))
    server: Any = is_a(LocalNode, runner.node).server
    with serving(served) as client, Client(str(client.base_url), TOKEN) as shop:
        shop.put_items(items)
        for t in range(30):
            wait_for(lambda: not server.busy)  # what is learned beside serving changes the choice
            own = shop.recommend("ann", items)
            known = shop.recommend("ann", list(items), exclude_seen=False)
            assert known.item == shop.recommend("ann", exclude_seen=False).item
            assert effects or own.item == known.item
            assert (own.index, known.index) == (int(own.item[5:]), int(known.item[5:]))
            shop.feedback(own.decision, float(t % 2))
            few = ["item-3", "item-5"]
            assert shop.recommend("ann", few, exclude_seen=False).item in few


def test_several_answers_are_the_best_and_each_takes_a_reward(shop: Client) -> None:
    items = stock(9)
    shop.put_items(items)
    for t in range(10):
        shop.feedback(shop.recommend("ann", exclude_seen=False).decision, float(t % 2))
    for asked in (items, list(items), None):
        shown = shop.recommend_several("ann", 4, asked, exclude_seen=False)
        assert len({one.decision for one in shown}) == len({one.item for one in shown}) == 4
        scores = [min(one.score, 1.0) for one in shown]
        assert scores == sorted(scores, reverse=True)
        assert shown[0].item == shop.recommend("ann", asked, exclude_seen=False).item
    assert all(shop.feedback(one.decision, 1.0) for one in shown)
    assert shop.request("GET", "/v1/users/ann")["observations"] == 14
    assert len(shop.recommend_several("bob", 20)) == 9


def test_what_a_client_cannot_ask_is_named(shop: Client) -> None:
    shop.put_items(stock(3))
    with pytest.raises(RequestFailed, match="422"):
        shop.recommend_several("ann", 0)
    with pytest.raises(InvalidInput, match="/v1/feedback cannot be asked this"):
        shop.feedback(shop.recommend("ann").decision, float("nan"))
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidInput, match="'http://host:port' is no address of a server"):
            kind("http://host:port", "token")


def test_items_are_excluded_by_id_and_when_they_were_seen(shop: Client) -> None:
    items = stock(6)
    shop.put_items(items)
    seen: list[str] = []
    for _ in range(3):
        shown = shop.recommend_several("ann", 2)
        seen += [one.item for one in shown]
    assert sorted(seen) == sorted(items)
    for asked in (items, list(items), None):
        with pytest.raises(RequestFailed, match="nothing is left to show"):
            shop.recommend("ann", asked, exclude_seen=True)
        assert list(shop.recommend_several("ann", 2, asked, exclude_seen=True)) == []
        best = shop.recommend("bob", asked, exclude_seen=False).item
        others = shop.recommend("bob", asked, exclude=[best, "unknown"], exclude_seen=False)
        assert others.item != best
    assert list(shop.recommend_several("ann", 2, list(items))) == []
    assert len(shop.recommend_several("ann", 2, items)) == 2, "these need not be the catalogue's"
    shop.forget("ann")
    assert len(shop.recommend_several("ann", 6)) == 6


def test_what_a_user_is_reported_to_have_had_counts_as_seen(shop: Client) -> None:
    shop.put_items(stock(4))
    past = [
        Observation("1", "ann", 1.0, item="item-0"),
        Observation("2", "ann", 0.0, item="item-3"),
        Observation("3", "ann", 0.0, features=stock(4)["item-1"]),
        Observation("4", "bob", 0.0, item="item-2"),
    ]
    assert shop.observe(past) == [True] * 4
    assert {one.item for one in shop.recommend_several("ann", 9)} == {"item-1", "item-2"}
    assert len(shop.recommend_several("ann", 9, exclude_seen=False)) == 4
    shop.forget("ann")
    assert len(shop.recommend_several("ann", 9)) == 4


def test_what_was_seen_may_return_after_a_time(tmp_path: Path) -> None:
    served, runner = local_app(local_settings(tmp_path, seen_days=2.0))
    assert isinstance(runner.node, LocalNode)
    with serving(served) as client, Client(str(client.base_url), TOKEN) as shop:
        shop.put_items(stock(3))
        shop.observe([Observation("1", "ann", 1.0, item="item-0")])
        assert len(shop.recommend_several("ann", 2)) == 2
        assert len(shop.recommend_several("ann", 9)) == 0
        runner.node._clock = lambda: time.time() + 3 * DAY
        assert len(shop.recommend_several("ann", 9)) == 3


def test_nobody_is_shown_what_they_have_imported(tmp_path: Path) -> None:
    """Films as the tutorial makes, serves and imports them: none of 600 is of the user's past."""
    ratings, items, log = (tmp_path / name for name in ("ratings.csv", "items.csv", "log.csv"))
    rng = np.random.default_rng(0)
    rated = [
        f"{user},{film},{1 + int(rng.integers(5))}"
        for user in range(60)
        for film in rng.choice(80, 40, replace=False)
    ]
    ratings.write_text("\n".join(["userId,movieId,rating", *rated]))
    words = [ratings, "--dim", DIM, "--size", 80, "--out", items, "--log", log]
    done = CliRunner().invoke(features_app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    dim, constant = items_file.shape_of_items(items)
    settings = local_settings(
        tmp_path,
        model=Model(dim=dim, constant=constant),
        http=Http(),
        catalogue=str(items),
    )
    with serving(local_app(settings)[0]) as client:
        code, told = run_import(log, "--url", client.base_url)
        assert code == 0
        assert told["learned"] > 600
        lines = [line.split(",") for line in log.read_text().splitlines()]
        user, item = (lines[0].index(name) for name in ("user", "item"))
        past = {(line[user], line[item]) for line in lines[1:]}
        names = sorted({name for name, _ in past})
        visits = [{"user": name, "count": 10} for name in names]
        answer = client.post("/v1/recommend/batch", json={"requests": visits}).json()["results"]
        shown = [
            (name, one["item"])
            for name, result in zip(names, answer, strict=True)
            for one in result["result"]["shown"]
        ]
    assert len(shown) == 600
    assert sum(pair in past for pair in shown) == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 200),
        ({"items": ["a"]}, 422),
        ({"items": ["a", "a"]}, 422),
        ({"items": [{"id": "a", "features": [0.1] * DIM}] * 2}, 422),
        ({"items": ["a", {"id": "b", "features": [0.1] * DIM}]}, 422),
        ({"items": [{"id": "a", "features": [0.1] * DIM}], "exclude": ["a"]}, 200),
        ({"items": [{"id": "a", "features": [0.1] * DIM}], "count": 0}, 422),
        ({"items": [{"id": "a", "features": [0.1] * DIM}], "count": 21}, 413),
        ({"items": [{"id": "a", "features": [0.1] * (DIM - 1)}], "count": 1}, 422),
    ],
)
def test_a_wish_that_shows_nothing_is_a_visit_and_no_more(
    client: httpx.Client, body: Any, status: int
) -> None:
    answer = client.post("/v1/recommend", json={"user": "ann"} | body)
    assert answer.status_code == status
    assert status > 200 or answer.json()["shown"] == []
    assert client.get("/v1/users/ann").json()["observations"] == 0
    assert client.get("/v1/users/ann/data").json()["decisions"] == []


def test_a_batch_may_ask_for_several(client: httpx.Client) -> None:
    put(client, *offer(np.random.default_rng(0), 5))
    requests = [
        {"user": "a"},
        {"user": "a", "count": 2, "exclude_seen": True},
        {"user": "b", "items": ["x"]},
    ]
    results = client.post("/v1/recommend/batch", json={"requests": requests}).json()["results"]
    assert [entry["status"] for entry in results] == [200, 200, 422]
    first, (second, third) = results[0]["result"], results[1]["result"]["shown"]
    assert len({first["item"], second["item"], third["item"]}) == 3


def test_a_large_catalogue_is_scored_beside_other_requests(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20_000, DIM))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    file = tmp_path / "items.csv"
    lines = [
        ",".join(["id", *"abcd"]),
        *(f"item-{k}," + ",".join(map(repr, row)) for k, row in enumerate(rows.tolist())),
    ]
    file.write_text("\n".join(lines))
    settings = local_settings(tmp_path, catalogue=str(file))
    for _ in range(2):
        with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
            assert len(shop.recommend_several("ann", 5)) == 5

            async def many() -> list[list[Ranked]]:
                async with AsyncClient(str(client.base_url), TOKEN) as shop:
                    assert (await shop.item("item-3")) == rows[3].tolist()
                    return await asyncio.gather(*(shop.recommend_several(f"u{k}", 3) for k in range(8)))

            assert {one[0].item for one in asyncio.run(many())} == {shop.recommend("new").item}
    assert check_store(settings)["users"] == 10


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the first line must be id and 4 names"),
        ("id,a,b,c\n", "the first line"),
        ("id,a,b,c,d\nx,1,0,0\n", "line 2: expected 5 fields"),
        ("id,a,b,c,d\nx,1,0,0,0\ny,1,0,0,word\n", "line 3: could not convert"),
        ("id,a,b,c,d\nx,1,0,0,0\ny,1,1,0,0\n", "line 3: features have norm"),
        ("id,a,b,c,d\nx,1,0,0,0\nx,1,0,0,0\n", "an id of its own"),
        (f"id,a,b,c,d\n{'x' * 257},1,0,0,0\n", "an id has at most 256 characters"),
        ("id,a,b,c,d\nx,1,0,0,0\ny,1,0,0,0\n", "may have 1 items"),
        ("id,a,b,c,d\n", "no item"),
    ],
)
def test_a_wrong_file_of_items_is_named(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "items.csv"
    file.write_text(text)
    http = Http(max_catalogue=1)
    for path, said in ((file, reason), (tmp_path / "missing.csv", "No such file")):
        with pytest.raises(InvalidFile, match=said):
            local_app(local_settings(tmp_path, catalogue=str(path), http=http))


def test_past_data_count_once_and_are_one_state_with_live_ones(shop: Client, tmp_path: Path) -> None:
    shop.put_items({"a": [1.0, 0, 0, 0]})
    past = [
        Observation("1", "ann", 1.0, item="a"),
        Observation("2", "ann", 0.0, features=[0, 1.0, 0, 0]),
        Observation("1", "ann", 1.0, item="a"),
        Observation("1", "ann", 0.5, item="a"),
        Observation("1", "bob", 1.0, item="a"),
        Observation("3", "ann", 1.0, item="b"),
        Observation("4", "ann", 1.0),
        Observation("5", "ann", 1.0, item="a", features=[0, 1.0, 0, 0]),
        Observation("6", "ann", 1.0, features=[2.0, 0, 0, 0]),
    ]
    for new in (True, False):
        first, second, *rest = shop.observe(past)
        assert (first, second, rest[0]) == (new, new, False)
        assert [error.status for error in rest[1:] if isinstance(error, RequestFailed)] == [
            409,
            409,
            422,
            422,
            422,
            422,
        ]
    data = shop.user_data("ann")
    assert data["statistics"]["observations"] == 2
    assert data["past"] == [
        {"id": "1", "reward": 1.0, "item": "a"},
        {"id": "2", "reward": 0.0, "item": None},
    ]
    bob = shop.user_data("bob")
    assert (bob["statistics"]["observations"], bob["past"]) == (0, [])
    shop.feedback(shop.recommend("ann", exclude_seen=False).decision, 1.0)
    assert shop.forget("ann").observations == 3
    assert shop.observe(past[:1]) == [True]


def test_past_data_survive_a_restart(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    past = [Observation(str(k), f"u{k % 3}", float(k % 2), features=[1.0, 0, 0, 0]) for k in range(30)]
    for new in (True, False):
        with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
            for k in range(0, 30, 10):
                assert shop.observe(past[k : k + 10]) == [new] * 10
    assert check_store(settings)["observations"] == 30


def test_the_same_of_an_async_client(client: httpx.Client) -> None:
    async def use() -> None:
        async with AsyncClient(str(client.base_url), TOKEN) as shop:
            items = stock(5)
            assert await shop.put_items(items) == 5
            assert await shop.items() == items
            await shop.delete_item("item-4")
            one = await shop.recommend("ann", exclude=["item-0"])
            assert one.item in {"item-1", "item-2", "item-3"}
            assert len(await shop.recommend_several("ann", 9, exclude_seen=True)) == 3
            assert len(await shop.recommend_several("ann", 9)) == 0
            assert await shop.observe([Observation("x", "ann", 1.0, item="item-1")]) == [True]

    asyncio.run(use())


def test_the_example_of_a_shop_runs(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "shop.py"
    assert len(example.read_text().splitlines()) <= 60
    settings = local_settings(
        tmp_path,
        model=Model(dim=10),
        http=Http(),
        feedback=Feedback(events={"view": 0.1, "buy": 1.0}),
    )
    with serving(local_app(settings)[0]) as client:
        command = [sys.executable, str(example), str(client.base_url), TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "of 100 visitors bought" in done.stdout
        assert "customer-16 is forgotten; 0 of" in done.stdout
        assert client.get("/v1/users/customer-16").status_code == 404
        decisions = client.get("/v1/users/customer-8/data").json()["decisions"]
        assert len(decisions) % 5 == 0
        assert {one["reward"] for one in decisions} == {0.1, 1.0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    lines = [f"u{k % 3},item-{k % 4},{k % 2}" for k in range(30)]
    path.write_text("\n".join(["user_id,item,click", *lines]))
    return path


def run_import(*words: object) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"], env={"FCLUB_TOKEN": TOKEN})
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.exception


def test_a_log_is_imported_by_address_and_into_a_store(tmp_path: Path, log: Path) -> None:
    settings = local_settings(tmp_path, http=Http())
    with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
        shop.put_items(stock(3))
        code, told = run_import(log, "--url", client.base_url)
        assert (code, told) == (1, {"learned": 23, "known": 0, "refused": 7})
        shop.put_items(stock(4))
        code, told = run_import(log, "--url", client.base_url)
        assert (code, told) == (0, {"learned": 7, "known": 23, "refused": 0})
    assert run_import(log, "--store", settings.store)[1]["known"] == 30
    again = log.rename(tmp_path / "other.csv")
    again.write_text(again.read_text() + "\nu1,none,1\n")
    assert run_import(again, "--store", settings.store) == (
        1,
        {"learned": 30, "known": 0, "refused": 1},
    )
    assert check_store(settings)["observations"] == 60


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("user,reward\na,1\n", "no column called item or item_id"),
        ("user,item,reward\na,b,1\na,b,inf\n", "line 3: expected a user"),
        ("user,item,reward\na,b,x\n", "line 2"),
        ("user,item,reward\n,b,1\n", "line 2"),
    ],
)
def test_a_wrong_log_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=reason):
        list(read_past(path))
    with pytest.raises(InvalidFile, match="No such file"):
        list(read_past(tmp_path / "missing.csv"))


def test_names_that_no_request_may_have_are_not_imported_either(tmp_path: Path) -> None:
    """Over HTTP a user has at most 128 bytes and an id 256 characters; a file is no way around that."""
    settings = local_settings(tmp_path, http=Http())
    node = local_node(settings)
    node.put_items(["a"], np.eye(DIM)[:1])
    node.commit()
    node.store.close()
    path, long = tmp_path / "long.csv", "ü" * 65
    lines = [f"1,{long},a,1", f"2,{'u' * 128},a,1", f"{'i' * 257},ann,a,1", "3,ann,a,1"]
    path.write_text("\n".join(["id,user,item,reward", *lines]))
    results = learn_offline(Path(settings.store), read_past(path))
    assert [str(one) for one in results] == [
        "a user has at most 128 bytes",
        "True",
        "an id has from 1 to 256 characters",
        "True",
    ]
    assert all(isinstance(one, InvalidInput) for one in results[::2])
    assert check_store(settings)["users"] == 2
    code, told = run_import(path, "--store", settings.store)
    assert (code, told) == (1, {"learned": 0, "known": 2, "refused": 2})


def test_an_import_needs_one_place(log: Path) -> None:
    assert str(run_import(log)[1]) == "import needs one of --url, --store and --dir"
    assert "has no running federation" in str(run_import(log, "--dir", str(log.parent))[1])


def test_the_shape_of_a_catalogue_is_in_its_first_lines(tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text("id,x1,constant\na,0.1,0.5\n")
    assert items_file.shape_of_items(file) == (2, 0.5)
    file.write_text("id,x1,x2\na,0.1,0.5\n")
    assert items_file.shape_of_items(file) == (2, None)
    file.write_text("id\n")
    with pytest.raises(InvalidFile, match="names of features"):
        items_file.shape_of_items(file)
    with pytest.raises(InvalidFile, match="No such file"):
        items_file.shape_of_items(tmp_path / "missing.csv")


def test_a_file_of_items_may_quote_and_goes_in_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items_file, "AT_ONCE", 3)
    file = tmp_path / "items.csv"
    lines = [*(f"i{k},{k / 10},0,0,0" for k in range(7)), '"a, b",1,0,0,0', '"two\nlines",0,1,0,0']
    file.write_text("\n".join(["id,a,b,c,d", *lines, *(f"j{k},{k / 10},0,0,0" for k in range(4))]))
    settings = local_settings(tmp_path, catalogue=str(file))
    for _ in range(2):
        node = local_node(settings)
        put_stock(node, settings)
        assert len(node.catalogue) == 13
        version = node.catalogue.version
        found = node.catalogue.features("a, b"), node.catalogue.features("two\nlines")
        assert [x is not None and x.tolist() for x in found] == [[1.0, 0, 0, 0], [0, 1.0, 0, 0]]
        node.store.close()
    assert version == 5, "what is known is not put again"
    file.write_text(file.read_text().replace("j2,0.2", "j2,word"))
    with pytest.raises(InvalidFile, match="line 14"):
        put_stock(local_node(settings), settings)
