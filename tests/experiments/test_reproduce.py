"""Running a study: what is there is not run again, and parts add up."""

from pathlib import Path

import pytest

from fclub.experiments.report.claims import OPEN
from fclub.experiments.report.pages import build_report
from fclub.experiments.run.results import INDEX
from fclub.experiments.study.figures import Scale, clusters, make_figures, parameter, runtime
from fclub.experiments.study.study import RESULTS, Figure, load_study, run_study, total_rounds

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


def shown(folder: Path) -> list[str]:
    study = load_study(folder)
    assert study is not None
    return [figure.name for figure in study.figures]


def test_figures_of_other_settings_leave_the_report(tmp_path: Path) -> None:
    run_study("t", "one", [small(clusters(SCALE))], tmp_path, jobs=1)
    before = index(tmp_path)
    longer = Scale(rounds=30, seeds=(0, 1))
    study = run_study("t", "two", [small(runtime(longer))], tmp_path, jobs=1)
    assert shown(tmp_path) == ["runtime"]
    assert (study.left_out, study.commands, study.sittings) == (["clusters"], ["two"], 1)
    assert index(tmp_path)[: len(before)] == before, "simulations of the first seed are used again"
    assert len(index(tmp_path)) == 2 * len(before)
    study = run_study("t", "three", [small(clusters(longer))], tmp_path, jobs=1)
    assert shown(tmp_path) == ["runtime", "clusters"]
    assert (study.left_out, study.commands, study.sittings) == ([], ["two", "three"], 2)


def test_results_of_another_version_are_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_study("t", "c", [small(clusters(SCALE))], tmp_path, jobs=1)
    before = index(tmp_path)
    monkeypatch.setattr("fclub.experiments.run.results.__version__", "next")
    monkeypatch.setattr("fclub.experiments.study.study.__version__", "next")
    study = run_study("t", "c", [small(runtime(SCALE))], tmp_path, jobs=1)
    assert (shown(tmp_path), study.version, study.left_out) == (["runtime"], "next", ["clusters"])
    assert len(index(tmp_path)) == 2 * len(before)


@pytest.mark.slow
def test_every_figure_can_be_drawn_and_asked(tmp_path: Path) -> None:
    made = [small(figure, 2) for figure in make_figures("all", SCALE)]
    run_study("t", "c", made, tmp_path, jobs=1)
    for section in build_report(tmp_path).sections:
        if section.figure.panels:
            assert section.drawn.tables or section.drawn.charts
            assert {claim.verdict for claim in section.claims} == {OPEN}, "there is one seed"
