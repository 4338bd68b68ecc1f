"""The mixture of users: evidence, Gibbs sampling, agglomeration, learned concentrations."""

from itertools import product
from math import lgamma, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import block_diag

from fclub.core.plus.evidence import Noise, agglomerate, log_evidence, noisy_information
from fclub.core.plus.items import Items
from fclub.core.plus.mixture import Slots, concentration, make_slots, sample_partitions
from fclub.core.plus.population import Population

Item = tuple[np.ndarray, np.ndarray]


def items(seed: int, count: int, dim: int, strength: float = 6.0) -> list[Item]:
    """Information of users of whom every other has the opposite vector."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        root = rng.standard_normal((dim, dim + 2)) * np.sqrt(strength / dim)
        Q = root @ root.T
        theta = (1.0 if i % 2 else -1.0) * np.full(dim, 0.3)
        made.append((Q, Q @ theta + np.linalg.cholesky(Q) @ rng.standard_normal(dim)))
    return made


def evidence(prior: np.ndarray, parts: list[Item]) -> float:
    """log Z of the module's docstring."""
    P = prior + sum(Q for Q, _ in parts)
    r = sum((q for _, q in parts), np.zeros(len(prior)))
    both = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(P)[1]
    return float(0.5 * both + 0.5 * r @ np.linalg.solve(P, r))


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_evidence_is_the_integral_of_the_likelihood_over_the_prior(dim: int, count: int) -> None:
    """By summing over a grid so fine and wide that the error is far below the tolerance."""
    prior, parts = 1.5 * np.eye(dim) + 0.3, items(1, count, dim)
    axis = np.linspace(-9.0, 9.0, 901)
    theta = np.stack(np.meshgrid(*[axis] * dim), axis=-1).reshape(-1, dim)
    exponent = -0.5 * np.einsum("ni,ij,nj->n", theta, prior, theta)
    exponent += 0.5 * np.linalg.slogdet(prior)[1] - 0.5 * dim * log(2 * np.pi)
    for Q, q in parts:
        exponent += theta @ q - 0.5 * np.einsum("ni,ij,nj->n", theta, Q, theta)
    integral = np.exp(exponent).sum() * (axis[1] - axis[0]) ** dim
    work = np.empty((dim, dim))
    P, r = prior + sum(Q for Q, _ in parts), np.asarray(sum(q for _, q in parts))
    computed = log_evidence(P, r, work) - log_evidence(prior, np.zeros(dim), work)
    assert computed == pytest.approx(log(integral), abs=1e-9)
    assert computed == pytest.approx(evidence(prior, parts), abs=1e-9)


def set_partitions(elements: list[int]) -> list[list[list[int]]]:
    if not elements:
        return [[]]
    first, rest = elements[0], elements[1:]
    found = []
    for blocks in set_partitions(rest):
        found.append([[first], *blocks])
        for k in range(len(blocks)):
            found.append([*blocks[:k], [first, *blocks[k]], *blocks[k + 1 :]])
    return found


