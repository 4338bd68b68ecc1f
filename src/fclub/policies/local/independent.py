"""Policies whose users belong to fixed models: `linucb`, `greedy` and the two oracles."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Alpha, Exploration, Problem, Ridge, Sigma0
from fclub.core.clustering import number_by_first
from fclub.core.models import Independent, Models, feedback, recommend
from fclub.core.types import Floats, Indices
from fclub.errors import InvalidSetting
from fclub.parameters import meaning
from fclub.policies.base import KernelPolicy


class IndependentPolicy(KernelPolicy[Independent]):
    """One ridge regression per group of users that never changes."""

    kernels = (recommend, feedback)

    sigma_0: Sigma0 = 0.5
    ridge: Ridge = 1.0
    failure: Alpha = 0.01
    exploration: Exploration = 1.0

    def _groups(self, server_of: Indices) -> Indices:
        return np.arange(len(server_of))

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Independent:
        model_of = self._groups(server_of)
        rows = int(model_of.max()) + 1
        return Independent(
            Models.zeros(rows, problem.dim, self.ridge),
            model_of.astype(np.int64),
            self.ridge,
            self.sigma_0,
            self.failure / rows,
            self.exploration,
        )

    @property
    def labels_(self) -> Indices:
        return self._state.model_of.copy()

    @property
    def theta_(self) -> Floats:
        return self._state.models.theta[self._state.model_of]


class LinUCB(IndependentPolicy):
    """One LinUCB per user, with the radius of Abbasi-Yadkori et al. (2011), or with a constant.

    With `alpha` the score is xᵀθ + α√(xᵀA⁻¹x), A = `ridge`·I + Σxxᵀ, as in Li et al. (2010).

    >>> import fclub
    >>> fclub.simulate(fclub.LinUCB(ridge=0.5), "synthetic", rounds=500)
    <Trace of linucb in synthetic, seed 0: 500 rounds, regret ...>
    """

    ridge = 0.2
    exploration = 0.15
    alpha: (
        Annotated[float, meaning("constant radius, instead of a confidence set; null: none", least=0)]
        | None
    ) = None

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Independent:
        state = super()._begin(problem, server_of, seed)
        return state if self.alpha is None else state._replace(width=self.alpha)


class Greedy(IndependentPolicy):
    """One ridge regression per user and no bonus: what exploring gains, others must show.

    Where offers differ from visit to visit they explore by themselves (Bastani, Bayati and Khosravi
    2021), so that it is hard to beat.

    >>> import fclub
    >>> fclub.simulate(fclub.Greedy(), "synthetic", rounds=500)
    <Trace of greedy in synthetic, seed 0: 500 rounds, regret ...>
    """

    rival = True
    ridge = 2.0
    exploration = 0.0


class OracleLocal(IndependentPolicy):
    """True clusters, each server's own data: a limit.

    >>> import fclub
    >>> fclub.simulate(fclub.OracleLocal(), "synthetic", rounds=500)
    <Trace of oracle-local in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "oracle-local"
    oracle = True
    exploration = 0.2

    def _groups(self, server_of: Indices) -> Indices:
        if self.truth is None or len(self.truth) != len(server_of):
            raise InvalidSetting(f"{self.name} has to be told the true clusters: call reveal first")
        return self._group(self.truth, server_of)

    def _group(self, truth: Indices, server_of: Indices) -> Indices:
        return number_by_first(truth * (int(server_of.max()) + 1) + server_of)


class OraclePooled(OracleLocal):
    """True clusters, all data without delay: a limit.

    >>> import fclub
    >>> fclub.simulate(fclub.OraclePooled(), "synthetic", rounds=500)
    <Trace of oracle-pooled in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "oracle-pooled"
    ridge = 5.0
    exploration = 0.05

    def _group(self, truth: Indices, server_of: Indices) -> Indices:
        return number_by_first(truth)
