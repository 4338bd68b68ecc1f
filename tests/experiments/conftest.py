"""One small study that every test of plots and reports looks at."""

from pathlib import Path

import pytest

from fclub.experiments.report.pages import Built, build_report
from fclub.experiments.study.figures import Scale, bounds, demo_figures, parameter
from fclub.experiments.study.study import Figure, run_study

SMALL = Scale(rounds=120, seeds=(0, 1, 2, 3, 4))


def small_figures() -> list[Figure]:
    """Everything that one comparison shows, its bounds, and a sweep over two values."""
    sweep = parameter("m", SMALL)
    short = Figure(sweep.name, sweep.kind, sweep.title, sweep.about, sweep.panels[:2], sweep.axis)
    return [*demo_figures(SMALL), bounds(SMALL), short]


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    run_study("A <small> study", "fclub test", small_figures(), folder, jobs=1)
    return folder


@pytest.fixture(scope="session")
def built(study_folder: Path) -> Built:
    return build_report(study_folder)
