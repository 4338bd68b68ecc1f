"""`--set OWNER.NAME=VALUE`: parameters of policies, and of the environment, on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fclub.config import require
from fclub.environments.registry import defaults_of
from fclub.policies.registry import POLICIES
from fclub.values import parse_value, split_assignment

Parameters = dict[str, Any]

ENVIRONMENT = "env"
FORM = "POLICY.NAME=VALUE or env.NAME=VALUE"
HELP = f"{FORM}; repeatable."


def parse_parameters(
    entries: list[str] | None, policies: list[str], environment: str | None
) -> tuple[Parameters, dict[str, Parameters]]:
    """Parameters of the environment, and those of policies by name; others are refused.

    `club.deletion=2` is for the policy club, `env.kind=orthogonal` for the environment.
    """
    found: dict[str, Parameters] = {}
    for entry in entries or []:
        path, text = split_assignment(entry, FORM)
        owner, _, key = path.partition(".")
        require(bool(key), f"--set takes {FORM}", entry)
        require(owner in (ENVIRONMENT, *policies), "--set names a policy that is not run", owner)
        known = _defaults(owner, environment)
        found.setdefault(owner, {})[key] = parse_value(path, text, known.get(key))
    return found.pop(ENVIRONMENT, {}), found


def _defaults(owner: str, environment: str | None) -> Mapping[str, Any]:
    """Parameters of a policy; none for one that does not exist, which is refused when it is made."""
    if owner == ENVIRONMENT:
        return {} if environment is None else defaults_of(environment)
    return POLICIES[owner].defaults if owner in POLICIES else {}
