"""What a client and a local server say to each other, without a connection.

Every operation is a generator: it yields the requests to make, is sent the decoded answers, and returns
the result. So both clients, the blocking one and the other, carry out the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from .buckets import bucket_of_decision, bucket_of_user
from .errors import RequestFailed

AT_ONCE = 500
"""Entries of one request, so that it stays within the limits of most servers."""

Items = Mapping[str, Sequence[float]]
"""The features of every item on offer, by its id."""

Offer = Items | Sequence[str] | None
"""What may be shown: items with their features, ids of the catalogue, or None for all of it."""

Result = TypeVar("Result")


class Request(NamedTuple):
    """A request to any route; `body` becomes JSON. `bucket` is that of all users it is about."""

    method: str
    path: str
    body: Any = None
    bucket: str | None = None


Exchange = Generator[Request, Any, Result]
"""Requests out, answers in, a result at the end; a request that fails is thrown in."""


@dataclass(frozen=True)
class Recommendation:
    """Show `item`; name `decision` when its reward is known."""

    decision: str
    item: str
    index: int


@dataclass(frozen=True)
class Ranked(Recommendation):
    """One of several; `score` is an optimistic estimate of its reward: `mean` + `deviation`."""

    score: float
    mean: float
    deviation: float


@dataclass(frozen=True)
class Visit:
    """A request of a batch: a user, what may be shown, and all that a single request takes.

    `where` is its filter.
    """

    user: str
    items: Offer = None
    count: int | None = None
    exclude: Sequence[str] = ()
    exclude_seen: bool | None = None
    where: Mapping[str, Any] | None = None
    boosts: Mapping[str, Mapping[str, float]] | None = None
    most_per_category: int | None = None

    @property
    def wishes(self) -> dict[str, Any]:
        """All but user and items, as a request has it."""
        return {
            "count": self.count,
            "exclude": list(self.exclude),
            "exclude_seen": self.exclude_seen,
            "filter": self.where,
            "boosts": self.boosts,
            "most_per_category": self.most_per_category,
        }


@dataclass(frozen=True)
class Similar:
    """An item and the cosine of the angle between its features and those of another."""

    item: str
    similarity: float


@dataclass(frozen=True)
class Popular:
    """An item, its mean reward shrunk towards that of all items, and the number of its rewards."""

    item: str
    rate: float
    observations: int


class Several(list[Ranked]):
    """Best first; the unit of their numbers is that of rewards, whose least and largest are given."""

    def __init__(self, shown: Iterable[Ranked], reward_range: tuple[float, float]) -> None:
        super().__init__(shown)
        self.reward_range = reward_range


@dataclass(frozen=True)
class Forgotten:
    """Observations that are gone; of those, `released` had left at most, under the `promise` if any.

    `erased`: no old bytes are left in the store's files.
    """

    observations: int
    released: int
    promise: dict[str, Any] | None
    erased: bool


@dataclass(frozen=True)
class Event:
    """What happened to a decision, of a kind that the server declares, perhaps with its own value."""

    decision: str
    event: str
    value: float | None = None


@dataclass(frozen=True)
class Observation:
    """What came of an item shown elsewhere: one of the catalogue by its id, or any by its features."""

    id: str
    user: str
    reward: float
    item: str | None = None
    features: Sequence[float] | None = None


def recommend(user: str, items: Offer, **wishes: Any) -> Exchange[Recommendation]:
    return _recommended((yield _ask(user, items, **wishes)))


def recommend_several(user: str, items: Offer, **wishes: Any) -> Exchange[Several]:
    return _several((yield _ask(user, items, **wishes)))


def recommend_batch(
    visits: Iterable[tuple[str, Offer] | Visit], split: bool
) -> Exchange[list[Recommendation | Several | RequestFailed]]:
    given = [one if isinstance(one, Visit) else Visit(*one) for one in visits]
    entries = [_visit(one.user, one.items, **one.wishes) for one in given]
    buckets = [bucket_of_user(entry["user"]) for entry in entries] if split else None
    return (yield from _batch("/v1/recommend/batch", "requests", entries, buckets, _shown))


def feedback(decision: str, reward: float) -> Exchange[bool]:
    body, bucket = _reward(decision, reward), bucket_of_decision(decision)
    return _counted((yield Request("POST", "/v1/feedback", body, bucket)))


def event(told: Event) -> Exchange[bool]:
    bucket = bucket_of_decision(told.decision)
    return _counted((yield Request("POST", "/v1/feedback", _given(told), bucket)))


def event_batch(events: Sequence[Event], split: bool) -> Exchange[list[bool | RequestFailed]]:
    entries = [_given(one) for one in events]
    buckets = [bucket_of_decision(one.decision) for one in events] if split else None
    return (yield from _batch("/v1/feedback/batch", "requests", entries, buckets, _counted))


def feedback_batch(
    rewards: Mapping[str, float], split: bool
) -> Exchange[dict[str, bool | RequestFailed]]:
    entries = [_reward(*told) for told in rewards.items()]
    buckets = [bucket_of_decision(decision) for decision in rewards] if split else None
    results = yield from _batch("/v1/feedback/batch", "requests", entries, buckets, _counted)
    return dict(zip(rewards, results, strict=True))


def observe(observations: Sequence[Observation], split: bool) -> Exchange[list[bool | RequestFailed]]:
    entries = [_given(one) for one in observations]
    buckets = [bucket_of_user(one.user) for one in observations] if split else None
    return (yield from _batch("/v1/observations", "observations", entries, buckets, _counted))


def _given(told: Observation | Event) -> dict[str, Any]:
    return {key: value for key, value in asdict(told).items() if value is not None}


def _batch(
    path: str,
    key: str,
    entries: list[Any],
    buckets: list[str] | None,
    read: Callable[[Any], Result],
) -> Exchange[list[Result | RequestFailed]]:
    """Results in the order of the entries. With `buckets`, each of them has requests of its own.

    One of these that fails is the result of its entries: other servers may have done theirs.
    """
    places: dict[str | None, list[int]] = {}
    for place in range(len(entries)):
        places.setdefault(None if buckets is None else buckets[place], []).append(place)
    results: dict[int, Result | RequestFailed] = {}
    for bucket, those in places.items():
        for part in _parts(those):
            body = {key: [entries[place] for place in part]}
            try:
                found = _each(read, (yield Request("POST", path, body, bucket)))
            except RequestFailed as error:
                if bucket is None:
                    raise
                found = [error] * len(part)
            results.update(zip(part, found, strict=True))
    return [results[place] for place in range(len(entries))]


def put_items(items: Items, attributes: Mapping[str, Mapping[str, Any]]) -> Exchange[int]:
    new = 0
    for part in _parts([row | dict(attributes.get(row["id"], {})) for row in _rows(items)]):
        new += int((yield Request("PUT", "/v1/items", {"items": part}))["inserted"])
    return new


def items() -> Exchange[dict[str, list[float]]]:
    found: dict[str, list[float]] = {}
    path: str | None = "/v1/items"
    while path is not None:
        answer = yield Request("GET", path)
        found |= {item["id"]: item["features"] for item in answer["items"]}
        after = answer["next"]
        path = None if after is None else f"/v1/items?after={quote(after, safe='')}"
    return found


def item(key: str) -> Exchange[list[float]]:
    return list((yield Request("GET", _item(key)))["features"])


def similar(key: str, count: int, category: str | None) -> Exchange[list[Similar]]:
    answer = yield Request("GET", f"{_item(key)}/similar{_query(count, category)}")
    return [Similar(**one) for one in answer["items"]]


def popular(count: int, category: str | None) -> Exchange[list[Popular]]:
    answer = yield Request("GET", f"/v1/popular{_query(count, category)}")
    return [Popular(**one) for one in answer["items"]]


def _query(count: int, category: str | None) -> str:
    return "?" + urlencode({"count": count} | ({} if category is None else {"category": category}))


def delete_item(key: str) -> Exchange[None]:
    yield Request("DELETE", _item(key))


def user_data(user: str) -> Exchange[dict[str, Any]]:
    path, bucket = f"{_user(user)}/data", bucket_of_user(user)
    return dict((yield Request("GET", path, bucket=bucket)))


def forget(user: str) -> Exchange[Forgotten]:
    return Forgotten(**(yield Request("DELETE", _user(user), bucket=bucket_of_user(user))))


def _ask(user: str, items: Offer, **wishes: Any) -> Request:
    return Request("POST", "/v1/recommend", _visit(user, items, **wishes), bucket_of_user(user))


def _user(user: str) -> str:
    return f"/v1/users/{quote(user, safe='')}"


def _item(key: str) -> str:
    return f"/v1/items/{quote(key, safe='')}"


def _rows(items: Items) -> list[dict[str, Any]]:
    return [{"id": key, "features": [float(v) for v in row]} for key, row in items.items()]


def _visit(user: str, items: Offer, **wishes: Any) -> dict[str, Any]:
    given = {key: value for key, value in wishes.items() if value not in (None, [])}
    body = {"user": user} | given
    if items is None:
        return body
    offered = _rows(items) if isinstance(items, Mapping) else list(items)
    return body | {"items": offered}


def _reward(decision: str, reward: float) -> dict[str, Any]:
    return {"decision": decision, "reward": float(reward)}


def _parts(everything: Sequence[Result]) -> Iterator[Sequence[Result]]:
    for start in range(0, len(everything), AT_ONCE):
        yield everything[start : start + AT_ONCE]


def _recommended(answer: Any) -> Recommendation:
    if "shown" in answer:
        raise RequestFailed("nothing is left to show to this user", 200)
    return Recommendation(**answer)


def _several(answer: Any) -> Several:
    low, high = answer["reward_range"]
    return Several((Ranked(**one) for one in answer["shown"]), (low, high))


def _shown(answer: Any) -> Recommendation | Several:
    return _several(answer) if "shown" in answer else _recommended(answer)


def _counted(answer: Any) -> bool:
    return bool(answer["counted"])


def _each(read: Callable[[Any], Result], answer: Any) -> list[Result | RequestFailed]:
    """What was answered to each entry of a batch, an error where it was refused."""
    return [
        read(entry["result"])
        if entry["status"] == 200
        else RequestFailed(f"{entry['status']}: {entry['error']}", entry["status"])
        for entry in answer["results"]
    ]
