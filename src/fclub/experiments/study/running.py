"""Running a study: figure by figure into one folder, going on where an earlier sitting stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from fclub import __version__
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.experiments.study.study import RESULTS, Figure, Study, describe_machine, load_study

Tell = Callable[[int], None]


def total_rounds(figures: list[Figure]) -> int:
    """What `tell` counts up to: a simulation that several figures share counts once."""
    experiments = [panel.experiment for figure in figures for panel in figure.panels]
    return sum({task.file: task.rounds for e in experiments for task in e.tasks()}.values())


def run_study(
    title: str,
    command: str,
    figures: list[Figure],
    folder: Path,
    jobs: int,
    tell: Tell | None = None,
) -> Study:
    """Run what is not there yet; a figure is in the study as soon as all of it is there."""
    for experiment in (panel.experiment for figure in figures for panel in figure.panels):
        experiment.check()
    folder.mkdir(parents=True, exist_ok=True)
    study = _open(title, figures, folder)
    study.sit(command, describe_machine())
    seen: dict[str, int] = {}
    for figure in figures:
        before = time.monotonic()
        for panel in figure.panels:
            experiment = panel.experiment
            cells = {task.file: task.rounds for task in experiment.tasks()}
            shared = sum(rounds for file, rounds in cells.items() if file in seen)
            results = Results.create(folder / RESULTS, experiment, resume=True)
            report = _counting_from(sum(seen.values()) - shared, tell)
            run(experiment, jobs=jobs, results=results, report=report)
            seen |= cells
        study.seconds += time.monotonic() - before
        study.include(figure)
        study.save(folder)
    return study


def _open(title: str, figures: list[Figure], folder: Path) -> Study:
    """The study to go on with: the one in the folder, if it was made with the same settings.

    Otherwise a new one begins, which names the figures that it does not take over. Simulations that
    both need are not run again: their files are named after their settings.
    """
    old = load_study(folder)
    if old is not None and old.version == __version__ and old.agrees(figures):
        return old
    new = Study(title, __version__, started=datetime.now(UTC).isoformat(timespec="seconds"))
    if old is None:
        return new
    made = {figure.name for figure in figures}
    names = [*(figure.name for figure in old.figures), *old.left_out]
    new.left_out = [name for name in dict.fromkeys(names) if name not in made]
    return new


def _counting_from(done: int, tell: Tell | None) -> Tell | None:
    return None if tell is None else lambda played: tell(done + played)
