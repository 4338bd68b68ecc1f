"""From settings to the protocol's own objects: the same that the simulation runs."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fclub.config import Problem
from fclub.core.statistics import Packed
from fclub.core.ucb import Rules, make_rules
from fclub.errors import InvalidFile, InvalidSetting
from fclub.policies.federated import TABLE, FederatedPolicy
from fclub.policies.registry import make_policy
from fclub.privacy.noise import NoiseSource, NoNoise, SecureNoise, require_secure
from fclub.protocol.global_server import GlobalServer
from fclub.protocol.link import InProcessLink
from fclub.protocol.local_server import LocalServer
from fclub.service.global_node import GlobalNode
from fclub.service.local_node import LocalNode
from fclub.service.noise import RecordedNoise
from fclub.service.settings import GlobalSettings, LocalSettings, Model
from fclub.service.store import Store

AnyNode = TypeVar("AnyNode", LocalNode, GlobalNode)


def policy_of(model: Model) -> FederatedPolicy:
    """The row of the policy table that a federation runs."""
    if model.policy not in TABLE:
        known = ", ".join(TABLE)
        raise InvalidSetting(f"model.policy: {model.policy} is not one of {known}", model.policy)
    parameters: dict[str, Any] = {"cluster_bound": model.expected_clusters} | model.parameters
    policy = make_policy(model.policy, **parameters)
    assert isinstance(policy, FederatedPolicy)
    return policy


def _problem(model: Model) -> Problem:
    return Problem(users=model.expected_clusters, servers=1, dim=model.dim)


def rules_of(model: Model) -> Rules:
    policy, problem = policy_of(model), _problem(model)
    return make_rules(problem, policy.protocol, policy.bounds(problem))


def _fingerprint(model: Model) -> dict[str, Any]:
    return {"policy": model.policy, "dim": model.dim, "rules": list(rules_of(model))}


def rehearse(model: Model) -> None:
    """A few visits that leave no trace, so that no visitor waits for the kernels to be compiled."""
    policy, items = policy_of(model), np.eye(model.dim)[:2]
    policy.start(Problem(users=2, servers=1, dim=model.dim), np.zeros(2, dtype=np.int64))
    for user in (0, 1, 0):
        policy.update(user, items[policy.recommend(user, items)], 1.0)


def local_node(settings: LocalSettings, noise: NoiseSource | None = None) -> LocalNode:
    """A local node on its store; `noise` is for tests and must not be seeded in a deployment."""
    model, policy = settings.model, policy_of(settings.model)
    source = noise or (SecureNoise() if policy.privacy else NoNoise())
    if policy.privacy:
        require_secure(source)
    recorded = RecordedNoise(source)
    bounds = policy.bounds(_problem(model))
    server = LocalServer(
        server=0,
        users=Packed.zeros(0, model.dim),
        rules=rules_of(model),
        depth=bounds.depth,
        detector=policy.detector(0, np.random.default_rng(0)),
        noise=recorded,
        link=InProcessLink(),
    )
    store = _open(settings.store, "local")
    store.fix("model", _fingerprint(model))
    store.fix("name", settings.name)
    return _recovered(store, lambda: LocalNode(settings.name, server, recorded, store))


def global_node(settings: GlobalSettings) -> GlobalNode:
    """The global node on its store."""
    model = settings.model
    merging = policy_of(model).protocol.merging
    server = GlobalServer(model.dim, [], rules_of(model), merging, InProcessLink())
    store = _open(settings.store, "global")
    store.fix("model", _fingerprint(model))
    return _recovered(store, lambda: GlobalNode(settings.servers, server, store))


def _recovered(store: Store, make: Callable[[], AnyNode]) -> AnyNode:
    """What the store holds may have been damaged in any way; then it is named."""
    try:
        return make()
    except (sqlite3.Error, struct.error, LookupError, TypeError, ValueError) as error:
        store.close()
        raise InvalidFile(f"{store.path} does not hold a whole state: {error}") from None


def _open(path: str, kind: str) -> Store:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(f"store: {path}: {error.strerror}", path) from None
    return Store(path, kind)
