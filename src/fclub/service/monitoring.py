"""What a process shows of itself: Prometheus numbers, a log, and a feed of recent events.

Numbers that every request changes are plain ones, made into Prometheus metrics when somebody asks: a
metric of the Prometheus client takes a lock at every step; a request has several, and one thread.

`Monitor.recent` is what happened lately, for the dashboard; its numbers come from the nodes when they
are asked for.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from math import inf
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fclub import __version__

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)


class RouteTraffic:
    """Requests of one route by status, and how long they took."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.seconds = 0.0
        self._buckets = [0] * (len(LATENCY_BUCKETS) + 1)

    def add(self, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.seconds += seconds
        self._buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    @property
    def requests(self) -> int:
        return sum(self._buckets)

    def at_most(self) -> list[tuple[float, int]]:
        """Limits in seconds, and how many requests took at most as long."""
        return list(zip(LATENCY_BUCKETS, accumulate(self._buckets), strict=False))


class Traffic:
    """What a server has been asked; a collector of a Prometheus registry."""

    def __init__(self) -> None:
        self.routes: dict[str, RouteTraffic] = {}
        self.decisions = self.feedback = 0
        self.rewards = self.squares = 0.0

    def learned(self, reward: float) -> None:
        self.feedback += 1
        self.rewards += reward
        self.squares += reward**2

    def route(self, path: str) -> RouteTraffic:
        return self.routes.setdefault(path, RouteTraffic())

    def failed(self) -> dict[str, int]:
        """Requests by status, of those that were refused or failed."""
        found: dict[str, int] = {}
        for traffic in self.routes.values():
            for status, count in traffic.statuses.items():
                if status >= 400:
                    found[str(status)] = found.get(str(status), 0) + count
        return found

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "fclub_http_requests_total", "Requests.", labels=["route", "status"]
        )
        latency = HistogramMetricFamily(
            "fclub_http_request_duration_seconds", "Time from request to answer.", labels=["route"]
        )
        for path, traffic in self.routes.items():
            for status, count in traffic.statuses.items():
                requests.add_metric([path, str(status)], count)
            buckets = [(str(limit), float(count)) for limit, count in traffic.at_most()]
            everything = ("+Inf", float(traffic.requests))
            latency.add_metric([path], [*buckets, everything], traffic.seconds)
        yield requests
        yield latency
        yield CounterMetricFamily("fclub_decisions_total", "Items recommended.", self.decisions)
        yield CounterMetricFamily("fclub_feedback_total", "Rewards learned from.", self.feedback)


RECENT = 200
WIRE_ERRORS = 64
"""Kinds of errors of the connection that are told apart."""

TELL_AGAIN_SECONDS = 60.0

log = logging.getLogger("fclub.service")
log.addHandler(logging.NullHandler())  # who has not asked for a log gets none

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


CLOCK_SET_SECONDS = 60.0


def since_boot() -> float:
    """Seconds of which those in suspension are some, where the system tells them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClockWatch:
    """Notices that a clock was set: it has gone on by another time than has passed."""

    def __init__(
        self, clock: Callable[[], float] = time.time, steady: Callable[[], float] = since_boot
    ) -> None:
        self._clock, self._steady = clock, steady
        self._apart = clock() - steady()

    def jump(self) -> float:
        """Seconds by which it was set forth since the last call; 0 where that is a correction."""
        before, self._apart = self._apart, self._clock() - self._steady()
        jump = self._apart - before
        return jump if abs(jump) >= CLOCK_SET_SECONDS else 0.0


class Monitor:
    """Counters of one process, in a registry of its own."""

    def __init__(self, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.role, self._clock = role, clock
        self._wire_error: str | None = None
        self._wire_told: dict[str, tuple[float, float, int]] = {}
        self._begun = clock()
        self.registry = CollectorRegistry()
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.traffic = Traffic()
        self.registry.register(self.traffic)
        self.resends = self._counter("fclub_link_resent_frames_total", "Frames sent again.", "peer")
        self.refusals = self._counter(
            "fclub_link_refused_frames_total", "Frames refused.", "peer", "reason"
        )
        self.failures = self._counter("fclub_link_failures_total", "Errors of the connection.")
        self.dropped = self._counter(
            "fclub_http_dropped_connections_total", "Connections ended as too slow or too many."
        )
        self.stopping = False
        self._told: dict[tuple[str, str], float] = {}
        self._gauges: dict[str, Gauge] = {}
        self._totals = _Totals()
        self.registry.register(self._totals)
        self.gauge("fclub_build_info", "1, with the version.", 1.0, version=__version__)

    @property
    def uptime(self) -> float:
        return self._clock() - self._begun

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Set a number that is read off the state at every scrape."""
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
        log.log(level, kind, extra={"facts": facts})

    def fault(self, error: Exception) -> None:
        """An error of this program in a request: what and where, but no words, which may hold data."""
        last = extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        self.event("a request has failed", logging.ERROR, error=type(error).__name__, place=place)

    def resent(self, peer: str, frames: int) -> None:
        self.resends.labels(peer).inc(frames)
        if frames:
            self.event("resent", peer=peer, frames=frames)

    def refused(self, peer: str, error: Exception) -> None:
        """Counted each time; told when it is new, and once a minute while it goes on."""
        reason, now = type(error).__name__, time.monotonic()
        self.refusals.labels(peer, reason).inc()
        if now - self._told.get((peer, reason), -inf) >= TELL_AGAIN_SECONDS:
            self._told[peer, reason] = now
            self.event("refused", logging.WARNING, peer=peer, reason=reason, error=str(error))

    def wire_failed(self, error: BaseException) -> None:
        """Counted each time; told when it is new, and then after 1, 2, 4, … minutes."""
        self.failures.inc()
        text = f"{type(error).__name__}: {error}"
        self._wire_error, now = text, self._clock()
        due, pause, untold = self._wire_told.get(text, (now, TELL_AGAIN_SECONDS, 0))
        if now < due:
            self._wire_told[text] = due, pause, untold + 1
            return
        if text not in self._wire_told and len(self._wire_told) >= WIRE_ERRORS:
            return
        self._wire_told[text] = now + pause, 2.0 * pause, 0
        self.event("link failed", logging.WARNING, error=text, **({"again": untold} if untold else {}))

    def wire_works(self) -> None:
        """It is there, at last or again; told once after it was not."""
        if self._wire_error is not None:
            self._wire_error = None
            self.event("link works")

    @property
    def unreached(self) -> str:
        """Why the broker is not reached, as far as that is known."""
        error = self._wire_error or "not connected yet"
        hint = ""
        if "authorization" in error.lower():
            hint = "; it was suspended or has left, or a newer kit was issued: ask the operator"
        return f"the broker is not reached ({error}){hint}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        facts = " ".join(f"{key}={value}" for key, value in getattr(record, "facts", {}).items())
        text = f"{clock} {record.levelname.lower():7} {record.getMessage()} {facts}".rstrip()
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def set_up_logs(style: str, level: str = "info") -> None:
    """Send the log of the service and of its libraries to standard error, all in one form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Console())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("fclub").setLevel(level.upper())
    logging.captureWarnings(True)
    if style == "json":
        sys.excepthook = _crashed


def _crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("crashed", exc_info=(kind, error, trace))
