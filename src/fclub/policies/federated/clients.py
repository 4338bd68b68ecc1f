"""Federations in which every user is a client and all of them learn one vector: three rivals.

A client has a regression; what it has not sent yet is `pending`. A central server adds up what it is
sent. They differ in when that happens:

- `dis-linucb` (Wang, Hu, Chen and Wang 2020, DisLinUCB): as soon as one client's
  (t − t_last)·log(det V_t / det V_last) exceeds D, all clients upload, and all download the sum. Here t
  counts the client's own visits, since not every client acts in every round.
- `async-linucb` (Li and Wang 2022, Async-LinUCB): a client uploads once det(V)/det(V − ΔV) exceeds γ_U;
  the server then sends what is new to every client for which det(V_g)/det(V_g − ΔV₋ⱼ) exceeds γ_D.
- `fed-linucb` (He, Wang, Min and Gu 2022, FedLinUCB): a client that was active uploads and downloads
  once det(Σ + Σ_loc) > (1 + α)·det(Σ). Until then it decides from what it downloaded last, without its
  own news.

Scores are xᵀθ̂ + β‖x‖ in the norm of V⁻¹; β is one tuned constant instead of the theory's radius.
"""

from __future__ import annotations

from abc import abstractmethod
from math import log
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import DownloadRatio, Problem, Ridge, UploadRatio
from fclub.core.compiling import compiled, inner
from fclub.core.kernels import (
    add_matrix,
    add_outer,
    add_scaled,
    choose,
    clear,
    log_determinant,
    set_matrix,
    set_vector,
)
from fclub.core.models import Models, learn, refresh_model
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.parameters import meaning
from fclub.policies.base import KernelPolicy
from fclub.protocol.link import Communications

DIS, ASYNC, FED = 0, 1, 2
UPLOADS, DOWNLOADS = 0, 1


class Clients(NamedTuple):
    """What clients decide from, what they have not sent, and the sums of the server (one row).

    `logdet[u]` is log det(λI + V) of what both the client and the server know; `waiting[u]` are visits
    since the last synchronisation. `up` and `down` are D or log γ_U or log(1 + α), and log γ_D.
    """

    models: Models
    gram: Floats
    moment: Floats
    waiting: Counts
    logdet: Floats
    server_gram: Floats
    server_moment: Floats
    sent: Counts
    kind: int
    ridge: float
    exploration: float
    up: float
    down: float


@compiled
def recommend(state: Clients, user: int, items: Matrix) -> int:
    models = state.models
    return choose(items, models.theta[user], models.inverse[user], state.exploration)


@compiled
def feedback(state: Clients, user: int, x: Vector, y: float) -> None:
    """Keep the news, and exchange what the trigger asks for."""
    add_outer(state.gram[user], x, 1.0)
    add_scaled(state.moment[user], x, y)
    state.waiting[user] += 1
    if state.kind == FED:
        shifted = state.models.gram[user].copy()
        add_matrix(shifted, state.gram[user], 1.0)
        if log_det(shifted, state.ridge) - state.logdet[user] > state.up:
            _upload(state, user)
            _download(state, user, log_det(state.server_gram[0], state.ridge))
        return
    learn(state.models, user, x, y, state.ridge)
    growth = log_det(state.models.gram[user], state.ridge) - state.logdet[user]
    if state.kind == DIS and state.waiting[user] * growth > state.up:
        for client in range(state.waiting.shape[0]):
            _upload(state, client)
        logdet = log_det(state.server_gram[0], state.ridge)
        for client in range(state.waiting.shape[0]):
            _download(state, client, logdet)
    if state.kind == ASYNC and growth > state.up:
        _upload(state, user)
        state.logdet[user] += growth
        logdet = log_det(state.server_gram[0], state.ridge)
        for client in range(state.waiting.shape[0]):
            if logdet - state.logdet[client] > state.down:
                _download(state, client, logdet)


@inner
def log_det(gram: Matrix, ridge: float) -> float:
    """log det(λI + V)."""
    shifted = gram.copy()
    for i in range(gram.shape[0]):
        shifted[i, i] += ridge
    return log_determinant(shifted)


