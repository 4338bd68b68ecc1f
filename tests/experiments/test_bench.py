"""The benchmark's parts at small size: they measure what they say, and a large server stays small."""

import pytest
from benchmarks.scaling import alone, detection

from fclub.experiments.bench import measure, play_linucb
from fclub.experiments.study.study import describe_machine


def test_yardstick_learns() -> None:
    assert play_linucb(2_000, seed=1) < 0.9 * play_linucb(2_000, seed=1, exploration=50.0)


def test_fast_loop_is_faster_than_readable() -> None:
    assert measure("linucb", 2_000) < measure("linucb", 200, fast=False)


def test_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["processor"]
    assert int(machine["cores"]) >= 1


@pytest.mark.slow
def test_large_server_is_small() -> None:
    """100,000 users take at most 1.5 × statistics and graph; `benchmarks/scaling.py` times them."""
    measured = alone(detection, 100_000)
    assert measured["peak_over_kept"] <= 1.5
    assert 4 <= measured["clusters"] < 100
