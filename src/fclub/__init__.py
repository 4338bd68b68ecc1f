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
    from fclub.policies.clients import AsyncLinUCB, DisLinUCB, FedLinUCB
    from fclub.policies.club import Club
    from fclub.policies.federated import (
        CdpFclubDC,
        CdpFclubPlus,
        CdpHomo,
        Fclub,
        FclubDC,
        FclubPlus,
        Homo,
        HomoDC,
    )
    from fclub.policies.heto import HetoFedBandit
    from fclub.policies.independent import Greedy, LinUCB, OracleLocal, OraclePooled
    from fclub.policies.lin_ts import LinTS
    from fclub.policies.locb import Locb
    from fclub.policies.oracle_types import OracleTypes
    from fclub.policies.popular import Popular
    from fclub.policies.random import Random
    from fclub.policies.rclumb import Rclumb
    from fclub.policies.registry import make_policy
    from fclub.policies.sclub import Sclub
    from fclub.policies.shrunk import Shrunk
    from fclub.simulation.loop import simulate
    from fclub.simulation.trace import Trace

__version__ = "0.1.0"

_MODULES = ("checks", "errors")
_HOMES = {
    "AsyncClient": "fclub.client",
    "AsyncLinUCB": "fclub.policies.clients",
    "CdpFclubDC": "fclub.policies.federated",
    "CdpFclubPlus": "fclub.policies.federated",
    "CdpHomo": "fclub.policies.federated",
    "Client": "fclub.client",
    "Club": "fclub.policies.club",
    "Comparison": "fclub.experiments.compare",
    "DisLinUCB": "fclub.policies.clients",
    "Environment": "fclub.environments.base",
    "Fclub": "fclub.policies.federated",
    "FclubDC": "fclub.policies.federated",
    "FclubPlus": "fclub.policies.federated",
    "FedLinUCB": "fclub.policies.clients",
    "Greedy": "fclub.policies.independent",
    "HetoFedBandit": "fclub.policies.heto",
    "Homo": "fclub.policies.federated",
    "HomoDC": "fclub.policies.federated",
    "LinTS": "fclub.policies.lin_ts",
    "LinUCB": "fclub.policies.independent",
    "Locb": "fclub.policies.locb",
    "OracleLocal": "fclub.policies.independent",
    "OraclePooled": "fclub.policies.independent",
    "OracleTypes": "fclub.policies.oracle_types",
    "Outcome": "fclub.environments.base",
    "Policy": "fclub.policies.base",
    "Popular": "fclub.policies.popular",
    "Privacy": "fclub.config",
    "Problem": "fclub.config",
    "Protocol": "fclub.config",
    "Random": "fclub.policies.random",
    "Rclumb": "fclub.policies.rclumb",
    "Sclub": "fclub.policies.sclub",
    "Shrunk": "fclub.policies.shrunk",
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
