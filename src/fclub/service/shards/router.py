"""Which shard answers which request, and how the answers of several become one.

The router knows no tokens and keeps no users: shards check and store, as any local server does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from fclub.errors import Gone
from fclub.service.http.gate import status_of
from fclub.service.monitoring import Monitor
from fclub.service.shards.homes import Homes
from fclub.service.shards.relay import NOT_FOUND, Answer, Request, Server, Sink, answer_of, refusal

REMEMBERED = 100_000
"""Users whose home was asked for and is kept at hand."""

ONE_SHARD = {"/v1/privacy", "/v1/link", "/v1/clusters", "/v1/live", "/v1/visitors"}
"""What is about one shard and its own ledger, link and clusters."""

SHARD = re.compile(r"/shards/(\d{1,3})(/.*)")
SAMPLE = re.compile(rb"(\w+)(?:\{(.*)\})? (\S+)")


class _Who(msgspec.Struct):
    user: str


class _Which(msgspec.Struct):
    decision: str


class _Entries(msgspec.Struct):
    requests: list[msgspec.Raw] | None = None
    observations: list[msgspec.Raw] | None = None


class _Result(msgspec.Struct):
    status: int


class _Results(msgspec.Struct):
    results: list[msgspec.Raw]


_who = msgspec.json.Decoder(_Who)
_which = msgspec.json.Decoder(_Which)
_entries = msgspec.json.Decoder(_Entries)
_results = msgspec.json.Decoder(_Results)
_result = msgspec.json.Decoder(_Result)

Places = Callable[[bytes, Request], Awaitable[list[int]]]
"""Shards to try for an entry, in this order, as long as it is not found; none, if it is malformed."""

UNREADABLE = msgspec.MsgspecError, ValueError, RecursionError
"""What a body raises that no shard can be found for."""

FAULTS = [0]
"""The shard that names what is wrong with a malformed request."""


class Router:
    """Passes requests on to the shards of one site."""

    def __init__(self, homes: Homes, shards: Sequence[Server], monitor: Monitor) -> None:
        self.homes, self.shards = homes, shards
        self.fault = monitor.fault
        self._known: dict[str, int] = {}
        self._routes: dict[tuple[bytes, str], Callable[[Request, Sink], Awaitable[None]]] = {
            (b"POST", "/v1/recommend"): self._recommend,
            (b"POST", "/v1/feedback"): self._feedback,
            (b"POST", "/v1/recommend/batch"): self._batch_of(self._places_of_user),
            (b"POST", "/v1/feedback/batch"): self._batch_of(self._places_of_decision),
            (b"POST", "/v1/observations"): self._batch_of(self._places_of_user),
            (b"PUT", "/v1/items"): self._everywhere,
            (b"GET", "/metrics"): self._metrics,
            (b"GET", "/healthz"): self._health,
            (b"GET", "/readyz"): self._ready,
            (b"GET", "/"): self._overview,
        }

    def direct(self, request: Request) -> Server | None:
        """The shard that should know what this is about, if none has to be asked for it."""
        if request.method != b"POST":
            return None
        try:
            if request.target == b"/v1/recommend":
                place = self._place(_who.decode(request.body).user)
                return None if place is None else self.shards[place]
            if request.target == b"/v1/feedback":
                return self.shards[int(_which.decode(request.body).decision[-2:], 16)]
        except (*UNREADABLE, IndexError):
            pass
        return None

    async def sought(self, request: Request, asked: Server, answer: Answer, sink: Sink) -> None:
        """Decisions of before the shards may end with the number of another."""
        if len(self.homes.counts) > 1 and request.target == b"/v1/feedback":
            answer = await self._ask_in_turn(
                request, [s for s in self.shards if s is not asked], answer
            )
        sink(answer.raw)

    async def handle(self, request: Request, sink: Sink) -> None:
        path = request.target.partition(b"?")[0].decode("latin-1")
        known = self._routes.get((request.method, path))
        if request.method == b"HEAD":
            sink(answer_of(405, b"").raw)
        elif known is not None:
            await known(request, sink)
        elif path.startswith("/v1/users/"):
            await self._about_user(path, request, sink)
        elif path.startswith("/v1/items/") and request.method == b"DELETE":
            await self._everywhere(request, sink)
        elif (asked := SHARD.fullmatch(path)) and int(asked[1]) < len(self.shards):
            target = request.target[len(f"/shards/{asked[1]}") :]
            await self.shards[int(asked[1])].pass_on(request._replace(target=target), sink)
        elif path in ONE_SHARD:
            reason = f"this is about one shard: /shards/K{path}, K from 0 to {len(self.shards) - 1}"
            sink(refusal(NOT_FOUND, reason).raw)
        else:
            await self.shards[0].pass_on(request, sink)

    async def _recommend(self, request: Request, sink: Sink) -> None:
        places = await self._places_of_user(request.body, request) or FAULTS
        await self.shards[places[0]].pass_on(request, sink)

    async def _feedback(self, request: Request, sink: Sink) -> None:
        first, *others = await self._places_of_decision(request.body, request) or FAULTS
        answer = await self.shards[first].ask(request)
        if answer.status == NOT_FOUND:
            answer = await self._ask_in_turn(request, [self.shards[place] for place in others], answer)
        sink(answer.raw)

    async def _ask_in_turn(self, request: Request, shards: list[Server], answer: Answer) -> Answer:
        """Until one has found it; otherwise what the first one said."""
        for shard in shards:
            found = await shard.ask(request)
            if found.status != NOT_FOUND:
                return found
        return answer

    async def _about_user(self, path: str, request: Request, sink: Sink) -> None:
        name = path.removeprefix("/v1/users/")
        if request.method == b"GET":
            name = name.removesuffix("/data")
        user = unquote_to_bytes(name).decode(errors="replace")
        place = await self._home(user, request)
        if request.method == b"DELETE":
            self._known.pop(user, None)
        await self.shards[place].pass_on(request, sink)

    async def _places_of_user(self, entry: bytes, request: Request) -> list[int]:
        try:
            user = _who.decode(entry).user
        except UNREADABLE:
            return []
        return [await self._home(user, request)]

    def _place(self, user: str) -> int | None:
        """Where a user is at home, unless it has to be asked for."""
        newest, *older = self.homes.places(user)
        return self._known.get(user) if older else newest

    async def _home(self, user: str, request: Request) -> int:
        """A user is asked for where it may have been put under another number of shards."""
        newest, *older = self.homes.places(user)
        found = self._place(user)
        if found is None:
            found = await self._search(user, older, newest, request)
            if len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[user] = found
        return found

    async def _search(self, user: str, older: list[int], newest: int, request: Request) -> int:
        target = f"/v1/users/{quote(user, safe='')}".encode()
        for place in [newest, *older]:
            asked = await self.shards[place].ask(Request(b"GET", target, request.headers, b""))
            if asked.status == 200:
                return place
            if asked.status != NOT_FOUND:
                raise Gone(f"{self.shards[place].name} does not say whether it knows this user")
        return newest

    async def _places_of_decision(self, entry: bytes, request: Request) -> list[int]:
        """A decision ends with the number of its shard, but those of before the shards do not."""
        every = range(len(self.shards))
        try:
            first = int(_which.decode(entry).decision[-2:], 16)
        except UNREADABLE:
            return []
        return sorted(every, key=lambda place: place != first)

    def _batch_of(self, places: Places) -> Callable[[Request, Sink], Awaitable[None]]:
        async def handle(request: Request, sink: Sink) -> None:
            try:
                given = _entries.decode(request.body)
            except UNREADABLE:
                given = _Entries()
            field = "requests" if given.observations is None else "observations"
            entries: list[msgspec.Raw] = getattr(given, field) or []
            at = [await places(bytes(entry), request) for entry in entries]
            if entries and all(at):
                sink((await self._spread(request, field, entries, at)).raw)
            else:
                await self.shards[FAULTS[0]].pass_on(request, sink)

        return handle

    async def _spread(
        self, request: Request, field: str, entries: list[msgspec.Raw], places: list[list[int]]
    ) -> Answer:
        """Every entry at its shard; what is not found there is looked for at the next one."""
        results: list[msgspec.Raw | None] = [None] * len(entries)
        left = dict(enumerate(places))
        while left:
            at: dict[int, list[int]] = {}
            for e, candidates in left.items():
                at.setdefault(candidates.pop(0), []).append(e)
            asked = await asyncio.gather(
                *(self._part(request, field, place, [entries[e] for e in at[place]]) for place in at)
            )
            for answer, mine in zip(asked, at.values(), strict=True):
                if answer.status != 200:
                    return answer
                for e, result in zip(mine, _results.decode(answer.body).results, strict=True):
                    results[e] = result
                    if _result.decode(result).status != NOT_FOUND:
                        left[e].clear()
            left = {e: candidates for e, candidates in left.items() if candidates}
        return answer_of(200, msgspec.json.encode({"results": results}))

    async def _part(
        self, request: Request, field: str, place: int, entries: list[msgspec.Raw]
    ) -> Answer:
        body = msgspec.json.encode({field: entries})
        return await self.shards[place].ask(request._replace(body=body))

    async def _all(self, request: Request) -> list[Answer]:
        async def ask(shard: Server) -> Answer:
            try:
                return await shard.ask(request)
            except Gone as error:
                return refusal(status_of(error), f"{shard.name}: {error}")

        return list(await asyncio.gather(*map(ask, self.shards)))

    async def _everywhere(self, request: Request, sink: Sink) -> None:
        """Every shard has the whole catalogue; after a failure the request can be made again."""
        answers = await self._all(request)
        sink(max(answers, key=lambda answer: answer.status).raw)

    async def _health(self, request: Request, sink: Sink) -> None:
        """As of one server, with the worst status; and every shard's own."""
        told: dict[str, dict[str, Any]] = {}
        for shard, answer in zip(self.shards, await self._all(request), strict=True):
            view = msgspec.json.decode(answer.body)
            told[shard.name] = (
                view if answer.status == 200 else {"status": "degraded", "reason": view["error"]}
            )
        reasons = [f"{n}: {one.get('reason')}" for n, one in told.items() if one["status"] != "ok"]
        worst = {"status": "degraded", "reason": "; ".join(reasons)} if reasons else {"status": "ok"}
        sink(answer_of(200, msgspec.json.encode({**worst, "shards": told})).raw)

    async def _ready(self, request: Request, sink: Sink) -> None:
        ready = [answer.status == 200 for answer in await self._all(request)]
        body = msgspec.json.encode({"ready": all(ready), "shards": ready})
        sink(answer_of(200 if all(ready) else 503, body).raw)

    async def _metrics(self, request: Request, sink: Sink) -> None:
        answers = await self._all(request)
        refused = [answer for answer in answers if answer.status != 200]
        if refused:
            sink(refused[0].raw)
            return
        text = merged({s.name: a.body for s, a in zip(self.shards, answers, strict=True)})
        sink(answer_of(200, text, b"text/plain; version=0.0.4").raw)

    async def _overview(self, request: Request, sink: Sink) -> None:
        links = "".join(
            f'<li><a href="shards/{k}/">{s.name}</a></li>' for k, s in enumerate(self.shards)
        )
        page = f"<!doctype html><html lang=en><title>fclub</title><h1>Shards</h1><ul>{links}</ul>"
        sink(answer_of(200, page.encode(), b"text/html; charset=utf-8").raw)


def merged(texts: dict[str, bytes]) -> bytes:
    """Metrics of several servers as one text, with the server's name as a label."""
    families: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    for name, text in texts.items():
        about: list[bytes] = []
        family = b""
        for line in text.splitlines():
            if line.startswith(b"# "):
                family = line.split(b" ", 3)[2]
                about = families.setdefault(family, ([], []))[0]
                if line not in about:
                    about.append(line)
            elif sample := SAMPLE.fullmatch(line):
                labels = b",".join(filter(None, (b'shard="%b"' % name.encode(), sample[2])))
                families[family][1].append(b"%b{%b} %b" % (sample[1], labels, sample[3]))
    return b"".join(b"\n".join([*about, *lines, b""]) for about, lines in families.values())