class Tiny:
    """A problem whose partitions can all be listed; `outside` clusters are known from elsewhere.

    Everybody varies by `spread`·Σ about a centre ~ N(μ, (1−spread)·Σ), outside clusters by half of it.
    """

    def __init__(
        self,
        users: int,
        dim: int,
        outside: int,
        alpha: float = 1.3,
        gamma: float = 0.8,
        spread: float = 0.0,
    ):
        self.dim, self.alpha, self.gamma, self.spread = dim, alpha, gamma, spread
        self.prior = 2.0 * np.eye(dim)
        self.users = items(5, users, dim)
        self.outside = items(6, outside, dim, strength=12.0)
        self.masses = np.arange(1.0, outside + 1.0)
        self.Q, self.q = (np.array(part) for part in zip(*self.users, strict=True))

    def population(self) -> Population:
        made = Population.expecting(1.0 / np.diag(self.prior), -1)
        made.spread[0] = self.spread
        return made

    def slots(self) -> Slots:
        exact = np.ones(len(self.outside), dtype=np.bool_)
        return make_slots(self.masses, exact, self.dim, len(self.users), self.alpha, self.gamma)

    def items(self) -> tuple[Items, Items]:
        Q = np.array([Q for Q, _ in self.outside]).reshape(-1, self.dim, self.dim)
        q = np.array([q for _, q in self.outside]).reshape(-1, self.dim)
        return Items.of(self.Q, self.q, np.ones(len(self.q))), Items.of(Q, q, np.full(len(q), 2.0))

    def joint(self, members: list[int], outside: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Means, covariance and log evidence of the vectors of a cluster's users and outside item.

        Their vectors are jointly Gaussian: equal but for their deviations.
        """
        S, parts = np.linalg.inv(self.prior), [self.users[u] for u in members]
        shares = [1.0] * len(parts)
        if outside >= 0:
            parts, shares = [*parts, self.outside[outside]], [*shares, 0.5]
        own = np.diag(np.array(shares) * self.spread + 1e-9)
        prior = np.kron(np.full((len(parts), len(parts)), 1.0 - self.spread) + own, S)
        Q, q = block_diag(*(Q for Q, _ in parts)), np.concatenate([q for _, q in parts])
        P = np.linalg.inv(prior) + Q
        theta = np.linalg.solve(P, q)
        logdet = np.linalg.slogdet(P)[1] + np.linalg.slogdet(prior)[1]
        return theta.reshape(-1, self.dim), np.linalg.inv(P), float(0.5 * (q @ theta - logdet))

    def key(self, labels: np.ndarray) -> frozenset[tuple[int, frozenset[int]]]:
        """A partition: own clusters are alike (−1), an outside one is itself."""
        first = len(self.users)
        return frozenset(
            (int(c) - first if c >= first else -1, frozenset(np.flatnonzero(labels == c).tolist()))
            for c in np.unique(labels)
        )

    def posterior(self, together: bool = False) -> dict[frozenset[tuple[int, frozenset[int]]], float]:
        """Every partition's probability, summed over the tables at which outside clusters are joined.

        `together`: users of an outside cluster came to it at one table.
        """
        share = self.alpha / (self.gamma + self.masses.sum())
        logs = {}
        for places in product(range(-1, len(self.outside)), repeat=len(self.users)):
            at_home = [u for u, place in enumerate(places) if place < 0]
            base, clusters = 0.0, []
            for k in range(len(self.outside)):
                members = [u for u, place in enumerate(places) if place == k]
                if members:
                    mass = share * self.masses[k]
                    if together:
                        base += lgamma(len(members)) + log(mass)
                    else:
                        base += lgamma(mass + len(members)) - lgamma(mass)
                    base += self.joint(members, k)[2] - self.joint([], k)[2]
                    clusters.append((k, frozenset(members)))
            for blocks in set_partitions(at_home):
                total = base
                for block in blocks:
                    total += log(share * self.gamma) + lgamma(len(block))
                    total += self.joint(block, -1)[2]
                own = [(-1, frozenset(block)) for block in blocks]
                logs[frozenset([*clusters, *own])] = total
        top = max(logs.values())
        weights = {partition: np.exp(value - top) for partition, value in logs.items()}
        total = sum(weights.values())
        return {partition: weight / total for partition, weight in weights.items()}

    def moments(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Exact posterior means and covariances of the users' vectors, expected number of clusters."""
        n = len(self.users)
        mean, second, clusters = np.zeros((n, self.dim)), np.zeros((n, self.dim, self.dim)), 0.0
        for partition, weight in self.posterior().items():
            clusters += weight * len(partition)
            for k, members in partition:
                theta, covariance, _ = self.joint(sorted(members), k)
                for i, u in enumerate(sorted(members)):
                    part = slice(i * self.dim, (i + 1) * self.dim)
                    mean[u] += weight * theta[i]
                    second[u] += weight * (covariance[part, part] + np.outer(theta[i], theta[i]))
        return mean, second - mean[:, :, None] * mean[:, None, :], clusters

    def sample(self, sweeps: int, seed: int, labels: np.ndarray) -> tuple[np.ndarray, ...]:
        n = len(self.users)
        mean, covariance = np.empty((n, self.dim)), np.empty((n, self.dim, self.dim))
        best = np.empty(n, dtype=np.int64)
        rng = np.random.default_rng(seed)
        burn = sweeps // 10
        state = self.slots(), *self.items(), self.population(), labels
        clusters = sample_partitions(*state, sweeps, burn, False, rng, mean, covariance, best)
        return mean, covariance, np.array(clusters), best


TINY = [(3, 1, 0, 0.0), (4, 2, 0, 0.0), (3, 1, 2, 0.0), (3, 2, 1, 0.0), (4, 2, 0, 0.3), (3, 1, 2, 0.5)]


@pytest.mark.parametrize(("users", "dim", "outside", "spread"), TINY)
def test_gibbs_visits_partitions_as_often_as_they_are_probable(
    users: int, dim: int, outside: int, spread: float
) -> None:
    tiny = Tiny(users, dim, outside, spread=spread)
    exact = tiny.posterior()
    visits: dict[object, float] = dict.fromkeys(exact, 0.0)
    labels, runs = np.zeros(users, dtype=np.int64), 2500
    for run in range(runs):
        tiny.sample(1, run, labels)
        visits[tiny.key(labels)] += 1 / runs
    distance = 0.5 * sum(abs(visits[partition] - exact[partition]) for partition in exact)
    assert max(exact.values()) < 0.9, "nothing to be uncertain about"
    assert distance < 0.05


@pytest.mark.parametrize(("users", "dim", "outside", "spread"), TINY)
def test_gibbs_averages_are_the_posterior_moments(
    users: int, dim: int, outside: int, spread: float
) -> None:
    """Within six standard errors, counting ten sweeps as one independent draw."""
    tiny, sweeps = Tiny(users, dim, outside, spread=spread), 3000
    mean, covariance, clusters, best = tiny.sample(sweeps, 1, np.zeros(users, dtype=np.int64))
    exact_mean, exact_covariance, exact_clusters = tiny.moments()
    error = 6.0 / np.sqrt(sweeps / 10)
    deviations = np.sqrt(np.array([np.diag(C) for C in exact_covariance]))
    assert np.all(abs(mean - exact_mean) < error * deviations)
    scale = np.array([np.outer(s, s) for s in deviations])
    assert np.all(abs(covariance - exact_covariance) < 2.0 * error * scale)
    assert clusters == pytest.approx(exact_clusters, abs=error)
    assert is_most_probable(tiny, best)


def is_most_probable(tiny: Tiny, labels: np.ndarray) -> bool:
    posterior = tiny.posterior(together=True)
    return bool(np.isclose(posterior[tiny.key(labels)], max(posterior.values())))


@pytest.mark.parametrize("alpha", [0.2, 20.0])
def test_the_best_partition_is_the_most_probable(alpha: float) -> None:
    """Among those visited, of which there are many; also where outside clusters are very likely."""
    tiny = Tiny(4, 1, 1, alpha=alpha, gamma=0.5)
    *_, best = tiny.sample(1000, 1, np.zeros(4, dtype=np.int64))
    assert is_most_probable(tiny, best)


def test_a_slot_that_was_emptied_is_its_base_again() -> None:
    """Bit for bit: nothing of a user who left stays behind."""
    tiny = Tiny(4, 2, 1)
    slots, labels = tiny.slots(), np.zeros(4, dtype=np.int64)
    out = np.empty((4, 2)), np.empty((4, 2, 2)), np.empty(4, dtype=np.int64)
    state = slots, *tiny.items(), tiny.population(), labels
    sample_partitions(*state, 50, 10, True, np.random.default_rng(0), *out)
    empty = np.flatnonzero(slots.size == 0.0)
    assert len(empty) > 0
    np.testing.assert_array_equal(slots.precision[empty], slots.base_precision[empty])
    np.testing.assert_array_equal(slots.vector[empty], slots.base_vector[empty])
    np.testing.assert_array_equal(slots.evidence[empty], slots.base_evidence[empty])


def test_masses_of_slots_split_alpha() -> None:
    """One fresh own slot and all outside ones together have the mass α."""
    slots = Tiny(3, 2, 2, alpha=1.7, gamma=0.4).slots()
    assert slots.opening[0] + slots.opening[3:].sum() == pytest.approx(1.7)
    assert slots.opening[4] == pytest.approx(2 * slots.opening[3])
    assert slots.outside == 3


def slow_agglomerate(prior: np.ndarray, users: list[Item], gamma: float, margin: float) -> list[int]:
    """Every pair again at every step, from the members' own information."""
    clusters = [[i] for i in range(len(users))]

    def value(members: list[int]) -> float:
        return evidence(prior, [users[i] for i in members]) + lgamma(len(members)) + log(gamma)

    while len(clusters) > 1:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a + 1, len(clusters))]
        gains = [
            value(clusters[a] + clusters[b]) - value(clusters[a]) - value(clusters[b]) for a, b in pairs
        ]
        k = int(np.argmax(gains))
        if gains[k] <= margin:
            break
        a, b = pairs[k]
        clusters[a] += clusters.pop(b)
    label_of = {i: min(members) for members in clusters for i in members}
    return [label_of[i] for i in range(len(users))]


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3), st.sampled_from([-2.0, 0.0, 2.0]))
def test_agglomerate_equals_the_slow_version(seed: int, count: int, dim: int, margin: float) -> None:
    users, prior = items(seed, count, dim, strength=20.0), 2.0 * np.eye(dim)
    Q, q = (np.array(part) for part in zip(*users, strict=True))
    labels = agglomerate(prior, Q, q, 0.7, margin)
    assert labels.tolist() == slow_agglomerate(prior, users, 0.7, margin)


