"""`oracle-types`: the regret that is left when the types need not be learned."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.clustering import number_by_first
from fclub.core.known_types import KnownTypes, feedback, mixture_means, recommend
from fclub.core.types import Floats, Indices
from fclub.errors import InvalidSetting
from fclub.parameters import meaning
from fclub.policies.kernel import KernelPolicy


class OracleTypes(KernelPolicy[KnownTypes]):
    """All types known, each user's own is learned: a limit.

    It knows the types' vectors, how users spread around them and how many users each type has. Which
    type a user is of, it learns from the user's own rewards, by Bayes. A type is a true cluster.
    Rewards are taken as Gaussian; `exploration` is what did best at 5, 20 and 100 visits of 2,000
    users of ten types.

    >>> import fclub
    >>> fclub.simulate(fclub.OracleTypes(), "synthetic", rounds=500)
    <Trace of oracle-types in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "oracle-types"
    oracle = True
    kernels = (recommend, feedback)

    variance: Annotated[
        float, meaning("variance of a reward around its mean", "squared reward", above=0)
    ] = 0.17
    exploration: Annotated[
        float, meaning("posterior deviations that are added to an item's score", least=0)
    ] = 0.7

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> KnownTypes:
        n, shape = problem.users, (problem.users, problem.dim)
        if self.truth is None or self.vectors is None or self.vectors.shape != shape:
            raise InvalidSetting(
                f"{self.name} has to be told true clusters and vectors: reveal them before start, "
                "in an environment that has them"
            )
        type_of = number_by_first(self.truth)
        sizes = np.bincount(type_of)
        means = np.zeros((len(sizes), problem.dim))
        np.add.at(means, type_of, self.vectors)
        means /= sizes[:, None]
        rest = self.vectors - means[type_of]
        return KnownTypes(
            evidence=np.tile(np.log(sizes / n), (n, 1)),
            means=np.tile(means, (n, 1, 1)),
            covariance=np.tile(rest.T @ rest / n, (n, 1, 1)),
            variance=self.variance,
            exploration=self.exploration,
        )

    @property
    def labels_(self) -> Indices:
        """The likeliest type of every user."""
        labels: Indices = np.argmax(self._state.evidence, axis=1)
        return labels

    @property
    def theta_(self) -> Floats:
        return mixture_means(self._state)
