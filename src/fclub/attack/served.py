"""The mechanism of the audit: a federation whose local server is asked through its routes.

Requests go through the code of the routes as a deployment runs it: gate, decoding, handlers, commit
before answer. Only the event loop is missing. Every step of a history is followed by one step of the
work beside serving, so that what is sent while something is being computed is seen as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fclub.attack.histories import (
    ANYTHING,
    OUTSIDE,
    PALETTE,
    REMOVED,
    STOCK,
    VALID,
    Copy,
    Entry,
    History,
    Latest,
    PutBack,
    Request,
    Restart,
    TimePasses,
    Vec,
    Visits,
)
from fclub.attack.running import MOMENTS, NAME, Running, key_of
from fclub.privacy.noise import NoiseSource
from fclub.service.http.keys import SCOPES, KeyFile, keys_of
from fclub.service.http.local_app import LocalService
from fclub.service.link.wire import DirectWire
from fclub.service.monitoring import Monitor
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner, Stored
from fclub.service.settings import Http, LocalSettings, Model

TOKEN = "audit"
NO_DECISION = "00"
LATER = 1e9
"""Seconds after which every reward is late and every decision old."""

PUBLIC = ("/healthz", "/readyz")
"""Routes that answer without a token, other than the description of the API."""

PRIVATE = ("uptime_seconds",)


class ImmediateRunner(Runner):
    """Stores whatever there is when somebody waits for it; frames stay until they are delivered."""

    def __init__(self, node: LocalNode, monitor: Monitor) -> None:
        super().__init__(node, DirectWire(NAME, {}), monitor)
        self.frames: list[tuple[str, bytes]] = []
        self.notices: list[str] = []

    def when_stored(self, stored: Stored) -> None:
        self.store()
        stored(None)

    async def commit(self) -> None:
        self.store()

    async def erased(self) -> None:
        while self.node.journal.erasing:
            self.work()
            self.store()
        self.store()

    def fail(self, error: BaseException) -> None:
        raise error

    def store(self) -> None:
        node = self.node
        node.journal.save_some()
        changes = node.take()
        node.store.write(changes.statements)
        if changes.erase:
            node.store.erase()
        node.committed(changes)
        self.notices += changes.notices
        self.frames += changes.frames + changes.letters + list(changes.receipts.items())

    def work(self) -> bool:
        """One step of the work beside serving."""
        part = self.node.part()
        if part is not None:
            part()
        return part is not None


class Served(Running):
    """Its local server is asked through the routes. What anybody may read counts as a notice."""

    def __init__(
        self, folder: Path, model: Model, source: NoiseSource | None, exact: bool, late: bool
    ) -> None:
        self.runner: ImmediateRunner | None = None
        self.copied = False
        super().__init__(folder, model, source, exact, late)
        self.moments = MOMENTS

    def _settings(self, name: str, file: str) -> LocalSettings:
        http = Http(max_items=8, max_batch=8, max_body_bytes=20_000)
        store = str(self.folder / f"{file}.db")
        KeyFile(keys_of(store)).add("audit", SCOPES, token=TOKEN)
        return LocalSettings(
            model=self.model, name=name, store=store, http=http, secure=key_of(self.folder, name)
        )

    def _open(self) -> LocalNode:
        node, monitor = super()._open(), Monitor("local")
        self.runner = ImmediateRunner(node, monitor)
        settings = self._settings(NAME, NAME)
        self.service = LocalService(settings, node, self.runner, monitor)
        self.routes = self.service.app()
        return node

    def _commit(self, node: LocalNode | GlobalNode) -> list[tuple[str, bytes]]:
        """The local server's own commits store what it has, and do no work."""
        if self.runner is None or node is not self.node:
            return super()._commit(node)
        if node.cohort is not None:
            node.cohort.run()
        self.runner.store()
        frames, self.runner.frames = self.runner.frames, []
        notices, self.runner.notices = self.runner.notices, []
        self.notices += [(len(self.visitors), notice) for notice in notices]
        return frames

    def _when(self) -> int:
        """In steps: how long it computes is not covered, and here it computes very slowly."""
        return len(self.visitors)

    def _tick(self) -> None:
        """At every moment the server works a little, and what it has stored is delivered."""
        super()._tick()
        assert self.runner is not None
        self.runner.work()
        self.deliver()

    def step_done(self) -> None:
        """After each step time passes."""
        self.wait()
        for path in PUBLIC:
            body = self.request("get", path, None, token=False)[1]
            told = {key: value for key, value in body.items() if key not in PRIVATE}
            self.notices.append((len(self.visitors), f"{path} {json.dumps(told)}"))

    def settle(self) -> None:
        """Work until nothing is left to do."""
        assert self.runner is not None
        self.deliver()
        while self.runner.work() or self.node.journal.save_some():
            self.deliver()

    def request(self, method: str, path: str, body: Any, token: bool = True) -> tuple[int, Any]:
        """Status and body of the answer."""
        data = b"" if body is None else msgspec.json.encode(body)
        headers = [(b"authorization", f"Bearer {TOKEN}".encode())] if token else []
        scope: dict[str, Any] = {
            "type": "http",
            "method": method.upper(),
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
        }
        answer: dict[str, Any] = {"body": b""}

        def respond(status: int, told: bytes) -> None:
            answer.update(status=status, body=told)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            if "status" in message:
                answer["status"] = message["status"]
            answer["body"] += message.get("body", b"")

        endpoint = self.routes.at_once.get((scope["method"], path))
        if endpoint is None or not endpoint.answer_at_once(scope, data, respond):
            _finish(self.routes(scope, receive, send))
        return answer["status"], json.loads(answer["body"] or b"null")

    def restart(self, snapshot: bool) -> None:
        if snapshot:
            self.node.journal.snapshot()
            self.settle()
        super().restart(False)

    def copy(self) -> None:
        (self.folder / "copy.db").unlink(missing_ok=True)
        super().copy()
        self.copied = True

    def put_back(self) -> None:
        if self.copied:
            super().put_back()

    def pass_time(self, step: TimePasses) -> None:
        """What the chores of a server do when it is later."""
        node, later = self.node, time.time() + LATER
        node.sessions.tick()
        while step.assume and node.rewards.assume(later, 0.0):
            self.deliver()
        while step.expire and node.forget(later):
            self.deliver()

    def finish(self) -> None:
        self.settle()
        super().finish()
        self.settle()