def test_a_higher_margin_never_merges_more() -> None:
    users, prior = items(2, 8, 2, strength=20.0), 2.0 * np.eye(2)
    Q, q = (np.array(part) for part in zip(*users, strict=True))
    counts = [
        len(np.unique(agglomerate(prior, Q, q, 1.0, margin))) for margin in (-50.0, 0.0, 3.0, 1e9)
    ]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 8


@given(st.floats(0.11, 90.0), st.integers(2, 500))
def test_concentration_inverts_the_expected_number_of_clusters(alpha: float, count: int) -> None:
    expected = sum(alpha / (alpha + i) for i in range(count))
    assert concentration(expected, count) == pytest.approx(alpha, rel=1e-6)


def test_concentration_stays_within_its_limits() -> None:
    assert concentration(1.0, 50) == pytest.approx(0.1)
    assert concentration(50.0, 50) == pytest.approx(100.0)


def noisy(
    rng: np.random.Generator, gram: np.ndarray, moment: np.ndarray, std: float
) -> tuple[np.ndarray, np.ndarray]:
    N = rng.standard_normal(gram.shape)
    return gram + std * (N + N.T) / np.sqrt(2), moment + std * rng.standard_normal(len(moment))


def even(theta: np.ndarray) -> Noise:
    """As much noise in every entry, twice as much on the diagonal; vectors as large as this one."""
    d = len(theta)
    return Noise(1.0 + np.eye(d + 1), np.full(d, theta @ theta / d))


