"""Attributes of items and filters, against a slow reading of the same, item by item."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from fclub.errors import InvalidInput
from fclub.protocol.interfaces.learner import Bound
from fclub.service.http.ranking import Wishes, first_of, most_similar, ranked
from fclub.service.store.attributes import (
    DEEPEST,
    MOST_CONDITIONS,
    NONE,
    Attributes,
    Columns,
    Filter,
)


def some(rng: np.random.Generator, count: int) -> list[Attributes]:
    """Items with up to two of three categories, perhaps tags, numbers and times; some with nothing."""

    def one() -> Attributes:
        if rng.random() < 0.2:
            return NONE
        names = [str(c) for c in rng.permutation(["a", "b", "c"])[: rng.integers(3)]]
        numbers = {name: float(rng.integers(10)) for name in ("price", "stock") if rng.random() < 0.7}
        since, until = (float(rng.integers(20)) if rng.random() < 0.3 else None for _ in range(2))
        return Attributes(tuple(names), ("a",) * int(rng.random() < 0.5), numbers, since, until)

    return [one() for _ in range(count)]


def condition(rng: np.random.Generator, depth: int = 3) -> Filter:
    kind = rng.integers(6 if depth else 3)
    if kind == 0:
        return Filter(category=str(rng.choice(["a", "b", "c", "none"])))
    if kind == 1:
        return Filter(tag=str(rng.choice(["a", "b"])))
    if kind == 2:
        ends = [float(end) if rng.random() < 0.8 else None for end in sorted(rng.integers(10, size=2))]
        return Filter(number=str(rng.choice(["price", "stock", "none"])), min=ends[0], max=ends[1])
    if kind == 3:
        return Filter(none_of=condition(rng, depth - 1))
    parts = tuple(condition(rng, depth - 1) for _ in range(rng.integers(4)))
    return Filter(all_of=parts) if kind == 4 else Filter(any_of=parts)


def holds(one: Filter, item: Attributes) -> bool:
    if one.category is not None:
        return one.category in item.categories
    if one.tag is not None:
        return one.tag in item.tags
    if one.number is not None:
        value = item.numbers.get(one.number)
        low = one.min is None or (value is not None and value >= one.min)
        return value is not None and low and (one.max is None or value <= one.max)
    if one.none_of is not None:
        return not holds(one.none_of, item)
    if one.all_of is not None:
        return all(holds(part, item) for part in one.all_of)
    return any(holds(part, item) for part in one.any_of or ())


@pytest.mark.parametrize("seed", range(5))
def test_masks_are_what_the_conditions_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    items, columns = some(rng, 200), Columns()
    for start in range(0, 200, 37):
        columns.extend(items[start : start + 37])
    kept = np.sort(rng.permutation(200)[:90])
    for those, chosen in ((columns, items), (columns.keep(kept), [items[k] for k in kept])):
        those.extend(more := some(rng, 3))
        chosen = [*chosen, *more]
        assert len(those) == len(chosen)
        for _ in range(30):
            one = condition(rng)
            one.check()
            assert msgspec.json.decode(msgspec.json.encode(one), type=Filter) == one
            assert those.mask(one).tolist() == [holds(one, item) for item in chosen]
        for now in (0.0, 7.0, 30.0):
            available = those.available(now)
            assert available is not None
            assert available.tolist() == [
                (item.available_from is None or item.available_from <= now)
                and (item.available_until is None or now < item.available_until)
                for item in chosen
            ]
        names = [those.categories(row) for row in range(len(chosen))]
        assert [len(own) for own in names] == [len(item.categories) for item in chosen]
        assert len({own for several in names for own in several}) == 3


def test_items_without_times_are_always_there() -> None:
    columns = Columns()
    columns.extend([NONE, Attributes(("a",))])
    assert columns.available(0.0) is None
    assert columns.mask(Filter(tag="a")).tolist() == [False, False]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "got 0"),
        ({"category": "a", "tag": "b"}, "got 2"),
        ({"category": "a", "min": 1.0}, "min and max belong to a condition on a number"),
        ({"and": [{"category": "a"}, {}]}, "got 0"),
        ({"or": [{"category": "a"}] * MOST_CONDITIONS}, "at most 200 conditions"),
    ],
)
def test_what_is_no_condition_is_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        msgspec.convert(given, Filter).check()


def test_a_filter_is_not_nested_too_deep() -> None:
    one = Filter(category="a")
    for _ in range(DEEPEST - 1):
        one = Filter(none_of=one)
    one.check()
    with pytest.raises(InvalidInput, match="nested 16 deep"):
        Filter(none_of=one).check()


def test_a_ranking_is_that_of_scores_times_factors() -> None:
    rng = np.random.default_rng(1)
    items, root = rng.standard_normal((60, 3)) / 4.0, rng.standard_normal((3, 3)) / 3.0
    bound = Bound(rng.standard_normal(3), root @ root.T, 0.4, offset=0.1, most=0.6)
    there, factors = rng.random(60) < 0.7, rng.uniform(0.2, 5.0, 60)

    def key(place: int) -> tuple[float, float]:
        x = items[place]
        mean = bound.offset + float(x @ bound.theta)
        score = min(mean + bound.radius * float(np.sqrt(x @ bound.inverse @ x)), 0.7)
        tie = -mean if score == 0.7 else 0.0
        return -(score * factors[place] if score >= 0.0 else score / factors[place]), tie

    wanted = sorted(np.flatnonzero(there).tolist(), key=key)
    assert ranked(items, there, bound, factors).tolist() == wanted
    assert len({key(place) for place in wanted}) == len(wanted)
    own = [[place % 4] if place % 5 else [] for place in range(60)]
    found = first_of(wanted, 12, Wishes(factors, lambda place: own[place], 2))
    assert len(found) == 12
    assert found == sorted(found, key=key)
    for category in range(4):
        mine = [place for place in wanted if category in own[place]]
        assert [place for place in found if category in own[place]] == mine[:2][: len(found)]


def test_the_most_similar_point_the_same_way() -> None:
    items = np.array([[1.0, 0.0], [0.2, 0.0], [0.5, 0.5], [0.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    there = np.array([False, True, True, True, True, True])
    found = most_similar(items, 0, there, 4)
    assert [place for place, _ in found] == [1, 2, 3, 5]
    assert [cosine for _, cosine in found] == pytest.approx([1.0, 0.5**0.5, 0.0, 0.0])
