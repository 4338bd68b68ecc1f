"""Routes around the bandit: the catalogue, and what was observed elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from fclub.core.inputs import as_features, check_user
from fclub.core.types import Flags
from fclub.errors import FclubError, Forbidden, InvalidInput, NotFound, TooLarge
from fclub.privacy.levels import INTERACTIVE
from fclub.service.http import api
from fclub.service.http.choosing import LARGE, check_ids, features_of
from fclub.service.http.gate import Gate, decoded
from fclub.service.http.ranking import most_similar
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings
from fclub.service.store.popular import Rate, popular_items

COUNT, FIGURES = 10, 9
"""How many items are answered unless a query says so, and figures of a number in one."""

FRESH_SECONDS = 10.0
"""How old the popularity of items may be: to count it, all decisions are read."""

_items = msgspec.json.Decoder(api.PutItems)
_past = msgspec.json.Decoder(api.PastRequest)

Guarded = Callable[[Callable[[Any], Any], Any], Any]
"""Calls a function with an argument; what fails unexpectedly stops the server."""


class Rates:
    """The popularity of items, counted in a thread of its own when it is asked for and too old."""

    def __init__(self, store: Path, runner: Runner) -> None:
        self._store, self._runner, self._lock = store, runner, asyncio.Lock()
        self._found: list[Rate] = []
        self._counted: float | None = None

    async def read(self) -> list[Rate]:
        async with self._lock:
            if self._counted is None or time.monotonic() - self._counted > FRESH_SECONDS:
                await self._runner.commit()
                self._found = await asyncio.to_thread(popular_items, self._store)
                self._counted = time.monotonic()
            return self._found


class Shop:
    """The catalogue's routes, and past observations entry by entry."""

    def __init__(
        self, settings: LocalSettings, node: LocalNode, runner: Runner, gate: Gate, change: Guarded
    ) -> None:
        self.http, self.dim, self.rewards = settings.http, settings.model.dim, settings.model.rewards
        self.constant = settings.model.constant
        self._rates = Rates(Path(settings.store), runner)
        self.node, self.runner, self.gate, self.change = node, runner, gate, change

    def routes(self) -> list[Route]:
        route = self.gate.route
        return [
            route("/v1/items", "PUT", self.put),
            route("/v1/items", "GET", self.items),
            route("/v1/items/{item:path}/similar", "GET", self.item),
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

    async def item(self, request: Request) -> api.Catalogued | api.SimilarItems:
        """An item, or with /similar at the end those that are similar.

        An id that itself ends so needs its slash quoted, as %2F.
        """
        key = request.scope["path"].removeprefix("/v1/items/")
        if request.scope["raw_path"].endswith(b"/similar"):
            return await self._similar(key.removesuffix("/similar"), request)
        await self.runner.commit()
        found = self.node.catalogue.find(key)
        if found is None:
            raise NotFound(f"there is no item {key!r}")
        _, features, attributes = found
        return api.Catalogued.of(key, features.tolist(), attributes)

    async def _similar(self, key: str, request: Request) -> api.SimilarItems:
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
        return api.SimilarItems([api.SimilarItem(offer.ids[row], value) for row, value in found])

    def _asked(self, request: Request) -> tuple[int, Flags]:
        """How many items a query asks for, and which may be among them."""
        catalogue, given = self.node.catalogue, request.query_params
        text = given.get("count", str(COUNT))
        if not (text.isascii() and text.isdigit() and int(text[:FIGURES]) >= 1):
            raise InvalidInput(f"count is a number from 1 on, not {text[:FIGURES]!r}")
        if len(text) > FIGURES or int(text) > self.http.max_items:
            raise TooLarge(f"at most {self.http.max_items} items may be asked for")
        there, now = catalogue.offer().there.copy(), catalogue.available(time.time())
        if "category" in given:
            there &= catalogue.in_category(given["category"])
        return int(text), there if now is None else there & now

    async def popular(self, request: Request) -> api.PopularItems:
        """From exact rewards of this server's users: only who may see its answers may see these."""
        ledger = self.node.books.ledger
        if ledger is not None and ledger.level is INTERACTIVE:
            raise Forbidden(
                "popularity is computed from all users' exact rewards, which level interactive does "
                "not show: use level transcript, or recommend"
            )
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
