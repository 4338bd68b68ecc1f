"""Policies whose users belong to fixed models: `linucb` and the two oracles."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Parameter, Problem, Protocol
from fclub.core.clustering import number_by_first
from fclub.core.models import Independent, Models, feedback, recommend
from fclub.core.types import Floats, Indices
from fclub.errors import InvalidSetting
from fclub.policies.kernel import KernelPolicy


class IndependentPolicy(KernelPolicy):
    """One ridge regression per group of users that never changes."""

    defaults: ClassVar[dict[str, Parameter]] = {
        "sigma_0": 0.5,
        "ridge": 1.0,
        "alpha": 0.01,
        "exploration": 1.0,
    }
    kernels = (recommend, feedback)
    _state: Independent

    def __init__(self, name: str, **parameters: Parameter) -> None:
        super().__init__(name, **parameters)
        self._constants = Protocol(**self._parameters)  # type: ignore[arg-type]

    def _groups(self, server_of: Indices) -> Indices:
        """The model of every user."""
        return np.arange(len(server_of))

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        model_of = self._groups(server_of)
        rows, constants = int(model_of.max()) + 1, self._constants
        self._state = Independent(
            Models.zeros(rows, problem.dim, constants.ridge),
            model_of.astype(np.int64),
            float(constants.ridge),
            float(constants.sigma_0),
            float(constants.alpha / rows),
            float(constants.exploration),
        )

    @property
    def labels_(self) -> Indices:
        return self._state.model_of.copy()

    @property
    def theta_(self) -> Floats:
        return self._state.models.theta[self._state.model_of]


class LinUCB(IndependentPolicy):
    """One LinUCB per user (Abbasi-Yadkori, Pál, Szepesvári 2011)."""


class OracleLocal(IndependentPolicy):
    """Knows the true clusters, but every server only has its own users' data."""

    def _groups(self, server_of: Indices) -> Indices:
        if self.truth is None or len(self.truth) != len(server_of):
            raise InvalidSetting(f"{self.name} has to be told the true clusters: call reveal first")
        return self._group(self.truth, server_of)

    def _group(self, truth: Indices, server_of: Indices) -> Indices:
        return number_by_first(truth * (int(server_of.max()) + 1) + server_of)


class OraclePooled(OracleLocal):
    """Knows the true clusters and has all servers' data at once: what sharing could achieve."""

    def _group(self, truth: Indices, server_of: Indices) -> Indices:
        return number_by_first(truth)
