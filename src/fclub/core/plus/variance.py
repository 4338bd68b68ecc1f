"""How much rewards vary about what a user's vector makes expect."""

from __future__ import annotations

import numpy as np

from fclub.core.plus.population import Population
from fclub.core.statistics import Packed
from fclub.core.types import Floats

TRUST = 30.0
"""The variance that is expected weighs as much as so many rewards."""


def learn_variance(
    users: Packed, squares: Floats, population: Population, variance: float, expected: float
) -> float:
    """One step from `variance` towards the most probable variance of a reward.

    Every user is fitted alone, with the population as prior: were users of a wrong cluster fitted
    together, what they differ by would count as noise, and noise would keep them together. With the
    precision P of a user's vector, n rewards leave n − tr(P⁻¹G)/v degrees of freedom.
    """
    precision = users.gram / variance + population.precision
    covariance = np.linalg.inv(precision)
    known = users.moment / variance + population.precision @ population.mean
    theta = np.einsum("uij,uj->ui", covariance, known)
    fitted = 2.0 * np.sum(users.moment * theta)
    fitted -= np.sum(users.gram * (theta[:, :, None] * theta[:, None, :]))
    errors = max(float(squares.sum() - fitted), 0.0)
    fitted_by = np.sum(covariance * users.gram) / variance
    freedom = float(users.counts.sum() - fitted_by)
    return (TRUST * expected + errors) / (TRUST + freedom)
