"""How a local server stands: what left and what it cost, its link, metrics, health."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fclub.privacy.calibration import STRICT_DELTA, epsilon_of
from fclub.privacy.levels import USER
from fclub.protocol.interfaces.overview import NOTHING
from fclub.service.dashboard.words import NO_PLAN, local_troubles
from fclub.service.http import api
from fclub.service.http.gate import Gate, json_response
from fclub.service.monitoring import Monitor
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.store.books import Books


class LocalStatus:
    """The routes that look at the server itself and change nothing."""

    def __init__(self, node: LocalNode, runner: Runner, monitor: Monitor, gate: Gate) -> None:
        self.node, self.runner, self.monitor, self.gate = node, runner, monitor, gate

    def routes(self) -> list[Route]:
        route = self.gate.route
        return [
            route("/v1/clusters", "GET", self.clusters),
            route("/v1/privacy", "GET", self.privacy_spent),
            route("/v1/link", "GET", self.link),
            route("/metrics", "GET", self.metrics),
            route("/healthz", "GET", self.health),
            route("/readyz", "GET", self.ready),
        ]

    async def clusters(self, request: Request) -> list[api.ClusterView]:
        return [
            api.ClusterView(c, one.group, one.users, one.own + one.others, one.shared_by)
            for c, one in enumerate(self.node.overview())
        ]

    async def privacy_spent(self, request: Request) -> api.PrivacyView:
        """Streams may be users, and tell how often each was here."""
        view = privacy_view(self.node.books)
        return msgspec.structs.replace(view, exhausted=self.node.exhausted)

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
        gauge("fclub_users", "Users seen.", len(self.node.users.rows))
        gauge("fclub_outbox_frames", "Messages not confirmed.", channel.sent - channel.confirmed)
        gauge("fclub_link_up", "1 while connected.", float(self.runner.wire.connected))
        agreed = float(self.node.sessions.handshake.shown.state == AGREED)
        gauge("fclub_link_agreed", "1 while both sides agree where they stand.", agreed)
        for spent in privacy_view(self.node.books).spent:
            delta = f"{spent.delta:g}"
            gauge("fclub_privacy_epsilon", "ε spent at this δ.", spent.epsilon, delta=delta)
        exhausted = float(self.node.exhausted)
        gauge("fclub_privacy_exhausted", "1 while the budget lets nothing more leave.", exhausted)
        full = float(self.node.store.disk.nearly_full is not None)
        gauge("fclub_disk_nearly_full", "1 while the store has little room left.", full)
        alarm = float(bool(self.node.server.status().outlook.alarm))
        gauge("fclub_release_alarm", "1 if what was told does not follow from releases.", alarm)
        self.monitor.count("fclub_observations_total", "Rewards in the store.", self.node.feedbacks)
        return Response(self.monitor.text(), media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> dict[str, Any]:
        uptime, exhausted = round(self.monitor.uptime, 3), self.node.exhausted
        health: dict[str, Any] = {"status": "ok"}
        if troubles := local_troubles(self.node, self.unreached):
            health = {"status": "degraded", "reason": "; ".join(troubles)}
        if self.node.server.status().outlook.what == NOTHING:
            health |= {"releases": NO_PLAN}
        return health | {"uptime_seconds": uptime, "privacy_exhausted": exhausted}

    @property
    def unreached(self) -> str | None:
        return None if self.runner.wire.connected else self.monitor.unreached

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
