"""`lin-ts`: linear Thompson sampling, one model per user.

Agrawal and Goyal (2013), Algorithm 1: a vector is drawn from N(θ̂, v²(λI + V)⁻¹) and the best item for
it is shown. Here each user has its own regression, and λ need not be 1. A vector is drawn when the
user's last reward has come, not when it is asked for, so that asking twice gives the same item: with
one visit at a time that is the same algorithm.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem, Ridge
from fclub.core.compiling import compiled
from fclub.core.kernels import cholesky, dot, set_vector, solve_upper
from fclub.core.models import Models, learn
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.parameters import meaning
from fclub.policies.base import KernelPolicy


class Sampler(NamedTuple):
    """`sampled` (n, d) is the vector that each user is served from next."""

    models: Models
    sampled: Floats
    generator: np.random.Generator
    ridge: float
    scale: float


@compiled
def recommend(state: Sampler, user: int, items: Matrix) -> int:
    """argmax of xᵀθ̃."""
    best, best_score = 0, -np.inf
    for k in range(items.shape[0]):
        score = dot(items[k], state.sampled[user])
        if score > best_score:
            best, best_score = k, score
    return best


@compiled
def feedback(state: Sampler, user: int, x: Vector, y: float) -> None:
    """Learn, then draw θ̃ = θ̂ + v·L⁻ᵀz for λI + V = LLᵀ and a standard normal z."""
    d = x.shape[0]
    learn(state.models, user, x, y, state.ridge)
    shifted, lower, z = state.models.gram[user].copy(), np.empty((d, d)), np.empty(d)
    for i in range(d):
        shifted[i, i] += state.ridge
        z[i] = state.scale * state.generator.standard_normal()
    cholesky(shifted, lower)
    solve_upper(lower, z, z)
    set_vector(state.sampled[user], state.models.theta[user])
    for i in range(d):
        state.sampled[user, i] += z[i]


class LinTS(KernelPolicy[Sampler]):
    """One linear Thompson sampler per user (Agrawal and Goyal 2013).

    >>> import fclub
    >>> fclub.simulate(fclub.LinTS(scale=0.1), "synthetic", rounds=500)
    <Trace of lin-ts in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "lin-ts"
    rival = True
    kernels = (recommend, feedback)

    ridge: Ridge = 0.5
    scale: Annotated[
        float, meaning("v: multiple of the posterior deviation that is drawn", least=0)
    ] = 0.02

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Sampler:
        generator = np.random.default_rng(seed)
        shape = problem.users, problem.dim
        return Sampler(
            models=Models.zeros(*shape, self.ridge),
            sampled=self.scale / np.sqrt(self.ridge) * generator.standard_normal(shape),
            generator=generator,
            ridge=self.ridge,
            scale=self.scale,
        )

    @property
    def theta_(self) -> Floats:
        return self._state.sampled
