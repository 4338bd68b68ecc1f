"""Policies with servers that talk to each other: a federation of any family in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.inputs import RewardRange
from fclub.core.items import NO_ITEMS, Shelf, choose_known, learn_item
from fclub.core.packing import flatten, rebuild
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.policies.base import Policy, Rows
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Compiled, Constants, Kernels, Shape, learns_items
from fclub.protocol.interfaces.learner import State
from fclub.protocol.interfaces.overview import global_clusters
from fclub.protocol.link import Communications
from fclub.protocol.rows import paper, pooled, types
from fclub.protocol.rows.private import PrivatePlusConstants
from fclub.protocol.servers import LocalServer

UNHEARD = 1_000_000
"""Clusters that only their own server has heard of are labelled from here on, by server."""


class FederatedPolicy(Policy, Constants):
    """Local servers, a global server and an in-process link between them.

    A subclass names the row of the table of families before this class: it brings the parameters.
    """

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        self.rows = Rows.by_server(server_of, problem.servers)
        expected = problem.users, len(np.unique(server_of))
        self.family = self.make_family(Shape(problem.dim, problem.users, problem.constant, *expected))
        self.federation = self._federation(seed, seeded)
        self._compiled = self.family.compiled(self.federation)
        self._rewards = None if problem.reward == (0.0, 1.0) else _unit_rewards(problem)
        known = problem.items if learns_items(self) else 0
        self._items = Shelf.of(len(self.servers), known, problem.dim) if known else NO_ITEMS

    def _federation(self, seed: SeedSequence, seeded: bool) -> Federation:
        return Federation(self.family, self.rows.row_of, self.rows.first, seed, seeded)

    @property
    def servers(self) -> dict[int, LocalServer]:
        """The local servers that have users, by number."""
        return self.federation.servers

    def _locate(self, user: int) -> tuple[LocalServer, int]:
        """The server of a user, and the user's row there."""
        row = int(self.rows.row_of[user])
        server = int(self.rows.server[row])
        return self.servers[server], row - int(self.rows.first[server])

    def _recommend(self, user: int, items: Matrix) -> int:
        server, row = self._locate(user)
        if not len(self._items.table):
            return server.recommend(row, items)
        place = [*self.servers.values()].index(server)
        return choose_known(self._items, place, items, *server.bound(row).scoring)

    def _update(self, user: int, x: Vector, y: float) -> None:
        self.family.domain.check_items(x.reshape(1, -1))
        server, row = self._locate(user)
        y = y if self._rewards is None else self._rewards.to_model(y)
        if len(self._items.table):
            bound, place = server.bound(row), [*self.servers.values()].index(server)
            learn_item(self._items, place, x, bound.theta, y - bound.offset)
        server.observe(row, x, y)

    def after_round(self) -> None:
        self.federation.advance(self.observations)

    @property
    def next_stop(self) -> int:
        return self.federation.clock.next_start

    @property
    def communications(self) -> Communications:
        return self.federation.link.communications

    def privacy_report(self) -> dict[str, object] | None:
        ledger = self.federation.ledger
        if ledger is None:
            return None
        how = "clipped" if self.problem.reward == "unbounded" else "mapped"
        told = {} if self._rewards is None else {"rewards": f"{how} to [0, 1]"}
        return {**ledger.summary(), **told}

    @property
    def labels_(self) -> Indices:
        """Global clusters; a cluster that the global server does not know gets a label of its own."""
        labels = []
        for number, server in self.servers.items():
            own = global_clusters(server.overview())[server.cluster_of_user]
            labels.append(np.where(own >= 0, own, UNHEARD * (number + 1) - own))
        return np.concatenate(labels)[self.rows.row_of]

    @property
    def theta_(self) -> Floats:
        estimates: Floats = np.concatenate([server.learner.theta() for server in self.servers.values()])
        return estimates[self.rows.row_of]

    @property
    def compiled(self) -> Compiled | None:
        if self._compiled is None or self._rewards is not None:
            return None
        return _WithItems(self._compiled, self._items) if len(self._items.table) else self._compiled

    def state(self) -> State:
        arrays, values = self.federation.state()
        return arrays | (flatten(self._items, "items.") if len(self._items.table) else {}), values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.federation.restore(arrays, values)
        if len(self._items.table):
            self._items = rebuild(self._items, arrays, "items.")


