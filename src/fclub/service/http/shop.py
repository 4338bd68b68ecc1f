"""Routes around the bandit: the catalogue, and what was observed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.routing import Route

from fclub.core.inputs import as_features, check_user
from fclub.errors import FclubError, InvalidInput, NotFound, TooLarge
from fclub.service.http import api
from fclub.service.http.choosing import check_ids, features_of
from fclub.service.http.gate import Gate, decoded
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings

_items = msgspec.json.Decoder(api.PutItems)
_past = msgspec.json.Decoder(api.PastRequest)

Guarded = Callable[[Callable[[Any], Any], Any], Any]
"""Calls a function with an argument; what fails unexpectedly stops the server."""


class Shop:
    """The catalogue's routes, and past observations entry by entry."""

    def __init__(
        self, settings: LocalSettings, node: LocalNode, runner: Runner, gate: Gate, change: Guarded
    ) -> None:
        self.http, self.dim, self.rewards = settings.http, settings.model.dim, settings.model.rewards
        self.node, self.runner, self.gate, self.change = node, runner, gate, change

    def routes(self) -> list[Route]:
        route = self.gate.route
        return [
            route("/v1/items", "PUT", self.put),
            route("/v1/items", "GET", self.items),
            route("/v1/items/{item:path}", "GET", self.item),
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
        inserted = self.node.put_items(ids, rows)
        return api.ItemsPut(inserted, len(ids) - inserted, len(catalogue))

    async def items(self, request: Request) -> api.ItemsView:
        await self.runner.commit()
        most = self.http.max_items
        rows = self.node.catalogue.stored(request.query_params.get("after", ""), most)
        items = [api.Catalogued(key, np.frombuffer(row).tolist()) for key, row in rows]
        following = items[-1].id if len(items) == most else None
        return api.ItemsView(len(self.node.catalogue), items, following)

    async def item(self, request: Request) -> api.Catalogued:
        key = request.path_params["item"]
        features = self.node.catalogue.features(key)
        if features is None:
            raise NotFound(f"there is no item {key!r}")
        return api.Catalogued(key, features.tolist())

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
                self.change(self.node.rewards.expect, name)
        self.runner.when_stored(lambda error: None)

    def learn_past(self, entry: api.PastObservation) -> api.Learned:
        check_user(entry.user)
        self.node.rewards.expect(entry.user)
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
