"""What a process shows of itself: Prometheus numbers, a log, and a feed of recent events.

The feed is the seam for a dashboard: `events()` yields what happened, `Monitor.recent` what happened
lately; the numbers come from the nodes when they are asked for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from fclub import __version__

RECENT = 200
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

log = logging.getLogger("fclub.service")

# One more series per counter, with a time that the process already tells.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _ByStatus(dict[int, Counter]):
    """Looks a counter up once: a request is too short to do it every time."""

    def __init__(self, requests: Counter, route: str) -> None:
        super().__init__()
        self._requests, self._route = requests, route

    def __missing__(self, status: int) -> Counter:
        self[status] = self._requests.labels(self._route, str(status))
        return self[status]


class _Totals(Collector):
    """Counters that are read off the state; as the store keeps it, a restart does not reset them."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, list[tuple[dict[str, str], float]]]] = {}

    def set(self, name: str, text: str, values: list[tuple[dict[str, str], float]]) -> None:
        self._found[name] = text, values

    def collect(self) -> Iterator[CounterMetricFamily]:
        for name, (text, values) in self._found.items():
            family = CounterMetricFamily(name, text, labels=list(values[0][0]))
            for labels, value in values:
                family.add_metric(list(labels.values()), value)
            yield family


class Monitor:
    """Counters of one process, in a registry of its own."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.started = time.time()
        self.registry = CollectorRegistry()
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._listeners: set[asyncio.Queue[dict[str, Any]]] = set()
        self.requests = self._counter("fclub_http_requests_total", "Requests.", "route", "status")
        self.latency = Histogram(
            "fclub_http_request_duration_seconds",
            "Time from request to answer.",
            ["route"],
            registry=self.registry,
            buckets=LATENCY_BUCKETS,
        )
        self.resends = self._counter("fclub_link_resent_frames_total", "Frames sent again.", "peer")
        self.refusals = self._counter(
            "fclub_link_refused_frames_total", "Frames refused.", "peer", "reason"
        )
        self.failures = self._counter("fclub_link_failures_total", "Errors of the connection.")
        self.decisions = self._counter("fclub_decisions_total", "Items recommended.")
        self.feedback = self._counter("fclub_feedback_total", "Rewards learned from.")
        self.rewards = self._counter("fclub_rewards_total", "Sum of the rewards learned from.")
        self.stopping = False
        self._gauges: dict[str, Gauge] = {}
        self._totals = _Totals()
        self.registry.register(self._totals)
        self.gauge("fclub_build_info", "1, with the version.", 1.0, version=__version__)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def counts(self, route: str) -> dict[int, Counter]:
        """The counters of a route by status."""
        return _ByStatus(self.requests, route)

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Set a number that is read off the state when somebody asks."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, text, list(labels), registry=self.registry)
        found = self._gauges[name]
        (found.labels(**labels) if labels else found).set(value)

    def count(self, name: str, text: str, value: float) -> None:
        """Set a number that only grows and is read off the state; its name ends in `_total`."""
        self._totals.set(name, text, [({}, value)])

    def count_by(self, name: str, text: str, label: str, values: Mapping[str, float]) -> None:
        """The same, one number for every value of a label."""
        self._totals.set(name, text, [({label: key}, value) for key, value in values.items()])

    def total(self, name: str, **labels: str) -> float:
        """The current value of a sample in the registry."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def time_of(self, route: str) -> tuple[float, float]:
        """Seconds that a route has taken in all, and the number of its requests."""
        name = "fclub_http_request_duration_seconds"
        return self.total(f"{name}_sum", route=route), self.total(f"{name}_count", route=route)

    def latency_buckets(self, route: str) -> list[tuple[float, float]]:
        """How many requests of a route took at most so many seconds."""
        name = "fclub_http_request_duration_seconds_bucket"
        return [(le, self.total(name, route=route, le=str(le))) for le in LATENCY_BUCKETS]

    def failed_requests(self) -> dict[str, float]:
        """Requests by status, of those that were refused or failed."""
        found: dict[str, float] = {}
        for metric in self.requests.collect():
            for sample in metric.samples:
                status = sample.labels["status"]
                if sample.name.endswith("_total") and status >= "400":
                    found[status] = found.get(status, 0.0) + sample.value
        return found

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)

    def event(self, kind: str, level: int = logging.INFO, **facts: Any) -> None:
        """Something worth a line in the log and a place in the feed."""
        entry = {"at": time.time(), "event": kind, **facts}
        self.recent.append(entry)
        for queue in self._listeners:
            queue.put_nowait(entry)
        log.log(level, kind, extra={"facts": facts})

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Events from now on."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    def resent(self, peer: str, frames: int) -> None:
        self.resends.labels(peer).inc(frames)
        if frames:
            self.event("resent", peer=peer, frames=frames)

    def refused(self, peer: str, error: Exception) -> None:
        reason = type(error).__name__
        self.refusals.labels(peer, reason).inc()
        self.event("refused", logging.WARNING, peer=peer, reason=reason, error=str(error))

    def wire_failed(self, error: BaseException) -> None:
        self.failures.inc()
        self.event("link failed", logging.WARNING, error=f"{type(error).__name__}: {error}")
