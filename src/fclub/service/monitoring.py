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
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from fclub import __version__
from fclub.service.traffic import Traffic

RECENT = 200

log = logging.getLogger("fclub.service")

# One more series per counter, with a time that the process already tells.
disable_created_metrics()  # type: ignore[no-untyped-call]


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
        self.traffic = Traffic()
        self.registry.register(self.traffic)
        self.resends = self._counter("fclub_link_resent_frames_total", "Frames sent again.", "peer")
        self.refusals = self._counter(
            "fclub_link_refused_frames_total", "Frames refused.", "peer", "reason"
        )
        self.failures = self._counter("fclub_link_failures_total", "Errors of the connection.")
        self.stopping = False
        self._gauges: dict[str, Gauge] = {}
        self._totals = _Totals()
        self.registry.register(self._totals)
        self.gauge("fclub_build_info", "1, with the version.", 1.0, version=__version__)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

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
