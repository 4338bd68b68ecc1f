"""Each statistic of the audit: no false alarm in 500 repetitions, and one where there should be."""

from __future__ import annotations

import numpy as np
import pytest

from fclub.attack import statistics as st
from fclub.core.types import Floats
from fclub.privacy.audit import Interval

RUNS, RELEASES, ENTRIES = 50, 4, 12


def every_statistic(first: Floats, second: Floats, mu: float) -> dict[str, Interval]:
    """Of noise of two sides, (runs, releases, entries), whose means are μ apart along one number."""
    n, shift = len(first), np.zeros(RELEASES * ENTRIES)
    shift[0] = mu
    one, two = first.reshape(n, -1), second.reshape(n, -1)
    both = np.concatenate([one, two])
    steps = [np.rint(side * 1e6) for side in (first.reshape(-1, ENTRIES), second.reshape(-1, ENTRIES))]
    found = {
        "variance": st.variance(one, n),
        "ratio": st.variance_ratio(one, two, n),
        "correlation": st.largest_correlation(both),
        "distance": st.at_a_distance(both),
        "mean": st.largest_mean(both),
        "repeats": st.repeats(np.concatenate(steps)),
        "lattice": st.off_lattice(steps[0]),
        "bits": st.low_bits(*steps),
        **st.masks(np.random.default_rng(int(steps[0][0, 0]) % 2**32).bytes(8 * 1_000)),
        "likelihood": st.by_likelihood(one, two + shift, shift, mu),
        "discriminant": st.by_discriminant(one, two + shift, mu),
        "squares": st.by_squares(one, two + shift, mu),
    }
    found |= {f"tail {z:g}": st.tails(both, z) for z in (1.0, 2.0, 3.0)}
    for name, pair in {
        "releases": st.extreme_variances(np.concatenate([first, second]), 1),
        "entries": st.extreme_variances(np.concatenate([first, second]), 2),
        "eigenvalues": st.eigenvalues(both, 2 * n),
    }.items():
        found |= {f"least of {name}": pair[0], f"largest of {name}": pair[1]}
    return found


def normal(rng: np.random.Generator, runs: int = RUNS) -> Floats:
    return rng.standard_normal((runs, RELEASES, ENTRIES))


@pytest.mark.slow
def test_no_statistic_raises_a_false_alarm_in_500_repetitions() -> None:
    rng = np.random.default_rng(0)
    alarms = [
        name
        for _ in range(500)
        for name, interval in every_statistic(normal(rng), normal(rng), 0.5).items()
        if not interval.inside
    ]
    assert alarms == []


def failed(first: Floats, second: Floats, mu: float = 0.5) -> set[str]:
    found = every_statistic(first, second, mu)
    return {name for name, interval in found.items() if not interval.inside}


def test_each_statistic_sees_what_it_is_for() -> None:
    rng = np.random.default_rng(1)
    first, second = normal(rng, 300), normal(rng, 300)
    assert failed(first, second) == set()
    assert {"variance", "ratio", "squares"} <= failed(0.8 * first, second, mu=0.01)
    assert "variance" in failed(1.1 * first, second)
    twice = [0, 0, 2, 3]
    shared = failed(first[:, twice], second[:, twice])
    assert {"correlation", "repeats", "least of eigenvalues"} <= shared
    one, two = (0.99 * side + 0.14 * np.roll(side, 1, axis=2) for side in (first, second))
    assert failed(one, two) == {"distance"}, "too little of it in any two numbers"
    quiet = np.ones(ENTRIES)
    quiet[-1] = 0.7
    assert "least of entries" in failed(quiet * first, quiet * second)
    louder = np.array([1.0, 1.0, 1.0, 1.2])[:, None]
    assert "largest of releases" in failed(louder * first, louder * second)
    assert "tail 3" in failed(np.clip(first, -2.5, 2.5), np.clip(second, -2.5, 2.5))
    assert "mean" in failed(first + 0.4, second + 0.4)
    assert "discriminant" in failed(first, second + 1.0)
    assert "lattice" not in failed(first, second)
    assert not st.off_lattice(np.array([[0.5]])).inside
    assert not st.low_bits(np.zeros((300, 12)), np.full((300, 12), 15.0)).inside
    assert "likelihood" in failed(first, second * 0.1)


def test_bytes_that_all_runs_have_are_no_chance() -> None:
    rng = np.random.default_rng(2)
    runs = [rng.bytes(16) for _ in range(50)]
    assert st.same_bytes(runs) == 0
    assert st.same_bytes([run[:-1] + b"2" for run in runs]) == 1
