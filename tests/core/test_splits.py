"""A number of types that adapts: sums, evidence for splits and merges, beside plain NumPy."""

import itertools
from itertools import combinations
from math import lgamma, log
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma

from fclub.core.plus.beliefs import LOG_WITHIN, Beliefs, tell_beliefs
from fclub.core.plus.split_sums import (
    LEAST_WEIGHT,
    HalfColumns,
    SplitSums,
    halves_are_possible,
    merge_types,
    put_in_half,
    split_type,
    sum_splits,
)
from fclub.core.plus.splits import (
    LEAST_GAIN,
    Halves,
    Prior,
    block_centres,
    direction,
    evidences,
    half_columns,
    log_evidence,
    make_prior,
    merge_gains,
    move_halves,
    paying_types,
    prior_of,
    split_gains,
    start_halves,
    write_variational,
)
from fclub.core.plus.type_model import NOWHERE, TypeModel, serve, stacked
from fclub.core.plus.type_sums import (
    OWN,
    OWN_INFORMATION,
    WITHIN,
    WITHIN_INFORMATION,
    Known,
    know_users,
)
from fclub.core.statistics import Packed
from fclub.core.types import Floats

DIM, TYPES = 3, 4
VISITS = [3, 1, 25, 7, 40, 2, 9, 12, 1, 30]


def prior_in(beliefs: Beliefs) -> Prior:
    """Of a centre, as a server believes."""
    return make_prior(beliefs.mean, beliefs.covariance, float(beliefs.scalars[LOG_WITHIN]))


def some_beliefs(seed: int = 1) -> Beliefs:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((DIM, DIM)) / 4
    apart = rng.standard_normal((TYPES, DIM, DIM)) / 20
    return Beliefs(
        mean=rng.standard_normal(DIM) / 5,
        covariance=root @ root.T + 0.05 * np.eye(DIM),
        centres=rng.standard_normal((TYPES, DIM)) / 3,
        uncertainty=apart @ apart.transpose(0, 2, 1) + 0.01 * np.eye(DIM),
        users=rng.uniform(1.0, 5.0, TYPES),
        scalars=np.array([0.3, log(0.05), -0.4]),
    )


def some_halves(beliefs: Beliefs, seed: int = 3) -> Halves:
    """Of all types but the last."""
    rng = np.random.default_rng(seed)
    halves = Halves.none(TYPES, DIM)
    for k in range(TYPES - 1):
        away = rng.standard_normal((2, DIM)) / 3
        halves = start_halves(halves, beliefs, k, beliefs.centres[k] + away)
    return halves._replace(users=halves.users * [[0.4, 1.6]])


def model_of(beliefs: Beliefs, paying: Floats | None = None) -> TypeModel:
    model = TypeModel.zeros(1, len(beliefs.users), DIM)
    write_variational(beliefs, model, np.ones(len(beliefs.users)) if paying is None else paying)
    return model


def some_users(seed: int = 5) -> tuple[Packed, Floats]:
    rng = np.random.default_rng(seed)
    users, squares = Packed.zeros(len(VISITS), DIM), np.zeros(len(VISITS))
    for u, count in enumerate(VISITS):
        X, y = rng.standard_normal((count, DIM)) / 2, rng.standard_normal(count) / 2
        users.gram[u], users.moment[u], users.counts[u] = X.T @ X, X.T @ y, count
        squares[u] = y @ y
    return users, squares


def known_and_sums(
    beliefs: Beliefs, halves: Halves, ids: list[int] | None = None
) -> tuple[Known, SplitSums, Any]:
    users, squares = some_users()
    sums, model = SplitSums.zeros(TYPES, DIM), model_of(beliefs)
    known = know_users(model, users, squares, np.arange(len(VISITS)), sums.sums)
    labels = np.full(len(VISITS), -1)
    told = beliefs.centres, beliefs.within, beliefs.own, half_columns(halves)
    sum_splits(model, known, *told, np.array(ids or range(TYPES)), labels, sums)
    tell_beliefs(beliefs, sums.sums)
    return known, sums, labels


