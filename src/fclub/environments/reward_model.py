"""A model of rewards that learns round by round: a ridge regression of all, and one's own."""

from __future__ import annotations

import numpy as np

from fclub.core.types import Floats, Vector

SHARED = 1.0
"""Ridge of the regression over all users."""
OWN = 5.0
"""Ridge λ that holds a user's regression to the shared one: it weighs as much as λ rounds."""


class RewardModel:
    """θ_u = (G_u + λI)⁻¹ (m_u + λθ₀), with G_u = Σxxᵀ and m_u = Σrx over the user's rounds, and θ₀ the
    same over all rounds, held to 0. Inverses are updated by rank-one steps: O(d²) a round."""

    def __init__(self, users: int, dim: int) -> None:
        self._all, self._sum = np.eye(dim) / SHARED, np.zeros(dim)
        self._own: Floats = np.broadcast_to(np.eye(dim) / OWN, (users, dim, dim)).copy()
        self._sums = np.zeros((users, dim))

    def estimate(self, user: int) -> Vector:
        """The coefficients of a user's rewards, after what was learned so far."""
        shared = self._all @ self._sum
        found: Vector = self._own[user] @ (self._sums[user] + OWN * shared)
        return found

    def learn(self, user: int, x: Vector, reward: float) -> None:
        for inverse, total in ((self._all, self._sum), (self._own[user], self._sums[user])):
            direction = inverse @ x
            inverse -= direction[:, None] * direction / (1.0 + x @ direction)
            total += reward * x
