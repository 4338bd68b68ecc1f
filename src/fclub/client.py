"""A client of a local server, blocking (`Client`) or not (`AsyncClient`), with retries.

Feedback may be repeated safely: the server counts a reward once. A repeated recommendation leaves a
decision without a reward, which costs nothing. Forgetting that is repeated, after an answer that was
lost, is answered with 404.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from fclub.errors import RequestFailed
from fclub.extras import need

if TYPE_CHECKING:  # of the extra `service`
    import httpx

UNREACHED = 0
RETRIED = frozenset({UNREACHED, 429, 502, 503, 504})

AT_ONCE = 500
"""Items or observations in one request, so that it stays within the limits of most servers."""

Items = Mapping[str, Sequence[float]]
"""The features of every item on offer, by its id."""

Offer = Items | Sequence[str] | None
"""What may be shown: items with their features, ids of the catalogue, or None for all of it."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Recommendation:
    """Show `item`; name `decision` when its reward is known."""

    decision: str
    item: str
    index: int


@dataclass(frozen=True)
class Forgotten:
    """Observations that are gone; of those, `released` had left at most, under the `promise` if any.

    `erased`: no old bytes are left in the store's files.
    """

    observations: int
    released: int
    promise: dict[str, Any] | None
    erased: bool


def _user(user: str) -> str:
    return f"/v1/users/{quote(user, safe='')}"


@dataclass(frozen=True)
class Ranked(Recommendation):
    """One of several; `score` is an optimistic estimate of its reward."""

    score: float


class Several(list[Ranked]):
    """Best first; `reward_range` is the least and the largest reward, the unit of scores and rewards."""

    def __init__(self, shown: Iterable[Ranked], reward_range: tuple[float, float]) -> None:
        super().__init__(shown)
        self.reward_range = reward_range


@dataclass(frozen=True)
class Observation:
    """What came of an item shown elsewhere: one of the catalogue by its id, or any by its features."""

    id: str
    user: str
    reward: float
    item: str | None = None
    features: Sequence[float] | None = None


def _item(key: str) -> str:
    return f"/v1/items/{quote(key, safe='')}"


def _rows(items: Items) -> list[dict[str, Any]]:
    return [{"id": key, "features": [float(v) for v in row]} for key, row in items.items()]


def _visit(user: str, items: Offer, **wishes: Any) -> dict[str, Any]:
    body = {"user": user} | {key: value for key, value in wishes.items() if value}
    if items is None:
        return body
    offered = _rows(items) if isinstance(items, Mapping) else list(items)
    return body | {"items": offered}


def _past(observations: Sequence[Observation]) -> dict[str, Any]:
    told = [asdict(one) for one in observations]
    return {"observations": [{k: v for k, v in one.items() if v is not None} for one in told]}


def _parts(everything: Sequence[Result]) -> Iterator[Sequence[Result]]:
    for start in range(0, len(everything), AT_ONCE):
        yield everything[start : start + AT_ONCE]


def _page(after: str | None) -> str:
    return "/v1/items" if after is None else f"/v1/items?after={quote(after, safe='')}"


def _read_page(answer: Any, into: dict[str, list[float]]) -> str | None:
    into |= {item["id"]: item["features"] for item in answer["items"]}
    following: str | None = answer["next"]
    return following


def _ranked(answer: Any) -> Several:
    low, high = answer["reward_range"]
    return Several((Ranked(**one) for one in answer["shown"]), (low, high))


def _reward(decision: str, reward: float) -> dict[str, Any]:
    return {"decision": decision, "reward": float(reward)}


def _recommended(answer: Any) -> Recommendation:
    return Recommendation(**answer)


def _counted(answer: Any) -> bool:
    return bool(answer["counted"])


def _requests(bodies: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"requests": list(bodies)}


def _each(read: Callable[[Any], Result], answer: Any) -> list[Result | RequestFailed]:
    """What was answered to each entry of a batch, an error where it was refused."""
    return [
        read(entry["result"])
        if entry["status"] == 200
        else RequestFailed(f"{entry['status']}: {entry['error']}", entry["status"])
        for entry in answer["results"]
    ]


class _Answer(NamedTuple):
    """A status and the decoded body; 0 and the reason if no server answered."""

    status: int
    value: Any

    @staticmethod
    def of(response: httpx.Response) -> _Answer:
        try:
            value = response.json()
        except ValueError:
            value = response.text if response.is_success else response.reason_phrase
        if not response.is_success and isinstance(value, dict):
            value = value.get("error", response.reason_phrase)
        return _Answer(response.status_code, value)

    def result(self) -> Any:
        if self.status == UNREACHED:
            raise RequestFailed(f"no answer: {self.value}", UNREACHED)
        if not 200 <= self.status < 300:
            raise RequestFailed(f"{self.status}: {self.value}", self.status)
        return self.value