class Slow:
    """The same sums, user by user, in NumPy."""

    def __init__(self, beliefs: Beliefs, halves: Halves) -> None:
        users, _ = some_users()
        W, S = beliefs.within, beliefs.covariance
        v, n = beliefs.scalars[0], len(VISITS)
        self.Q = np.array([np.linalg.inv(np.linalg.pinv(g / v) + W) for g in users.gram])
        self.q, self.own = np.empty((n, DIM)), np.empty(n)
        for u, (gram, moment) in enumerate(zip(users.gram, users.moment, strict=True)):
            A = np.linalg.inv(gram / v + np.linalg.inv(W))
            self.q[u] = np.linalg.inv(W) @ A @ moment / v
            self.Q[u] = np.linalg.inv(W) @ A @ gram / v
            B, r = (
                np.linalg.inv(gram / v + np.linalg.inv(S)),
                moment / v + np.linalg.solve(S, beliefs.mean),
            )
            own = r @ B @ r - beliefs.mean @ np.linalg.solve(S, beliefs.mean)
            own -= np.linalg.slogdet(np.eye(DIM) + S @ gram / v)[1]
            typical = moment @ A @ moment / v**2 - np.linalg.slogdet(np.eye(DIM) + W @ gram / v)[1]
            self.own[u] = 0.5 * (own - typical)
        weights = digamma(beliefs.users + 1) - digamma((beliefs.users + 1).sum())
        logs = weights + self.scores(beliefs.centres, beliefs.uncertainty)
        self.r = np.exp(logs - logs.max(axis=1, keepdims=True))
        self.r /= self.r.sum(axis=1, keepdims=True)
        self.r[self.r <= LEAST_WEIGHT] = 0.0
        self.r /= self.r.sum(axis=1, keepdims=True)
        evidence = np.log(np.exp(logs - logs.max(axis=1, keepdims=True)).sum(axis=1)) + logs.max(axis=1)
        odds = evidence + log(1 - beliefs.own) - self.own - log(beliefs.own)
        self.single = 1 / (1 + np.exp(odds))
        self.h = np.zeros_like(self.r)
        for k in range(TYPES):
            if halves.open[k]:
                two = self.scores(halves.centres[k], halves.uncertainty[k])
                two += digamma(halves.users[k] + 1)
                self.h[:, k] = 1 / (1 + np.exp(two[:, 1] - two[:, 0]))

    def scores(self, centres: Floats, covariances: Floats) -> Floats:
        second = np.einsum("ki,kj->kij", centres, centres) + covariances
        found: Floats = self.q @ centres.T - 0.5 * np.einsum("uij,kij->uk", self.Q, second)
        return found

    def rows(self, weights: Floats) -> Floats:
        """(Σq_w, triangle of ΣQ_w with entries beside the diagonal doubled) of each column."""
        doubled = self.Q * (2.0 - np.eye(DIM))
        triangles = np.array([matrix[np.triu_indices(DIM)] for matrix in doubled])
        return np.asarray(weights.T @ np.hstack([self.q, triangles]))


def entropy(weights: Floats) -> Floats:
    safe = np.where(weights > 0, weights, 1.0)
    return np.asarray(-(weights * np.log(safe)).sum(axis=0))


def free_energy(slow: Slow, r: Floats, prior: Prior) -> float:
    """F of docs/plus.md, for any shares r of users in types."""
    P0, vector = prior.precision, prior.vector
    mean, F, n, K = np.linalg.solve(P0, vector), float(entropy(r).sum()), len(r), r.shape[1]
    for weights in r.T:
        P = P0 + np.einsum("u,uij->ij", weights, slow.Q)
        at = vector + weights @ slow.q
        F += 0.5 * (np.linalg.slogdet(P0)[1] - np.linalg.slogdet(P)[1])
        F += 0.5 * (at @ np.linalg.solve(P, at) - mean @ P0 @ mean)
        F += lgamma(weights.sum() + 1)
    return F + lgamma(K) - lgamma(K + n) + lgamma(K + 1)


BELIEFS = some_beliefs()
HALVES = some_halves(BELIEFS)


