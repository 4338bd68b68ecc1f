"""Every policy by name."""

from __future__ import annotations

from functools import cache

from fclub.errors import UnknownName
from fclub.own import find_class, instance_of, is_reference
from fclub.parameters import Parameter
from fclub.policies.base import Policy
from fclub.policies.federated.clients import AsyncLinUCB, DisLinUCB, FedLinUCB
from fclub.policies.federated.families import (
    CdpFclubDC,
    CdpFclubPlus,
    CdpHomo,
    Fclub,
    FclubDC,
    FclubPlus,
    Homo,
    HomoDC,
    policy_of,
)
from fclub.policies.federated.heto import HetoFedBandit
from fclub.policies.local.club import Club
from fclub.policies.local.independent import Greedy, LinUCB, OracleLocal, OraclePooled
from fclub.policies.local.lin_ts import LinTS
from fclub.policies.local.locb import Locb
from fclub.policies.local.oracle_types import OracleTypes
from fclub.policies.local.popular import Popular
from fclub.policies.local.random import Random
from fclub.policies.local.rclumb import Rclumb
from fclub.policies.local.sclub import Sclub
from fclub.policies.local.shrunk import Shrunk
from fclub.policies.presets import split_preset
from fclub.protocol.families import FAMILIES

FEDERATED = (CdpFclubDC, FclubDC, Fclub, HomoDC, Homo, FclubPlus, CdpFclubPlus, CdpHomo)
OTHERS = (
    *(Club, Sclub, LinUCB, Greedy, LinTS, Shrunk, Random, Popular),
    *(Rclumb, Locb, DisLinUCB, AsyncLinUCB, FedLinUCB, HetoFedBandit),
    *(OracleLocal, OraclePooled, OracleTypes),
)

POLICIES: dict[str, type[Policy]] = (
    {name: policy_of(row) for name, row in FAMILIES.items()}
    | {kind.name: kind for kind in FEDERATED}
    | {kind.name: kind for kind in OTHERS}
)
"""Every row of the table of families is a policy, with or without a constructor of its own."""


def find_policy(name: str) -> type[Policy]:
    """A registered policy, with or without a preset, or a class of one's own by reference."""
    if is_reference(name):
        return find_class(name, Policy)  # type: ignore[type-abstract]
    return _known(split_preset(name)[0])


def _known(name: str) -> type[Policy]:
    """One of the table, or made of a learner that another package has registered."""
    if name in POLICIES:
        return POLICIES[name]
    if name in FAMILIES:
        return _foreign(FAMILIES[name])
    raise UnknownName("policy", name, POLICIES)


_foreign = cache(policy_of)


def make_policy(name: str, **parameters: Parameter) -> Policy:
    """A policy that is not started yet; what is unknown or impossible is refused.

    Its constants are the tuned ones, or those of a preset. `"mine.py:Mine"` names a class of your own.

    >>> import fclub
    >>> fclub.make_policy("linucb", ridge=0.5)
    <linucb ridge=0.5>
    >>> fclub.make_policy("homo-dc@printed")
    <homo-dc exploration=1.0>
    """
    return find_policy(name)(**parameters) if is_reference(name) else registered(name, **parameters)


def registered(name: str, **parameters: Parameter) -> Policy:
    """The same without references: for names that were read from a file, which imports nothing."""
    name, constants = split_preset(name)
    return _known(name)(**constants | parameters)


def as_policy(policy: Policy | str) -> Policy:
    """The object that was given, or the policy of this name or reference."""
    return make_policy(policy) if isinstance(policy, str) else instance_of(policy, Policy)  # type: ignore[type-abstract]
