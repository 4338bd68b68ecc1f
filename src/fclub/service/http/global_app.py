"""The HTTP service of the global server: it only observes, and lets an admin end a quarantine."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fclub.errors import NotFound
from fclub.service.dashboard.recorder import Recorder
from fclub.service.dashboard.views import GlobalView
from fclub.service.dashboard.words import global_troubles
from fclub.service.http import global_api as api
from fclub.service.http.gate import Gate, Routes, json_response
from fclub.service.http.keys import keys_for
from fclub.service.http.pages import Dashboard
from fclub.service.monitoring import Monitor
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import GlobalSettings


class GlobalService:
    """The routes of the global server."""

    def __init__(
        self, settings: GlobalSettings, node: GlobalNode, runner: Runner, monitor: Monitor
    ) -> None:
        self.node, self.runner, self.monitor = node, runner, monitor
        self.gate = Gate(settings.http, keys_for(settings), monitor, runner.when_stored)
        self.recorder = Recorder(GlobalView(node, settings.model), runner, monitor)

    def app(self, lifespan: Any = None) -> Routes:
        route = self.gate.route
        return Routes(
            self.gate,
            lifespan=lifespan,
            routes=[
                route("/v1/clusters", "GET", self.clusters),
                route("/v1/servers", "GET", self.servers),
                route("/v1/slots", "GET", self.slots),
                route("/v1/servers/{server}/release", "POST", self.release),
                route("/metrics", "GET", self.metrics),
                route("/openapi.json", "GET", self.openapi),
                route("/healthz", "GET", self.health),
                route("/readyz", "GET", self.ready),
                *Dashboard(self.recorder, self.gate).routes(),
            ],
        )

    async def clusters(self, request: Request) -> list[api.GroupView]:
        names = self.node.names
        return [
            api.GroupView(
                group=group.number,
                kind=group.kind,
                observations=group.observations,
                members=[api.Member(names[server], cluster) for server, cluster in group.members],
            )
            for group in self.node.server.overview()
        ]

    async def slots(self, request: Request) -> list[api.SlotProgress]:
        side = self.node.cohort
        views = () if side is None else side.hub.record.slots
        return [
            api.SlotProgress(
                period=view.period,
                slot=view.slot,
                stage=view.stage,
                times=view.times,
                called=list(view.called),
                joined=list(view.joined),
                ready=list(view.ready),
                missing=list(view.missing),
                reason=view.reason,
            )
            for view in views
        ]

    async def servers(self, request: Request) -> dict[str, api.ServerView]:
        troubles = self.node.members.troubles()
        return {
            name: api.ServerView(
                state=peer.state,
                **peer.channel.counters(),
                offences=peer.offences,
                quarantined=peer.quarantined,
                rejected=peer.rejected,
                trouble=troubles.get(name),
            )
            for name, peer in self.node.peers.items()
        }

    async def release(self, request: Request) -> api.Released:
        name = request.path_params["server"]
        if name not in self.node.peers:
            raise NotFound(f"no server is called {name!r}")
        self.node.members.release(name)
        await self.runner.commit()
        return api.Released(name, quarantined=False)

    async def openapi(self, request: Request) -> dict[str, Any]:
        return api.openapi()

    async def metrics(self, request: Request) -> Response:
        summary, gauge, count = self.node.summary(), self.monitor.gauge, self.monitor.count
        sent = self.node.communications
        full = float(self.node.store.disk.nearly_full is not None)
        gauge("fclub_disk_nearly_full", "1 while the store has little room left.", full)
        gauge("fclub_phase", "Number of the current phase.", summary["phase"])
        gauge("fclub_clusters", "Global clusters.", summary["clusters"])
        gauge("fclub_local_clusters", "Local clusters of all servers.", summary["members"])
        gauge("fclub_link_up", "1 while connected.", float(self.runner.wire.connected))
        count("fclub_reported_observations_total", "Observations reported.", summary["reported"])
        count("fclub_messages_total", "Messages sent and received.", sent.messages)
        count("fclub_message_bytes_total", "Size of these messages.", sent.bytes)
        self.monitor.count_by(
            "fclub_communications_total",
            "C(T): uploads, downloads, and statistics exchanged at phase starts.",
            "kind",
            {"upload": sent.uploads, "download": sent.downloads, "phase": sent.phases},
        )
        for name, peer in self.node.peers.items():
            lag = peer.channel.sent - peer.channel.confirmed
            gauge("fclub_outbox_frames", "Messages not confirmed.", lag, server=name)
            gauge("fclub_quarantined", "1 in quarantine.", float(peer.quarantined), server=name)
            gauge("fclub_suspended", "1 while suspended.", float(peer.suspended), server=name)
            last = peer.unheard
            gauge("fclub_peer_last_heard_seconds", "Time since its last message.", last, server=name)
        return Response(self.monitor.text(), media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> dict[str, Any]:
        unreached = None if self.runner.wire.connected else self.monitor.unreached
        troubles = global_troubles(self.node, unreached)
        health = {"status": "degraded", "reason": "; ".join(troubles)} if troubles else {"status": "ok"}
        return health | {"uptime_seconds": round(self.monitor.uptime, 3)}

    async def ready(self, request: Request) -> Response:
        """Without its broker the global server can do nothing."""
        failed = self.runner.failure is None or self.runner.failure.done()
        connected = self.runner.wire.connected
        body = {"ready": connected and not failed, "connected": connected}
        return json_response(body, 200 if body["ready"] else 503)
