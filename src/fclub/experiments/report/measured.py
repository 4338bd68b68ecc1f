"""The numbers of a panel: every metric of every policy over rounds, mean and spread over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fclub.core.types import Counts, Floats
from fclub.experiments.report.summary import aligned, knows, privacy_of
from fclub.experiments.study.study import Panel
from fclub.simulation.trace import CLUSTERS, COUNTERS, Trace

VISITS = ("by_visit", "newcomers_by_visit")
METRICS = ("regret", "reward", *COUNTERS, *CLUSTERS)


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation (ddof = 1; None with one seed) at rounds t, and every seed's last."""

    t: Counts
    mean: Floats
    std: Floats | None
    last: Floats

    @property
    def end(self) -> float:
        return float(self.mean[-1])

    @property
    def spread(self) -> float | None:
        return None if self.std is None else float(self.std[-1])

    def at(self, t: float) -> float:
        """The mean at a round between two checkpoints."""
        return float(np.interp(t, self.t, self.mean))


@dataclass(frozen=True)
class Measured:
    """A panel with its curves by policy label and metric."""

    panel: Panel
    curves: dict[str, dict[str, Curve]]
    microseconds: dict[str, Curve]
    settings: dict[str, dict[str, Any]]
    environment: dict[str, Any]
    privacy: dict[str, dict[str, Any] | None]

    @property
    def labels(self) -> list[str]:
        return list(self.curves)

    @property
    def knows_clusters(self) -> bool:
        return all("ari" in curves for curves in self.curves.values())

    def curve(self, label: str, metric: str) -> Curve:
        return self.curves[label][metric]


def _curve(t: Counts, values: Floats) -> Curve:
    std = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Curve(t, values.mean(axis=0), std, values[:, -1])


def _values(trace: Trace, metric: str) -> Floats:
    if metric in COUNTERS:
        return trace.communications[metric].astype(np.float64)
    if metric in CLUSTERS:
        return trace.clusters[metric]
    values: Floats = getattr(trace, metric)
    return values


def measure(panel: Panel, traces: dict[str, list[Trace]]) -> Measured:
    """All curves of the panel."""
    curves, times = {}, {}
    for label, runs in traces.items():
        t = runs[0].t
        curves[label] = {
            metric: _curve(t, np.array([_values(run, metric) for run in runs]))
            for metric in METRICS
            if metric not in CLUSTERS or knows(runs, metric)
        }
        for metric in VISITS:
            values = aligned([getattr(run, metric) for run in runs])
            if values.size:
                curves[label][metric] = _curve(np.arange(1, values.shape[1] + 1), values)
        times[label] = _curve(t[-1:], np.array([[run.microseconds_per_round] for run in runs]))
    first = next(iter(traces.values()))[0]
    return Measured(
        panel,
        curves,
        times,
        {label: runs[0].settings["policy"] for label, runs in traces.items()},
        {"name": first.environment, **first.settings["environment"]},
        {label: privacy_of(runs) for label, runs in traces.items()},
    )