@inner
def _upload(state: Clients, client: int) -> None:
    """The server adds the client's news, which are none any more."""
    add_matrix(state.server_gram[0], state.gram[client], 1.0)
    add_scaled(state.server_moment[0], state.moment[client], 1.0)
    clear(state.gram[client], state.moment[client])
    state.waiting[client] = 0
    state.sent[UPLOADS] += 1


@inner
def _download(state: Clients, client: int, logdet: float) -> None:
    """The client has the server's sums and its own news."""
    models = state.models
    set_matrix(models.gram[client], state.server_gram[0])
    set_vector(models.moment[client], state.server_moment[0])
    add_matrix(models.gram[client], state.gram[client], 1.0)
    add_scaled(models.moment[client], state.moment[client], 1.0)
    refresh_model(models, client, state.ridge)
    state.logdet[client] = logdet
    state.sent[DOWNLOADS] += 1


def exchanged(sent: Counts, dim: int) -> Communications:
    """Statistics are d(d+1)/2 + d numbers of eight bytes, as what they are of is symmetric."""
    uploads, downloads = (int(count) for count in sent)
    count, size = uploads + downloads, 8 * (dim * (dim + 3) // 2)
    return Communications(uploads, downloads, messages=count, bytes=size * count)


Bonus = Annotated[
    float, meaning("β: multiple of ‖x‖ in the norm of V⁻¹ that is added to a score", least=0)
]


class ClientPolicy(KernelPolicy[Clients]):
    """A federation of clients that are users; a subclass says when they exchange what."""

    rival = True
    kernels = (recommend, feedback)
    kind: ClassVar[int]

    ridge: Ridge = 1.0
    exploration: Bonus = 0.2

    @abstractmethod
    def _triggers(self) -> tuple[float, float]:
        """`up` and `down`."""

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Clients:
        n, d = problem.users, problem.dim
        up, down = self._triggers()
        return Clients(
            models=Models.zeros(n, d, self.ridge),
            gram=np.zeros((n, d, d)),
            moment=np.zeros((n, d)),
            waiting=np.zeros(n, dtype=np.int64),
            logdet=np.full(n, d * log(self.ridge)),
            server_gram=np.zeros((1, d, d)),
            server_moment=np.zeros((1, d)),
            sent=np.zeros(2, dtype=np.int64),
            kind=self.kind,
            ridge=self.ridge,
            exploration=self.exploration,
            up=up,
            down=down,
        )

    @property
    def communications(self) -> Communications:
        return exchanged(self._state.sent, self.problem.dim)

    @property
    def labels_(self) -> Indices:
        """All learn one vector."""
        return np.zeros(self.problem.users, dtype=np.int64)

    @property
    def theta_(self) -> Floats:
        return self._state.models.theta


class DisLinUCB(ClientPolicy):
    """One vector for all users, who synchronise all at once (Wang et al. 2020).

    >>> import fclub
    >>> fclub.simulate(fclub.DisLinUCB(threshold=1.0), "synthetic", rounds=500)
    <Trace of dis-linucb in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "dis-linucb"
    kind = DIS
    exploration = 0.4

    threshold: Annotated[
        float, meaning("D: visits times growth of the log determinant that start an exchange", least=0)
    ] = 0.1

    def _triggers(self) -> tuple[float, float]:
        return self.threshold, 0.0


class AsyncLinUCB(ClientPolicy):
    """One vector for all users, each uploading and downloading when it pays (Li and Wang 2022).

    >>> import fclub
    >>> fclub.simulate(fclub.AsyncLinUCB(upload_ratio=1.5), "synthetic", rounds=500)
    <Trace of async-linucb in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "async-linucb"
    kind = ASYNC
    exploration = 0.0

    upload_ratio: UploadRatio = 1.05
    download_ratio: DownloadRatio = 1.5

    def _triggers(self) -> tuple[float, float]:
        return log(self.upload_ratio), log(self.download_ratio)


class FedLinUCB(ClientPolicy):
    """One vector for all users, who exchange only when they are active (He et al. 2022).

    >>> import fclub
    >>> fclub.simulate(fclub.FedLinUCB(growth=0.5), "synthetic", rounds=500)
    <Trace of fed-linucb in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "fed-linucb"
    kind = FED

    growth: Annotated[
        float, meaning("α: relative growth of a determinant that starts an exchange", above=0)
    ] = 0.02

    def _triggers(self) -> tuple[float, float]:
        return log(1.0 + self.growth), 0.0
