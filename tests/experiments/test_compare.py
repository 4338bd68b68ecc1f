"""`fclub.compare`: the same visits for all, and a table that says who did best."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Annotation

import fclub
from fclub.errors import InvalidSetting, UnknownName

SMALL = {"users": 6, "clusters": 2, "servers": 2, "dim": 3, "items": 4}


def world() -> fclub.Environment:
    return fclub.make_environment("synthetic", **SMALL)


def test_traces_are_those_of_single_simulations() -> None:
    result = fclub.compare(["linucb", fclub.HomoDC()], world(), rounds=200, seeds=2)
    assert list(result.traces) == ["linucb", "homo-dc"]
    for name, runs in result.traces.items():
        assert runs == [fclub.simulate(name, world(), 200, seed) for seed in range(2)]


def test_the_table_ranks_by_regret_and_tells_deviations() -> None:
    result = fclub.compare(["club", "linucb", "homo"], world(), rounds=200, seeds=[5, 7])
    ends = {name: [run.regret[-1] for run in runs] for name, runs in result.traces.items()}
    ranked = sorted(ends, key=lambda name: float(np.mean(ends[name])))
    assert [row[0] for row in result.table.rows] == ranked
    told = f"{np.mean(ends[ranked[0]]):,.1f} ± {np.std(ends[ranked[0]], ddof=1):,.1f}"
    assert str(result.table.rows[0][1]) == told
    assert told in repr(result)
    assert told in result._repr_html_()
    alone = fclub.compare(["homo"], world(), rounds=100, seeds=[5])
    assert alone.table.title == "synthetic, 100 rounds, seed 5"
    assert "±" not in repr(alone)


def test_frames_and_pictures_have_every_policy() -> None:
    result = fclub.compare(["linucb", "homo"], world(), rounds=100, seeds=2)
    frame = result.to_pandas()
    last = frame[frame.t == 100]
    assert {(row.policy, row.seed) for row in last.itertuples()} == {
        (name, seed) for name in result.traces for seed in range(2)
    }
    figure, axes = plt.subplots()
    assert result.plot("reward", axes) is axes
    assert [line.get_label() for line in axes.lines] == ["linucb", "homo"]
    assert len(axes.collections) == 2
    plt.close(figure)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="one policy"):
        fclub.compare([], world(), rounds=10)
    with pytest.raises(InvalidSetting, match="one seed"):
        fclub.compare(["linucb"], world(), rounds=10, seeds=0)
    with pytest.raises(InvalidSetting, match="different policies"):
        fclub.compare(["linucb", fclub.LinUCB()], world(), rounds=10)
    with pytest.raises(InvalidSetting, match="seeds must be different"):
        fclub.compare(["linucb"], world(), rounds=10, seeds=[1, 2, 1])
    with pytest.raises(InvalidSetting, match=r"call it: LinUCB\(\)"):
        fclub.compare([fclub.LinUCB], world(), rounds=10)  # type: ignore[list-item]


def test_one_policy_needs_no_list() -> None:
    assert list(fclub.compare("linucb", world(), rounds=10, seeds=1).traces) == ["linucb"]
    assert list(fclub.compare(fclub.LinUCB(), world(), rounds=10, seeds=1).traces) == ["linucb"]


def test_an_unknown_metric_suggests_others() -> None:
    result = fclub.compare("linucb", world(), rounds=10, seeds=1)
    with pytest.raises(UnknownName, match="no metric is called 'clusters'; known: ari, by_visit"):
        result.plot("clusters")


class Fixed(fclub.Policy):
    """Somebody's own, which no worker could find by name."""

    def _start(self) -> None:
        self.seen = 0

    def _recommend(self, user: int, items: Any) -> int:
        return 0

    def _update(self, user: int, x: Any, y: float) -> None:
        self.seen += 1

    @property
    def theta_(self) -> np.ndarray:
        return np.zeros((self.problem.users, self.problem.dim))


def test_workers_give_what_one_process_gives() -> None:
    policies: list[fclub.Policy | str] = ["linucb", fclub.LinUCB(ridge=2.0), fclub.Greedy()]
    one = fclub.compare(policies, world(), rounds=100, seeds=2)
    two = fclub.compare(policies, world(), rounds=100, seeds=2, jobs=2)
    assert one.traces == two.traces


