"""A study is what a report shows: figures, each of one or more experiments, and how they came about.

Its experiments share one folder of results, so that a simulation that several figures need is run once.
It is run figure by figure, and goes on where an earlier sitting stopped.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from fclub import __version__
from fclub.errors import InvalidFile
from fclub.experiments.run.experiment import Experiment
from fclub.experiments.run.results import EXPERIMENT, Results
from fclub.experiments.run.runner import run
from fclub.paths import write_atomically

STUDY, RESULTS = "study.json", "results"


class Panel(msgspec.Struct, frozen=True):
    """One experiment of a figure; `value` is where it stands on the axis of what is varied."""

    key: str
    title: str
    experiment: Experiment
    value: float | None = None


class Figure(msgspec.Struct, frozen=True):
    """`kind` says how its panels are drawn, `skipped` which panels could not be run and why."""

    name: str
    kind: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    axis: str = ""
    skipped: tuple[str, ...] = ()


class Study(msgspec.Struct):
    """Figures in the order in which they are shown, all made with the same settings.

    `commands` made them on `machines`, `seconds` is the time of all sittings together, and `left_out`
    names the figures of earlier sittings that were made with other settings.
    """

    title: str
    version: str
    figures: list[Figure] = []
    commands: list[str] = []
    machines: list[dict[str, str | int]] = []
    started: str = ""
    seconds: float = 0.0
    sittings: int = 0
    results: str = RESULTS
    left_out: list[str] = []

    def include(self, figure: Figure) -> None:
        """Add a figure, in the place of one with the same name if there is one."""
        names = [known.name for known in self.figures]
        if figure.name in names:
            self.figures[names.index(figure.name)] = figure
        else:
            self.figures.append(figure)
        self.left_out = [name for name in self.left_out if name != figure.name]

    def sit(self, command: str, machine: dict[str, str | int]) -> None:
        self.sittings += 1
        if command not in self.commands:
            self.commands.append(command)
        if machine not in self.machines:
            self.machines.append(machine)

    def machine(self) -> dict[str, str]:
        """What it was run on; where the machines of several sittings differ, all of them."""
        keys = dict.fromkeys(key for machine in self.machines for key in machine)
        found = {key: dict.fromkeys(str(m[key]) for m in self.machines if key in m) for key in keys}
        return {key: "; ".join(values) for key, values in found.items()}

    def agrees(self, figures: Sequence[Figure]) -> bool:
        """Whether these figures can stand beside those of the study.

        They can if the longest runs of both are equally long and have the same seeds, and if figures
        that show the same panel show the same experiment.
        """
        panels = [panel for figure in (*self.figures, *figures) for panel in figure.panels]
        parts = [part for part in (self.figures, figures) if part]
        sizes = {
            max((p.experiment.rounds, p.experiment.seeds) for figure in part for p in figure.panels)
            for part in parts
        }
        environments = {panel.key: panel.experiment.environment for panel in panels}
        return len(sizes) <= 1 and all(
            environments[panel.key] == panel.experiment.environment for panel in panels
        )

    def save(self, folder: Path) -> None:
        """Replaced in one step, so that an interruption leaves the old or the new one."""
        with write_atomically(folder / STUDY) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def load_study(folder: Path) -> Study | None:
    """The study in a folder, if there is one."""
    path = folder / STUDY
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise InvalidFile(f"{path} is not a study: {error}") from None


def has_results(folder: Path) -> bool:
    """Whether `fclub run --out` has written into the folder."""
    return (folder / EXPERIMENT).exists()


LIBRARIES = ("numpy", "scipy", "numba", "joblib")


def describe_machine() -> dict[str, str | int]:
    """Processor, cores, system and the versions that matter for speed."""
    described: dict[str, str | int] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return described | {name: version(name) for name in LIBRARIES}


def _processor() -> str:
    """Linux keeps the model in a file; elsewhere the platform module knows it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
