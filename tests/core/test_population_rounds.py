"""Serving from the public start and a released population: beside plain NumPy, and by evidence."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.test_population_release import DIM, MODEL, log_likelihood, some_users

from fclub.core.population import rounds
from fclub.core.population.model import VARIANCE, Population, PublicModel
from fclub.core.population.rounds import PopulationRound, evidence_for_start, prior_of, serve
from fclub.core.statistics import Packed
from fclub.core.types import Matrix, Vector

START = prior_of(MODEL, Population.start(DIM))
TOLD = Population(np.array([0.5, -0.2, 0.1]), np.diag([0.3, 0.6, 1.1]))
RELEASED = prior_of(MODEL, TOLD)


def in_features(population: Population) -> tuple[Vector, Matrix]:
    unit = MODEL.unit
    return unit * population.mean, population.covariance * np.outer(unit, unit)


def slowly(odds: float, gram: Matrix, moment: Vector) -> tuple[Vector, Matrix]:
    parts = []
    for population in (Population.start(DIM), TOLD):
        m, S = in_features(population)
        P = np.linalg.inv(S)
        B = np.linalg.inv(gram / VARIANCE + P)
        parts.append((log_likelihood(gram, moment, m, S), B @ (moment / VARIANCE + P @ m), B))
    (l0, t0, B0), (l1, t1, B1) = parts
    share = 1.0 / (1.0 + np.exp(-(odds + l0 - l1)))
    between = share * (1.0 - share) * np.outer(t0 - t1, t0 - t1)
    return share * t0 + (1.0 - share) * t1, share * B0 + (1.0 - share) * B1 + between


@pytest.mark.parametrize("odds", [-50.0, -3.0, 0.0, 2.0, 50.0])
@pytest.mark.parametrize("visits", [0, 1, 12])
def test_serving_equals_the_slow_mixture(odds: float, visits: int) -> None:
    users = some_users(3, [visits])
    mean, covariance = np.empty(DIM), np.empty((DIM, DIM))
    serve(START, RELEASED, odds, users.gram[0], users.moment[0], mean, covariance)
    expected = slowly(odds, users.gram[0], users.moment[0])
    assert np.allclose(mean, expected[0], atol=1e-10)
    assert np.allclose(covariance, expected[1], atol=1e-10)


def test_evidence_is_the_sum_of_log_likelihood_ratios() -> None:
    users = some_users(4, [3, 0, 7])
    start, told = in_features(Population.start(DIM)), in_features(TOLD)
    expected = sum(
        log_likelihood(users.gram[u], users.moment[u], *start)
        - log_likelihood(users.gram[u], users.moment[u], *told)
        for u in (0, 2)
    )
    assert evidence_for_start(START, RELEASED, users, 0, 3) == pytest.approx(expected)
    assert evidence_for_start(START, START, users, 0, 3) == 0.0


def test_users_of_a_population_support_it_and_others_do_not() -> None:
    rng, n = np.random.default_rng(6), 400
    for population, sign in ((TOLD, -1), (Population.start(DIM), 1)):
        m, S = in_features(population)
        theta = rng.multivariate_normal(m, S, n)
        X = rng.standard_normal((n, 6, DIM))
        y = np.einsum("uki,ui->uk", X, theta) + np.sqrt(VARIANCE) * rng.standard_normal((n, 6))
        users = Packed(np.einsum("uki,ukj->uij", X, X), np.einsum("uk,uki->ui", y, X), np.full(n, 6))
        assert sign * evidence_for_start(START, RELEASED, users, 0, n) > 10.0


def test_a_round_serves_the_right_user_with_its_servers_odds() -> None:
    rng = np.random.default_rng(7)
    users, items = some_users(5, [4, 9, 2]), rng.standard_normal((6, DIM))
    row_of, server_of = np.array([2, 0, 1]), np.array([0, 0, 1])
    odds = np.array([-50.0, 3.0])
    visits, due = np.array([20, 9]), np.array([0, 10])
    state = PopulationRound(
        users=users,
        row_of=row_of,
        server_of=server_of,
        first=np.array([0, 2, 3]),
        start=START,
        released=RELEASED,
        odds=odds,
        visits=visits,
        due=due,
        exploration=1.0,
        centre=0.5,
    )
    for user in range(3):
        row = row_of[user]
        mean, covariance = slowly(odds[server_of[row]], users.gram[row], users.moment[row])
        deviations = np.sqrt(np.einsum("ki,ij,kj->k", items, covariance, items))
        scores = np.minimum(items @ mean + deviations, 0.5)
        chosen = rounds.recommend(state, user, items)
        assert scores[chosen] == pytest.approx(scores.max())
    before = users.moment[2].copy()
    rounds.feedback(state, 0, items[1], 1.0)
    assert np.allclose(users.moment[2], before + 0.5 * items[1])
    assert users.counts[2] == 3
    rounds.feedback(state, 1, items[1], 1.0)
    assert visits.tolist() == [21, 10]
    assert due.tolist() == [0, 12], "the second server has asked its users, the first never does"
    assert odds[0] == -50.0
    asked = evidence_for_start(START, RELEASED, users, 2, 3)
    assert odds[1] == rounds.PRIOR_ODDS + asked


def test_a_model_without_a_constant_has_one_unit() -> None:
    prior = prior_of(PublicModel(4), Population.start(4))
    assert np.allclose(prior.precision, 8.0 * np.eye(4))
    assert not prior.vector.any()
    assert prior.constant == pytest.approx(-4 * np.log(8.0))
