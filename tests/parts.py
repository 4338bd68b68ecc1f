"""Parts of servers and policies that tests look into, as the kinds that they have to be."""

from __future__ import annotations

from typing import Any, TypeVar

from fclub.policies.base import Policy
from fclub.policies.federated.families import FederatedPolicy
from fclub.privacy.ledger import Ledger
from fclub.protocol.exchanges.clusters import ClusterGlobal, ClusterLocal
from fclub.protocol.learners.edges import Edges
from fclub.protocol.servers import GlobalServer, LocalServer

Kind = TypeVar("Kind")


def is_a(kind: type[Kind], one: object) -> Kind:
    assert isinstance(one, kind), f"expected {kind.__name__}, got {type(one).__name__}"
    return one


def present(one: Kind | None) -> Kind:
    assert one is not None
    return one


def edges(server: object) -> Edges:
    """What a local server of the paper learns with."""
    return is_a(Edges, is_a(LocalServer, server).learner)


def sender(server: object) -> ClusterLocal:
    """What a local server of the paper exchanges with."""
    return is_a(ClusterLocal, is_a(LocalServer, server).exchange)


def merger(server: object) -> ClusterGlobal:
    """What the global server of the paper exchanges with."""
    return is_a(ClusterGlobal, is_a(GlobalServer, server).exchange)


def federated(policy: Policy) -> FederatedPolicy:
    assert isinstance(policy, FederatedPolicy)
    return policy


def ledger(policy: Policy) -> Ledger:
    return present(federated(policy).federation.ledger)


def packed(policy: Policy) -> Any:
    """The arrays that compiled code plays on."""
    return present(policy.compiled).pack()
