"""Running a study: what is there is not run again, and parts add up."""

from pathlib import Path

import pytest

from fclub.experiments.figures import clusters, make_figures, runtime
from fclub.experiments.panels import Scale
from fclub.experiments.report import build_report
from fclub.experiments.reproduce import run_study, total_rounds
from fclub.experiments.results import INDEX
from fclub.experiments.study import RESULTS, Figure, load_study
from fclub.experiments.sweeps import parameter

SCALE = Scale(rounds=30, seeds=(0,))


def small(figure: Figure, panels: int = 1) -> Figure:
    return Figure(figure.name, figure.kind, figure.title, figure.about, figure.panels[:panels])


def index(folder: Path) -> list[bytes]:
    return (folder / RESULTS / INDEX).read_bytes().splitlines()


def test_parts_add_up_and_nothing_is_run_twice(tmp_path: Path) -> None:
    first, second = small(clusters(SCALE)), small(runtime(SCALE))
    told: list[int] = []
    run_study("t", "c", [first], tmp_path, jobs=1, tell=told.append)
    assert told[-1] == total_rounds([first])
    before = index(tmp_path)
    run_study("t", "c", [second, first], tmp_path, jobs=1)
    assert index(tmp_path) == before
    study = load_study(tmp_path)
    assert study is not None
    assert [figure.name for figure in study.figures] == ["clusters", "runtime"]
    assert study.sittings == 2


def test_a_lost_result_is_done_again(tmp_path: Path) -> None:
    figure = small(parameter("m", SCALE))
    run_study("t", "c", [figure], tmp_path, jobs=1)
    task = figure.panels[0].experiment.tasks()[0]
    path = tmp_path / RESULTS / task.file
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    run_study("t", "c", [figure], tmp_path, jobs=1)
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_every_figure_can_be_drawn_and_asked(tmp_path: Path) -> None:
    made = [small(figure, 2) for figure in make_figures("all", SCALE)]
    run_study("t", "c", made, tmp_path, jobs=1)
    for section in build_report(tmp_path).sections:
        if section.figure.panels:
            assert section.drawn.tables or section.drawn.charts
            assert section.claims