def test_information_without_noise_is_exact_and_the_limit_of_little_noise() -> None:
    rng = np.random.default_rng(0)
    X, noise = rng.standard_normal((50, 3)), even(np.ones(3))
    gram, moment = X.T @ X, X.T @ rng.standard_normal(50)
    Q, q = noisy_information(gram, moment, 0.0, 0.2, noise)
    np.testing.assert_array_equal(Q, gram / 0.2)
    np.testing.assert_array_equal(q, moment / 0.2)
    near_Q, near_q = noisy_information(gram, moment, 1e-12, 0.2, noise)
    np.testing.assert_allclose(near_Q, Q, rtol=1e-9)
    np.testing.assert_allclose(near_q, q, rtol=1e-9)


def test_directions_within_the_noise_have_little_weight() -> None:
    """Data in one direction only: of the others, which carry noise alone, little is believed."""
    rng = np.random.default_rng(1)
    theta = np.array([0.3, 0.4, 0.0])
    gram, moment = np.diag([400.0, 0.0, 0.0]), np.array([120.0, 0.0, 0.0])
    Q, q = noisy_information(*noisy(rng, gram, moment, 2.0), 4.0, 0.2, even(theta))
    prior = np.eye(3) / 0.1
    assert Q[0, 0] > 100.0
    assert np.linalg.solve(prior + Q, q)[0] == pytest.approx(0.3, abs=0.05)
    assert np.trace(Q) - Q[0, 0] < 10.0
    nothing, _ = noisy_information(*noisy(rng, 0.0 * gram, 0.0 * moment, 2.0), 4.0, 0.2, even(theta))
    assert np.linalg.eigvalsh(nothing)[-1] < 10.0


