"""Which users share a vector: a Bayesian mixture over partitions, by Gibbs sampling.

Partitions have a Chinese-restaurant prior: a user joins a cluster in proportion to its size. How well
users fit together is the evidence of `core.plus.evidence`.
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np
from scipy.special import digamma

from fclub.core.compiling import beside, inner
from fclub.core.kernels import add_matrix, add_scaled, invert, multiply, set_matrix, set_vector
from fclub.core.plus.evidence import log_evidence
from fclub.core.plus.items import Items, add_moments, draw_deviation, look_at_centres
from fclub.core.plus.population import EQUAL, SPREADS, Population, draw_gaussian, draw_population
from fclub.core.types import Flags, Floats, Indices, Matrix, Vector

SLOTS = 64
"""Most clusters of a server's users that no other server has."""


class Slots(NamedTuple):
    """Clusters under construction. Empty ones hold `base`: the prior, and what others know of them.

    `telling` are those whose base teaches what all users have in common: exact statistics. Those with
    noise say something of a user, but are biased in what they say of a population. `opening` is the
    prior mass of a slot without users; `outside` slots keep that mass when they
    have users, since they can be joined as others' cluster too.
    """

    base_precision: Floats
    base_vector: Floats
    base_evidence: Floats
    precision: Floats
    vector: Floats
    evidence: Floats
    size: Floats
    opening: Floats
    telling: Flags
    outside: int


@inner
def _put(slots: Slots, c: int, Q: Matrix, q: Vector, sign: float) -> None:
    """Add an item to a slot or take it out; an emptied slot is exactly its base again."""
    slots.size[c] += sign
    if slots.size[c] == 0.0:
        set_matrix(slots.precision[c], slots.base_precision[c])
        set_vector(slots.vector[c], slots.base_vector[c])
        slots.evidence[c] = slots.base_evidence[c]
    else:
        add_matrix(slots.precision[c], Q, sign)
        add_scaled(slots.vector[c], q, sign)
        slots.evidence[c] = log_evidence(slots.precision[c], slots.vector[c], np.empty_like(Q))


@inner
def _fill(slots: Slots, users: Items, known: Items, labels: Indices, population: Population) -> float:
    """Put everybody where `labels` say, given the population; returns its log evidence."""
    look_at_centres(users, population)
    look_at_centres(known, population)
    d = users.vector.shape[1]
    P, r, work = np.zeros((d, d)), np.empty(d), np.empty((d, d))
    add_matrix(P, population.precision, 1.0 / (1.0 - population.spread[0]))
    multiply(P, population.mean, r)
    nothing = log_evidence(P, r, work)
    count = slots.size.shape[0]
    for c in range(count):
        set_matrix(slots.base_precision[c], P)
        set_vector(slots.base_vector[c], r)
        slots.base_evidence[c] = nothing
        if c >= slots.outside:
            k = c - slots.outside
            add_matrix(slots.base_precision[c], known.centre_precision[k], 1.0)
            add_scaled(slots.base_vector[c], known.centre_vector[k], 1.0)
            slots.base_evidence[c] = log_evidence(slots.base_precision[c], slots.base_vector[c], work)
        set_matrix(slots.precision[c], slots.base_precision[c])
        set_vector(slots.vector[c], slots.base_vector[c])
        slots.size[c] = 0.0
    for u in range(labels.shape[0]):
        c = labels[u]
        add_matrix(slots.precision[c], users.centre_precision[u], 1.0)
        add_scaled(slots.vector[c], users.centre_vector[u], 1.0)
        slots.size[c] += 1.0
    total = 0.0
    for u in range(labels.shape[0]):
        total += users.left_out[u]
    for c in range(count):
        slots.evidence[c] = slots.base_evidence[c]
        if slots.size[c] > 0.0:
            slots.evidence[c] = log_evidence(slots.precision[c], slots.vector[c], work)
        total += slots.evidence[c] - slots.base_evidence[c]
        if slots.telling[c]:
            total += slots.base_evidence[c] - nothing + known.left_out[c - slots.outside]
    return total


