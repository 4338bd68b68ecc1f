"""Numbers over seeds: what `fclub run --json` prints, and what a report draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fclub.core.types import Counts, Floats
from fclub.experiments.run.experiment import Experiment
from fclub.experiments.study.study import Panel
from fclub.simulation.trace import CLUSTERS, COUNTERS, Trace

COUNTED = ("uploads", "downloads", "phases", "total", "bytes")
VISITS = ("by_visit", "newcomers_by_visit")


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation (ddof = 1; None with one seed) at rounds t, and one row per seed."""

    t: Counts
    mean: Floats
    std: Floats | None
    rows: Floats

    @property
    def last(self) -> Floats:
        """Every seed's value at the end."""
        return self.rows[:, -1]

    @property
    def end(self) -> float:
        return float(self.mean[-1])

    @property
    def spread(self) -> float | None:
        return None if self.std is None else float(self.std[-1])

    def at(self, t: float) -> float:
        """The mean at a round between two checkpoints."""
        return float(np.interp(t, self.t, self.mean))

    def points(self) -> list[list[float | None]]:
        """[t, mean, deviation] of every checkpoint."""
        deviations = [None] * len(self.t) if self.std is None else map(float, self.std)
        return [[int(t), float(m), s] for t, m, s in zip(self.t, self.mean, deviations, strict=True)]


def over_seeds(t: Counts, rows: list[Floats]) -> Curve:
    """Mean and deviation of one row per seed, as far as all of them go."""
    shortest = min(len(t), *map(len, rows))
    values = np.array([row[:shortest] for row in rows])
    std = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Curve(t[:shortest], values.mean(axis=0), std, values)


def relative(curve: Curve, base: Curve) -> Curve:
    """One policy's curve in units of another's, seed by seed, from where no seed's is zero."""
    known = base.rows.min(axis=0) > 0.0
    return over_seeds(curve.t[known], list(curve.rows[:, known] / base.rows[:, known]))


def curves_of(runs: list[Trace]) -> dict[str, Curve]:
    """Every metric over rounds, regret by visit over visits, and the time of a round.

    Where the true clusters are not known there are no curves of them.
    """
    t = runs[0].t
    curves = {
        name: over_seeds(t, [getattr(run, name) for run in runs]) for name in ("regret", "reward")
    }
    for name in COUNTERS:
        curves[name] = over_seeds(t, [run.communications[name].astype(np.float64) for run in runs])
    for name in (name for name in CLUSTERS if all(name in run.clusters for run in runs)):
        curves[name] = over_seeds(t, [run.clusters[name] for run in runs])
    for name in VISITS:
        rows = [getattr(run, name) for run in runs]
        if min(map(len, rows)):
            curves[name] = over_seeds(np.arange(1, len(rows[0]) + 1), rows)
    times = [np.array([run.microseconds_per_round]) for run in runs]
    return curves | {"microseconds": over_seeds(t[-1:], times)}


def privacy_of(runs: list[Trace]) -> dict[str, Any] | None:
    """What the policy reports, from the seed that spent most."""
    reports = [run.settings["privacy"] for run in runs if run.settings.get("privacy")]
    return max(reports, key=lambda report: report["spent"][0][0], default=None)


def environment_of(traces: dict[str, list[Trace]]) -> dict[str, Any]:
    """The environment that all were played in, with its settings."""
    first = next(iter(traces.values()))[0]
    return {"name": first.environment, **first.settings["environment"]}


@dataclass(frozen=True)
class Measured:
    """A panel with its curves by policy label and metric."""

    panel: Panel
    curves: dict[str, dict[str, Curve]]
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


def measure(panel: Panel, traces: dict[str, list[Trace]]) -> Measured:
    return Measured(
        panel,
        {label: curves_of(runs) for label, runs in traces.items()},
        {label: runs[0].settings["policy"] for label, runs in traces.items()},
        environment_of(traces),
        {label: privacy_of(runs) for label, runs in traces.items()},
    )


def summarise(experiment: Experiment, traces: dict[str, list[Trace]]) -> dict[str, Any]:
    """Totals at T, curves, communications, clusters, privacy and time of every policy."""
    return {
        "environment": environment_of(traces),
        "rounds": experiment.rounds,
        "seeds": list(experiment.seeds),
        "policies": {label: _summary(runs) for label, runs in traces.items()},
    }


def _summary(runs: list[Trace]) -> dict[str, Any]:
    curves = curves_of(runs)
    totals = {
        name: {"mean": curves[name].end, "std": curves[name].spread, "curve": curves[name].points()}
        for name in ("regret", "reward")
    }
    by_visit = {
        name: [point[:2] for point in curves[name].points()] if name in curves else []
        for name in VISITS
    }
    return {
        **totals,
        "communications": {name: curves[name].end for name in COUNTED},
        "clusters": {name: curves[name].end if name in curves else None for name in CLUSTERS},
        "privacy": privacy_of(runs),
        "microseconds_per_round": curves["microseconds"].end,
        **by_visit,
    }
