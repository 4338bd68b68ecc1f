"""What is on offer to a user, and what of it is shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import chain

import numpy as np

from fclub.core.inputs import as_items, check_user
from fclub.core.offers import best_items, mix
from fclub.core.types import Indices, Matrix
from fclub.errors import InvalidFeatures, InvalidInput, TooLarge
from fclub.protocol.interfaces.learner import Bound
from fclub.service.http import api
from fclub.service.http.ranking import Wishes, estimates, first_of, ranked
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings
from fclub.service.store.attributes import Filter
from fclub.service.store.catalogue import Offer
from fclub.service.store.decisions import Offered, Own, Part, Whole, coin_of, encode_offer
from fclub.service.store.forgotten import DAY

LARGE = 5_000
"""More items than this are scored beside other requests, in a thread of their own."""


def check_ids(ids: list[str]) -> None:
    if len(set(ids)) != len(ids):
        twice = next(key for place, key in enumerate(ids) if key in ids[:place])
        raise InvalidInput(f"item {twice!r} is there twice", twice)


def features_of(rows: list[list[float]], dim: int) -> Matrix:
    """Rows of as many numbers, as they are read from a body."""
    if {len(row) for row in rows} != {dim}:
        raise InvalidFeatures(f"every item needs {dim} features")
    numbers = np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * dim)
    return as_items(numbers.reshape(-1, dim), dim)


def _has_more(entry: api.RecommendRequest) -> bool:
    """Whether there is more to do than to choose one of the items that are given."""
    wished = (entry.count, entry.filter, entry.boosts, entry.most_per_category) != (None,) * 4
    return entry.catalogued or entry.unseen or bool(entry.exclude) or wished


def best_places(offer: Offer, bound: Bound, count: int) -> list[int]:
    places: list[int] = best_items(offer.items, offer.there, bound.scoring, count, offer.effects)[
        0
    ].tolist()
    return places


def wished_places(offer: Offer, bound: Bound, count: int, wishes: Wishes) -> list[int]:
    order = ranked(offer.items, offer.there, bound, wishes.factors, offer.effects)
    return first_of(order.tolist(), count, wishes)


class Chooser:
    """Answers requests for recommendations; of one that is refused only the user is known, no more."""

    def __init__(self, settings: LocalSettings, node: LocalNode, runner: Runner) -> None:
        self.node, self.runner = node, runner
        self.dim, self.max_items = settings.model.dim, settings.http.max_items
        self.rewards = settings.model.rewards
        self.seen_days = settings.seen_days

    def at_once(self, entry: api.RecommendRequest) -> api.Recommended | None:
        """One of the items that are given; None, and nothing is done, if there is more to do."""
        if _has_more(entry):
            return None
        self.arrive(entry.user)
        return self._one(entry)

    def arrive(self, user: str) -> int:
        """The user's row, before anything else of a request is looked at."""
        check_user(user)
        return self.node.users.row_of_new(user)

    def arrive_unread(self, names: list[str]) -> None:
        """Somebody with each of these names has asked for something that cannot be read."""
        for name in names:
            with suppress(InvalidInput):
                self.arrive(name)

    def _check_size(self, entry: api.RecommendRequest) -> None:
        if max(len(entry.items or ()), entry.count or 0) > self.max_items:
            raise TooLarge(f"at most {self.max_items} items may be offered or shown")

    def _one(self, entry: api.RecommendRequest) -> api.Recommended:
        self._check_size(entry)
        assert entry.items is not None
        ids, rows, _ = self._given(entry.items)
        decision = self.node.choose(entry.user, rows, ids)
        return api.Recommended(decision.id, ids[decision.index], decision.index)

    async def choose(self, entry: api.RecommendRequest) -> api.Recommended | api.Several:
        row = self.arrive(entry.user)
        if not _has_more(entry):
            return self._one(entry)
        self._check_size(entry)
        if entry.unseen:
            # What was shown a moment ago has to be on disk before it can be read.
            await self.runner.commit()
        if entry.filter is not None:
            entry.filter.check()
        offer = self._offer(entry)
        if entry.exclude:
            offer = self._without(offer, entry.exclude)
        if entry.unseen:
            offer = self._without(offer, self._seen(row))
        if not offer.there.any():
            return api.Several([], (self.rewards.low, self.rewards.high))
        shown = await self._best(offer, entry, self._wishes(offer, entry))
        if entry.count is not None:
            return api.Several(shown, (self.rewards.low, self.rewards.high))
        (one,) = shown
        return api.Recommended(one.decision, one.item, one.index)

    async def preview(self, user: str, count: int, category: str | None) -> list[api.Preview]:
        """What a known user would be shown of the catalogue, which leaves everything as it is."""
        wanted = None if category is None else Filter(category=category)
        entry = api.RecommendRequest(user, count=count, filter=wanted)
        self._check_size(entry)
        await self.runner.commit()
        row = self.node.users.row_of(user)
        offer = self._without(self._offer(entry), self._seen(row))
        bound = self.node.server.bound(row).copy()
        found = await self._ranked(offer, bound, count, None)
        return [
            api.Preview(offer.ids[place], mean + width, mean, width)
            for place, mean, width in self._estimated(offer, bound, found)
        ]

    def _estimated(
        self, offer: Offer, bound: Bound, found: list[int]
    ) -> list[tuple[int, float, float]]:
        """Places with mean and deviation, in the unit of rewards."""
        places, unit = np.array(found, dtype=np.int64), self.rewards.high - self.rewards.low
        means, widths = estimates(offer.items[places], bound, offer.effects.at(places))
        told = map(self.rewards.from_model, means.tolist())
        return list(zip(found, told, (unit * widths).tolist(), strict=True))

    def _seen(self, row: int) -> set[str]:
        """What the user was shown or is reported to have had, unless that may return by now."""
        since = 0.0 if self.seen_days is None else self.node.now - DAY * self.seen_days
        return self.node.decisions.items_of(row, since) | self.node.past.items_of(row, since)

    def _offer(self, entry: api.RecommendRequest) -> Offer:
        catalogue = self.node.catalogue
        if entry.items is None:
            offer, known = catalogue.offer(), True
            places: Indices | slice = slice(len(offer.there))
            if self.node.uniform:
                # What is on offer now will be remembered, whatever is deleted while it is scored.
                offer = offer._replace(there=offer.there.copy())
        else:
            ids, rows, known = self._given(entry.items)
            offer = Offer(rows, np.ones(len(ids), dtype=np.bool_), ids, catalogue.version, known)
            places = slice(0)
            if known:
                places = catalogue.places(ids)
                offer = offer._replace(effects=catalogue.effects_at(places))
        if not known:
            if entry.filter or entry.most_per_category or (entry.boosts and entry.boosts.categories):
                raise InvalidInput("only items of the catalogue have categories, tags and numbers")
            return offer
        masks = [catalogue.filtered(entry.filter)] if entry.filter else []
        available = catalogue.available(time.time())
        for mask in masks if available is None else [*masks, available]:
            offer = offer._replace(there=offer.there & mask[places])
        return offer

    def _wishes(self, offer: Offer, entry: api.RecommendRequest) -> Wishes | None:
        """What decides beside scores which items come first; None: nothing."""
        catalogue, boosts, most = self.node.catalogue, entry.boosts, entry.most_per_category
        if boosts is None and most is None:
            return None
        known: Indices = np.arange(len(offer.there))
        if not offer.whole and offer.known:
            known = catalogue.places(offer.ids)
        factors = None
        if boosts is not None:
            factors = np.ones(len(offer.there))
            for name, factor in boosts.categories.items():
                factors[catalogue.in_category(name)[known]] *= factor
            for place, factor in self._boosted(offer, boosts.items):
                factors[place] *= factor
        if most is None:
            return Wishes(factors)
        columns = catalogue.columns
        return Wishes(factors, lambda place: columns.categories(int(known[place])), most)

    def _boosted(self, offer: Offer, factors: dict[str, float]) -> list[tuple[int, float]]:
        if offer.whole:
            places = self.node.catalogue.places(list(factors)).tolist()
            return [pair for pair in zip(places, factors.values(), strict=True) if pair[0] >= 0]
        return [(place, factors[key]) for place, key in enumerate(offer.ids) if key in factors]

    def _given(self, items: list[api.Item | str]) -> tuple[list[str], Matrix, bool]:
        """Ids and features of the items of a request, and whether they are the catalogue's."""
        ids, given = [], []
        for item in items:
            if isinstance(item, str):
                ids.append(item)
            else:
                ids.append(item.id)
                given.append(item.features)
        check_ids(ids)
        if not given:
            return ids, self._catalogued(ids), True
        if len(given) < len(items):
            raise InvalidInput("items are either ids of the catalogue or have features, not both")
        rows = features_of(given, self.dim)
        self.node.family.domain.check_items(rows)
        return ids, rows, False

    def _catalogued(self, ids: list[str]) -> Matrix:
        places = self.node.catalogue.places(ids)
        if places.min() < 0:
            unknown = ids[int(places.argmin())]
            raise InvalidInput(f"there is no item {unknown!r} in the catalogue", unknown)
        return self.node.catalogue.offer().items[places]

    def _without(self, offer: Offer, exclude: Iterable[str]) -> Offer:
        """Ids that are not on offer are excluded already."""
        there = offer.there.copy()
        if offer.whole:
            places = self.node.catalogue.places(list(exclude))
            there[places[places >= 0]] = False
        else:
            gone = set(exclude)
            there[[place for place, key in enumerate(offer.ids) if key in gone]] = False
        return offer._replace(there=there)

    async def _best(
        self, offer: Offer, entry: api.RecommendRequest, wishes: Wishes | None
    ) -> list[api.Ranked]:
        user, bound = entry.user, self.node.bound(entry.user).copy()
        # Asked before anything else can change the catalogue.
        left_out = self._left_out(offer) if self.node.uniform and offer.whole else []
        found = await self._ranked(offer, bound, entry.count or 1, wishes)
        first: tuple[bytes | None, Offered | None] = None, None
        if self.node.uniform:
            key = self.node.decisions.new_key(user)
            first, found = self._mixed(offer, found, left_out, key)
            found = first_of(found, len(found), wishes or Wishes())
        shown, own = [], bound if offer.known else None
        for place, mean, width in self._estimated(offer, bound, found):
            item = offer.ids[place]
            decision = self.node.show(user, item, offer.items[place], *first, bound=own)
            shown.append(api.Ranked(decision, item, place, mean + width, mean, width))
            first = None, None
        return shown

    async def _ranked(self, offer: Offer, bound: Bound, count: int, wishes: Wishes | None) -> list[int]:
        """Places, best first."""
        if wishes is None:
            find = partial(best_places, offer, bound, count)
        else:
            find = partial(wished_places, offer, bound, count, wishes)
        return await asyncio.to_thread(find) if len(offer.items) > LARGE else find()

    def _left_out(self, offer: Offer) -> list[str]:
        """What of the catalogue is not on offer."""
        gone = self.node.catalogue.offer().there & ~offer.there
        return [offer.ids[place] for place in np.flatnonzero(gone).tolist()]

    def _mixed(
        self,
        offer: Offer,
        found: list[int],
        left_out: list[str],
        key: bytes,
    ) -> tuple[tuple[bytes, Offered], list[int]]:
        """Any item may take the first place, with the probability that is set.

        The choice follows from `key`, which becomes that place's decision. Returns it with what was on
        offer, and what is shown: the others by their scores.
        """
        places = np.flatnonzero(offer.there)
        best = int(np.searchsorted(places, found[0]))
        chosen, chance = mix(best, len(places), self.node.uniform, coin_of(key))
        if chosen != best:
            place = int(places[chosen])
            found = [place, *(other for other in found if other != place)][: len(found)]
        if offer.whole and len(left_out) <= len(places):
            body = encode_offer(Whole(left_out))
        else:
            ids = [offer.ids[place] for place in places.tolist()]
            rows = offer.items[places].tobytes()
            body = encode_offer(Part(ids) if offer.known else Own(ids, rows))
        return (key, Offered(chance, offer.version, body)), found