class _Settings:
    """What both clients are made from."""

    def __init__(self, url: str, token: str, timeout: float, retries: int, options: dict[str, Any]):
        self.retries = retries
        self._options: dict[str, Any] = {
            "base_url": url,
            "timeout": timeout,
            "headers": {"Authorization": f"Bearer {token}"},
            **options,
        }

    def _pauses(self) -> Iterator[float]:
        """Seconds between attempts: doubling, with jitter so that clients do not come back at once."""
        for attempt in range(self.retries):
            yield 0.05 * 2**attempt * (0.5 + random.random())


def _httpx() -> Any:
    return need("httpx", "fclub.Client", "service")


class Client(_Settings):
    """Talks to the local server at `url`.

    A refused or unanswered request raises `RequestFailed`. `timeout` is in seconds; `retries` are made
    when the server is busy or out of reach, after pauses that double. Other options are those of
    `httpx.Client`, such as `verify` for a certificate of one's own. As a context manager it closes its
    connections at the end of the block, otherwise at `close` or when nothing refers to it any more.

    >>> import fclub
    >>> with fclub.Client(url, token) as client:
    ...     shown = client.recommend("ann", {"tea": [0.6, 0.8], "coffee": [0.8, 0.6]})
    ...     client.feedback(shown.decision, 1.0)
    True
    >>> shown.item in ("tea", "coffee")
    True
    """

    def __init__(
        self, url: str, token: str, *, timeout: float = 10.0, retries: int = 5, **options: Any
    ) -> None:
        super().__init__(url, token, timeout, retries, options)
        self._http: httpx.Client = _httpx().Client(**self._options)
        self._finalizer = weakref.finalize(self, self._http.close)

    def close(self) -> None:
        """Close the connections."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def recommend(
        self,
        user: str,
        items: Offer = None,
        *,
        exclude: Sequence[str] = (),
        exclude_seen: bool = False,
    ) -> Recommendation:
        """The item to show, of those offered; without `items`, of the whole catalogue."""
        body = _visit(user, items, exclude=list(exclude), exclude_seen=exclude_seen)
        return _recommended(self.request("POST", "/v1/recommend", body))

    def recommend_several(
        self,
        user: str,
        count: int,
        items: Offer = None,
        *,
        exclude: Sequence[str] = (),
        exclude_seen: bool = False,
    ) -> Several:
        """The best items, best first, at most `count`; each has a decision of its own."""
        body = _visit(user, items, count=count, exclude=list(exclude), exclude_seen=exclude_seen)
        return _ranked(self.request("POST", "/v1/recommend", body))

    def put_items(self, items: Items) -> int:
        """Insert or replace items of the catalogue; returns how many were new."""
        new = 0
        for part in _parts(_rows(items)):
            new += int((self.request("PUT", "/v1/items", {"items": part}))["inserted"])
        return new

    def items(self) -> dict[str, list[float]]:
        """The whole catalogue: features by id."""
        found: dict[str, list[float]] = {}
        after = _read_page(self.request("GET", _page(None)), found)
        while after is not None:
            after = _read_page(self.request("GET", _page(after)), found)
        return found

    def item(self, item: str) -> list[float]:
        """The features of an item of the catalogue."""
        return list((self.request("GET", _item(item)))["features"])

    def delete_item(self, item: str) -> None:
        """Remove an item from the catalogue."""
        self.request("DELETE", _item(item))

    def observe(self, observations: Sequence[Observation]) -> list[bool | RequestFailed]:
        """Let the server learn from what was shown elsewhere; whether each was new."""
        results: list[bool | RequestFailed] = []
        for part in _parts(observations):
            answer = self.request("POST", "/v1/observations", _past(part))
            results += _each(_counted, answer)
        return results

    def feedback(self, decision: str, reward: float) -> bool:
        """Tell a reward, in the range of the server; False if it was known already."""
        answer = self.request("POST", "/v1/feedback", _reward(decision, reward))
        return _counted(answer)

    def recommend_batch(
        self, visits: Iterable[tuple[str, Items]]
    ) -> list[Recommendation | RequestFailed]:
        """What to show to each of these users; an entry that was refused is returned as its error."""
        body = _requests(_visit(*visit) for visit in visits)
        return _each(_recommended, self.request("POST", "/v1/recommend/batch", body))

    def feedback_batch(self, rewards: Mapping[str, float]) -> dict[str, bool | RequestFailed]:
        """Rewards by decision; for each whether it was new, or why it was refused."""
        body = _requests(_reward(*told) for told in rewards.items())
        answer = self.request("POST", "/v1/feedback/batch", body)
        return dict(zip(rewards, _each(_counted, answer), strict=True))

    def user_data(self, user: str) -> dict[str, Any]:
        """All that the server has stored about one person."""
        return dict(self.request("GET", f"{_user(user)}/data"))

    def forget(self, user: str) -> Forgotten:
        """Let the server forget a user; says what had left before and cannot be taken back."""
        return Forgotten(**self.request("DELETE", _user(user)))

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Any route; the decoded answer."""
        answer = self._once(method, path, body)
        for pause in self._pauses():
            if answer.status not in RETRIED:
                break
            time.sleep(pause)
            answer = self._once(method, path, body)
        return answer.result()

    def _once(self, method: str, path: str, body: Any) -> _Answer:
        try:
            return _Answer.of(self._http.request(method, path, json=body))
        except _httpx().TransportError as error:
            return _Answer(UNREACHED, str(error))