def test_results_are_kept_and_found_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 100, "seeds": 2, "save": tmp_path / "results"}
    first = fclub.compare(["linucb"], world(), **options)
    with pytest.raises(InvalidSetting, match="already holds results"):
        fclub.compare(["linucb"], world(), **options)
    kept = sorted((tmp_path / "results").glob("linucb*.npz"))
    before = [path.stat().st_mtime_ns for path in kept]
    again = fclub.compare(["linucb", "greedy"], world(), resume=True, **options)
    assert again.traces["linucb"] == first.traces["linucb"]
    assert [path.stat().st_mtime_ns for path in kept] == before
    with pytest.raises(InvalidSetting, match="resume needs save"):
        fclub.compare(["linucb"], world(), rounds=10, resume=True)


def test_labels_name_results_and_must_tell_them_apart() -> None:
    policies = [fclub.LinUCB(), fclub.LinUCB(ridge=2.0)]
    result = fclub.compare(policies, world(), rounds=50, seeds=1, labels=["a", "b"])
    assert list(result.traces) == ["a", "b"]
    with pytest.raises(InvalidSetting, match="different"):
        fclub.compare(policies, world(), rounds=50, seeds=1, labels=["a", "a"])
    with pytest.raises(InvalidSetting, match="must be 2"):
        fclub.compare(policies, world(), rounds=50, seeds=1, labels=["a"])


def test_objects_of_ones_own_run_here_and_are_named_by_reference_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = fclub.compare([Fixed(), "linucb"], world(), rounds=50, seeds=2, progress=True)
    assert list(result.traces) == ["fixed", "linucb"]
    assert "rounds" in capfd.readouterr().err
    with pytest.raises(InvalidSetting, match=r"by reference.*got 'fixed'"):
        fclub.compare([Fixed(), "linucb"], world(), rounds=50, jobs=2)
    mine = tmp_path / "mine.py"
    mine.write_text("import fclub\n\n\nclass Mine(fclub.Greedy):\n    pass\n")
    found = fclub.compare([f"{mine}:Mine", "greedy"], world(), rounds=50, seeds=1, jobs=2)
    assert found.traces["mine"][0].regret[-1] == found.traces["greedy"][0].regret[-1]


def test_a_sweep_plays_every_combination() -> None:
    grids = {"linucb": {"ridge": [0.2, 2.0], "exploration": [0.0, 0.1]}, "greedy": {}}
    result = fclub.sweep(grids, world(), rounds=50, seeds=1)
    assert len(result.traces) == 5
    (one,) = result.traces["linucb ridge=2.0 exploration=0.0"]
    assert one == fclub.simulate(fclub.LinUCB(ridge=2.0, exploration=0.0), world(), 50)


def test_a_sweep_of_a_policy_of_ones_own(tmp_path: Path) -> None:
    """By reference it can be kept; the class itself runs here."""
    mine = tmp_path / "mine.py"
    mine.write_text("import fclub\n\n\nclass Mine(fclub.Greedy):\n    pass\n")
    ridges = {"ridge": [0.2, 2.0]}
    named = fclub.sweep({f"{mine}:Mine": ridges}, world(), rounds=50, seeds=1, save=tmp_path / "out")
    assert list(named.traces) == [f"{mine}:Mine ridge=0.2", f"{mine}:Mine ridge=2.0"]
    given = fclub.sweep({fclub.Greedy: ridges}, world(), rounds=50, seeds=1)
    for one, other in zip(named.traces.values(), given.traces.values(), strict=True):
        np.testing.assert_array_equal(one[0].regret, other[0].regret)


@pytest.mark.parametrize("grids", [["linucb"], {"linucb": {"ridge": 0.5}}, {"club": {"unit": "user"}}])
def test_a_sweep_needs_lists_of_values(grids: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"a list of values|a sweep is of"):
        fclub.sweep(grids, world(), rounds=50)


def test_fifteen_lines_have_their_names_at_their_ends_and_no_bands() -> None:
    grids = {"linucb": {"ridge": [0.1 * k for k in range(1, 16)]}}
    result = fclub.sweep(grids, world(), rounds=50, seeds=2)
    figure, axes = plt.subplots()
    result.plot("ari", axes)
    assert axes.get_ylabel() == "ari"
    assert not axes.collections
    assert axes.get_legend() is None
    texts = [text for text in axes.texts if isinstance(text, Annotation)]
    assert {text.get_text() for text in texts} == set(result.traces)
    heights = sorted(float(text.xyann[1]) for text in texts)
    assert np.diff(heights).min() > 0.99 / 25
    plt.close(figure)
