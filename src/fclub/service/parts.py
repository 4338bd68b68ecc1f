"""From settings to the protocol's own objects: the same that the simulation runs."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from fclub.config import Problem
from fclub.core.paper.ucb import Rules, make_rules
from fclub.core.statistics import Packed
from fclub.errors import FclubError, InvalidFile, InvalidSetting
from fclub.policies.federated import FederatedPolicy
from fclub.policies.mixture import MixturePolicy
from fclub.policies.registry import POLICIES, make_policy
from fclub.privacy.ledger import Ledger
from fclub.privacy.noise import NoiseSource, NoNoise, SecureNoise, require_secure
from fclub.privacy.sensitivity import Domain
from fclub.protocol.global_server import GlobalServer
from fclub.protocol.link import InProcessLink
from fclub.protocol.local_server import LocalServer
from fclub.protocol.mixture_global import MixtureGlobal
from fclub.protocol.mixture_local import MixtureLocal
from fclub.service.global_node import GlobalNode
from fclub.service.local_node import LocalNode
from fclub.service.noise import RecordedNoise
from fclub.service.settings import GlobalSettings, LocalSettings, Model
from fclub.service.store import Store

AnyNode = TypeVar("AnyNode", LocalNode, GlobalNode)
LivePolicy = FederatedPolicy | MixturePolicy
LIVE = [name for name, entry in POLICIES.items() if entry.switches]
"""Policies with servers that talk to each other."""

DAMAGE = (sqlite3.Error, struct.error, msgspec.DecodeError, LookupError, TypeError, ValueError)
"""What reading a store raises that was damaged in any way."""


def policy_of(model: Model) -> LivePolicy:
    """The policy that a federation runs."""
    if model.policy not in LIVE:
        known = ", ".join(LIVE)
        raise InvalidSetting(f"model.policy: {model.policy} is not one of {known}", model.policy)
    parameters: dict[str, Any] = dict(model.parameters)
    if "cluster_bound" in POLICIES[model.policy].defaults:
        parameters = {"cluster_bound": model.expected_clusters} | parameters
    policy = make_policy(model.policy, **parameters)
    assert isinstance(policy, FederatedPolicy | MixturePolicy)
    if not policy.get_params().get("share", True):
        raise InvalidSetting("model.parameters: share is off, but this is a federation", model.policy)
    return policy


def _problem(model: Model) -> Problem:
    users = model.expected_clusters
    return Problem(users=users, servers=1, dim=model.dim, constant=model.constant)


def rules_of(model: Model) -> Rules:
    """The constants of a policy of the paper's table."""
    policy, problem = policy_of(model), _problem(model)
    assert isinstance(policy, FederatedPolicy)
    return make_rules(problem, policy.protocol, policy.bounds(problem))


def _fingerprint(model: Model) -> dict[str, Any]:
    """What a store is bound to."""
    policy = policy_of(model)
    if isinstance(policy, FederatedPolicy):
        rules: Any = list(rules_of(model))
    else:
        found = policy.rules_of(_problem(model))
        rules = asdict(found) | {
            "prior": found.prior.tolist(),
            "centre": policy.domain_of(_problem(model)).low,
        }
    return {"policy": model.policy, "dim": model.dim, "rules": rules}


def _local(
    policy: LivePolicy,
    model: Model,
    name: str,
    noise: NoiseSource,
    ledger: Ledger | None,
    rng: np.random.Generator,
) -> LocalServer | MixtureLocal:
    """A server without users; its graph or its sampler draws from `rng`, its noise never does."""
    problem = _problem(model)
    if isinstance(policy, MixturePolicy):
        state = policy.round_of(problem, np.zeros(0, dtype=np.int64))
        releases = policy.releases_of(state.users, problem, noise, ledger, name)
        rules, clock = policy.rules_of(problem), policy.clock_of()
        return MixtureLocal(0, state, rules, releases, rng, InProcessLink(), clock)
    bounds = policy.bounds(problem)
    return LocalServer(
        server=0,
        users=Packed.zeros(0, model.dim),
        rules=rules_of(model),
        depth=bounds.depth,
        detector=policy.detector(0, rng),
        noise=noise,
        accounts=policy.accounts(ledger, bounds, name),
        link=InProcessLink(),
    )


def _global(policy: LivePolicy, model: Model) -> GlobalServer | MixtureGlobal:
    if isinstance(policy, MixturePolicy):
        return policy.hub_of([], _problem(model), InProcessLink())
    return GlobalServer(model.dim, [], rules_of(model), policy.protocol.merging, InProcessLink())


def rehearse(model: Model) -> None:
    """A few visits that leave no trace, so that no visitor waits for the kernels to be compiled."""
    policy, items = policy_of(model), np.eye(model.dim)[:2]
    policy.start(Problem(users=2, servers=1, dim=model.dim), np.zeros(2, dtype=np.int64))
    for user in (0, 1, 0):
        policy.update(user, items[policy.recommend(user, items)], 1.0)


def local_node(
    settings: LocalSettings,
    noise: NoiseSource | None = None,
    rng: np.random.Generator | None = None,
    create: bool = True,
) -> LocalNode:
    """A local node on its store, which has to exist unless `create`.

    The generator of a new store begins with entropy of the operating system; the store keeps that
    beginning, so that a replay draws the same. `noise` and `rng` are for tests; seeded noise is refused
    where privacy is promised.
    """
    model, policy = settings.model, policy_of(settings.model)
    source = noise or (SecureNoise() if policy.privacy else NoNoise())
    if policy.privacy:
        require_secure(source)
    recorded, ledger = RecordedNoise(source), policy.open_ledger(seeded=False, keep=False)
    rng = rng or np.random.default_rng()
    server = _local(policy, model, settings.name, recorded, ledger, rng)
    domain = policy.domain_of(_problem(model)) if isinstance(policy, MixturePolicy) else Domain()
    fingerprint, store = _fingerprint(model), _open(settings.store, "local", create)

    def make() -> LocalNode:
        store.fix("model", fingerprint)
        store.fix("name", settings.name)
        rng.bit_generator.state = store.remember("generator", rng.bit_generator.state)
        return LocalNode(settings.name, server, domain, recorded, ledger, store)

    return _recovered(store, make)


def global_node(settings: GlobalSettings) -> GlobalNode:
    """The global node on its store."""
    server = _global(policy_of(settings.model), settings.model)
    fingerprint, store = _fingerprint(settings.model), _open(settings.store, "global")

    def make() -> GlobalNode:
        store.fix("model", fingerprint)
        return GlobalNode(settings.servers, server, store)

    return _recovered(store, make)


def _recovered(store: Store, make: Callable[[], AnyNode]) -> AnyNode:
    """What the store holds may have been damaged in any way; then it is named, and closed."""
    try:
        return make()
    except DAMAGE as error:
        store.close()
        raise InvalidFile(f"{store.path} does not hold a whole state: {error}") from None
    except FclubError:
        store.close()
        raise


def _open(path: str, kind: str, create: bool = True) -> Store:
    if create:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidSetting(f"store: {path}: {error.strerror}", path) from None
    return Store(path, kind, create)