class AsyncClient(_Settings):
    """The same for asyncio; `async with` or `await close()` closes its connections.

    >>> import asyncio
    >>> import fclub
    >>> async def visit():
    ...     async with fclub.AsyncClient(url, token) as client:
    ...         shown = await client.recommend("bob", {"tea": [0.6, 0.8], "coffee": [0.8, 0.6]})
    ...         return await client.feedback(shown.decision, 0.0)
    >>> asyncio.run(visit())
    True
    """

    def __init__(
        self, url: str, token: str, *, timeout: float = 10.0, retries: int = 5, **options: Any
    ) -> None:
        super().__init__(url, token, timeout, retries, options)
        self._http: httpx.AsyncClient = _httpx().AsyncClient(**self._options)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def recommend(
        self,
        user: str,
        items: Offer = None,
        *,
        exclude: Sequence[str] = (),
        exclude_seen: bool = False,
    ) -> Recommendation:
        """The item to show, of those offered; without `items`, of the whole catalogue."""
        body = _visit(user, items, exclude=list(exclude), exclude_seen=exclude_seen)
        return _recommended(await self.request("POST", "/v1/recommend", body))

    async def recommend_several(
        self,
        user: str,
        count: int,
        items: Offer = None,
        *,
        exclude: Sequence[str] = (),
        exclude_seen: bool = False,
    ) -> Several:
        """The best items, best first, at most `count`; each has a decision of its own."""
        body = _visit(user, items, count=count, exclude=list(exclude), exclude_seen=exclude_seen)
        return _ranked(await self.request("POST", "/v1/recommend", body))

    async def put_items(self, items: Items) -> int:
        """Insert or replace items of the catalogue; returns how many were new."""
        new = 0
        for part in _parts(_rows(items)):
            new += int((await self.request("PUT", "/v1/items", {"items": part}))["inserted"])
        return new

    async def items(self) -> dict[str, list[float]]:
        """The whole catalogue: features by id."""
        found: dict[str, list[float]] = {}
        after = _read_page(await self.request("GET", _page(None)), found)
        while after is not None:
            after = _read_page(await self.request("GET", _page(after)), found)
        return found

    async def item(self, item: str) -> list[float]:
        """The features of an item of the catalogue."""
        return list((await self.request("GET", _item(item)))["features"])

    async def delete_item(self, item: str) -> None:
        """Remove an item from the catalogue."""
        await self.request("DELETE", _item(item))

    async def observe(self, observations: Sequence[Observation]) -> list[bool | RequestFailed]:
        """Let the server learn from what was shown elsewhere; whether each was new."""
        results: list[bool | RequestFailed] = []
        for part in _parts(observations):
            answer = await self.request("POST", "/v1/observations", _past(part))
            results += _each(_counted, answer)
        return results

    async def feedback(self, decision: str, reward: float) -> bool:
        """Tell a reward, in the range of the server; False if it was known already."""
        answer = await self.request("POST", "/v1/feedback", _reward(decision, reward))
        return _counted(answer)

    async def recommend_batch(
        self, visits: Iterable[tuple[str, Items]]
    ) -> list[Recommendation | RequestFailed]:
        """What to show to each of these users; an entry that was refused is returned as its error."""
        body = _requests(_visit(*visit) for visit in visits)
        return _each(_recommended, await self.request("POST", "/v1/recommend/batch", body))

    async def feedback_batch(self, rewards: Mapping[str, float]) -> dict[str, bool | RequestFailed]:
        """Rewards by decision; for each whether it was new, or why it was refused."""
        body = _requests(_reward(*told) for told in rewards.items())
        answer = await self.request("POST", "/v1/feedback/batch", body)
        return dict(zip(rewards, _each(_counted, answer), strict=True))

    async def user_data(self, user: str) -> dict[str, Any]:
        """All that the server has stored about one person."""
        return dict(await self.request("GET", f"{_user(user)}/data"))

    async def forget(self, user: str) -> Forgotten:
        """Let the server forget a user; says what had left before and cannot be taken back."""
        return Forgotten(**await self.request("DELETE", _user(user)))

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Any route; the decoded answer."""
        answer = await self._once(method, path, body)
        for pause in self._pauses():
            if answer.status not in RETRIED:
                break
            await asyncio.sleep(pause)
            answer = await self._once(method, path, body)
        return answer.result()

    async def _once(self, method: str, path: str, body: Any) -> _Answer:
        try:
            return _Answer.of(await self._http.request(method, path, json=body))
        except _httpx().TransportError as error:
            return _Answer(UNREACHED, str(error))