class _WithItems:
    """Compiled rounds that also learn what items are worth, of which servers know nothing."""

    def __init__(self, rounds: Compiled, items: Shelf) -> None:
        self._rounds, self._items = rounds, items
        self.count_events, self.unpack = rounds.count_events, rounds.unpack

    @property
    def kernels(self) -> Kernels:
        return self._rounds.kernels

    def pack(self) -> Any:
        return self._rounds.pack()._replace(items=self._items)


def _unit_rewards(problem: Problem) -> RewardRange:
    """Messages are checked, noise is drawn and priors are chosen for rewards in [0, 1]."""
    low, high = (0.0, 1.0) if problem.reward == "unbounded" else problem.reward
    return RewardRange(low, high, clip=True)


def policy_of(row: type[Constants]) -> type[FederatedPolicy]:
    """The policy of a row of the table of families; those below only have a signature beside it."""
    known = {"name": row.name, "__doc__": vars(row).get("__doc__")}
    return type(row.__name__, (row, FederatedPolicy), known)


class CdpFclubDC(paper.Printed, FederatedPolicy):
    """The paper's algorithm: clusters, delayed communication, tree noise; constants tuned.

    >>> import fclub
    >>> policy = fclub.CdpFclubDC(epsilon=4.0)
    >>> fclub.simulate(policy, "synthetic", rounds=500)
    <Trace of cdp-fclub-dc in synthetic, seed 0: 500 rounds, regret ...>
    >>> policy.privacy_report()["claimed"]
    [4.0, 0.1]
    """

    name = paper.Printed.name


class FclubDC(paper.Delayed, FederatedPolicy):
    """The paper's algorithm without noise.

    >>> import fclub
    >>> fclub.simulate(fclub.FclubDC(deletion=1.0), "synthetic", rounds=500)
    <Trace of fclub-dc in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = paper.Delayed.name


class Fclub(paper.Instant, FederatedPolicy):
    """The paper's algorithm without noise, every observation shared at once.

    >>> import fclub
    >>> fclub.simulate(fclub.Fclub(), "synthetic", rounds=500)
    <Trace of fclub in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = paper.Instant.name


class HomoDC(paper.PooledDelayed, FederatedPolicy):
    """All users treated as one cluster, delayed communication.

    >>> import fclub
    >>> fclub.simulate(fclub.HomoDC(), "synthetic", rounds=500)
    <Trace of homo-dc in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = paper.PooledDelayed.name


class Homo(paper.PooledInstant, FederatedPolicy):
    """All users treated as one cluster, every observation shared at once.

    >>> import fclub
    >>> fclub.simulate(fclub.Homo(), "synthetic", rounds=500)
    <Trace of homo in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = paper.PooledInstant.name


class FclubPlus(types.PlusConstants, FederatedPolicy):
    """Ours: soft clusters shared between servers.

    >>> import fclub
    >>> fclub.simulate(fclub.FclubPlus(share=False), "synthetic", rounds=500)
    <Trace of fclub-plus in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = types.PlusConstants.name


class CdpFclubPlus(PrivatePlusConstants, FederatedPolicy):
    """Ours: what servers release has noise that is accounted for, for whole users or observations.

    >>> import fclub
    >>> policy = fclub.CdpFclubPlus(epsilon=1.0, delta=1e-5, level="transcript", visits=12.5)
    >>> fclub.simulate(policy, "synthetic", rounds=500)
    <Trace of cdp-fclub-plus in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = PrivatePlusConstants.name


class CdpHomo(pooled.PooledConstants, FederatedPolicy):
    """All users treated as one cluster, released with noise that is accounted for.

    >>> import fclub
    >>> fclub.simulate(fclub.CdpHomo(epsilon=2.0), "synthetic", rounds=500)
    <Trace of cdp-homo in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = pooled.PooledConstants.name