def test_users_are_shared_out_between_types_and_halves() -> None:
    known, sums, labels = known_and_sums(BELIEFS, HALVES, [5, 2, 0, 9])
    slow = Slow(BELIEFS, HALVES)
    base = sums.sums
    assert known.own == pytest.approx(slow.own)
    assert [*labels] == [[5, 2, 0, 9][k] for k in slow.r.argmax(axis=1)]
    assert base.users == pytest.approx(slow.r.sum(axis=0))
    assert base.visits == pytest.approx(VISITS @ slow.r)
    assert base.rows == pytest.approx(slow.rows(slow.r))
    assert sums.own == pytest.approx(slow.own @ slow.r)
    assert sums.entropy == pytest.approx(entropy(slow.r))
    half = slow.r * slow.h
    assert sums.half_users == pytest.approx(half.sum(axis=0))
    assert sums.half_visits == pytest.approx(VISITS @ half)
    assert sums.half_own == pytest.approx(slow.own @ half)
    assert sums.half_rows == pytest.approx(slow.rows(half))
    assert sums.half_entropy == pytest.approx(entropy(half))
    assert sums.rest_entropy[:-1] == pytest.approx(entropy(slow.r - half)[:-1])
    for k in range(TYPES):
        e = slow.q - slow.Q @ BELIEFS.centres[k]
        scatter = np.einsum("u,ui,uj->ij", slow.r[:, k], e, e)
        assert sums.scatter[k] == pytest.approx(scatter[np.triu_indices(DIM)])
    for a, b in combinations(range(TYPES), 2):
        lost = entropy(slow.r[:, [a, b]]).sum() - entropy(slow.r[:, [a]] + slow.r[:, [b]])[0]
        assert sums.merging[a, b] == pytest.approx(lost)
    away = slow.single - BELIEFS.own
    assert base.scalars[OWN] == pytest.approx(away.sum())
    assert base.scalars[OWN_INFORMATION] == pytest.approx((away**2).sum())
    assert base.scalars[WITHIN_INFORMATION] > 0.0
    assert np.isfinite(base.scalars[WITHIN])


def test_a_type_that_a_user_is_hardly_of_gets_nothing_of_it() -> None:
    away = np.array([[0.0], [0.0], [0.0], [500.0]])
    far = BELIEFS._replace(centres=BELIEFS.centres + away)
    _, sums, _ = known_and_sums(far, HALVES)
    assert sums.sums.users[3] == sums.entropy[3] == sums.own[3] == 0.0


def test_a_split_changes_the_free_energy_as_told() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    slow, prior = Slow(BELIEFS, HALVES), prior_in(BELIEFS)
    before = free_energy(slow, slow.r, prior)
    known = evidences(prior, sums.sums.rows)
    gains = split_gains(prior, sums, known, float(len(VISITS)))
    for k in range(TYPES - 1):
        first = slow.r[:, [k]] * slow.h[:, [k]]
        rest = np.delete(slow.r, k, axis=1)
        after = free_energy(slow, np.hstack([rest, first, slow.r[:, [k]] - first]), prior)
        assert gains[k] == pytest.approx(after - before)


def test_a_merge_changes_the_free_energy_as_told() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    slow, prior = Slow(BELIEFS, HALVES), prior_in(BELIEFS)
    before = free_energy(slow, slow.r, prior)
    gains = merge_gains(prior, sums, evidences(prior, sums.sums.rows), float(len(VISITS)))
    for a, b in combinations(range(TYPES), 2):
        together = slow.r[:, [a]] + slow.r[:, [b]]
        after = free_energy(slow, np.hstack([np.delete(slow.r, [a, b], axis=1), together]), prior)
        assert gains[a, b] == pytest.approx(after - before)
    assert (gains[np.tril_indices(TYPES)] == -np.inf).all()


def test_the_prior_is_what_servers_believe_on_average() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    for mine, its in zip(prior_of(sums.sums), prior_in(BELIEFS), strict=True):
        assert mine == pytest.approx(its)
    covariance = BELIEFS.covariance * (1 - np.exp(BELIEFS.scalars[LOG_WITHIN]))
    assert prior_in(BELIEFS).precision == pytest.approx(np.linalg.inv(covariance))
    assert log_evidence(prior_in(BELIEFS), np.zeros(9)) == pytest.approx(0.0, abs=1e-12)


def test_centres_are_the_posterior_means_of_the_rows() -> None:
    slow, prior = Slow(BELIEFS, HALVES), prior_in(BELIEFS)
    centres, covariances = block_centres(prior, slow.rows(slow.r))
    for k in range(TYPES):
        P = prior.precision + np.einsum("u,uij->ij", slow.r[:, k], slow.Q)
        assert covariances[k] == pytest.approx(np.linalg.inv(P))
        assert centres[k] == pytest.approx(np.linalg.solve(P, prior.vector + slow.r[:, k] @ slow.q))


