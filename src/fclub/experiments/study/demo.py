"""The main job in short: the paper's synthetic comparison with all policies and a few seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fclub.experiments.report.summary import summarise
from fclub.experiments.run.results import Results
from fclub.experiments.study.figures import demo_figures
from fclub.experiments.study.panels import Scale
from fclub.experiments.study.running import Tell, run_study
from fclub.experiments.study.study import RESULTS, Figure, load_traces

TITLE = "Federated clustering of bandits: a short comparison"


def demo_summary(figures: list[Figure], folder: Path) -> dict[str, Any]:
    """What `fclub run --json` would print about the comparison."""
    experiment = figures[0].panels[0].experiment
    return summarise(experiment, load_traces(Results(folder / RESULTS), experiment))


def run_demo(scale: Scale, folder: Path, jobs: int, tell: Tell | None = None) -> dict[str, Any]:
    """Run into the folder, taking over what is already there."""
    figures = demo_figures(scale)
    command = f"fclub demo --rounds {scale.rounds} --seeds {len(scale.seeds)}"
    run_study(TITLE, command, figures, folder, jobs, tell)
    return demo_summary(figures, folder)
