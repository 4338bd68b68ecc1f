"""Routes around the bandit: the catalogue, and what was observed elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.routing import Route

from fclub.core.inputs import as_features, check_user
from fclub.core.types import Flags, Floats
from fclub.errors import FclubError, Forbidden, InvalidInput, NotFound, TooLarge
from fclub.privacy.levels import INTERACTIVE
from fclub.service.http import api
from fclub.service.http.choosing import LARGE, check_ids, features_of
from fclub.service.http.gate import Gate, decoded
from fclub.service.http.ranking import most_similar
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings
from fclub.service.store.popular import Likes, likes_by_cluster, popular_items

COUNT, FIGURES = 10, 9
"""How many items are answered unless a query says so, and figures of a number in one."""

CLUSTERS = 50
"""Of how many clusters it is told what they like."""

FRESH_SECONDS = 10.0
"""How old the popularity of items may be: to count it, all decisions are read."""

_items = msgspec.json.Decoder(api.PutItems)
_past = msgspec.json.Decoder(api.PastRequest)

Guarded = Callable[[Callable[[Any], Any], Any], Any]
"""Calls a function with an argument; what fails unexpectedly stops the server."""


Counted = TypeVar("Counted")


class Fresh(Generic[Counted]):
    """What `count` finds in the store, in a thread of its own when it is asked for and too old."""

    def __init__(self, runner: Runner, count: Callable[[], Callable[[], Counted]]) -> None:
        self._runner, self._count, self._lock = runner, count, asyncio.Lock()
        self._found: tuple[float, Counted] | None = None

    async def read(self) -> Counted:
        async with self._lock:
            if self._found is None or time.monotonic() - self._found[0] > FRESH_SECONDS:
                await self._runner.commit()
                found = await asyncio.to_thread(self._count())
                self._found = time.monotonic(), found
            return self._found[1]


class Shop:
    """The catalogue's routes, and past observations entry by entry."""

    def __init__(
        self, settings: LocalSettings, node: LocalNode, runner: Runner, gate: Gate, change: Guarded
    ) -> None:
        self.http, self.dim, self.rewards = settings.http, settings.model.dim, settings.model.rewards
        self.constant = settings.model.constant
        store = Path(settings.store)
        self._rates = Fresh(runner, lambda: partial(popular_items, store))
        self._likes = Fresh(runner, lambda: self._count_likes(store))
        self.node, self.runner, self.gate, self.change = node, runner, gate, change

    def _count_likes(self, store: Path) -> Callable[[], tuple[list[int], Likes]]:
        """By the clusters that users have now, of which those with most users are told apart."""
        users = [one.users for one in self.node.overview()]
        shown = [c for c in np.argsort(users, kind="stable")[::-1].tolist() if users[c]][:CLUSTERS]
        served_by = np.array(self.node.server.cluster_of_user)
        return lambda: (shown, likes_by_cluster(store, served_by, shown))

    def routes(self) -> list[Route]:
        route = self.gate.route
        return [
            route("/v1/items", "PUT", self.put),
            route("/v1/items", "GET", self.items),
            route("/v1/items/{item:path}/similar", "GET", self.similar),
            route("/v1/items/{item:path}/liked", "GET", self.opinions),
            route("/v1/clusters/liked", "GET", self.liked),
            route("/v1/items/{item:path}", "GET", self.item),
            route("/v1/popular", "GET", self.popular),
            route("/v1/items/{item:path}", "DELETE", self.delete),
        ]

    async def put(self, request: Request) -> api.ItemsPut:
        items = (await self.gate.body(request, _items)).items
        answer: api.ItemsPut = self.change(self._put, items)
        await self.runner.commit()
        return answer

    def _put(self, items: list[api.Catalogued]) -> api.ItemsPut:
        if len(items) > self.http.max_batch:
            raise TooLarge(f"at most {self.http.max_batch} items may be put at once")
        ids, catalogue = [item.id for item in items], self.node.catalogue
        check_ids(ids)
        if len(catalogue) + int((catalogue.places(ids) < 0).sum()) > self.http.max_catalogue:
            raise TooLarge(f"the catalogue may have {self.http.max_catalogue} items")
        rows = features_of([item.features for item in items], self.dim)
        inserted = self.node.put_items(ids, rows, [item.attributes for item in items])
        return api.ItemsPut(inserted, len(ids) - inserted, len(catalogue))

    async def items(self, request: Request) -> api.ItemsView:
        await self.runner.commit()
        most = self.http.max_items
        rows = self.node.catalogue.stored(request.query_params.get("after", ""), most)
        items = [api.Catalogued.of(key, row.tolist(), more) for key, row, more in rows]
        following = items[-1].id if len(items) == most else None
        return api.ItemsView(len(self.node.catalogue), items, following)

    async def item(self, request: Request) -> api.Catalogued:
        """An id that ends in /similar or /liked needs its slash quoted, as %2F."""
        return await self._item(request.path_params["item"])

    async def _item(self, key: str) -> api.Catalogued:
        await self.runner.commit()
        found = self.node.catalogue.find(key)
        if found is None:
            raise NotFound(f"there is no item {key!r}")
        _, features, attributes = found
        return api.Catalogued.of(key, features.tolist(), attributes)

    async def similar(self, request: Request) -> api.SimilarItems:
        return api.SimilarItems(await self._similar(request.path_params["item"], request))

    async def _similar(self, key: str, request: Request) -> list[api.SimilarItem]:
        (place,) = self.node.catalogue.places([key]).tolist()
        if place < 0:
            raise NotFound(f"there is no item {key!r}")
        count, there = self._asked(request)
        there[place] = False
        offer = self.node.catalogue.offer()
        dim = self.dim - (self.constant is not None)
        if len(there) > LARGE:
            found = await asyncio.to_thread(most_similar, offer.items[:, :dim], place, there, count)
        else:
            found = most_similar(offer.items[:, :dim], place, there, count)
        return [api.SimilarItem(offer.ids[row], value) for row, value in found]

    def count_of(self, request: Request) -> int:
        """How many items a query asks for."""
        text = request.query_params.get("count", str(COUNT))
        if not (text.isascii() and text.isdigit() and int(text[:FIGURES]) >= 1):
            raise InvalidInput(f"count is a number from 1 on, not {text[:FIGURES]!r}")
        if len(text) > FIGURES or int(text) > self.http.max_items:
            raise TooLarge(f"at most {self.http.max_items} items may be asked for")
        return int(text)

    def _asked(self, request: Request) -> tuple[int, Flags]:
        """How many items a query asks for, and which may be among them."""
        catalogue, given, count = self.node.catalogue, request.query_params, self.count_of(request)
        there, now = catalogue.offer().there.copy(), catalogue.available(time.time())
        if "category" in given:
            there &= catalogue.in_category(given["category"])
        return count, there if now is None else there & now

    async def popular(self, request: Request) -> api.PopularItems:
        """From exact rewards of this server's users: only who may see its answers may see these."""
        self._refuse_popularity()
        self._asked(request)
        rates = await self._rates.read()
        count, there = self._asked(request)
        offer, found = self.node.catalogue.offer(), []
        places = self.node.catalogue.places([one.item for one in rates])
        for one, place in zip(rates, places.tolist(), strict=True):
            if place >= 0 and there[place]:
                rate = self.rewards.from_model(one.rate)
                found.append(api.PopularItem(offer.ids[place], rate, one.observations))
        return api.PopularItems(found[:count], (self.rewards.low, self.rewards.high))

    def _refuse_popularity(self) -> None:
        ledger = self.node.books.ledger
        if ledger is not None and ledger.level is INTERACTIVE:
            raise Forbidden(
                "popularity is computed from all users' exact rewards, which level interactive does "
                "not show: use level transcript, or recommend"
            )

    async def liked(self, request: Request) -> api.Likings:
        """What clusters like best, of items that are there, and of their categories."""
        self._refuse_popularity()
        self._asked(request)
        shown, likes = await self._likes.read()
        count, there = self._asked(request)
        catalogue, users = self.node.catalogue, self.node.overview()
        places = catalogue.places(likes.names)
        own = places >= 0
        sums = np.vstack([likes.counts, likes.sums])[:, own]
        found = catalogue.columns.by_category(places[own], sums)
        numbers = np.array([*found.values()]).reshape(len(found), len(sums)).T
        categories = Likes([*found], *np.split(numbers, 2))
        own[own] = there[places[own]]
        names = [name for name, known in zip(likes.names, own.tolist(), strict=True) if known]
        # Shrunk towards the mean of all items, those among them that are not there any more.
        items = Likes(names, likes.counts[:, own], likes.sums[:, own])
        rates = likes.rates()[:, own]
        everybody = max(1, sum(one.users for one in users))
        return api.Likings(
            [
                api.ClusterLikes(
                    cluster=c,
                    users=users[c].users,
                    share=users[c].users / everybody,
                    items=self._best(items, rates, row, count),
                    categories=self._best(categories, categories.rates(), row, count),
                )
                for row, c in enumerate(shown)
                if c < len(users)
            ],
            (self.rewards.low, self.rewards.high),
        )

    def _best(self, likes: Likes, rates: Floats, row: int, count: int) -> list[api.Liked]:
        of = self.rewards.from_model
        return [
            api.Liked(
                likes.names[k],
                of(float(rates[row, k])),
                of(float(rates[-1, k])),
                int(likes.counts[row, k]),
            )
            for k in likes.best(rates, row, count)
        ]

    async def opinions(self, request: Request) -> api.ItemOpinions:
        """What users say of an item."""
        self._refuse_popularity()
        key = request.path_params["item"]
        item, similar = await self._item(key), await self._similar(key, request)
        shown, likes = await self._likes.read()
        opinions, unit = [], self.rewards.high - self.rewards.low
        if key in likes.names:
            k, rates = likes.names.index(key), likes.rates()
            for row, cluster in enumerate([*shown, None]):
                if n := int(likes.counts[row, k]):
                    rate = self.rewards.from_model(float(rates[row, k]))
                    opinions.append(api.Opinion(cluster, rate, n))
        places = self.node.catalogue.places([key])
        means, variances = self.node.catalogue.effects_at(places[places >= 0]).effects()
        effect = None
        if len(means):
            effect = api.Effect(unit * float(means[0]), unit * float(np.sqrt(variances[0])))
        return api.ItemOpinions(item, effect, opinions, similar, (self.rewards.low, self.rewards.high))

    async def delete(self, request: Request) -> api.ItemDeleted:
        self.change(self.node.delete_item, request.path_params["item"])
        await self.runner.commit()
        return api.ItemDeleted(len(self.node.catalogue))

    async def past(self, request: Request) -> list[api.PastObservation]:
        """The observations that a request brings."""
        data = await self.gate.bytes_of(request)
        try:
            return decoded(data, _past).observations
        except FclubError:
            self._expect(api.names_in(data))
            raise

    def _expect(self, names: list[str]) -> None:
        """Users are there whatever becomes of what an import says of them."""
        for name in names:
            with suppress(FclubError):
                check_user(name)
                self.change(self.node.users.expect, name)
        self.runner.when_stored(lambda error: None)

    def learn_past(self, entry: api.PastObservation) -> api.Learned:
        check_user(entry.user)
        self.node.users.expect(entry.user)
        if (entry.item is None) == (entry.features is None):
            raise InvalidInput("an observation has either an item of the catalogue or features")
        if entry.item is not None:
            x = self.node.catalogue.features(entry.item)
            if x is None:
                raise InvalidInput(f"there is no item {entry.item!r} in the catalogue", entry.item)
        else:
            x = as_features(entry.features, self.dim)
        reward = self.rewards.to_model(entry.reward)
        told = entry.id, entry.user, x.copy(), reward, entry.item
        return api.Learned(self.node.rewards.learn_past(*told))
