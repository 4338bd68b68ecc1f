"""Every policy by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from fclub.config import Parameter
from fclub.errors import UnknownName
from fclub.own import find_class, is_reference
from fclub.policies.base import Policy
from fclub.policies.clustered import ClubPolicy, SclubPolicy
from fclub.policies.federated import FederatedPolicy
from fclub.policies.independent import LinUCB, OracleLocal, OraclePooled
from fclub.policies.oracle_types import OracleTypes
from fclub.policies.popular import Popular
from fclub.policies.tuned import tuned
from fclub.protocol.families import PRESETS
from fclub.protocol.seam import Preset


@dataclass(frozen=True)
class Entry:
    """How to make a policy, and what to say about it.

    An `oracle` is told the truth; a policy that is `catalogue` is of use only where items come again.
    """

    make: Callable[..., Policy]
    summary: str
    switches: dict[str, str]
    defaults: dict[str, Parameter]
    oracle: bool = False
    catalogue: bool = False

    @property
    def compared(self) -> bool:
        """Whether it is run where nobody names policies."""
        return not (self.oracle or self.catalogue)


def _federated(name: str, preset: Preset) -> Entry:
    def make(**parameters: Parameter) -> Policy:
        return FederatedPolicy(name, preset, **{**preset.tuned, **parameters})

    defaults = {**preset.defaults, **preset.tuned}
    return Entry(make, preset.summary, preset.switches, defaults)


def _plain(
    name: str, kind: type[Policy], summary: str, oracle: bool = False, catalogue: bool = False
) -> Entry:
    best = tuned(name)

    def make(**parameters: Parameter) -> Policy:
        return kind(name, **(best | parameters))

    return Entry(make, summary, {}, kind.defaults | best, oracle, catalogue)


POLICIES: dict[str, Entry] = {name: _federated(name, row) for name, row in PRESETS.items()} | {
    "club": _plain("club", ClubPolicy, "one CLUB per local server (Gentile et al. 2014)"),
    "sclub": _plain("sclub", SclubPolicy, "one SCLUB per local server (Li et al. 2019)"),
    "linucb": _plain("linucb", LinUCB, "one LinUCB per user (Abbasi-Yadkori et al. 2011)"),
    "popular": _plain(
        "popular", Popular, "like rates per item over all users, for catalogues", catalogue=True
    ),
    "oracle-local": _plain(
        "oracle-local", OracleLocal, "true clusters, each server's own data: a limit", True
    ),
    "oracle-pooled": _plain(
        "oracle-pooled", OraclePooled, "true clusters, all data without delay: a limit", True
    ),
    "oracle-types": _plain(
        "oracle-types", OracleTypes, "all types known, each user's own is learned: a limit", True
    ),
}


def find_policy(name: str) -> Entry:
    """A registered policy, or a class of one's own by reference."""
    if is_reference(name):
        kind = find_class(name, Policy)  # type: ignore[type-abstract]
        return Entry(kind, inspect.getdoc(kind) or "", {}, kind.defaults)
    if name not in POLICIES:
        raise UnknownName("policy", name, POLICIES)
    return POLICIES[name]


def make_policy(name: str, **parameters: Parameter) -> Policy:
    """A policy at its tuned constants, not started yet; what is unknown or impossible is refused."""
    if name not in POLICIES:
        raise UnknownName("policy", name, POLICIES)
    return POLICIES[name].make(**parameters)
