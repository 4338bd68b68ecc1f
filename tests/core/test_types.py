"""Types shared by all: evidence, serving, sums and what is learned from them, beside plain NumPy."""

from math import exp, log

import numpy as np
import pytest
import scipy.special

from fclub.core.plus.beliefs import (
    LOG_WITHIN,
    LOGIT_OWN,
    VARIANCE,
    Beliefs,
    PopulationPrior,
    TypeRules,
    digamma,
    first_beliefs,
    move_population,
    tell_beliefs,
    write_model,
)
from fclub.core.plus.split_sums import LEAST_WEIGHT, SplitSums, sum_splits
from fclub.core.plus.splits import Halves, half_columns, move_types
from fclub.core.plus.type_model import TypeModel, serve
from fclub.core.plus.type_sums import (
    LOGIT,
    OWN,
    OWN_INFORMATION,
    PEOPLE,
    RESIDUAL,
    SPREAD,
    VISITS,
    WITHIN,
    WITHIN_INFORMATION,
    TypeSums,
    inform,
    know_users,
)
from fclub.core.statistics import Packed

DIM, TYPES = 3, 4
RULES = TypeRules(types=TYPES, dim=DIM)


def some_beliefs(seed: int = 1) -> Beliefs:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((DIM, DIM)) / 4
    apart = rng.standard_normal((TYPES, DIM, DIM)) / 20
    return Beliefs(
        mean=rng.standard_normal(DIM) / 5,
        covariance=root @ root.T + 0.05 * np.eye(DIM),
        centres=rng.standard_normal((TYPES, DIM)) / 2,
        uncertainty=apart @ apart.transpose(0, 2, 1),
        users=rng.uniform(1.0, 50.0, TYPES),
        scalars=np.array([0.3, log(0.2), -0.4]),
    )


def model_of(beliefs: Beliefs) -> TypeModel:
    types, dim = beliefs.centres.shape
    model = TypeModel.zeros(1, types, dim)
    write_model(beliefs, model)
    return model


Data = list[tuple[np.ndarray, np.ndarray]]


def some_data(seed: int, visits: list[int]) -> Data:
    """Items and rewards of users with so many visits."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((t, DIM)) / 2, rng.standard_normal(t) / 2) for t in visits]


def packed(data: Data) -> tuple[Packed, np.ndarray]:
    users = Packed.zeros(len(data), data[0][0].shape[1])
    for u, (X, y) in enumerate(data):
        users.gram[u], users.moment[u], users.counts[u] = X.T @ X, X.T @ y, len(y)
    return users, np.array([y @ y for _, y in data])


def log_normal(y: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    rest = y - mean
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    return float(-0.5 * (log_det + rest @ np.linalg.solve(covariance, rest)))


def log_evidences(beliefs: Beliefs, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of every type and of "own", with their weights: densities of the rewards."""
    noise = beliefs.scalars[VARIANCE] * np.eye(len(y))
    within = X @ beliefs.within @ X.T + noise
    weights = model_of(beliefs).weights[0, :-1]
    types = [w + log_normal(y, X @ c, within) for w, c in zip(weights, beliefs.centres, strict=True)]
    own = log_normal(y, X @ beliefs.mean, X @ beliefs.covariance @ X.T + noise) + log(beliefs.own)
    return np.array([*types, own])


