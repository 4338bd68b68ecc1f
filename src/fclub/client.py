"""A client of a local server, blocking (`Client`) or not (`AsyncClient`), with retries.

Feedback may be repeated safely: the server counts a reward once. A repeated recommendation leaves a
decision that nobody answers, which costs nothing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from fclub.errors import RequestFailed

RETRIED = frozenset({429, 502, 503, 504})
Items = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Recommendation:
    """Show `item`; name `decision` when its reward is known."""

    decision: str
    item: str
    index: int


class _Settings:
    """What both clients are made from."""

    def __init__(
        self, url: str, token: str, *, timeout: float = 10.0, retries: int = 5, **options: Any
    ):
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


def _visit(user: str, items: Items) -> dict[str, Any]:
    offered = [{"id": key, "features": [float(v) for v in row]} for key, row in items.items()]
    return {"user": user, "items": offered}


def _value(answer: httpx.Response | httpx.TransportError) -> Any:
    if isinstance(answer, httpx.TransportError):
        raise RequestFailed(f"no answer: {answer}", 0)
    if answer.is_success:
        return answer.json()
    try:
        reason = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        reason = answer.reason_phrase
    raise RequestFailed(f"{answer.status_code}: {reason}", answer.status_code)


def _again(answer: httpx.Response | httpx.TransportError) -> bool:
    return isinstance(answer, httpx.TransportError) or answer.status_code in RETRIED


class Client(_Settings):
    """`with Client(url, token) as client: client.recommend("ann", {"a": [...], "b": [...]})`."""

    def __enter__(self) -> Client:
        self._http = httpx.Client(**self._options)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def recommend(self, user: str, items: Items) -> Recommendation:
        """The item to show, of those offered by id and features."""
        return Recommendation(**self.request("POST", "/v1/recommend", _visit(user, items)))

    def feedback(self, decision: str, reward: float) -> bool:
        """Tell a reward in [0, 1]; False if it was known already."""
        body = {"decision": decision, "reward": reward}
        return bool(self.request("POST", "/v1/feedback", body)["counted"])

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Any route; the decoded answer."""
        answer = self._once(method, path, body)
        for pause in self._pauses():
            if not _again(answer):
                break
            time.sleep(pause)
            answer = self._once(method, path, body)
        return _value(answer)

    def _once(self, method: str, path: str, body: Any) -> httpx.Response | httpx.TransportError:
        try:
            return self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            return error


class AsyncClient(_Settings):
    """The same for asyncio."""

    async def __aenter__(self) -> AsyncClient:
        self._http = httpx.AsyncClient(**self._options)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def recommend(self, user: str, items: Items) -> Recommendation:
        """The item to show, of those offered by id and features."""
        return Recommendation(**await self.request("POST", "/v1/recommend", _visit(user, items)))

    async def feedback(self, decision: str, reward: float) -> bool:
        """Tell a reward in [0, 1]; False if it was known already."""
        body = {"decision": decision, "reward": reward}
        return bool((await self.request("POST", "/v1/feedback", body))["counted"])

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Any route; the decoded answer."""
        answer = await self._once(method, path, body)
        for pause in self._pauses():
            if not _again(answer):
                break
            await asyncio.sleep(pause)
            answer = await self._once(method, path, body)
        return _value(answer)

    async def _once(self, method: str, path: str, body: Any) -> httpx.Response | httpx.TransportError:
        try:
            return await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            return error
