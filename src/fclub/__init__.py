"""fclub: federated, private, clustered contextual bandits.

Names are imported when they are first used, so that `import fclub` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fclub import checks, errors
    from fclub.client import AsyncClient, Client
    from fclub.config import Privacy, Problem, Protocol
    from fclub.environments.base import Environment, Outcome
    from fclub.environments.registry import make_environment
    from fclub.experiments.compare import Comparison, compare, sweep
    from fclub.parameters import meaning
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
    from fclub.policies.registry import make_policy
    from fclub.simulation.loop import simulate
    from fclub.simulation.trace import Trace

__version__ = "0.1.0"

_MODULES = ("checks", "errors")
_HOMES = {
    "AsyncClient": "fclub.client",
    "AsyncLinUCB": "fclub.policies.federated.clients",
    "CdpFclubDC": "fclub.policies.federated.families",
    "CdpFclubPlus": "fclub.policies.federated.families",
    "CdpHomo": "fclub.policies.federated.families",
    "Client": "fclub.client",
    "Club": "fclub.policies.local.club",
    "Comparison": "fclub.experiments.compare",
    "DisLinUCB": "fclub.policies.federated.clients",
    "Environment": "fclub.environments.base",
    "Fclub": "fclub.policies.federated.families",
    "FclubDC": "fclub.policies.federated.families",
    "FclubPlus": "fclub.policies.federated.families",
    "FedLinUCB": "fclub.policies.federated.clients",
    "Greedy": "fclub.policies.local.independent",
    "HetoFedBandit": "fclub.policies.federated.heto",
    "Homo": "fclub.policies.federated.families",
    "HomoDC": "fclub.policies.federated.families",
    "LinTS": "fclub.policies.local.lin_ts",
    "LinUCB": "fclub.policies.local.independent",
    "Locb": "fclub.policies.local.locb",
    "OracleLocal": "fclub.policies.local.independent",
    "OraclePooled": "fclub.policies.local.independent",
    "OracleTypes": "fclub.policies.local.oracle_types",
    "Outcome": "fclub.environments.base",
    "Policy": "fclub.policies.base",
    "Popular": "fclub.policies.local.popular",
    "Privacy": "fclub.config",
    "Problem": "fclub.config",
    "Protocol": "fclub.config",
    "Random": "fclub.policies.local.random",
    "Rclumb": "fclub.policies.local.rclumb",
    "Sclub": "fclub.policies.local.sclub",
    "Shrunk": "fclub.policies.local.shrunk",
    "Trace": "fclub.simulation.trace",
    "compare": "fclub.experiments.compare",
    "make_environment": "fclub.environments.registry",
    "make_policy": "fclub.policies.registry",
    "meaning": "fclub.parameters",
    "simulate": "fclub.simulation.loop",
    "sweep": "fclub.experiments.compare",
}

__all__ = [
    "AsyncClient",
    "AsyncLinUCB",
    "CdpFclubDC",
    "CdpFclubPlus",
    "CdpHomo",
    "Client",
    "Club",
    "Comparison",
    "DisLinUCB",
    "Environment",
    "Fclub",
    "FclubDC",
    "FclubPlus",
    "FedLinUCB",
    "Greedy",
    "HetoFedBandit",
    "Homo",
    "HomoDC",
    "LinTS",
    "LinUCB",
    "Locb",
    "OracleLocal",
    "OraclePooled",
    "OracleTypes",
    "Outcome",
    "Policy",
    "Popular",
    "Privacy",
    "Problem",
    "Protocol",
    "Random",
    "Rclumb",
    "Sclub",
    "Shrunk",
    "Trace",
    "__version__",
    "checks",
    "compare",
    "errors",
    "make_environment",
    "make_policy",
    "meaning",
    "simulate",
    "sweep",
]


if not TYPE_CHECKING:  # type checkers know what is there by the imports above

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"fclub.{name}")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'fclub' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
