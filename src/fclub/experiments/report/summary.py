"""The numbers of an experiment: what `fclub run --json` prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.types import Floats
from fclub.experiments.run.experiment import Experiment
from fclub.simulation.trace import CLUSTERS, Trace

COUNTED = ("uploads", "downloads", "phases", "total", "bytes")


def summarise(experiment: Experiment, traces: dict[str, list[Trace]]) -> dict[str, Any]:
    """Totals at T, curves, communications, clusters, privacy and time of every policy."""
    first = next(iter(traces.values()))[0]
    return {
        "environment": {"name": first.environment, **first.settings["environment"]},
        "rounds": experiment.rounds,
        "seeds": list(experiment.seeds),
        "policies": {label: _policy(runs) for label, runs in traces.items()},
    }


def _policy(runs: list[Trace]) -> dict[str, Any]:
    return {
        "regret": _curve(runs, np.array([run.regret for run in runs])),
        "reward": _curve(runs, np.array([run.reward for run in runs])),
        "communications": {
            kind: _mean(run.communications[kind][-1] for run in runs) for kind in COUNTED
        },
        "clusters": {
            kind: _mean(run.clusters[kind][-1] for run in runs) if knows(runs, kind) else None
            for kind in CLUSTERS
        },
        "privacy": privacy_of(runs),
        "microseconds_per_round": _mean(run.microseconds_per_round for run in runs),
        "by_visit": _visits([run.by_visit for run in runs]),
        "newcomers_by_visit": _visits([run.newcomers_by_visit for run in runs]),
    }


def knows(runs: list[Trace], kind: str) -> bool:
    """Whether every seed has this number: nobody may know the true clusters."""
    return all(kind in run.clusters for run in runs)


def _mean(values: Any) -> float:
    return float(np.mean([float(value) for value in values]))


def spread(values: Floats) -> list[float | None]:
    """Standard deviation over seeds (ddof = 1) of every column; one seed has none."""
    if len(values) < 2:
        return [None] * values.shape[1]
    return [float(value) for value in values.std(axis=0, ddof=1)]


def aligned(rows: list[Floats]) -> Floats:
    """The rows as far as all of them go."""
    shortest = min(map(len, rows))
    return np.array([row[:shortest] for row in rows])


def _visits(rows: list[Floats]) -> list[tuple[int, float]]:
    return [(k, float(mean)) for k, mean in enumerate(aligned(rows).mean(axis=0), 1)]


def _curve(runs: list[Trace], values: Floats) -> dict[str, Any]:
    mean, std = values.mean(axis=0), spread(values)
    curve = [[int(t), float(m), s] for t, m, s in zip(runs[0].t, mean, std, strict=True)]
    return {"mean": float(mean[-1]), "std": std[-1], "curve": curve}


def privacy_of(runs: list[Trace]) -> dict[str, Any] | None:
    """What the policy reports, from the seed that spent most."""
    reports = [run.settings["privacy"] for run in runs if run.settings.get("privacy")]
    return max(reports, key=lambda report: report["spent"][0][0], default=None)
