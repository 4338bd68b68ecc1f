"""The HTTP service of a local server: decode, call the node, wait for the disk, encode."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fclub.buckets import bucket_of_decision, bucket_of_user
from fclub.errors import FclubError, InvalidInput, NotStored, TooLarge
from fclub.privacy.calibration import STRICT_DELTA, epsilon_of
from fclub.privacy.levels import USER
from fclub.protocol.interfaces.overview import NOTHING
from fclub.service.dashboard.recorder import Recorder
from fclub.service.dashboard.views import LocalView
from fclub.service.dashboard.words import NO_PLAN
from fclub.service.http import api
from fclub.service.http.choosing import Chooser
from fclub.service.http.gate import (
    ADMIN,
    METRICS,
    Bytes,
    Gate,
    Guard,
    Routes,
    check_bucket,
    decoded,
    json_response,
    status_of,
)
from fclub.service.http.pages import Dashboard
from fclub.service.http.shop import Shop
from fclub.service.monitoring import Monitor
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import LocalSettings
from fclub.service.store.books import Books
from fclub.service.store.decisions import decode_events
from fclub.service.store.offers import Whole, decode_offer

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
        self.gate = Gate(settings.http, Guard(settings.http), monitor, runner.when_stored)
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
                route("/v1/clusters", "GET", self.clusters, role=ADMIN),
                route("/v1/users/{user:path}/data", "GET", self.user),
                route("/v1/users/{user:path}", "GET", self.user),
                route("/v1/users/{user:path}", "DELETE", self.forget),
                route("/v1/privacy", "GET", self.privacy_spent),
                route("/v1/link", "GET", self.link),
                route("/metrics", "GET", self.metrics, role=METRICS),
                route("/openapi.json", "GET", self.openapi, role=None),
                route("/healthz", "GET", self.health, role=None),
                route("/readyz", "GET", self.ready, role=None),
                *Dashboard(self.recorder, self.gate, ADMIN).routes(),
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
        """Call what changes something."""
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

    async def clusters(self, request: Request) -> list[api.ClusterView]:
        return [
            api.ClusterView(c, one.group, one.users, one.own + one.others, one.shared_by)
            for c, one in enumerate(self.node.overview())
        ]

    async def user(self, request: Request) -> api.UserView | api.UserData:
        """What is known of a user, or with /data at the end what is stored.

        A name that itself ends so needs its slash quoted, as %2F.
        """
        name = request.scope["path"].removeprefix("/v1/users/")
        stored = request.scope["raw_path"].endswith(b"/data")
        name = name.removesuffix("/data") if stored else name
        check_bucket(request.scope, map(bucket_of_user, [name]))
        if stored:
            return await self._data(name)
        row = self.node.row_of(name)
        cluster = int(self.node.server.cluster_of_user[row])
        count = int(self.node.server.counts[row])
        group = self.node.server.overview()[cluster].group
        return api.UserView(name, cluster, group, count)

    async def _data(self, name: str) -> api.UserData:
        row = self.node.row_of(name)
        await self.runner.commit()
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
            decisions=[self._shown(*stored) for stored in decisions],
            past=[
                api.PastReward(key, self.rewards.from_model(reward), item)
                for key, reward, item in self.node.past.of_user(row)
            ],
        )

    def _shown(
        self,
        key: bytes,
        item: str,
        features: bytes,
        made: float,
        reward: float | None,
        assumed: int,
        told_events: bytes | None,
        *offered: Any,
    ) -> api.Shown:
        (chance, version, body), offer = offered, None
        if body is not None:
            found = decode_offer(body)
            whole = isinstance(found, Whole)
            offer = api.Offered(version, None if whole else found.ids, found.without if whole else [])
        x, told = np.frombuffer(features).tolist(), None
        if reward is not None:
            told = self.rewards.from_model(reward)
        events = [api.EventView(*event) for event in decode_events(told_events)]
        nothing_came = bool(assumed) and not events
        return api.Shown(key.hex(), item, x, made, told, nothing_came, events, chance, offer)

    async def forget(self, request: Request) -> api.Forgotten:
        name = request.path_params["user"]
        check_bucket(request.scope, map(bucket_of_user, [name]))
        gone = self._change(self.node.forget_user, name)
        await self.runner.erased()
        ledger = self.node.books.ledger
        promise = (
            None if ledger is None else api.Promise(*ledger.claimed, ledger.unit, ledger.level.name)
        )
        return api.Forgotten(gone.observations, gone.released, promise, self.node.store.erased)

    async def privacy_spent(self, request: Request) -> api.PrivacyView:
        """Streams may be users, and tell how often each was here: they are for administrators."""
        view = privacy_view(self.node.books)
        view = msgspec.structs.replace(view, exhausted=self.node.exhausted)
        return view if self.gate.is_admin(request) else msgspec.structs.replace(view, streams=[])

    async def link(self, request: Request) -> api.LinkView:
        node, standing = self.node, self.node.sessions.handshake.standing
        return api.LinkView(
            name=node.name,
            connected=self.runner.wire.connected,
            unanswered=node.server.status().unanswered,
            **node.sessions.channel.counters(),
            state=standing.state,
            reason=standing.reason,
            begun=node.sessions.begun["reason"] if node.sessions.begun else None,
        )

    async def metrics(self, request: Request) -> Response:
        channel, gauge = self.node.sessions.channel, self.monitor.gauge
        gauge("fclub_users", "Users seen.", len(self.node.rows))
        gauge("fclub_outbox_frames", "Messages not confirmed.", channel.sent - channel.confirmed)
        gauge("fclub_link_up", "1 while connected.", float(self.runner.wire.connected))
        agreed = float(self.node.sessions.handshake.shown.state == AGREED)
        gauge("fclub_link_agreed", "1 while both sides agree where they stand.", agreed)
        for spent in privacy_view(self.node.books).spent:
            delta = f"{spent.delta:g}"
            gauge("fclub_privacy_epsilon", "ε spent at this δ.", spent.epsilon, delta=delta)
        exhausted = float(self.node.exhausted)
        gauge("fclub_privacy_exhausted", "1 while the budget lets nothing more leave.", exhausted)
        alarm = float(bool(self.node.server.status().outlook.alarm))
        gauge("fclub_release_alarm", "1 if what was told does not follow from releases.", alarm)
        self.monitor.count("fclub_observations_total", "Rewards in the store.", self.node.feedbacks)
        return Response(self.monitor.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> dict[str, Any]:
        return api.openapi(self.settings.model.dim, self.rewards)

    async def health(self, request: Request) -> dict[str, Any]:
        uptime = round(time.time() - self.monitor.started, 3)
        exhausted, health = self.node.exhausted, self.node.sessions.handshake.shown.health
        if not self.runner.wire.connected:
            health = {"status": "degraded", "reason": self.monitor.unreached}
        if alarm := self.node.server.status().outlook.alarm:
            health = {"status": "degraded", "reason": alarm}
        if self.node.server.status().outlook.what == NOTHING:
            health |= {"releases": NO_PLAN}
        return health | {"uptime_seconds": uptime, "privacy_exhausted": exhausted}

    async def ready(self, request: Request) -> Response:
        """Ready unless the store has failed: a local server that is cut off still serves its users."""
        failed = self.runner.failure is None or self.runner.failure.done()
        body = {"ready": not failed, "connected": self.runner.wire.connected}
        return json_response(body, 503 if failed else 200)


@lru_cache(maxsize=1024)
def _epsilon(mu: float, delta: float, distance: float) -> float:
    """Thousands of streams have the same few costs."""
    return epsilon_of(mu, delta, distance)


def privacy_view(books: Books) -> api.PrivacyView:
    """Everything that left, and what it cost by the ledger."""
    ledger = books.ledger
    if ledger is None:
        return api.PrivacyView(books.messages())
    epsilon, delta = ledger.claimed

    def spent(mu: float) -> list[api.Budget]:
        return [api.Budget(_epsilon(mu, at, ledger.distance), at) for at in (delta, STRICT_DELTA)]

    return api.PrivacyView(
        messages=books.messages(),
        claimed=api.Budget(epsilon, delta),
        spent=spent(ledger.mu),
        spent_if_replaced=spent(2.0 * ledger.mu) if ledger.unit == USER else [],
        unit=ledger.unit,
        distance=ledger.distance,
        level=ledger.level.name,
        unaccounted=sorted(str(flag) for flag in ledger.flags),
        exhausted=ledger.exhausted,
        streams=[
            api.StreamView(
                stream=name,
                epoch=stream.epoch,
                mechanism=stream.mechanism.name,
                releases=stream.sequence,
                observations=stream.observations,
                mu=stream.mu,
                epsilon=_epsilon(stream.mu, delta, stream.distance),
            )
            for name, stream in ledger.streams.items()
        ],
    )