def test_halves_move_as_types_do() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    slow, prior = Slow(BELIEFS, HALVES), prior_in(BELIEFS)
    moved = move_halves(HALVES, prior, sums)
    for k in range(TYPES - 1):
        first = slow.r[:, k] * slow.h[:, k]
        both = np.stack([first, slow.r[:, k] - first], axis=1)
        centres, covariances = block_centres(prior, slow.rows(both))
        assert moved.centres[k] == pytest.approx(centres)
        assert moved.uncertainty[k] == pytest.approx(covariances)
        assert moved.users[k] == pytest.approx(both.sum(axis=0))
    assert np.array_equal(moved.open, HALVES.open)


def test_halves_that_are_not_open_have_no_columns() -> None:
    columns: HalfColumns = half_columns(HALVES)
    assert not columns.features[:, 3].any()
    assert columns.bias[3] == columns.open[3] == 0.0


def two_kinds(gap: float) -> tuple[Prior, SplitSums, Floats]:
    """Eight users of one type around 0, `gap` away from it in the first direction, either way."""
    prior = prior_in(BELIEFS._replace(mean=np.zeros(DIM), covariance=np.eye(DIM)))
    sums, Q, theta = SplitSums.zeros(1, DIM), 4.0 * np.eye(DIM), np.array([gap, 0.0, 0.0])
    sums.sums.users[0] = 8.0
    sums.sums.rows[0, DIM:] = 8.0 * Q[np.triu_indices(DIM)]
    scatter = Q @ np.outer(theta, theta) @ Q + Q
    sums.scatter[0] = 8.0 * scatter[np.triu_indices(DIM)]
    return prior, sums, np.zeros(DIM)


def test_halves_start_where_users_differ_most() -> None:
    prior, sums, centre = two_kinds(0.3)
    start = direction(prior, sums, centre, 0)
    assert start is not None
    assert start[0] == pytest.approx(-start[1])
    assert start[0] == pytest.approx([0.3, 0.0, 0.0])
    far = two_kinds(3.0)
    start = direction(*far, 0)
    assert start is not None
    assert np.linalg.norm(start[0]) == pytest.approx(np.sqrt(1 / far[0].precision[0, 0]), rel=0.01)


def test_users_who_differ_as_expected_have_no_direction() -> None:
    assert direction(*two_kinds(0.0), 0) is None


def test_a_type_pays_unless_users_are_better_explained_alone() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    slow, prior = Slow(BELIEFS, HALVES), prior_in(BELIEFS)
    n = slow.r.sum(axis=0)
    logs = digamma(n + 1) - digamma(n.sum() + TYPES)
    more = slow.own @ slow.r - evidences(prior, sums.sums.rows) - entropy(slow.r) - n * logs
    visits = sums.sums.visits
    for shift, settled in itertools.product((-100.0, 0.0, 100.0), (0.0, 90.0, 1e9)):
        sums.own[:] = slow.own @ slow.r + shift
        expected = more + shift <= LEAST_GAIN * visits / (visits + settled) * n
        assert [*paying_types(prior, sums, settled)] == [*expected.astype(float)]


def test_types_that_do_not_pay_serve_nobody() -> None:
    paying = np.array([1.0, 0.0, 1.0, 0.0])
    model, whole = model_of(BELIEFS, paying), model_of(BELIEFS)
    assert [*(model.weights[0] == NOWHERE)] == [False, True, False, True, False]
    assert np.array_equal(model.weights[0, ::2], whole.weights[0, ::2])
    alone = model_of(BELIEFS, np.zeros(TYPES))
    mean, covariance = np.empty(DIM), np.empty((DIM, DIM))
    serve(alone, 0, np.zeros((DIM, DIM)), np.zeros(DIM), mean, covariance)
    assert mean == pytest.approx(BELIEFS.mean)
    assert covariance == pytest.approx(BELIEFS.covariance)


