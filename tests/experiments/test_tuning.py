"""Defaults are the tuned constants, and the search finds what is best for both placements."""

import tomllib
from pathlib import Path

from benchmarks.tune import (
    GRIDS,
    RIVAL_TARGET,
    RIVALS,
    SHARED,
    Search,
    outcome,
    start_point,
    to_toml,
)

from fclub.policies.registry import make_policy

BASELINES = Path(__file__).parents[2] / "benchmarks" / "baselines.toml"


def test_defaults_are_the_recorded_constants() -> None:
    recorded = tomllib.loads(BASELINES.read_text())
    assert recorded["seeds"] == [1000, 1001, 1002, 1003, 1004]
    assert set(recorded["policies"]) == set(GRIDS)
    for name, entry in recorded["policies"].items():
        assert entry["grid"] == {key: list(values) for key, values in GRIDS[name].items()}
        for policy in (name, *SHARED.get(name, ())):
            parameters = make_policy(policy).get_params()
            known = {key: value for key, value in entry["constants"].items() if key in parameters}
            assert {key: parameters[key] for key in known} == known


def test_defaults_of_rivals_are_the_recorded_constants() -> None:
    recorded = tomllib.loads(RIVAL_TARGET.read_text())
    assert (recorded["rounds"], recorded["seeds"]) == (20_000, [1000, 1001, 1002])
    assert set(recorded["policies"]) == set(RIVALS)
    for name, entry in recorded["policies"].items():
        assert entry["grid"] == {key: list(values) for key, values in RIVALS[name].items()}
        parameters = make_policy(name).get_params()
        assert entry["constants"].items() <= parameters.items()


def test_search_weighs_both_placements_alike() -> None:
    good, lopsided = (("exploration", 0.1),), (("exploration", 0.2),)
    search = Search("linucb", {"exploration": (0.1, 0.2)})
    search.tried = {
        good: {"blocks": 110.0, "spread": 1100.0},
        lopsided: {"blocks": 100.0, "spread": 1500.0},
    }
    assert search.best() == good
    assert search.criterion(good) == (1.1 + 1.0) / 2


def test_small_search_is_recorded_as_toml() -> None:
    search = Search("linucb", {"exploration": (0.1, 1.0), "ridge": (1.0,)}, rounds=200, seeds=(1,))
    told: list[str] = []
    best = search.search(start_point(search.grid), told.append)
    assert best in search.tried
    assert told
    recorded = tomllib.loads(to_toml({"linucb": outcome(search)}))
    assert recorded["policies"]["linucb"]["constants"] == dict(best)
    assert recorded["policies"]["linucb"]["settings_tried"] == 2
