"""Numbers that every request changes: plain ones, made into Prometheus metrics when somebody asks.

A metric of the Prometheus client takes a lock at every step; a request has several, and one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


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
        """How many requests took at most so many seconds."""
        return list(zip(LATENCY_BUCKETS, accumulate(self._buckets), strict=False))


class Traffic:
    """What a server has been asked; a collector of a Prometheus registry."""

    def __init__(self) -> None:
        self.routes: dict[str, RouteTraffic] = {}
        self.decisions = self.feedback = 0
        self.rewards = 0.0

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