def _finish(coroutine: Coroutine[Any, Any, None] | Any) -> None:
    """Run what waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a route has waited for something that does not come")


class Player:
    """Plays one side of a history: 0, or 1 for the neighbour."""

    def __init__(self, history: History, side: int, running: Served) -> None:
        self.history, self.side, self.running = history, side, running
        self.shown: dict[str, list[str]] = {}
        self.places: dict[str, int] = {}
        """The place of the entry of each of the target's decisions, among its entries."""
        self.place, self.born = -1, list[int]()

    def play(self) -> None:
        self._ask(STOCK)
        for step in self.history.steps:
            match step:
                case Visits():
                    for request in step.requests():
                        self._ask(request)
                    continue
                case Request():
                    self._ask(step)
                    continue
                case Restart():
                    self.running.restart(step.snapshot)
                case Copy():
                    self.running.copy()
                case PutBack():
                    self.running.put_back()
                case TimePasses():
                    self.running.pass_time(step)
            self.running.step_done()

    def _gone(self, user: str) -> bool:
        """Whether that user is nobody on this side."""
        removed = self.side == 1 and self.history.kind == REMOVED
        return removed and user == self.history.target

    def _ask(self, request: Request) -> None:
        self.born = []
        entries = [entry for entry in _entries(request.body) if not self._gone(entry.user)]
        body, made = self._resolve(request.body)
        made = made and not any(map(self._gone, request.path.split("/")))
        if made:
            status, answer = self.running.request(request.method, request.path, body)
            if status == 200:
                self._remember(entries, answer)
        self.running.step_done()

    def _resolve(self, body: Any) -> tuple[Any, bool]:
        """The body to be sent; False if there is nothing left to tell."""
        match body:
            case Entry() if self._gone(body.user):
                return None, False
            case Entry():
                found = self._entry(body)
                return found, found is not None
            case dict():
                whole = {key: self._resolve(value) for key, value in body.items()}
                return {k: v for k, (v, _) in whole.items()}, all(made for _, made in whole.values())
            case list():
                some = [value for value, made in map(self._resolve, body) if made]
                return some, bool(some) or not body
            case Vec():
                return self._vector(Vec(0) if self.history.alike else body), True
        return body, True

    def _entry(self, entry: Entry) -> dict[str, Any] | None:
        history = self.history
        concerned = self.side == 1 and (history.kind == ANYTHING or entry.user == history.target)
        place = self._place_of(entry)
        body = dict(entry.here)
        match history.kind if concerned else None:
            case "replaced":
                body = dict(entry.there)
            case "anything":
                body = dict(entry.there) if history.by_user else _others(body)
            case "withdrawn" if "decision" in body:
                return None
            case "withdrawn" if "reward" in body:
                body["reward"] = OUTSIDE
            case "one observation" if place == history.place:
                body = self._swapped(body)
        if "decision" in body:
            body["decision"] = self._decision(body["decision"])
        elif "id" in body:
            body["id"] = f"{entry.user}-{body['id']}"
        if history.alike:
            if not history.alone and "user" in body and "reward" not in body:
                body |= {"exclude_seen": False, "most_per_category": None}
            first = next(_vectors(body), Vec(0))
            body = _with_vector(body, lambda _: first)
        return dict(_with_vector(body, self._vector))

    def _place_of(self, entry: Entry) -> int:
        """The place of the observation that an entry is about: its own, or that of its decision."""
        body = entry.here
        if "decision" in body:
            return self.places.get(self._decision(body["decision"]), -1)
        several = body.get("count") is not None
        if entry.user == self.history.target and not several:
            self.place += 1
        self.born.append(-1 if several or entry.user != self.history.target else self.place)
        return self.born[-1]

    def _swapped(self, body: dict[str, Any]) -> dict[str, Any]:
        """Another vector and reward, where those that are there would be learned."""
        vector, reward = self.history.swap
        if body.get("reward", OUTSIDE) != OUTSIDE:
            body["reward"] = reward
        if all(one.number < VALID for one in _vectors(body)):
            return dict(_with_vector(body, lambda _: vector))
        return body

    def _decision(self, latest: Latest) -> str:
        shown = self.shown.get(latest.user, [])
        return shown[-1 - latest.back] if latest.back < len(shown) else NO_DECISION

    def _vector(self, vector: Vec) -> list[float]:
        return [float(number) for number in PALETTE[vector.number]]

    def _remember(self, entries: list[Entry], answer: Any) -> None:
        results = answer["results"] if isinstance(answer, dict) and "results" in answer else None
        told = [answer] if results is None else [result.get("result") for result in results]
        if len(told) != len(self.born):
            return
        for entry, one, place in zip(entries, told, self.born, strict=True):
            for key in _decisions(one):
                self.shown.setdefault(entry.user, []).append(key)
                self.places[key] = place