def probabilities(logs: np.ndarray) -> np.ndarray:
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def given(
    mean: np.ndarray, covariance: np.ndarray, X: np.ndarray, y: np.ndarray, v: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """θ ~ N(mean, covariance) after rewards y for X."""
    gain = covariance @ X.T @ np.linalg.inv(X @ covariance @ X.T + v * np.eye(len(y)))
    return mean + gain @ (y - X @ mean), covariance - gain @ X @ covariance, np.eye(DIM) - gain @ X


@pytest.mark.parametrize("visits", [0, 1, 2, 30])
def test_a_user_is_served_by_the_mixture_given_all_its_data(visits: int) -> None:
    beliefs = some_beliefs()
    X, y = some_data(5, [visits])[0]
    mean, covariance = np.empty(DIM), np.empty((DIM, DIM))
    serve(model_of(beliefs), 0, X.T @ X, X.T @ y, mean, covariance)
    v = float(beliefs.scalars[VARIANCE])
    weights = probabilities(log_evidences(beliefs, X, y))
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for c, C in zip(beliefs.centres, beliefs.uncertainty, strict=True):
        theta, spread, pull = given(c, beliefs.within, X, y, v)
        parts.append((theta, spread + pull @ C @ pull.T))
    parts.append(given(beliefs.mean, beliefs.covariance, X, y, v)[:2])
    expected = sum(w * theta for w, (theta, _) in zip(weights, parts, strict=True))
    second = sum(w * (S + np.outer(t, t)) for w, (t, S) in zip(weights, parts, strict=True))
    assert mean == pytest.approx(expected, abs=1e-10)
    assert covariance == pytest.approx(second - np.outer(expected, expected), abs=1e-10)


def sums_of(beliefs: Beliefs, data: Data, parts: int = 1) -> TypeSums:
    users, squares = packed(data)
    types, dim = beliefs.centres.shape
    model, adding = model_of(beliefs), SplitSums.zeros(types, dim)
    people, ids = np.flatnonzero(users.counts > 0), np.arange(types)
    labels = np.zeros(len(data), dtype=np.int64)
    halves, told = half_columns(Halves.none(types, dim)), (beliefs.within, beliefs.own)
    for part in np.array_split(people, parts):
        known = know_users(model, users, squares, part, adding.sums)
        sum_splits(model, known, beliefs.centres, *told, halves, ids, labels, adding)
    inform(model, adding.sums)
    tell_beliefs(beliefs, adding.sums)
    return adding.sums


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_sums_in_parts_are_the_same_bit_for_bit(parts: int) -> None:
    beliefs, data = some_beliefs(2), some_data(6, [3, 0, 1, 25, 7, 2, 2, 1, 9])
    whole, added = sums_of(beliefs, data), sums_of(beliefs, data, parts)
    assert all(np.array_equal(a, b) for a, b in zip(whole, added, strict=True))


def test_sums_are_what_they_say() -> None:
    beliefs, data = some_beliefs(2), some_data(6, [3, 0, 1, 25, 7])
    sums, v, W = sums_of(beliefs, data), beliefs.scalars[VARIANCE], beliefs.within
    expected = TypeSums.zeros(TYPES, DIM)
    rows, columns = np.triu_indices(DIM)
    for X, y in (pair for pair in data if len(pair[1])):
        weights = probabilities(log_evidences(beliefs, X, y))
        own, typical = weights[-1], weights[:-1] / weights[:-1].sum()
        typical[typical <= LEAST_WEIGHT] = 0.0
        typical /= typical.sum()
        Q_w = X.T @ np.linalg.inv(X @ W @ X.T + v * np.eye(len(y))) @ X
        q_w = X.T @ np.linalg.inv(X @ W @ X.T + v * np.eye(len(y))) @ y
        triangle = Q_w[rows, columns] * np.where(rows == columns, 1.0, 2.0)
        expected.rows[:] += np.outer(typical, np.concatenate([q_w, triangle]))
        expected.users[:] += typical
        expected.visits[:] += typical * len(y)
        theta, B, _ = given(beliefs.mean, beliefs.covariance, X, y, v)
        single = np.linalg.inv(X @ beliefs.covariance @ X.T + v * np.eye(len(y)))
        z = X.T @ single @ (y - X @ beliefs.mean)
        expected.slope[:] += z
        expected.second[:] += np.outer(z, z)
        expected.information[:] += X.T @ single @ X
        expected.mean[:] += beliefs.mean
        expected.covariance[:] += beliefs.covariance
        expected.scalars[[LOGIT, SPREAD]] += beliefs.scalars[[LOGIT_OWN, LOG_WITHIN]]
        expected.scalars[[PEOPLE, VISITS]] += 1, len(y)
        expected.scalars[RESIDUAL] += ((y - X @ theta) ** 2).sum() + np.trace(X @ B @ X.T)
        expected.scalars[[OWN, OWN_INFORMATION]] += own - beliefs.own, (own - beliefs.own) ** 2
        for share, c in zip(typical * (1 - own), beliefs.centres, strict=True):
            if share > 0.02:
                e = q_w - Q_w @ c
                expected.scalars[WITHIN] += 0.5 * share * (e @ W @ e - np.trace(W @ Q_w))
                square = np.trace(W @ Q_w @ W @ Q_w)
                expected.scalars[WITHIN_INFORMATION] += 0.5 * share * square
    for name, found, wanted in zip(TypeSums._fields, sums, expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-8, abs=1e-10), name


def test_slopes_are_derivatives_of_the_log_evidence() -> None:
    """In logit(own), and in log ω where all types are one, so that none is too small to count."""
    beliefs, data, step = some_beliefs(3), some_data(7, [12, 4, 9]), 1e-5
    one = beliefs._replace(centres=np.tile(beliefs.centres[:1], (TYPES, 1)))
    slopes = sums_of(one, data).scalars

    def evidence(place: int, change: float) -> float:
        scalars = one.scalars.copy()
        scalars[place] += change
        logs = [log_evidences(one._replace(scalars=scalars), X, y) for X, y in data]
        return float(sum(np.log(np.exp(values).sum()) for values in logs))

    for place, slope in ((LOGIT_OWN, OWN), (LOG_WITHIN, WITHIN)):
        derivative = (evidence(place, step) - evidence(place, -step)) / (2 * step)
        assert slopes[slope] == pytest.approx(derivative, rel=1e-5)


def test_centres_are_posterior_means_of_what_their_users_say() -> None:
    beliefs, data = some_beliefs(4), some_data(8, [6] * 30)
    sums = sums_of(beliefs, data)
    moved = move_types(beliefs, sums)
    prior = np.linalg.inv((1 - exp(beliefs.scalars[LOG_WITHIN])) * beliefs.covariance)
    rows, columns = np.triu_indices(DIM)
    for k in range(TYPES):
        information = np.zeros((DIM, DIM))
        information[rows, columns] = sums.rows[k, DIM:] / 2
        information += information.T
        C = np.linalg.inv(prior + information)
        assert moved.uncertainty[k] == pytest.approx(C)
        assert moved.centres[k] == pytest.approx(C @ (prior @ beliefs.mean + sums.rows[k, :DIM]))
    assert np.array_equal(moved.users, sums.users)


def people(seed: int, count: int, visits: int, centres: np.ndarray, within: float) -> Data:
    """Users around these centres, with binary rewards less one half, as they come from real visits."""
    rng, dim = np.random.default_rng(seed), centres.shape[1]
    data = []
    for u in range(count):
        theta = centres[u % len(centres)] + within * rng.standard_normal(dim)
        X = rng.standard_normal((visits, dim))
        X /= np.sqrt(2) * np.linalg.norm(X, axis=1, keepdims=True)
        y = (rng.random(visits) < np.clip(0.5 + X @ theta, 0, 1)) - 0.5
        data.append((X, y))
    return data


def somewhere(rules: TypeRules) -> Beliefs:
    """As many types as the rules allow, at random places."""
    centres = np.random.default_rng(0).standard_normal((rules.types, rules.dim))
    start = first_beliefs(rules)
    return start._replace(
        centres=centres * np.sqrt(rules.prior / rules.dim),
        uncertainty=np.tile(start.uncertainty, (rules.types, 1, 1)),
        users=np.zeros(rules.types),
    )


def learned(data: Data, rules: TypeRules, rounds: int) -> Beliefs:
    """A federation of one server that looks at the same data again and again."""
    beliefs = somewhere(rules)
    for _ in range(rounds):
        for _ in range(3):
            sums = sums_of(beliefs, data)
            beliefs = move_types(beliefs, sums)
        beliefs = move_population(beliefs, sums, rules, PopulationPrior.of(rules))
    return beliefs


def test_population_types_variance_and_spread_are_learned() -> None:
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((4, 5)) * [1.0, 1.0, 1.0, 1.0, 0.0]
    centres *= 0.6 / np.linalg.norm(centres, axis=1, keepdims=True)
    data = people(4, 1000, 60, centres, 0.05)
    beliefs = learned(data, TypeRules(types=10, dim=5), 60)
    distance = np.linalg.norm(beliefs.centres[:, None] - centres, axis=2).min(axis=0)
    assert distance.max() < 0.15
    assert beliefs.own < 0.05
    theta = np.concatenate([np.full((250, 5), c) for c in centres])
    assert beliefs.covariance == pytest.approx(np.cov(theta.T), abs=0.035)
    assert beliefs.covariance[4, 4] < 0.02
    v = np.mean([((y - X @ centres[u % 4]) ** 2).mean() for u, (X, y) in enumerate(data)])
    assert beliefs.scalars[VARIANCE] == pytest.approx(v, rel=0.02)


def test_users_like_nobody_else_are_believed_to_have_vectors_of_their_own() -> None:
    """400 users from one Gaussian: few types cannot describe them, and the share of "own" says so."""
    centres = 0.25 * np.random.default_rng(5).standard_normal((400, 5))
    beliefs = learned(people(6, 400, 60, centres, 0.0), TypeRules(types=6, dim=5), 20)
    assert beliefs.own > 0.7


def test_servers_that_believe_differently_come_to_agree() -> None:
    """Each takes its slopes where it is; steps start from the mean of where all are."""
    rules = TypeRules(types=4, dim=5)
    data = people(9, 60, 20, 0.3 * np.random.default_rng(1).standard_normal((3, 5)), 0.0)
    halves = data[:30], data[30:]
    one = somewhere(rules)
    beliefs = [one, one._replace(mean=one.mean + 0.2, covariance=3.0 * one.covariance)]
    for _ in range(2):
        sums = [sums_of(b, half) for b, half in zip(beliefs, halves, strict=True)]
        total = sums[0].plus(sums[1])
        beliefs = [
            move_population(move_types(b, total), total, rules, PopulationPrior.of(rules))
            for b in beliefs
        ]
    assert np.array_equal(beliefs[0].mean, beliefs[1].mean)
    assert np.array_equal(beliefs[0].covariance, beliefs[1].covariance)
    assert np.array_equal(beliefs[0].scalars, beliefs[1].scalars)


@pytest.mark.parametrize("x", [1.0, 1.5, 2.0, 7.3, 11.9, 50.0, 1e6])
def test_digamma(x: float) -> None:
    assert digamma(x) == pytest.approx(scipy.special.digamma(x), abs=1e-11)


def test_a_prior_that_is_sure_decides_and_one_that_is_not_hardly_counts() -> None:
    """μ and S go to those that are expected; with the weight of no user they are where data say."""
    rng = np.random.default_rng(5)
    data = people(6, 200, 20, 0.5 * rng.standard_normal((200, DIM)), 0.0)
    beliefs, root = first_beliefs(RULES), np.diag([0.4, 0.5, 0.6])
    sums = sums_of(beliefs, data)
    found = {}
    for users in (1e-9, 200.0, 1e9):
        prior = PopulationPrior(np.array([0.1, 0.2, -0.1]), root, 0.9, users)
        found[users] = move_population(beliefs, sums, RULES, prior)
    sure = found[1e9]
    assert np.allclose(sure.mean, prior.mean, atol=1e-5)
    assert np.allclose(sure.covariance, 0.9 * root @ root, atol=1e-5)
    assert np.allclose(prior.covariance, 0.9 * root @ root)
    other = PopulationPrior(np.zeros(DIM), np.eye(DIM), 1.0, 1e-9)
    same = move_population(beliefs, sums, RULES, other)
    assert np.allclose(found[1e-9].covariance, same.covariance, atol=1e-6)
    for between, low, high in zip(found[200.0].mean, same.mean, sure.mean, strict=True):
        assert min(low, high) < between < max(low, high)


def test_nobody_changes_nothing() -> None:
    beliefs = first_beliefs(RULES)
    moved = move_population(beliefs, TypeSums.zeros(1, DIM), RULES, PopulationPrior.of(RULES))
    assert all(np.array_equal(a, b) for a, b in zip(moved, beliefs, strict=True))
    moved = move_types(beliefs, TypeSums.zeros(1, DIM))
    assert np.array_equal(moved.scalars, beliefs.scalars)
