"""What a client and a local server say to each other, without a connection.

Every operation is a generator: it yields the requests to make, is sent the decoded answers, and returns
the result. So both clients, the blocking one and the other, carry out the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from fclub.errors import RequestFailed

AT_ONCE = 500
"""Items or observations in one request, so that it stays within the limits of most servers."""

Items = Mapping[str, Sequence[float]]
"""The features of every item on offer, by its id."""

Offer = Items | Sequence[str] | None
"""What may be shown: items with their features, ids of the catalogue, or None for all of it."""

Result = TypeVar("Result")


class Request(NamedTuple):
    """A request to any route; `body` becomes JSON."""

    method: str
    path: str
    body: Any = None


Exchange = Generator[Request, Any, Result]
"""Requests out, answers in, a result at the end."""


@dataclass(frozen=True)
class Recommendation:
    """Show `item`; name `decision` when its reward is known."""

    decision: str
    item: str
    index: int


@dataclass(frozen=True)
class Ranked(Recommendation):
    """One of several; `score` is an optimistic estimate of its reward."""

    score: float


class Several(list[Ranked]):
    """Best first; scores are in the unit of rewards, from the least to the largest: `reward_range`."""

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
class Observation:
    """What came of an item shown elsewhere: one of the catalogue by its id, or any by its features."""

    id: str
    user: str
    reward: float
    item: str | None = None
    features: Sequence[float] | None = None


def recommend(user: str, items: Offer, **wishes: Any) -> Exchange[Recommendation]:
    return _recommended((yield Request("POST", "/v1/recommend", _visit(user, items, **wishes))))


def recommend_several(user: str, items: Offer, **wishes: Any) -> Exchange[Several]:
    answer = yield Request("POST", "/v1/recommend", _visit(user, items, **wishes))
    low, high = answer["reward_range"]
    return Several((Ranked(**one) for one in answer["shown"]), (low, high))


def recommend_batch(
    visits: Iterable[tuple[str, Items]],
) -> Exchange[list[Recommendation | RequestFailed]]:
    body = {"requests": [_visit(*visit) for visit in visits]}
    return _each(_recommended, (yield Request("POST", "/v1/recommend/batch", body)))


def feedback(decision: str, reward: float) -> Exchange[bool]:
    return _counted((yield Request("POST", "/v1/feedback", _reward(decision, reward))))


def feedback_batch(rewards: Mapping[str, float]) -> Exchange[dict[str, bool | RequestFailed]]:
    body = {"requests": [_reward(*told) for told in rewards.items()]}
    answer = yield Request("POST", "/v1/feedback/batch", body)
    return dict(zip(rewards, _each(_counted, answer), strict=True))


def observe(observations: Sequence[Observation]) -> Exchange[list[bool | RequestFailed]]:
    results: list[bool | RequestFailed] = []
    for part in _parts(observations):
        told = [{k: v for k, v in asdict(one).items() if v is not None} for one in part]
        answer = yield Request("POST", "/v1/observations", {"observations": told})
        results += _each(_counted, answer)
    return results


def put_items(items: Items) -> Exchange[int]:
    new = 0
    for part in _parts(_rows(items)):
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


def delete_item(key: str) -> Exchange[None]:
    yield Request("DELETE", _item(key))


def user_data(user: str) -> Exchange[dict[str, Any]]:
    return dict((yield Request("GET", f"{_user(user)}/data")))


def forget(user: str) -> Exchange[Forgotten]:
    return Forgotten(**(yield Request("DELETE", _user(user))))


def _user(user: str) -> str:
    return f"/v1/users/{quote(user, safe='')}"


def _item(key: str) -> str:
    return f"/v1/items/{quote(key, safe='')}"


def _rows(items: Items) -> list[dict[str, Any]]:
    return [{"id": key, "features": [float(v) for v in row]} for key, row in items.items()]


def _visit(user: str, items: Offer, **wishes: Any) -> dict[str, Any]:
    body = {"user": user} | {key: value for key, value in wishes.items() if value or key == "count"}
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
    return Recommendation(**answer)


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
