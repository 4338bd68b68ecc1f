"""What is on offer to a user, and what of it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import numpy as np

from fclub.core.inputs import as_items
from fclub.core.offers import best_items
from fclub.core.types import Matrix
from fclub.errors import EmptyItems, InvalidFeatures, InvalidInput, TooLarge
from fclub.service.http import api
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings
from fclub.service.store.catalogue import Offer

LARGE = 5_000
"""More items than this are scored beside other requests, in a thread of their own."""


def check_user(user: str) -> None:
    if len(user.encode()) > api.MAX_USER_BYTES:
        raise InvalidInput(f"a user has at most {api.MAX_USER_BYTES} bytes", user)


def check_ids(ids: list[str]) -> None:
    if len(set(ids)) != len(ids):
        twice = next(key for place, key in enumerate(ids) if key in ids[:place])
        raise InvalidInput(f"item {twice!r} is there twice", twice)


def features_of(rows: list[list[float]], dim: int) -> Matrix:
    if {len(row) for row in rows} != {dim}:
        raise InvalidFeatures(f"every item needs {dim} features")
    return as_items(rows, dim)


class Chooser:
    """Answers requests for recommendations; one that is refused has changed nothing."""

    def __init__(self, settings: LocalSettings, node: LocalNode, runner: Runner) -> None:
        self.node, self.runner = node, runner
        self.dim, self.max_items = settings.model.dim, settings.http.max_items

    async def choose(self, entry: api.RecommendRequest) -> api.Recommended | api.Several:
        check_user(entry.user)
        if max(len(entry.items or ()), entry.count or 0) > self.max_items:
            raise TooLarge(f"at most {self.max_items} items may be offered or shown")
        offer = self._offer(entry.items)
        if (
            entry.items is not None
            and entry.count is None
            and not (entry.exclude or entry.exclude_seen)
        ):
            decision = self.node.recommend(entry.user, offer.items, offer.ids)
            return api.Recommended(decision.id, offer.ids[decision.index], decision.index)
        if entry.exclude:
            offer = self._without(offer, entry.exclude)
        if entry.exclude_seen:
            offer = await self._unseen(offer, entry.user)
        if not offer.there.any():
            raise EmptyItems("there is no item to choose from", entry.user)
        shown = await self._best(offer, entry.user, entry.count or 1)
        if entry.count is not None:
            return api.Several(shown)
        (one,) = shown
        return api.Recommended(one.decision, one.item, one.index)

    def _offer(self, items: list[api.Item | str] | None) -> Offer:
        if items is None:
            return self.node.catalogue.offer()
        ids = [item if isinstance(item, str) else item.id for item in items]
        check_ids(ids)
        given = [item.features for item in items if not isinstance(item, str)]
        if len(given) == len(items):
            rows = features_of(given, self.dim)
            self.node.family.domain.check_items(rows)
        elif given:
            raise InvalidInput("items are either ids of the catalogue or have features, not both")
        else:
            rows = self._catalogued(ids)
        return Offer(rows, np.ones(len(ids), dtype=np.bool_), ids)

    def _catalogued(self, ids: list[str]) -> Matrix:
        catalogue = self.node.catalogue
        unknown = next((key for key in ids if key not in catalogue), None)
        if unknown is not None:
            raise InvalidInput(f"there is no item {unknown!r} in the catalogue", unknown)
        return catalogue.offer().items[[catalogue.place(key) for key in ids]]

    def _without(self, offer: Offer, exclude: Iterable[str]) -> Offer:
        """Ids that are not on offer are excluded already."""
        there = offer.there.copy()
        if offer.ids is self.node.catalogue.offer().ids:
            catalogue = self.node.catalogue
            there[[catalogue.place(key) for key in exclude if key in catalogue]] = False
        else:
            gone = set(exclude)
            there[[place for place, key in enumerate(offer.ids) if key in gone]] = False
        return offer._replace(there=there)

    async def _unseen(self, offer: Offer, user: str) -> Offer:
        """What was shown a moment ago has to be on disk before it can be read."""
        if self.node.changes.statements:
            await self.runner.commit()
        row = self.node.rows.get(user)
        return offer if row is None else self._without(offer, self.node.decisions.items_of(row))

    async def _best(self, offer: Offer, user: str, count: int) -> list[api.Ranked]:
        bound = self.node.bound(user)
        asked = offer.items, offer.there, bound.theta, bound.inverse, bound.radius, count
        if len(offer.items) > LARGE:
            places, scores = await asyncio.to_thread(best_items, *asked)
        else:
            places, scores = best_items(*asked)
        return [
            api.Ranked(
                self.node.show(user, offer.ids[place], offer.items[place]),
                offer.ids[place],
                place,
                bound.offset + score,
            )
            for place, score in zip(places.tolist(), scores.tolist(), strict=True)
        ]
