"""A learner of another package: found by entry point, checked and simulated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.foreign.installing import NAME, SOURCE, install_package, register, remove

import fclub
from fclub.checks import check_family
from fclub.errors import InvalidSetting, UnknownName
from fclub.protocol.families import FAMILIES


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = install_package(tmp_path / "site")
    monkeypatch.syspath_prepend(folder)
    yield folder
    remove()


def test_it_is_short() -> None:
    assert SOURCE.read_text().count("\n") < 120


def test_without_the_package_there_is_no_such_policy() -> None:
    with pytest.raises(UnknownName, match=NAME):
        FAMILIES[NAME]
    with pytest.raises(UnknownName, match=NAME):
        fclub.make_policy(NAME)
    assert NAME not in FAMILIES


def test_it_passes_the_checks_and_learns(site: Path) -> None:
    assert NAME in FAMILIES
    assert NAME not in [*FAMILIES], "only what is asked for is imported"
    check_family(FAMILIES[NAME](), rounds=60)
    world = {"users": 40, "servers": 4, "dim": 4, "clusters": 1}
    environment = fclub.make_environment("synthetic", **world)
    regret = [
        fclub.simulate(fclub.make_policy(name), environment, 2000, seed=1).regret[-1]
        for name in (NAME, "linucb")
    ]
    assert regret[0] < 0.8 * regret[1]


BAD = {
    "twice": ({"one": "shared_mean:SharedMean"}, {"one": "other:Learner"}, "several packages"),
    "no row": ({"one": "shared_mean:MeanLearner"}, {}, "no ExactRow"),
    "another name": ({"one": "shared_mean:SharedMean"}, {}, "no ExactRow"),
    "abstract": ({"one": "unfinished:Unfinished"}, {}, "lacks contribution, make_learner"),
}


UNFINISHED = """
from fclub.protocol.rows.exact import ExactRow

class Unfinished(ExactRow):
    name = "one"
"""


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_a_learner_is_refused_by_name(site: Path, case: str) -> None:
    first, second, reason = BAD[case]
    (site / "unfinished.py").write_text(UNFINISHED)
    register(site, "first", first)
    if second:
        register(site, "second", second)
    with pytest.raises(InvalidSetting, match=reason):
        FAMILIES["one"]
    sys.modules.pop("unfinished", None)
