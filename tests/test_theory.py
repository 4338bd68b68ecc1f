"""The paper's bounds against formulas worked out apart from the code."""

from math import inf, log, sqrt
from typing import Any

import pytest

from fclub.config import Privacy, Problem, Protocol
from fclub.core.paper.ucb import tree_bounds
from fclub.errors import InvalidSetting
from fclub.theory import Theory, UpperBound


def papers(**changes: Any) -> Theory:
    setting: dict[str, Any] = {
        "problem": Problem(40, 5, 10),
        "clusters": 4,
        "gap": sqrt(2),
        "item_eigenvalue": 0.05,
        "rounds": 100_000,
        "protocol": Protocol(),
        "privacy": Privacy(),
    }
    return Theory(**setting | changes)


def test_detection_takes_longer_than_anybody_waits() -> None:
    time = papers().detection_time()
    alpha, scale, nu = 1 / 800_000, 0.05 * 2, 15
    assert pytest.approx(48**2 * log(1_600_000) / scale) == time.A
    assert pytest.approx(48**2 * 10 * log(4608 * 0.25 / 0.1) / scale) == time.B
    assert pytest.approx(192**2 * 6 * sqrt(2) * nu * log(40) * sqrt(10) / scale) == time.C
    assert pytest.approx(192**2 * 3 * sqrt(2) * nu * log(40) * log(40 / alpha) / scale) == time.D
    assert pytest.approx(1024 / 0.0025 * log(512 * 400 / (0.0025 * alpha))) == time.E
    assert time.per_user == time.D
    assert time.rounds == pytest.approx(16 * 40 * log(1e5 / alpha) + 160 * time.D)
    assert 1e9 < time.rounds < 1e12


def test_regret_of_a_cluster() -> None:
    theory = papers()
    noise = tree_bounds(10, 20, Protocol(alpha=1 / 800_000), Privacy())
    ratio = noise.rho_max / noise.rho_min + 25_000 / (10 * noise.rho_min)
    beta = 0.5 * sqrt(2 * log(8 * 20 * 100_000) + 10 * log(ratio))
    beta += sqrt(5 * noise.rho_max) + sqrt(5) * noise.kappa
    gamma = sqrt(1.01 * (1 + 4 * 0.01) + 0.01)
    expected = beta * sqrt(10 * log(1 + 1e5 / (10 * noise.rho_min))) * gamma * sqrt(25_000)
    bound = theory.cluster_regret(25_000)
    assert bound.value == pytest.approx(expected)
    assert bound.trivial == 25_000
    assert theory.gamma == pytest.approx(gamma)


def test_theorem_1_is_detection_and_then_the_clusters() -> None:
    theory = papers()
    expected = 2 * theory.detection_time().rounds + 4 * theory.cluster_regret(25_000).value
    assert theory.regret().value == pytest.approx(expected)
    assert theory.regret().vacuous
    uneven = theory.regret([97_000, 1_000, 1_000, 1_000])
    assert uneven.value < theory.regret().value


def test_communication() -> None:
    theory = papers()
    noise = theory.noise(1 / 800_000)
    found, step = 2 * theory.detection_time().rounds, log(1.01)

    def events(rounds: float) -> float:
        return 10 * log(noise.rho_max / noise.rho_min + rounds / (10 * noise.rho_min)) / step

    expected = 20 * (log(1e5) + events(1e5) + events(found) * log(found))
    assert theory.communication().value == pytest.approx(expected)
    assert theory.communication().vacuous
    assert not papers(rounds=10**9).communication().vacuous


def test_lower_bound_is_below_the_upper_one() -> None:
    for rounds in (100, 10**5, 10**12):
        theory = papers(rounds=rounds)
        assert theory.lower_bound == pytest.approx(sqrt(40 * rounds))
        assert theory.lower_bound < theory.regret().value


def test_some_horizon_makes_theorem_1_say_something() -> None:
    values = [papers(rounds=10**e).regret() for e in (5, 17)]
    assert values[0].vacuous
    assert not values[-1].vacuous


def test_more_privacy_costs_more() -> None:
    tight, loose = papers(privacy=Privacy(0.5)), papers(privacy=Privacy(8.0))
    assert tight.regret().value > loose.regret().value
    assert tight.detection_time().rounds > loose.detection_time().rounds


def test_bounds_say_what_they_are() -> None:
    assert str(UpperBound(12.0, 100.0)) == "12"
    assert str(UpperBound(1e9, 100.0)) == "1e+09 (vacuous)"
    assert UpperBound(inf, 100.0).vacuous


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clusters", 0),
        ("clusters", 41),
        ("gap", 0.0),
        ("gap", 3.0),
        ("item_eigenvalue", 0.0),
        ("rounds", 1),
    ],
)
def test_impossible_settings(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        papers(**{name: value})
    assert refusal.value.value == value
