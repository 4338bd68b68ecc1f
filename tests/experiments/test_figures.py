"""What `fclub reproduce` would run, without running it."""

from pathlib import Path

import pytest

from fclub.errors import UnknownName
from fclub.experiments.report.kinds import KINDS
from fclub.experiments.study.figures import (
    ORDER,
    VARIANTS,
    VARIED,
    Scale,
    compared,
    make_figures,
    private,
)
from fclub.experiments.study.study import Figure
from fclub.policies.base import is_compared
from fclub.policies.registry import POLICIES

SCALE = Scale(rounds=1000, seeds=(0, 1))


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FCLUB_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("FCLUB_DATA_DIR", raising=False)


def figures(name: str) -> list[Figure]:
    return make_figures(name, SCALE)


def results_of(*found: Figure) -> set[str]:
    return {t.file for figure in found for panel in figure.panels for t in panel.experiment.tasks()}


def test_all_is_every_figure_and_every_experiment_is_possible() -> None:
    everything = figures("all")
    parts = [figure for name in ORDER for figure in figures(name)]
    assert everything == parts
    assert len({figure.name for figure in everything}) == len(everything)
    for figure in everything:
        assert figure.kind in KINDS
        for panel in figure.panels:
            panel.experiment.check()


def test_every_policy_but_oracles_rivals_and_those_of_catalogues_is_compared() -> None:
    expected = [name for name, entry in POLICIES.items() if is_compared(entry)]
    assert not {"oracle-local", "popular", "shrunk", "random"} & set(expected)
    (figure,) = figures("synthetic")
    for panel in figure.panels:
        assert list(panel.experiment.policies) == [*expected, "random", "alone", "oracle-pooled"]
    assert expected == compared()
    (budget,) = figures("privacy")
    for name in filter(private, expected):
        assert f"{name}, δ=0.1" in budget.panels[0].experiment.policies


@pytest.mark.parametrize("name", ["communication", "runtime", "bounds", "clusters"])
def test_figures_of_the_same_simulations_share_them(name: str) -> None:
    assert results_of(*figures(name)) <= results_of(*figures("synthetic"))


@pytest.mark.parametrize("letter", VARIED)
def test_a_study_shares_its_default_value_with_the_comparison(letter: str) -> None:
    (study,) = make_figures("parameters", SCALE, letter)
    shared = [panel for panel in study.panels if panel.value in (10, 1, 5, 4, 40)]
    default = {"d": 10, "epsilon": 1, "L": 5, "m": 4, "n": 40}[letter]
    (panel,) = [panel for panel in shared if panel.value == default]
    alone = Figure("", "", "", "", (panel,))
    budgets = make_figures("parameters", SCALE, "epsilon")
    assert results_of(alone) <= results_of(*figures("synthetic"), *budgets)


@pytest.mark.parametrize("name", ["movielens", "yelp"])
def test_absent_data_is_said_and_not_an_error(name: str) -> None:
    (figure,) = figures(name)
    assert figure.panels == ()
    assert len(figure.skipped) == len(VARIANTS[name])
    assert all(line.startswith(name) for line in figure.skipped)


@pytest.mark.parametrize(("name", "only"), [("synthetc", None), ("parameters", "k"), ("yelp", "d")])
def test_unknown_names_are_refused(name: str, only: str | None) -> None:
    with pytest.raises(UnknownName):
        make_figures(name, SCALE, only)
