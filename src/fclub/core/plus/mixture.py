"""Which users share a vector: a Bayesian mixture over partitions, by Gibbs sampling.

Partitions have a Chinese-restaurant prior: a user joins a cluster in proportion to its size. How well
users fit together is the evidence of `core.plus.evidence`.
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np
from scipy.special import digamma

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import add_matrix, add_scaled, invert, multiply, set_matrix, set_vector
from fclub.core.plus.evidence import log_evidence
from fclub.core.types import Floats, Indices, Matrix, Vector

SLOTS = 64
"""Most clusters of a server's users that no other server has."""


class Slots(NamedTuple):
    """Clusters under construction. Empty ones hold `base`: the prior, and what others know of them.

    `opening` is the prior mass of a slot without users; `outside` slots keep that mass when they
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
def _note(slots: Slots, labels: Indices, mean: Floats, second: Floats) -> int:
    """Add every user's posterior mean and second moment under this partition; counts clusters."""
    d = mean.shape[1]
    covariance, estimate = np.empty((d, d)), np.empty(d)
    used = 0
    for c in range(slots.size.shape[0]):
        if slots.size[c] > 0.0:
            used += 1
            invert(slots.precision[c], covariance)
            multiply(covariance, slots.vector[c], estimate)
            for u in range(labels.shape[0]):
                if labels[u] == c:
                    add_scaled(mean[u], estimate, 1.0)
                    for i in range(d):
                        for j in range(d):
                            second[u, i, j] += covariance[i, j] + estimate[i] * estimate[j]
    return used


@compiled
def sample_partitions(
    slots: Slots,
    information: Floats,
    vectors: Floats,
    labels: Indices,
    sweeps: int,
    burn: int,
    rng: np.random.Generator,
    mean: Floats,
    covariance: Floats,
    best: Indices,
) -> float:
    """Gibbs sampling over partitions of the users, starting from `labels` (slots of the users).

    Writes every user's posterior mean and covariance, averaged over the sweeps after `burn`, and the
    most probable partition visited; returns the mean number of clusters. An average over partitions
    is what makes sharing safe: a user of whom little is known is served by a mixture.
    """
    users = labels.shape[0]
    for u in range(users):
        _put(slots, labels[u], information[u], vectors[u], 1.0)
    mean[:] = 0.0
    covariance[:] = 0.0
    top, clusters = -np.inf, 0
    for sweep in range(sweeps):
        for u in range(users):
            _put(slots, labels[u], information[u], vectors[u], -1.0)
            labels[u] = _draw_slot(slots, information[u], vectors[u], rng)
            _put(slots, labels[u], information[u], vectors[u], 1.0)
        if sweep >= burn:
            clusters += _note(slots, labels, mean, covariance)
            posterior = _log_posterior(slots)
            if posterior > top:
                top = posterior
                best[:] = labels
    samples = sweeps - burn
    for u in range(users):
        for i in range(mean.shape[1]):
            mean[u, i] /= samples
        for i in range(mean.shape[1]):
            for j in range(mean.shape[1]):
                covariance[u, i, j] = covariance[u, i, j] / samples - mean[u, i] * mean[u, j]
    return clusters / samples


def make_slots(
    prior: Matrix,
    outside: Floats,
    outside_vectors: Floats,
    masses: Vector,
    own: int,
    alpha: float,
    gamma: float,
) -> Slots:
    """`own` empty slots, then one per outside cluster, whose prior mass is `masses`.

    `alpha` is the mass of leaving the clusters of this server, split between the outside clusters
    and, with mass `gamma`, one that no server knows yet (a Chinese restaurant franchise).
    """
    d, others = len(prior), len(masses)
    precision = np.concatenate([np.tile(prior, (own, 1, 1)), prior + outside.reshape(others, d, d)])
    vector = np.concatenate([np.zeros((own, d)), outside_vectors.reshape(others, d)])
    evidence = np.array(
        [log_evidence(P, r, np.empty((d, d))) for P, r in zip(precision, vector, strict=True)]
    )
    opening = alpha * np.concatenate([np.full(own, gamma), masses]) / (gamma + masses.sum())
    return Slots(
        base_precision=precision,
        base_vector=vector,
        base_evidence=evidence,
        precision=precision.copy(),
        vector=vector.copy(),
        evidence=evidence.copy(),
        size=np.zeros(own + others),
        opening=opening,
        outside=own,
    )


def newcomer(theta: Floats, covariance: Floats, prior: Matrix, alpha: float) -> tuple[Vector, Matrix]:
    """Mean and covariance of a user of whom nothing is known, among users N(θ_u, C_u).

    By the Chinese-restaurant prior it shares the vector of each of them with mass 1, and has one of
    its own, from N(0, `prior`), with mass α.
    """
    weight = 1.0 / (len(theta) + alpha)
    mean = weight * theta.sum(axis=0)
    second = weight * (covariance.sum(axis=0) + theta.T @ theta + alpha * prior)
    return mean, second - np.outer(mean, mean)


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
