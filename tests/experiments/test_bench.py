"""The benchmark's parts at small size: they measure what they say, and a large server stays small."""

import pytest

from fclub.experiments.bench import alone, detection, measure, play_linucb, rounds
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
def test_large_server_is_fast_and_small() -> None:
    """100,000 users: detection under 10 s of CPU, memory at most 1.5 × statistics and graph."""
    measured = alone(detection, 100_000)
    assert measured["detection_seconds"] < 10
    assert measured["peak_over_kept"] <= 1.5
    assert 4 <= measured["clusters"] < 100
    few, many = alone(rounds, 40), alone(rounds, 100_000)
    assert many["microseconds_per_round"] < 2 * few["microseconds_per_round"]
