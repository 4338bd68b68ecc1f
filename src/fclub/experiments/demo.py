"""The main job in short: the paper's synthetic comparison with all policies and a few seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fclub.experiments.figures import Scale, demo_figures
from fclub.experiments.results import Results
from fclub.experiments.study import RESULTS, Study, load_traces
from fclub.experiments.summary import summarise

TITLE = "Federated clustering of bandits: a short comparison"

__all__ = ["TITLE", "Scale", "demo_figures", "demo_summary"]


def demo_summary(study: Study, folder: Path) -> dict[str, Any]:
    """What `fclub run --json` would print about the comparison."""
    experiment = study.figures[0].panels[0].experiment
    return summarise(experiment, load_traces(Results(folder / RESULTS), experiment))