@inner
def _draw_common(
    slots: Slots,
    users: Items,
    known: Items,
    labels: Indices,
    population: Population,
    rng: np.random.Generator,
) -> None:
    """Draw centres and deviations, from them μ and Σ, and then, without them, ρ (Metropolis)."""
    n, d = users.vector.shape
    count, others = slots.size.shape[0], known.vector.shape[0]
    centres, deviations = np.zeros((count, d)), np.zeros((n + others, d))
    lower, used, seen, place = np.empty((d, d)), 0, n, np.zeros(count, dtype=np.int64)
    for c in range(count):
        if slots.size[c] > 0.0 or slots.telling[c]:
            draw_gaussian(slots.precision[c], slots.vector[c], rng, lower, centres[used])
            place[c] = used
            used += 1
    if population.spread[0] > 0.0:
        for u in range(n):
            draw_deviation(users, u, centres[place[labels[u]]], rng, lower, deviations[u])
        for k in np.flatnonzero(slots.telling[slots.outside : slots.outside + others]):
            centre = centres[place[slots.outside + k]]
            draw_deviation(known, int(k), centre, rng, lower, deviations[seen])
            seen += 1
    draw_population(population, centres[:used], deviations[:seen], rng)
    before, old = _fill(slots, users, known, labels, population), population.spread[0]
    new, odds = _propose_spread(old, rng)
    population.spread[0] = new
    if new != old:
        after = _fill(slots, users, known, labels, population)
        if not rng.random() < exp(min(after - before + odds, 0.0)):
            population.spread[0] = old
            _fill(slots, users, known, labels, population)


@inner
def _propose_spread(old: float, rng: np.random.Generator) -> tuple[float, float]:
    """A neighbour on the grid (beyond its ends: the old value), and its log prior odds."""
    place = np.searchsorted(SPREADS, old)
    place += 1 if rng.random() < 0.5 else -1
    if not 0 <= place < SPREADS.shape[0]:
        return old, 0.0
    odds = 0.0
    if place == 0:
        odds += EQUAL
    if old == 0.0:
        odds -= EQUAL
    return SPREADS[place], odds


@inner
def _log_weight(slots: Slots, c: int, Q: Matrix, q: Vector, trial: Matrix, work: Matrix) -> float:
    """Log posterior weight of putting an item into slot c."""
    set_matrix(trial, slots.precision[c])
    add_matrix(trial, Q, 1.0)
    joined = slots.vector[c] + q
    mass = slots.size[c]
    if mass == 0.0 or c >= slots.outside:
        mass += slots.opening[c]
    return float(log_evidence(trial, joined, work) - slots.evidence[c] + log(mass))


@inner
def _draw_slot(slots: Slots, Q: Matrix, q: Vector, rng: np.random.Generator) -> int:
    """A slot for an item from its posterior; only the first of the empty own slots is considered."""
    count, d = slots.size.shape[0], q.shape[0]
    weights = np.full(count, -np.inf)
    trial, work = np.empty((d, d)), np.empty((d, d))
    fresh = False
    for c in range(count):
        if slots.size[c] == 0.0 and c < slots.outside:
            if fresh:
                continue
            fresh = True
        weights[c] = _log_weight(slots, c, Q, q, trial, work)
    top = weights.max()
    total = 0.0
    for c in range(count):
        weights[c] = exp(weights[c] - top)
        total += weights[c]
    chosen = 0
    left = rng.random() * total - weights[0]
    while left >= 0.0 and chosen < count - 1:
        chosen += 1
        left -= weights[chosen]
    return chosen


@inner
def _log_posterior(slots: Slots) -> float:
    """Log probability of the current partition, up to a constant.

    Users of an outside cluster count as having come to it together, at one table: against summing
    over tables, as the sampler does, this prefers own clusters where outside masses are large.
    """
    total = 0.0
    for c in range(slots.size.shape[0]):
        if slots.size[c] > 0.0:
            gain = slots.evidence[c] - slots.base_evidence[c]
            total += gain + lgamma(slots.size[c]) + log(slots.opening[c])
    return total


@inner
def _note(
    slots: Slots, users: Items, labels: Indices, equal: bool, mean: Floats, second: Floats
) -> int:
    """Add every user's posterior mean and second moment under this partition; counts clusters."""
    d = mean.shape[1]
    covariance, centre = np.empty((d, d)), np.empty(d)
    used = 0
    for c in range(slots.size.shape[0]):
        if slots.size[c] > 0.0:
            used += 1
            invert(slots.precision[c], covariance)
            multiply(covariance, slots.vector[c], centre)
            for u in range(labels.shape[0]):
                if labels[u] == c:
                    add_moments(users, u, centre, covariance, equal, mean[u], second[u])
    return used


