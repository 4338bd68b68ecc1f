"""The HTTP service of a local server: decode, call the node, wait for the disk, encode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.types import Scope

from fclub.buckets import bucket_of_decision, bucket_of_user
from fclub.core.inputs import RewardRange
from fclub.errors import FclubError, InvalidInput, NotStored, TooLarge
from fclub.service.dashboard.recorder import Recorder
from fclub.service.dashboard.views import LocalView
from fclub.service.http import api
from fclub.service.http.choosing import Chooser
from fclub.service.http.gate import (
    Bytes,
    Gate,
    Routes,
    check_bucket,
    decoded,
    status_of,
)
from fclub.service.http.keys import keys_for
from fclub.service.http.local_status import LocalStatus
from fclub.service.http.pages import Dashboard
from fclub.service.http.shop import Shop
from fclub.service.monitoring import Monitor
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings
from fclub.service.store.decisions import Whole, decode_events, decode_offer

Entry = TypeVar("Entry")
Body = TypeVar("Body")
Result = TypeVar("Result")

_recommend = msgspec.json.Decoder(api.RecommendRequest)
_feedback = msgspec.json.Decoder(api.FeedbackRequest)
_recommend_batch = msgspec.json.Decoder(api.RecommendBatch)
_feedback_batch = msgspec.json.Decoder(api.FeedbackBatch)


class LocalService:
    """The routes of one local server."""

    def __init__(self, settings: LocalSettings, node: LocalNode, runner: Runner, monitor: Monitor):
        self.settings, self.node, self.runner, self.monitor = settings, node, runner, monitor
        self.rewards = settings.model.rewards
        self.gate = Gate(settings.http, keys_for(settings), monitor, runner.when_stored)
        self.chooser = Chooser(settings, node, runner)
        self.shop = Shop(settings, node, runner, self.gate, self._change)
        self.recorder = Recorder(LocalView(node, settings.model, monitor), runner, monitor)

    def app(self, lifespan: Any = None) -> Routes:
        route = self.gate.route
        return Routes(
            self.gate,
            lifespan=lifespan,
            routes=[
                route("/v1/recommend", "POST", self.recommend, at_once=self.recommend_at_once),
                route("/v1/feedback", "POST", self.feedback, at_once=self.feedback_at_once),
                route("/v1/recommend/batch", "POST", self.recommend_batch),
                route("/v1/feedback/batch", "POST", self.feedback_batch),
                route("/v1/observations", "POST", self.observations),
                *self.shop.routes(),
                route("/v1/users/{user:path}/data", "GET", self.data),
                route("/v1/users/{user:path}/preview", "GET", self.preview),
                route("/v1/users/{user:path}", "GET", self.user),
                route("/v1/users/{user:path}", "DELETE", self.forget),
                route("/openapi.json", "GET", self.openapi),
                *LocalStatus(self.node, self.runner, self.monitor, self.gate).routes(),
                *Dashboard(self.recorder, self.gate).routes(),
            ],
        )

    async def recommend(self, request: Request) -> api.Recommended | api.Several:
        entry = await self._asked(request, _recommend)
        check_bucket(request.scope, map(bucket_of_user, [entry.user]))
        answer = await self._choose(entry)
        await self.runner.commit()
        return answer

    def recommend_at_once(self, body: Bytes, scope: Scope) -> api.Recommended | None:
        """None where items have to be looked for."""
        entry = self._read(body, _recommend)
        check_bucket(scope, map(bucket_of_user, [entry.user]))
        answer = self._change(self.chooser.at_once, entry)
        self.monitor.traffic.decisions += answer is not None
        return answer

    async def _asked(self, request: Request, decoder: msgspec.json.Decoder[Body]) -> Body:
        try:
            data = await self.gate.bytes_of(request)
        except TooLarge:
            self._arrive_unread(b"")
            raise
        return self._read(data, decoder)

    def _read(self, data: Bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
        """A request that cannot be read is a visit like any other: whether it can follows from data."""
        try:
            return decoded(data, decoder)
        except FclubError:
            self._arrive_unread(data)
            raise

    def _arrive_unread(self, data: Bytes) -> None:
        self._change(self.chooser.arrive_unread, api.names_in(data))
        self.runner.when_stored(lambda error: None)

    def feedback_at_once(self, body: Bytes, scope: Scope) -> api.Learned:
        entry = decoded(body, _feedback)
        check_bucket(scope, [bucket_of_decision(entry.decision)])
        return self._change(self._learn, entry)

    async def feedback(self, request: Request) -> api.Learned:
        entry = await self.gate.body(request, _feedback)
        check_bucket(request.scope, [bucket_of_decision(entry.decision)])
        answer = self._change(self._learn, entry)
        await self.runner.commit()
        return answer

    async def recommend_batch(self, request: Request) -> api.RecommendResults:
        entries = (await self._asked(request, _recommend_batch)).requests
        check_bucket(request.scope, (bucket_of_user(entry.user) for entry in entries))
        if len(entries) > self.settings.http.max_batch:
            self.chooser.arrive_unread([entry.user for entry in entries])
        results = [api.RecommendResult(*r) for r in await self._each(entries, self._choose)]
        await self.runner.commit()
        return api.RecommendResults(results)

    async def feedback_batch(self, request: Request) -> api.FeedbackResults:
        entries = (await self.gate.body(request, _feedback_batch)).requests
        check_bucket(request.scope, (bucket_of_decision(entry.decision) for entry in entries))
        return await self._learn_each(entries, self._learn)

    async def observations(self, request: Request) -> api.FeedbackResults:
        entries = await self.shop.past(request)
        check_bucket(request.scope, (bucket_of_user(entry.user) for entry in entries))
        return await self._learn_each(entries, self.shop.learn_past)

    async def _learn_each(
        self, entries: list[Entry], learn: Callable[[Entry], api.Learned]
    ) -> api.FeedbackResults:
        async def handle(entry: Entry) -> api.Learned:
            return self._change(learn, entry)

        results = [api.FeedbackResult(*r) for r in await self._each(entries, handle)]
        await self.runner.commit()
        return api.FeedbackResults(results)

    async def _each(
        self, entries: list[Entry], handle: Callable[[Entry], Awaitable[Any]]
    ) -> list[tuple[int, Any, str | None]]:
        """A result or an error per entry."""
        if len(entries) > self.settings.http.max_batch:
            raise TooLarge(f"a batch may have {self.settings.http.max_batch} entries")
        results: list[tuple[int, Any, str | None]] = []
        for entry in entries:
            try:
                results.append((200, await handle(entry), None))
            except FclubError as error:
                results.append((status_of(error), None, str(error)))
        return results

    def _change(self, handle: Callable[[Entry], Result], entry: Entry) -> Result:
        try:
            return handle(entry)
        except FclubError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> NotStored:
        """After an unexpected error something may be half done: nothing more is acknowledged."""
        self.runner.fail(error)
        return NotStored("the server has failed")

    async def _choose(self, entry: api.RecommendRequest) -> api.Recommended | api.Several:
        try:
            answer = await self.chooser.choose(entry)
        except FclubError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        self.monitor.traffic.decisions += len(answer.shown) if isinstance(answer, api.Several) else 1
        return answer

    def _learn(self, entry: api.FeedbackRequest) -> api.Learned:
        if (entry.reward is None) == (entry.event is None):
            raise InvalidInput("feedback has either a reward or an event")
        if entry.event is not None:
            return api.Learned(self._happened(entry, entry.event))
        if entry.value is not None:
            raise InvalidInput("a value belongs to an event")
        reward = self.rewards.to_model(entry.reward or 0.0)
        counted = self.node.rewards.feedback(entry.decision, reward)
        if counted:
            self.monitor.traffic.learned(reward)
        return api.Learned(counted)

    def _happened(self, entry: api.FeedbackRequest, name: str) -> bool:
        feedback = self.settings.feedback
        if name not in feedback.events:
            known = ", ".join(feedback.events) or "none"
            raise InvalidInput(f"expected an event of feedback.events ({known}), got {name!r}", name)
        value = feedback.events[name] if entry.value is None else entry.value
        self.rewards.to_model(value)  # is it in the range?
        final = feedback.final_after
        return self.node.rewards.event(entry.decision, name, value, self._reward_of, final)

    def _reward_of(self, values: list[float]) -> float:
        """What a decision with these events has earned, as the model learns it."""
        how = self.settings.feedback.reward_is
        value = max(values) if how == "max" else sum(values) if how == "sum" else values[-1]
        return self.rewards.to_model(min(max(value, self.rewards.low), self.rewards.high))

    async def user(self, request: Request) -> api.UserView:
        """A name that ends in /data or /preview needs its slash quoted, as %2F."""
        return self._view(_name_in(request))

    async def preview(self, request: Request) -> api.Previewed:
        """What is known of a user, and what would be shown."""
        name = _name_in(request)
        known = self._view(name)
        count, category = self.shop.count_of(request), request.query_params.get("category")
        items = await self.chooser.preview(name, count, category)
        limits = self.rewards.low, self.rewards.high
        return api.Previewed(**msgspec.structs.asdict(known), items=items, reward_range=limits)

    def _view(self, name: str) -> api.UserView:
        row = self.node.users.row_of(name)
        cluster = int(self.node.server.cluster_of_user[row])
        count = int(self.node.server.counts[row])
        group = self.node.server.overview()[cluster].group
        return api.UserView(name, cluster, group, count)

    async def data(self, request: Request) -> api.UserData:
        name = _name_in(request)
        await self.runner.commit()
        row = self.node.users.row_of(name)
        statistics, decisions = self.node.server.stored(row), self.node.decisions.of_user(row)
        return api.UserData(
            user=name,
            statistics=api.Statistics(
                observations=statistics.count,
                gram=statistics.gram.tolist(),
                moment=statistics.moment.tolist(),
                centre=self.node.server.bound(row).offset,
            ),
            reward_range=self.settings.model.reward,
            decisions=[_shown(self.rewards, *stored) for stored in decisions],
            past=[
                api.PastReward(key, self.rewards.from_model(reward), item)
                for key, reward, item in self.node.past.of_user(row)
            ],
        )

    async def forget(self, request: Request) -> api.Forgotten:
        name = _name_in(request)
        gone = self._change(self.node.users.forget, name)
        await self.runner.erased()
        ledger = self.node.books.ledger
        promise = (
            None if ledger is None else api.Promise(*ledger.claimed, ledger.unit, ledger.level.name)
        )
        return api.Forgotten(gone.observations, gone.released, promise, self.node.store.erased)

    async def openapi(self, request: Request) -> dict[str, Any]:
        return api.openapi(self.settings.model.dim, self.rewards)


def _name_in(request: Request) -> str:
    """The user whom a path names."""
    name: str = request.path_params["user"]
    check_bucket(request.scope, map(bucket_of_user, [name]))
    return name


def _shown(
    rewards: RewardRange,
    key: bytes,
    item: str,
    features: bytes,
    made: float,
    reward: float | None,
    assumed: int,
    told_events: bytes | None,
    *offered: Any,
) -> api.Shown:
    """A decision as it is stored, for people."""
    (chance, version, body), offer = offered, None
    if body is not None:
        found = decode_offer(body)
        whole = isinstance(found, Whole)
        offer = api.Offered(version, None if whole else found.ids, found.without if whole else [])
    x, told = np.frombuffer(features).tolist(), None
    if reward is not None:
        told = rewards.from_model(reward)
    events = [api.EventView(*event) for event in decode_events(told_events)]
    nothing_came = bool(assumed) and not events
    return api.Shown(key.hex(), item, x, made, told, nothing_came, events, chance, offer)
