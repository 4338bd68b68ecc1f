"""The filter of the population: beside one large Gaussian, on drawn people, and when sums are false."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, poisson

from fclub.core.population import filter as bank
from fclub.core.population.contribution import (
    COUNT_WEIGHT,
    INFORMATION_WEIGHT,
    MEAN_WEIGHT,
    add_contributions,
    release_length,
)
from fclub.core.population.filter import (
    FilterState,
    Slot,
    equivalent_users,
    first_state,
    learn,
    number_of_users,
    pace_of,
)
from fclub.core.population.model import VARIANCE, Population, PublicModel, clip_norm, public_point
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Matrix, Vector

DIM = 3
MODEL = PublicModel(DIM, sqrt(0.5))
SIZE = DIM + DIM * (DIM + 1) // 2
STEPS = 1 << 20
SCHEDULE = (0.8, 1.6, 3.2, 6.4)
TRUTH = Population(np.array([0.7, -0.5, 0.9]), np.diag([0.4, 1.3, 0.8]))


class Crowd(NamedTuple):
    """People with tastes of a population, and what they have seen so far."""

    theta: Floats
    users: Packed
    rng: np.random.Generator

    def visit(self, mean: float) -> None:
        for u, count in enumerate(self.rng.poisson(mean, len(self.theta))):
            X = self.rng.standard_normal((count, DIM)) * np.sqrt(MODEL.item)
            y = X @ self.theta[u] + sqrt(VARIANCE) * self.rng.standard_normal(count)
            self.users.gram[u] += X.T @ X
            self.users.moment[u] += X.T @ y
            self.users.counts[u] += count


def drawn(population: Population, users: int, seed: int) -> Crowd:
    rng = np.random.default_rng(seed)
    spread = population.covariance * np.outer(MODEL.unit, MODEL.unit)
    theta = rng.multivariate_normal(MODEL.unit * population.mean, spread, users)
    return Crowd(theta, Packed.zeros(users, DIM), rng)


def released(crowd: Crowd, population: Population, slot: Slot) -> Vector:
    total = np.zeros(release_length(DIM), dtype=np.int64)
    count = int(COUNT_WEIGHT * STEPS)
    add_contributions(public_point(MODEL, population), crowd.users, slot.clip, STEPS, count, total)
    values: Vector = total * (slot.clip / STEPS) + slot.noise * crowd.rng.standard_normal(len(total))
    return values


def play(
    population: Population, users: int = 800, noise: float = 3.0, seed: int = 1, faster: float = 1.0
) -> tuple[list[tuple[Slot, Vector]], list[FilterState]]:
    """Releases of drawn people in the slots of `SCHEDULE`, and what the filter makes of them."""
    crowd, state, before = drawn(population, users, seed), first_state(DIM), 0.0
    told, states = [], [state]
    for visits in SCHEDULE:
        crowd.visit(faster * (visits - before))
        clip, before = clip_norm(MODEL, visits * pace_of(state)), visits
        slot = Slot(visits, clip, noise * clip)
        told.append((slot, released(crowd, state.population, slot)))
        state = learn(state, *told[-1], MODEL)
        states.append(state)
    return told, states


def counted(state: FilterState) -> float:
    return number_of_users(state.counted, pace_of(state))


# The slow twin: everything that was released is one measurement of one Gaussian vector.


def basis() -> Matrix:
    """Q with svec(X) = Q vec(X), and X = Qᵀ svec(X) for symmetric X."""
    Q = np.zeros((SIZE - DIM, DIM * DIM))
    for row, (i, j) in enumerate(zip(*np.triu_indices(DIM), strict=True)):
        Q[row, i * DIM + j] += 0.5 if i == j else sqrt(0.5)
        Q[row, j * DIM + i] += 0.5 if i == j else sqrt(0.5)
    return Q


def twice(M: Matrix) -> Matrix:
    product: Matrix = basis() @ np.kron(M, M) @ basis().T
    return product


def information(population: Population, visits: float) -> Matrix:
    root = np.diag(MODEL.unit) @ np.linalg.cholesky(population.covariance)
    rate = root.T @ np.diag(MODEL.item) @ root / VARIANCE
    total = sum(
        poisson.pmf(k, visits) * (np.eye(DIM) - np.linalg.inv(np.eye(DIM) + k * rate))
        for k in range(1, 80)
    )
    return np.asarray(total / -np.expm1(-visits))


class Slow:
    """The same filter, written as one linear model of (x, e_1, …, e_r) per prior."""

    def __init__(self) -> None:
        self.pace, self.held = (0.0, 1.0), 0.0
        self.counted: list[tuple[float, float, float]] = []
        self.rows: list[tuple[Vector, Matrix, Matrix, Matrix]] = []
        self.shares: list[float] = []

    def users(self, pace: float) -> float:
        """A weighted regression of counts on shares."""
        seen, precision, visits = np.array(self.counted).T
        share = -np.expm1(-pace * visits)
        weight = float(precision @ share**2)
        return max(1.0, float(precision @ (share * seen)) / weight, 1.0 / sqrt(weight))

    def follow(self, slot: Slot, release: Vector, population: Population) -> float:
        """Visits that users have made, from counts and the trace of Ω."""
        mean, variance = self.pace[0], self.pace[1] + 0.01
        precision = (COUNT_WEIGHT * slot.clip / slot.noise) ** 2
        self.counted.append((release[-1] / (COUNT_WEIGHT * slot.clip), precision, slot.visits))
        users = self.users(exp(mean))
        matrix = (basis().T @ release[SIZE:-1]).reshape(DIM, DIM)
        trace = np.trace(matrix) / INFORMATION_WEIGHT

        def excess(place: float) -> float:
            T = slot.visits * exp(place)
            return float(-users * np.expm1(-T) * np.trace(information(population, T)) - trace)

        found = brentq(excess, -log(5), log(5), xtol=1e-9)
        slope = (excess(found + 0.05) - excess(found - 0.05)) / 0.1
        doubt = DIM * (slot.noise / INFORMATION_WEIGHT / slope) ** 2 + 0.0625
        precision = 1.0 / variance + 1.0 / doubt
        self.pace = (mean / variance + found / doubt) / precision, 1.0 / precision
        return float(slot.visits * exp(self.pace[0]))

    def learn(self, slot: Slot, release: Vector, population: Population) -> None:
        T = self.follow(slot, release, population)
        n = self.users(exp(self.pace[0])) * -np.expm1(-T)
        expected = information(population, T)
        said = (basis().T @ release[SIZE:-1]).reshape(DIM, DIM) / INFORMATION_WEIGHT
        spread = 0.3 * n * np.trace(expected) / DIM
        gain = 1.0 / (1.0 + (slot.noise / INFORMATION_WEIGHT / spread) ** 2)
        values, U = np.linalg.eigh(expected + gain * (said / n - expected))
        mean = max(values.mean(), 0.04 * np.trace(expected) / DIM)
        omega = U @ np.diag(np.clip(values, 0.04 * mean, 0.98)) @ U.T
        J = np.zeros((SIZE, SIZE))
        J[:DIM, :DIM] = np.linalg.inv(np.linalg.cholesky(population.covariance))
        J[DIM:, DIM:] = twice(J[:DIM, :DIM])
        Fw = np.zeros((SIZE, SIZE))
        Fw[:DIM, :DIM] = n * omega
        Fw[DIM:, DIM:] = 0.5 * n * twice(omega) * (1.0 + 0.8 / T)
        F = J.T @ Fw @ J
        nuisance = J.T @ np.concatenate(
            [np.zeros(DIM), 0.5 * n * basis() @ (omega - omega @ omega).ravel()]
        )
        deviation = slot.noise * np.concatenate([np.full(DIM, 1.0 / MEAN_WEIGHT), np.ones(SIZE - DIM)])
        N = J.T @ np.diag(deviation**2) @ J + 0.4 * F
        y = J.T @ (release[:SIZE] * deviation / slot.noise)
        at = np.concatenate([population.mean, basis() @ population.covariance.ravel()])
        held = n * float(np.trace(expected))
        self.shares.append(min(1.0, self.held / held))
        self.held = held
        self.rows.append((y + F @ at, F, nuisance, N))

    def posterior(self) -> tuple[Vector, list[Vector]]:
        """Log weights and means of x, filter by filter."""
        r, keep = len(self.rows), []
        for share in self.shares:
            keep.append(np.diag(np.repeat([share, share**2], [DIM, SIZE - DIM])))
        errors = np.zeros((r * SIZE, r * SIZE))
        for i in range(r):
            part = np.linalg.inv(self.rows[i][1])
            rest = np.sqrt(np.eye(SIZE) - keep[i])
            own = 1.5 * rest @ part @ rest
            if i:
                previous = errors[(i - 1) * SIZE : i * SIZE, : i * SIZE]
                across = keep[i] @ previous
                errors[i * SIZE : (i + 1) * SIZE, : i * SIZE] = across
                errors[: i * SIZE, i * SIZE : (i + 1) * SIZE] = across.T
                own = own + across[:, -SIZE:] @ keep[i]
            errors[i * SIZE : (i + 1) * SIZE, i * SIZE : (i + 1) * SIZE] = own
        H = np.vstack([np.column_stack([F, nuisance]) for _, F, nuisance, _ in self.rows])
        blocks = np.zeros((r * SIZE, r * SIZE))
        noise = np.zeros_like(blocks)
        for i, (_, F, _, N) in enumerate(self.rows):
            place = slice(i * SIZE, (i + 1) * SIZE)
            blocks[place, place], noise[place, place] = F, N
        y = np.concatenate([row[0] for row in self.rows])
        logs, means = [], []
        for weight, (of_s, of_mean) in zip((1.0, 0.0, 0.0, 0.0), bank.BANK, strict=True):
            first = np.concatenate([np.zeros(DIM), basis() @ np.eye(DIM).ravel(), [0.0]])
            prior = np.diag(np.repeat([of_mean**2, of_s**2, 0.05**2], [DIM, SIZE - DIM, 1]))
            V = H @ prior @ H.T + blocks @ errors @ blocks.T + noise
            V = 0.5 * (V + V.T)
            means.append(first + prior @ H.T @ np.linalg.solve(V, y - H @ first))
            logs.append(weight + multivariate_normal.logpdf(y, H @ first, V))
        return np.array(logs) - max(logs), means


def test_the_filter_equals_one_large_gaussian() -> None:
    told, states = play(TRUTH)
    slow = Slow()
    for (slot, release), before, after in zip(told, states, states[1:], strict=False):
        slow.learn(slot, release, before.population)
        logs, means = slow.posterior()
        assert pace_of(after) == pytest.approx(exp(slow.pace[0]), rel=1e-6)
        assert counted(after) == pytest.approx(slow.users(exp(slow.pace[0])), rel=1e-6)
        assert after.surprise < bank.GATE
        assert np.allclose(after.mean[:, : SIZE + 1], means, atol=1e-5)
        assert np.allclose(after.log_weights, logs, atol=1e-3)


def test_the_filter_is_replayed_from_releases_alone() -> None:
    told, states = play(TRUTH, seed=2)
    state = first_state(DIM)
    for slot, release in told:
        state = learn(state, slot, release, MODEL)
    assert np.array_equal(state.population.mean, states[-1].population.mean)
    assert np.array_equal(state.population.covariance, states[-1].population.covariance)
    assert len(state.counted) == len(SCHEDULE)


def distance(one: Population, other: Population) -> float:
    mean = np.linalg.norm(one.mean - other.mean)
    return float(mean + np.linalg.norm(one.covariance - other.covariance))


def test_it_finds_a_population_and_the_number_of_its_users() -> None:
    _, states = play(TRUTH, users=2000, noise=0.7)
    start, found = states[0].population, states[-1]
    assert distance(found.population, TRUTH) < 0.4 * distance(start, TRUTH)
    assert counted(found) == pytest.approx(2000, rel=0.15)


def test_where_nobody_has_anything_in_common_it_stays_at_the_start() -> None:
    start = Population.start(DIM)
    _, states = play(start, users=300, noise=15.0)
    assert distance(states[-1].population, start) < 0.3


def test_it_notices_a_plan_that_is_wrong() -> None:
    """The pace is of information, which isotropic items overstate."""
    right, slow, fast = (
        pace_of(play(TRUTH, users=900, noise=0.3, faster=pace)[1][-1]) for pace in (1.0, 1 / 3, 3.0)
    )
    assert 0.5 < right < 1.2
    assert slow < 0.67 * right
    assert fast > 1.5 * right


def test_a_false_sum_is_scaled_down_and_the_truth_heals_it() -> None:
    told, states = play(TRUTH, noise=1.0)
    slot, release = told[0]
    false = release.copy()
    false[:SIZE] += 4000.0 * slot.noise
    state = learn(first_state(DIM), slot, false, MODEL)
    assert state.surprise > bank.GATE
    assert np.linalg.norm(state.population.mean) <= sqrt(DIM) + 1e-9
    values = np.linalg.eigvalsh(state.population.covariance)
    assert values.min() >= bank.LEAST_COVARIANCE - 1e-9
    assert values.max() <= bank.MOST_COVARIANCE + 1e-9
    astray = distance(state.population, TRUTH)
    crowd = drawn(TRUTH, 1500, 9)
    crowd.visit(SCHEDULE[0])
    before = SCHEDULE[0]
    for visits in SCHEDULE[1:]:
        crowd.visit(visits - before)
        before, later = visits, Slot(visits, clip_norm(MODEL, visits), clip_norm(MODEL, visits))
        state = learn(state, later, released(crowd, state.population, later), MODEL)
    assert distance(state.population, TRUTH) < astray
    assert states[-1].surprise < bank.GATE


def test_past_visits_are_part_of_the_public_model() -> None:
    crowd, state = drawn(TRUTH, 2000, 4), first_state(DIM)
    crowd.visit(20.0)
    slot = Slot(0.1, clip_norm(MODEL, 0.1, 20.0), 1.0, past=20.0)
    state = learn(state, slot, released(crowd, state.population, slot), MODEL)
    assert distance(state.population, TRUTH) < 0.7 * distance(Population.start(DIM), TRUTH)
    assert counted(state) == pytest.approx(2000, rel=0.05)


def test_however_negative_a_count_is_one_deviation_of_users_is_left() -> None:
    assert number_of_users(np.array([[-500.0, 0.01, 1e9, 0.0]]), 1.0) == pytest.approx(10.0)
    assert number_of_users(np.array([[-500.0, 100.0, 1e9, 0.0]]), 1.0) == 1.0


def test_what_is_known_of_the_covariance_counts_as_so_many_users() -> None:
    """2p/tr P, P the covariance of a draw from the bank."""
    state = first_state(DIM)
    rng = np.random.default_rng(8)
    state = state._replace(
        mean=state.mean + rng.normal(0.0, 0.1, state.mean.shape),
        log_weights=np.log([4.0, 3.0, 2.0, 1.0]),
    )
    place = slice(DIM, DIM + DIM * (DIM + 1) // 2)
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    second = sum(
        w * (C[place, place] + np.outer(m[place], m[place]))
        for w, m, C in zip(weights, state.mean, state.covariance, strict=True)
    )
    mean = (weights @ state.mean)[place]
    P = second - np.outer(mean, mean)
    assert equivalent_users(state) == pytest.approx(2.0 * len(P) / np.trace(P))
    tastes = rng.standard_normal((20_000, 50, DIM))
    found = np.einsum("sui,suj->sij", tastes, tastes) / 50.0
    rows, columns = np.triu_indices(DIM)
    svec = found[:, rows, columns] * np.where(rows == columns, 1.0, sqrt(2.0))
    assert 2.0 * len(P) / np.trace(np.cov(svec.T)) == pytest.approx(50.0, rel=0.05)
