"""Every policy by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fclub.errors import UnknownName
from fclub.policies.base import Parameter, Policy
from fclub.policies.clustered import ClubPolicy, SclubPolicy
from fclub.policies.federated import TABLE, FederatedPolicy
from fclub.policies.independent import LinUCB, OracleLocal, OraclePooled
from fclub.policies.mixture import MixturePolicy
from fclub.policies.oracle_types import OracleTypes
from fclub.policies.tuned import tuned


@dataclass(frozen=True)
class Entry:
    """How to make a policy, and what to say about it."""

    make: Callable[..., Policy]
    summary: str
    switches: dict[str, str]
    defaults: dict[str, Parameter]
    oracle: bool = False


SUMMARIES = {
    "cdp-fclub-dc": "the paper's algorithm as printed: clusters, delayed communication, tree noise",
    "fclub-dc": "the same without noise",
    "fclub": "the same without noise, every observation shared at once",
    "homo-dc": "all users treated as one cluster, delayed communication",
    "homo": "all users treated as one cluster, every observation shared at once",
}


def _federated(name: str) -> Entry:
    def make(**parameters: Parameter) -> Policy:
        return FederatedPolicy(name, TABLE[name], **parameters)

    return Entry(make, SUMMARIES[name], vars(TABLE[name]), FederatedPolicy.defaults | tuned(name))


def _mixture(name: str, noise: str, summary: str) -> Entry:
    switches = {"detection": "mixture", "trigger": "count", "noise": noise, "scoring": "fused"}

    def make(**parameters: Parameter) -> Policy:
        return MixturePolicy(name, noise != "none", **parameters)

    return Entry(make, summary, switches, MixturePolicy.defaults)


def _plain(name: str, kind: type[Policy], summary: str, oracle: bool = False) -> Entry:
    def make(**parameters: Parameter) -> Policy:
        return kind(name, **parameters)

    return Entry(make, summary, {}, kind.defaults | tuned(name), oracle)


POLICIES: dict[str, Entry] = {name: _federated(name) for name in TABLE} | {
    "fclub-plus": _mixture("fclub-plus", "none", "ours: soft clusters shared between servers"),
    "cdp-fclub-plus": _mixture(
        "cdp-fclub-plus", "increments", "ours: the same, released with noise that is accounted for"
    ),
    "club": _plain("club", ClubPolicy, "one CLUB per local server (Gentile et al. 2014)"),
    "sclub": _plain("sclub", SclubPolicy, "one SCLUB per local server (Li et al. 2019)"),
    "linucb": _plain("linucb", LinUCB, "one LinUCB per user (Abbasi-Yadkori et al. 2011)"),
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


def make_policy(name: str, **parameters: Parameter) -> Policy:
    """A policy at its tuned constants, not started yet; what is unknown or impossible is refused."""
    if name not in POLICIES:
        raise UnknownName("policy", name, POLICIES)
    return POLICIES[name].make(**(tuned(name) | parameters))