def test_models_of_different_sizes_serve_the_same_together() -> None:
    one = BELIEFS._replace(centres=BELIEFS.mean[None], uncertainty=BELIEFS.covariance[None])
    one = one._replace(users=np.ones(1))
    models = [model_of(one), model_of(BELIEFS)]
    both, users = stacked(models), some_users()[0]
    for server, model in enumerate(models):
        told = users.gram[3], users.moment[3]
        found = [np.empty(DIM), np.empty((DIM, DIM)), np.empty(DIM), np.empty((DIM, DIM))]
        serve(both, server, *told, found[0], found[1])
        serve(model, 0, *told, found[2], found[3])
        assert np.array_equal(found[0], found[2])
        assert np.array_equal(found[1], found[3])


def total_of(r: Floats, slow: Slow) -> Floats:
    return np.column_stack([r.sum(axis=0), VISITS @ r, slow.own @ r, slow.rows(r)])


def by_type(sums: SplitSums) -> Floats:
    base = sums.sums
    return np.column_stack([base.users, base.visits, sums.own, base.rows])


def test_the_halves_of_a_type_become_types() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    slow, parted = Slow(BELIEFS, HALVES), split_type(sums, 1)
    first = slow.r[:, [1]] * slow.h[:, [1]]
    r = np.hstack([slow.r[:, [0]], first, slow.r[:, 2:], slow.r[:, [1]] - first])
    assert by_type(parted) == pytest.approx(total_of(r, slow))
    assert parted.entropy == pytest.approx(entropy(r))
    assert [*parted.half_users] == [sums.half_users[0], 0.0, *sums.half_users[2:], 0.0]
    lost = entropy(r[:, [1, 4]]).sum() - entropy(slow.r[:, [1]])[0]
    assert parted.merging[1, 4] == pytest.approx(lost)
    for a, b in ((0, 1), (1, 2), (0, 4), (2, 4)):
        true = entropy(r[:, [a, b]]).sum() - entropy(r[:, [a]] + r[:, [b]])[0]
        assert parted.merging[a, b] >= true - 1e-12
    assert parted.merging[0, 2] == sums.merging[0, 2]
    assert not np.tril(parted.merging).any()


@pytest.mark.parametrize(("a", "b"), [(0, 2), (3, 1)])
def test_two_types_become_one(a: int, b: int) -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    slow, merged = Slow(BELIEFS, HALVES), merge_types(sums, a, b)
    r = slow.r.copy()
    r[:, a] += r[:, b]
    r = np.delete(r, b, axis=1)
    assert by_type(merged) == pytest.approx(total_of(r, slow))
    assert merged.entropy == pytest.approx(entropy(r))
    place = a - (b < a)
    assert merged.half_users[place] == merged.rest_entropy[place] == 0.0
    for x, y in combinations(range(TYPES - 1), 2):
        true = entropy(r[:, [x, y]]).sum() - entropy(r[:, [x]] + r[:, [y]])[0]
        assert merged.merging[x, y] >= true - 1e-12
        if place not in (x, y):
            assert merged.merging[x, y] == pytest.approx(true)
    assert not np.tril(merged.merging).any()


@pytest.mark.parametrize("first", [True, False])
def test_all_users_of_a_type_may_be_in_one_half(first: bool) -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    put_in_half(sums, 0, first)
    assert sums.half_users[0] == first * sums.sums.users[0]
    assert np.array_equal(sums.half_rows[0], first * sums.sums.rows[0])
    assert sums.half_entropy[0] + sums.rest_entropy[0] == sums.entropy[0]


def test_sums_of_servers_add_up() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    twice, copied = sums.plus(sums), sums.copy()
    assert np.array_equal(twice.half_rows, 2 * sums.half_rows)
    assert np.array_equal(twice.sums.rows, 2 * sums.sums.rows)
    copied.sums.rows[:] = copied.scatter[:] = 0.0
    assert sums.sums.rows.any()
    assert sums.scatter.any()


def test_halves_must_be_parts_of_their_types() -> None:
    _, sums, _ = known_and_sums(BELIEFS, HALVES)
    assert halves_are_possible(sums, 1e-9)
    for name, value in (
        ("half_users", -1.0),
        ("half_users", 100.0),
        ("half_visits", 1e6),
        ("entropy", -1.0),
        ("rest_entropy", -1.0),
        ("half_rows", -1.0),
        ("half_rows", 1e6),
    ):
        wrong = sums.copy()
        getattr(wrong, name)[1] = value
        assert not halves_are_possible(wrong, 1e-9)
