"""Effects of items, live: what is in memory is always the sum over what is kept."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fclub import Client
from fclub.core.items import ItemBook
from fclub.errors import WasForgotten
from fclub.service.nodes.importing import learn_offline
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import local_node
from fclub.service.serve import local_app
from fclub.service.settings import LocalSettings, Model
from fclub.service.store.store import Store

from .conftest import DIM, TOKEN, local_settings, serving

IDS = ["a", "b", "c", "d", "e"]
LATER = 4e9


def plus(path: Path, policy: str = "fclub-plus", **changes: Any) -> LocalSettings:
    parameters = {"level": changes.pop("level")} if "level" in changes else {}
    model = Model(dim=DIM, policy=policy, parameters=parameters)
    return local_settings(path, model=model, **changes)


def opened(settings: LocalSettings) -> LocalNode:
    node = local_node(settings)
    if not len(node.catalogue):
        rows = np.random.default_rng(0).standard_normal((len(IDS), DIM)) / 4
        node.put_items(IDS, rows)
    return node


def known(node: LocalNode) -> dict[str, tuple[int, int]]:
    """Number and sum of the residuals of every item, in the catalogue or not."""
    book = node.catalogue.book
    assert book is not None
    places = node.catalogue.places(IDS)
    sums = node.catalogue.effects_at(places)
    found = {
        key: (int(sums.counts[k]), int(sums.sums[k])) for k, key in enumerate(IDS) if places[k] >= 0
    }
    found |= {key: own[:2] for key, own in book._elsewhere.items()}
    return {key: own for key, own in found.items() if own[0]}


def kept(node: LocalNode) -> dict[str, tuple[int, int]]:
    """The same from the store, reward by reward."""
    node.commit()
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for table in ("decisions", "past"):
        sql = f"SELECT item, reward, expected FROM {table} WHERE expected IS NOT NULL"
        for item, reward, expected in node.store.reader.execute(sql):
            if reward is not None:
                sums[item][0] += 1
                sums[item][1] += int(np.floor(reward * 2**16 + 0.5)) - expected
    return {item: (one, two) for item, (one, two) in sums.items()}


def show(node: LocalNode, user: str, rng: np.random.Generator) -> str:
    there = [key for key in IDS if key in node.catalogue]
    item = there[int(rng.integers(len(there)))]
    features = node.catalogue.features(item)
    assert features is not None
    return node.show(user, item, features, bound=node.bound(user))


def test_whatever_happens_what_is_known_is_the_sum_over_what_is_kept(tmp_path: Path) -> None:
    settings = plus(tmp_path)
    node, rng, told = opened(settings), np.random.default_rng(3), 0
    users = [f"user-{k}" for k in range(6)]
    for step in range(260):
        user = users[int(rng.integers(6))]
        decision = show(node, user, rng)
        match int(rng.integers(12)):
            case 0:
                node.rewards.event(decision, "view", 0.2, max)
                node.commit()
                node.rewards.event(decision, "buy", 0.9, max)
            case 1:
                node.rewards.assume(LATER, 0.0)
            case 2:
                told += 1
                item = IDS[int(rng.integers(5))]
                x = np.ones(DIM) / 4
                node.rewards.learn_past(f"past-{told}", user, x, float(rng.random()), item)
            case 3 if user in node.users.rows:
                node.users.forget(user)
            case 4:
                node.put_items([IDS[0]], rng.standard_normal((1, DIM)) / 4)
            case 5 if IDS[1] in node.catalogue:
                node.delete_item(IDS[1])
            case 6 if IDS[1] not in node.catalogue:
                node.put_items([IDS[1]], rng.standard_normal((1, DIM)) / 4)
            case 7:
                node.commit()
                node.rewards.assume(LATER, 1.0)
                node.commit()
                node.rewards.feedback(decision, float(rng.random()))
            case 8 if step % 5 == 0:
                node.forget(time.time() + 60.0)
                node.forget(time.time() + 60.0)
            case _:
                node.rewards.feedback(decision, float(rng.random()))
        if step % 40 == 0:
            assert known(node) == kept(node)
        if step % 90 == 0:
            before = known(node)
            node.commit()
            node.store.close()
            node = opened(settings)
            assert known(node) == before
    assert known(node) == kept(node)
    assert sum(number for number, _ in known(node).values()) > 20
    node.store.close()


class BetweenReads:
    """Reads of a store; after the first one the commit of another thread ends."""

    def __init__(self, store: Store) -> None:
        self._reader, self._commit = store.reader, [store.commit]

    def execute(self, *words: Any) -> Any:
        found = self._reader.execute(*words).fetchall()
        while self._commit:
            self._commit.pop()()
        return SimpleNamespace(fetchall=lambda: found)


def test_a_commit_may_end_while_old_decisions_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fclub.service.store.decisions.FORGOTTEN_AT_ONCE", 5)
    node, rng = opened(plus(tmp_path)), np.random.default_rng(0)
    for k in range(20):
        node.rewards.feedback(show(node, "ann" if k < 3 else "ben", rng), 1.0)
    node.commit()
    node.users.forget("ann")
    changes, reader = node.take(), node.store.reader
    node.store.stage(changes.statements)
    monkeypatch.setattr(node.store, "reader", BetweenReads(node.store))
    node.forget(LATER)
    monkeypatch.setattr(node.store, "reader", reader)
    node.committed(changes)
    assert known(node) == kept(node)
    node.store.close()


def test_an_id_that_comes_again_as_it_is_forgotten_is_not_counted(tmp_path: Path) -> None:
    node = opened(plus(tmp_path))
    for user in ("ann", "ben"):
        assert node.rewards.learn_past("1", user, np.ones(DIM) / 4, 1.0, "a")
        if user == "ann":
            node.commit()
            node.users.forget(user)
    assert known(node) == kept(node) == {}
    node.users.forget("ben")
    assert known(node) == kept(node) == {}
    node.store.close()


def test_a_forgotten_user_leaves_nothing_of_the_items_effects(tmp_path: Path) -> None:
    """Even of rewards that are on their way to the disk."""
    node, rng = opened(plus(tmp_path)), np.random.default_rng(0)
    for user in ("ann", "ben"):
        for _ in range(5):
            node.rewards.feedback(show(node, user, rng), 1.0)
        node.rewards.learn_past(f"of {user}", user, np.ones(DIM) / 4, 1.0, "e")
        if user == "ann":
            node.commit()
    for user in ("ann", "ben"):
        node.users.forget(user)
    assert known(node) == {}
    book = node.catalogue.book
    assert book is not None
    assert not book._squares.any()
    np.testing.assert_array_equal(book.first(5).model, ItemBook(0).first(0).model)
    node.commit()
    assert kept(node) == {}
    node.store.close()


@pytest.mark.parametrize("policy", ["fclub-plus", "cdp-fclub-plus"])
def test_a_liked_item_rises_above_its_features(policy: str, tmp_path: Path) -> None:
    """All items have the same features: only what was learned of them tells them apart."""
    app, _ = local_app(plus(tmp_path, policy))
    with serving(app) as client, Client(str(client.base_url), TOKEN) as shop:
        shop.put_items({key: [0.5, 0.0, 0.0, 0.0] for key in IDS})
        for k in range(160):
            pair = [IDS[k % 5], IDS[(k + 1 + k // 5 % 4) % 5]]
            shown = shop.recommend(f"user-{k % 30}", pair, exclude_seen=False)
            shop.feedback(shown.decision, 1.0 if shown.item == "d" else 0.0)
        best = shop.recommend_several("ann", 5, exclude_seen=False)
        assert next(one.item for one in best) == "d"
        means = {one.item: one.mean for one in best}
        assert means["d"] > 0.2 + max(mean for key, mean in means.items() if key != "d")
        (one,) = shop.recommend_several("ann", 1, IDS, exclude_seen=False)
        assert one.item == "d"


@pytest.mark.parametrize(
    ("policy", "changes"),
    [("cdp-fclub-plus", {"level": "interactive"}), ("fclub-dc", {}), ("cdp-homo", {})],
)
def test_where_choices_are_released_too_nothing_is_learned_of_items(
    policy: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    node, rng = opened(plus(tmp_path, policy, **changes)), np.random.default_rng(0)
    node.rewards.feedback(show(node, "ann", rng), 1.0)
    assert node.catalogue.book is None
    assert not len(node.catalogue.offer().effects.counts)
    node.commit()
    assert kept(node) == {}
    node.store.close()


def test_imports_offline_count_as_well(tmp_path: Path) -> None:
    from fclub.client import Observation

    settings = plus(tmp_path)
    node = opened(settings)
    node.commit()
    node.store.close()
    learn_offline(Path(settings.store), [Observation("1", "ann", 1.0, item="a")])
    node = opened(settings)
    assert known(node) == kept(node)
    assert known(node)["a"][0] == 1
    node.users.forget("ann")
    assert known(node) == {}
    node.users.refuse_forgotten_days = 1.0
    node.users.add("eve")
    node.users.forget("eve")
    with pytest.raises(WasForgotten):
        node.rewards.learn_past("2", "eve", np.ones(DIM) / 4, 1.0, "a")
    node.store.close()
