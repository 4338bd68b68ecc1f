"""A client of a local server, blocking (`Client`) or not (`AsyncClient`), with retries.

Feedback may be repeated safely: the server counts a reward once. A repeated recommendation leaves a
decision without a reward, which costs nothing. Forgetting that is repeated, after an answer that was
lost, is answered with 404.

This and what it imports is also the distribution `fclub-client`: imports are relative.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import exchanges
from .buckets import HEADER
from .errors import InvalidInput, RequestFailed
from .exchanges import (
    Event,
    Exchange,
    Forgotten,
    Items,
    Observation,
    Offer,
    Popular,
    Ranked,
    Recommendation,
    Result,
    Several,
    Similar,
    Visit,
)
from .extras import need

if TYPE_CHECKING:  # of the extra `service`
    import httpx

__all__ = [
    "AsyncClient",
    "Client",
    "Event",
    "Forgotten",
    "Observation",
    "Popular",
    "Ranked",
    "Recommendation",
    "Several",
    "Similar",
    "Visit",
]

Boosts = Mapping[str, Mapping[str, float]]
"""Factors of scores: under `items` by id, under `categories` by name."""

UNREACHED = 0
RETRIED = frozenset({UNREACHED, 429, 502, 503, 504})


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


Http = TypeVar("Http")


class _Settings:
    """What both clients are made from."""

    def __init__(
        self,
        url: str,
        token: str,
        timeout: float,
        retries: int,
        split: bool,
        options: dict[str, Any],
    ) -> None:
        self.retries, self.split = retries, split
        self._options: dict[str, Any] = {
            "base_url": url,
            "timeout": timeout,
            "headers": {"Authorization": f"Bearer {token}"},
            **options,
        }

    def _open(self, kind: Callable[..., Http]) -> Http:
        try:
            return kind(**self._options)
        except _httpx().InvalidURL as error:
            url = self._options["base_url"]
            raise InvalidInput(f"{url!r} is no address of a server: {error}", url) from None

    def _pauses(self) -> Iterator[float]:
        """Seconds between attempts: doubling, with jitter so that clients do not come back at once."""
        for attempt in range(self.retries):
            yield 0.05 * 2**attempt * (0.5 + random.random())


def _httpx() -> Any:
    return need("httpx", "fclub.Client", "service")


class Client(_Settings):
    """Talks to the local server at `url`.

    A refused or unanswered request raises `RequestFailed`. `timeout` is in seconds; `retries` are made
    when the server is busy or out of reach, after pauses that double. Requests about one user carry the
    header `X-Fclub-User`, by which a proxy in front of several servers finds that user's; behind one,
    `split` makes a batch one request for each value of that header. Other options are those of
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
        self,
        url: str,
        token: str,
        *,
        timeout: float = 10.0,
        retries: int = 5,
        split: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(url, token, timeout, retries, split, options)
        self._http: httpx.Client = self._open(_httpx().Client)
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
        exclude_seen: bool | None = None,
        where: Mapping[str, Any] | None = None,
        boosts: Boosts | None = None,
    ) -> Recommendation:
        """The item to show, of those offered; without `items`, of the whole catalogue.

        `where` is a filter over attributes, such as `{"category": "tea"}`.
        """
        visit = Visit(user, items, None, exclude, exclude_seen, where, boosts)
        return self._talk(exchanges.recommend(user, items, **visit.wishes))

    def recommend_several(
        self,
        user: str,
        count: int,
        items: Offer = None,
        *,
        exclude: Sequence[str] = (),
        exclude_seen: bool | None = None,
        where: Mapping[str, Any] | None = None,
        boosts: Boosts | None = None,
        most_per_category: int | None = None,
    ) -> Several:
        """The best items, best first, at most `count`; each has a decision of its own."""
        wishes = exclude, exclude_seen, where, boosts, most_per_category
        visit = Visit(user, items, count, *wishes)
        return self._talk(exchanges.recommend_several(user, items, **visit.wishes))

    def put_items(
        self, items: Items, attributes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    ) -> int:
        """Insert or replace items of the catalogue; returns how many were new.

        `attributes` are by id: `categories`, `tags`, `numbers`, `available_from`, `available_until`.
        """
        return self._talk(exchanges.put_items(items, attributes))

    def items(self) -> dict[str, list[float]]:
        """The whole catalogue: features by id."""
        return self._talk(exchanges.items())

    def item(self, item: str) -> list[float]:
        """The features of an item of the catalogue."""
        return self._talk(exchanges.item(item))

    def similar(self, item: str, count: int = 10, category: str | None = None) -> list[Similar]:
        """Items of the catalogue with features similar to one, most similar first."""
        return self._talk(exchanges.similar(item, count, category))

    def popular(self, count: int = 10, category: str | None = None) -> list[Popular]:
        """The items that the server's users like best."""
        return self._talk(exchanges.popular(count, category))

    def delete_item(self, item: str) -> None:
        """Remove an item from the catalogue."""
        self._talk(exchanges.delete_item(item))

    def observe(self, observations: Sequence[Observation]) -> list[bool | RequestFailed]:
        """Let the server learn from what was shown elsewhere; whether each was new."""
        return self._talk(exchanges.observe(observations, self.split))

    def feedback(self, decision: str, reward: float) -> bool:
        """Tell a reward, in the range of the server; False if it was known already."""
        return self._talk(exchanges.feedback(decision, reward))

    def event(self, decision: str, event: str, value: float | None = None) -> bool:
        """Tell what happened to a decision; False if it was known already."""
        return self._talk(exchanges.event(Event(decision, event, value)))

    def event_batch(self, events: Sequence[Event]) -> list[bool | RequestFailed]:
        """The same of many; for each whether it was new, or why it was refused."""
        return self._talk(exchanges.event_batch(events, self.split))

    def recommend_batch(
        self, visits: Iterable[tuple[str, Offer] | Visit]
    ) -> list[Recommendation | Several | RequestFailed]:
        """What to show to each of these users; an entry that was refused is returned as its error.

        A `Visit` takes all that single requests do; one with a `count` is answered with several.
        """
        return self._talk(exchanges.recommend_batch(visits, self.split))

    def feedback_batch(self, rewards: Mapping[str, float]) -> dict[str, bool | RequestFailed]:
        """Rewards by decision; for each whether it was new, or why it was refused."""
        return self._talk(exchanges.feedback_batch(rewards, self.split))

    def user_data(self, user: str) -> dict[str, Any]:
        """All that the server has stored about one person."""
        return self._talk(exchanges.user_data(user))

    def forget(self, user: str) -> Forgotten:
        """Let the server forget a user; says what had left before and cannot be taken back."""
        return self._talk(exchanges.forget(user))

    def _talk(self, exchange: Exchange[Result]) -> Result:
        """Make the requests of an exchange until it has its result."""
        try:
            request = next(exchange)
            while True:
                try:
                    answer = self.request(*request)
                except RequestFailed as error:
                    request = exchange.throw(error)
                else:
                    request = exchange.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result

    def request(self, method: str, path: str, body: Any = None, bucket: str | None = None) -> Any:
        """Any route; the decoded answer. `bucket` is that of all users it is about."""
        answer = self._once(method, path, body, bucket)
        for pause in self._pauses():
            if answer.status not in RETRIED:
                break
            time.sleep(pause)
            answer = self._once(method, path, body, bucket)
        return answer.result()

    def _once(self, method: str, path: str, body: Any, bucket: str | None) -> _Answer:
        headers = {HEADER: bucket} if bucket else None
        try:
            return _Answer.of(self._http.request(method, path, json=body, headers=headers))
        except _httpx().TransportError as error:
            return _Answer(UNREACHED, str(error))
        except ValueError as error:
            raise InvalidInput(f"{path} cannot be asked this: {error}", body) from None


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
        self,
        url: str,
        token: str,
        *,
        timeout: float = 10.0,
        retries: int = 5,
        split: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(url, token, timeout, retries, split, options)
        self._http: httpx.AsyncClient = self._open(_httpx().AsyncClient)

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
        exclude_seen: bool | None = None,
        where: Mapping[str, Any] | None = None,
        boosts: Boosts | None = None,
    ) -> Recommendation:
        """The item to show, of those offered; without `items`, of the whole catalogue.

        `where` is a filter over attributes, such as `{"category": "tea"}`.
        """
        visit = Visit(user, items, None, exclude, exclude_seen, where, boosts)
        return await self._talk(exchanges.recommend(user, items, **visit.wishes))

    async def recommend_several(
        self,
        user: str,
        count: int,
        items: Offer = None,
        *,
        exclude: Sequence[str] = (),
        exclude_seen: bool | None = None,
        where: Mapping[str, Any] | None = None,
        boosts: Boosts | None = None,
        most_per_category: int | None = None,
    ) -> Several:
        """The best items, best first, at most `count`; each has a decision of its own."""
        wishes = exclude, exclude_seen, where, boosts, most_per_category
        visit = Visit(user, items, count, *wishes)
        return await self._talk(exchanges.recommend_several(user, items, **visit.wishes))

    async def put_items(
        self, items: Items, attributes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    ) -> int:
        """Insert or replace items of the catalogue; returns how many were new.

        `attributes` are by id: `categories`, `tags`, `numbers`, `available_from`, `available_until`.
        """
        return await self._talk(exchanges.put_items(items, attributes))

    async def items(self) -> dict[str, list[float]]:
        """The whole catalogue: features by id."""
        return await self._talk(exchanges.items())

    async def item(self, item: str) -> list[float]:
        """The features of an item of the catalogue."""
        return await self._talk(exchanges.item(item))

    async def similar(self, item: str, count: int = 10, category: str | None = None) -> list[Similar]:
        """Items of the catalogue with features similar to one, most similar first."""
        return await self._talk(exchanges.similar(item, count, category))

    async def popular(self, count: int = 10, category: str | None = None) -> list[Popular]:
        """The items that the server's users like best."""
        return await self._talk(exchanges.popular(count, category))

    async def delete_item(self, item: str) -> None:
        """Remove an item from the catalogue."""
        await self._talk(exchanges.delete_item(item))

    async def observe(self, observations: Sequence[Observation]) -> list[bool | RequestFailed]:
        """Let the server learn from what was shown elsewhere; whether each was new."""
        return await self._talk(exchanges.observe(observations, self.split))

    async def feedback(self, decision: str, reward: float) -> bool:
        """Tell a reward, in the range of the server; False if it was known already."""
        return await self._talk(exchanges.feedback(decision, reward))

    async def event(self, decision: str, event: str, value: float | None = None) -> bool:
        """Tell what happened to a decision; False if it was known already."""
        return await self._talk(exchanges.event(Event(decision, event, value)))

    async def event_batch(self, events: Sequence[Event]) -> list[bool | RequestFailed]:
        """The same of many; for each whether it was new, or why it was refused."""
        return await self._talk(exchanges.event_batch(events, self.split))

    async def recommend_batch(
        self, visits: Iterable[tuple[str, Offer] | Visit]
    ) -> list[Recommendation | Several | RequestFailed]:
        """What to show to each of these users; an entry that was refused is returned as its error.

        A `Visit` takes all that single requests do; one with a `count` is answered with several.
        """
        return await self._talk(exchanges.recommend_batch(visits, self.split))

    async def feedback_batch(self, rewards: Mapping[str, float]) -> dict[str, bool | RequestFailed]:
        """Rewards by decision; for each whether it was new, or why it was refused."""
        return await self._talk(exchanges.feedback_batch(rewards, self.split))

    async def user_data(self, user: str) -> dict[str, Any]:
        """All that the server has stored about one person."""
        return await self._talk(exchanges.user_data(user))

    async def forget(self, user: str) -> Forgotten:
        """Let the server forget a user; says what had left before and cannot be taken back."""
        return await self._talk(exchanges.forget(user))

    async def _talk(self, exchange: Exchange[Result]) -> Result:
        """Make the requests of an exchange until it has its result."""
        try:
            request = next(exchange)
            while True:
                try:
                    answer = await self.request(*request)
                except RequestFailed as error:
                    request = exchange.throw(error)
                else:
                    request = exchange.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result

    async def request(self, method: str, path: str, body: Any = None, bucket: str | None = None) -> Any:
        """Any route; the decoded answer. `bucket` is that of all users it is about."""
        answer = await self._once(method, path, body, bucket)
        for pause in self._pauses():
            if answer.status not in RETRIED:
                break
            await asyncio.sleep(pause)
            answer = await self._once(method, path, body, bucket)
        return answer.result()

    async def _once(self, method: str, path: str, body: Any, bucket: str | None) -> _Answer:
        headers = {HEADER: bucket} if bucket else None
        try:
            return _Answer.of(await self._http.request(method, path, json=body, headers=headers))
        except _httpx().TransportError as error:
            return _Answer(UNREACHED, str(error))
        except ValueError as error:
            raise InvalidInput(f"{path} cannot be asked this: {error}", body) from None
