"""`fclub.compare`: the same visits for all, and a table that says who did best."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fclub
from fclub.errors import InvalidSetting

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