def test_noise_in_an_entry_counts_where_it_is() -> None:
    """Noisier moments and rows of the Gram matrix weigh less; the size of vectors matters too."""
    entries = np.ones((3, 3))
    entries[1, :] = entries[:, 1] = 4.0
    noise = Noise(entries, np.array([0.5, 0.25]))
    np.testing.assert_allclose(noise.of_moment(2.0), [2 * (1 + 0.5 + 1.0), 2 * (4 + 2.0 + 1.0)])
    Q, _ = noisy_information(100.0 * np.eye(2), np.zeros(2), 2.0, 0.2, noise)
    np.testing.assert_allclose(np.diag(Q), [1e4 / (20 + 5), 1e4 / (20 + 14)])


@pytest.mark.parametrize("std", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("count", [500, 5000])
@pytest.mark.parametrize("norm", [np.sqrt(0.5), 2.0])
def test_noisy_information_is_not_overconfident(std: float, count: int, norm: float) -> None:
    """(q − Qθ)ᵀQ⁺(q − Qθ) is at most a χ² of the rank, on average, for vectors of this norm."""
    rng = np.random.default_rng(int(std) + count)
    d, variance, total, ranks = 4, 0.17, 0.0, 0
    for _ in range(300):
        theta = rng.standard_normal(d)
        theta *= norm / np.linalg.norm(theta)
        X = rng.standard_normal((count, d))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        y = X @ theta + np.sqrt(variance) * rng.standard_normal(count)
        released = noisy(rng, X.T @ X, X.T @ y, std)
        Q, q = noisy_information(*released, std**2, variance, even(theta))
        error = q - Q @ theta
        total += float(error @ np.linalg.pinv(Q, hermitian=True) @ error)
        ranks += int(np.linalg.matrix_rank(Q))
    assert ranks > 300, "some directions are known"
    assert total < ranks * (1.0 + 4.0 * np.sqrt(2.0 / ranks))


def test_evidence_of_extreme_precisions() -> None:
    """Determinants beyond what a double can hold, and matrices that are no precisions."""
    zero, work = np.zeros(4), np.empty((4, 4))
    for size in (1e60, 1e-60):
        found = log_evidence(np.diag(np.full(4, size)), zero, work)
        assert found == pytest.approx(-2.0 * np.log(size))
    assert np.isnan(log_evidence(np.diag([1.0, -1.0, 1.0, 1.0]), zero, work))
