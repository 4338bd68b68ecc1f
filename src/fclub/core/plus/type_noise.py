"""What noised sums of observations by type say of the types' centres.

A server that promises something about single observations releases, for every type k, the statistics
Σ_u w_uk (G_u, b_u) of its users with their probabilities w of it, and noise. Each release is of all
data, with the probabilities of that time and fresh noise, so that earlier releases still help.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.plus.evidence import Noise, noisy_information
from fclub.core.plus.type_model import TypeModel, weigh_types
from fclub.core.plus.type_sums import Known
from fclub.core.types import Floats, Matrix, Vector

ALL = 0.5
"""The weight with which all users together are released beside the types."""


@compiled
def probabilities(model: TypeModel, known: Known, weights: Floats) -> None:
    """Write the probabilities of the types, given that one of them, of every user with data."""
    for a in range(known.people.shape[0]):
        weigh_types(model, 0, known.rows[a], weights[known.people[a]])


class NoisedTypes(NamedTuple):
    """Gram matrices and moments by type, and last those of all users, with noise of variance `noise`.

    `users` and `visits` have no noise: labels are given.
    """

    users: Vector
    visits: Vector
    grams: Floats
    moments: Floats
    noise: Vector


def all_and_types(values: Vector) -> Vector:
    """By type, and last their total."""
    return np.append(values, values.sum())


def blend(before: NoisedTypes, now: NoisedTypes, moved: float, size: float) -> NoisedTypes:
    """What two releases say together, most of whose data are the same.

    The earlier one is stretched to as many visits as there are now. Of those a share `moved` has other
    labels since, so that moments differ as if so many visits had been made by users whose tastes, of
    that `size`, are drawn anew; the last row, of all users, has no labels. Weights are those with which
    the error is least.
    """
    d = now.moments.shape[1]
    growth = np.where(before.visits > 0.0, now.visits / np.maximum(before.visits, 1e-9), 0.0)
    relabelled = (moved * now.visits / d) ** 2 * 2.0 * size / d
    relabelled[-1] = 0.0
    stretched = growth**2 * before.noise + relabelled
    share = np.where(growth > 0.0, stretched / (stretched + now.noise), 1.0)
    rest = (1.0 - share) * growth
    return now._replace(
        grams=share[:, None, None] * now.grams + rest[:, None, None] * before.grams,
        moments=share[:, None] * now.moments + rest[:, None] * before.moments,
        noise=share**2 * now.noise + rest**2 * before.noise,
    )


def information_of(
    users: float,
    gram: Matrix,
    moment: Vector,
    stated: float,
    variance: float,
    spread: Matrix,
    noise: Noise,
) -> tuple[Matrix, Vector]:
    """What noised sums over so many users say of the centre about which their vectors spread.

    However much is known of n users, they do not tell more of it than n times the inverse spread.
    """
    Q, q = noisy_information(gram, moment, stated, variance, noise)
    pull = np.linalg.inv(np.eye(len(q)) + spread @ Q / users)
    Q_w = pull.T @ Q
    return 0.5 * (Q_w + Q_w.T), pull.T @ q


def rows_of(types: NoisedTypes, variance: float, within: Matrix, noise: Noise) -> Floats:
    """Information about each centre, as rows of `type_sums.TypeSums`."""
    d = types.moments.shape[1]
    upper = np.triu_indices(d)
    twice = np.where(upper[0] == upper[1], 1.0, 2.0)
    rows = np.zeros((len(types.users) - 1, d + len(twice)))
    for k, users in enumerate(types.users[:-1]):
        if users > 0.0:
            told = types.grams[k], types.moments[k], float(types.noise[k]), variance, within, noise
            Q, rows[k, :d] = information_of(users, *told)
            rows[k, d:] = Q[upper] * twice
    return rows