@beside
def sample_partitions(
    slots: Slots,
    users: Items,
    known: Items,
    population: Population,
    labels: Indices,
    sweeps: int,
    burn: int,
    learn: bool,
    rng: np.random.Generator,
    mean: Floats,
    covariance: Floats,
    best: Indices,
) -> float:
    """Gibbs sampling over partitions of the users, starting from `labels` (slots of the users).

    Writes every user's posterior mean and covariance, averaged over the sweeps after `burn`, and the
    most probable partition visited; returns the mean number of clusters. An average over partitions
    is what makes sharing safe: a user of whom little is known is served by a mixture. With `learn` the
    population is drawn anew after every sweep.
    """
    n = labels.shape[0]
    _fill(slots, users, known, labels, population)
    mean[:] = 0.0
    covariance[:] = 0.0
    top, clusters = -np.inf, 0
    for sweep in range(sweeps):
        for u in range(n):
            Q, q = users.centre_precision[u], users.centre_vector[u]
            _put(slots, labels[u], Q, q, -1.0)
            labels[u] = _draw_slot(slots, Q, q, rng)
            _put(slots, labels[u], Q, q, 1.0)
        if learn:
            _draw_common(slots, users, known, labels, population, rng)
        if sweep >= burn:
            clusters += _note(slots, users, labels, population.spread[0] == 0.0, mean, covariance)
            posterior = _log_posterior(slots)
            if posterior > top:
                top = posterior
                for u in range(n):
                    best[u] = labels[u]
    samples = sweeps - burn
    for u in range(n):
        for i in range(mean.shape[1]):
            mean[u, i] /= samples
        for i in range(mean.shape[1]):
            for j in range(mean.shape[1]):
                covariance[u, i, j] = covariance[u, i, j] / samples - mean[u, i] * mean[u, j]
    return clusters / samples


def make_slots(masses: Vector, exact: Flags, dim: int, own: int, alpha: float, gamma: float) -> Slots:
    """`own` empty slots, then one per outside cluster, of prior mass `masses`, known exactly or not.

    `alpha` is the mass of leaving the clusters of this server, split between the outside clusters
    and, with mass `gamma`, one that no server knows yet (a Chinese restaurant franchise).
    """
    count = own + len(masses)
    opening = alpha * np.concatenate([np.full(own, gamma), masses]) / (gamma + masses.sum())
    return Slots(
        base_precision=np.empty((count, dim, dim)),
        base_vector=np.empty((count, dim)),
        base_evidence=np.empty(count),
        precision=np.empty((count, dim, dim)),
        vector=np.empty((count, dim)),
        evidence=np.empty(count),
        size=np.zeros(count),
        opening=opening,
        telling=np.concatenate([np.zeros(own, dtype=np.bool_), exact]),
        outside=own,
    )


def newcomer(
    theta: Floats, covariance: Floats, population: Population, alpha: float
) -> tuple[Vector, Matrix]:
    """Mean and covariance of a user of whom nothing is known, among users N(θ_u, C_u).

    By the Chinese-restaurant prior it is like each of them with mass 1, and like nobody here, from
    N(μ, Σ), with mass α.
    """
    weight, mu = 1.0 / (len(theta) + alpha), population.mean
    mean = weight * (theta.sum(axis=0) + alpha * mu)
    second = covariance.sum(axis=0) + theta.T @ theta
    second += alpha * (population.covariance + np.outer(mu, mu))
    return mean, weight * second - np.outer(mean, mean)


def concentration(clusters: float, items: int, least: float = 0.1, most: float = 100.0) -> float:
    """The α at which a Chinese restaurant process divides `items` into `clusters` on average."""
    low, high = log(least), log(most)
    for _ in range(40):
        middle = 0.5 * (low + high)
        alpha = exp(middle)
        if alpha * (digamma(alpha + items) - digamma(alpha)) < clusters:
            low = middle
        else:
            high = middle
    return exp(0.5 * (low + high))