def _entries(body: Any) -> Iterator[Entry]:
    match body:
        case Entry():
            yield body
        case dict():
            for value in body.values():
                yield from _entries(value)
        case list():
            for value in body:
                yield from _entries(value)


def _decisions(answer: Any) -> Iterator[str]:
    """Those that an answer names, in its order."""
    match answer:
        case {"decision": str(key)}:
            yield key
        case {"shown": list(several)}:
            for one in several:
                yield from _decisions(one)


def _with_vector(body: Any, change: Callable[[Vec], Any]) -> Any:
    match body:
        case Vec():
            return change(body)
        case dict():
            return {key: _with_vector(value, change) for key, value in body.items()}
        case list():
            return [_with_vector(value, change) for value in body]
    return body


def _vectors(body: Any) -> Iterator[Vec]:
    match body:
        case Vec():
            yield body
        case dict():
            for value in body.values():
                yield from _vectors(value)
        case list():
            for value in body:
                yield from _vectors(value)


def _others(body: dict[str, Any]) -> dict[str, Any]:
    """Other data, of which as much is refused."""
    if body.get("reward", OUTSIDE) != OUTSIDE:
        body["reward"] = 1.0 - body["reward"]

    def other(vector: Vec) -> Vec:
        return Vec((vector.number + 1) % VALID) if vector.number < VALID else vector

    return dict(_with_vector(body, other))
