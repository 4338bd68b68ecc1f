"""`--policy`, `--env` and `--set OWNER.NAME=VALUE`: what is run, and with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from fclub.config import require
from fclub.environments.registry import ENVIRONMENTS, defaults_of, find_environment
from fclub.policies.registry import POLICIES, find_policy
from fclub.values import parse_value, split_assignment

Parameters = dict[str, Any]

ENVIRONMENT = "env"
FORM = "POLICY.NAME=VALUE or env.NAME=VALUE"
HELP = f"{FORM}; repeatable."


REFERENCE = "a name, path.py:Class or module:Class"


def policy_option(otherwise: str = "") -> Any:
    words = f"A policy: {REFERENCE}; repeatable. {otherwise}".strip()
    return typer.Option(help=words, autocompletion=_policies)


def environment_option() -> Any:
    return typer.Option(help=f"The environment: {REFERENCE}.", autocompletion=_environments)


def _policies(incomplete: str) -> list[str]:
    return [name for name in POLICIES if name.startswith(incomplete)]


def _environments(incomplete: str) -> list[str]:
    return [name for name in ENVIRONMENTS if name.startswith(incomplete)]


def parse_parameters(
    entries: list[str] | None, policies: list[str], environment: str | None
) -> tuple[Parameters, dict[str, Parameters]]:
    """Parameters of the environment, and those of policies by name; others are refused.

    `club.deletion=2` is for the policy club, `env.kind=orthogonal` for the environment.
    """
    found: dict[str, Parameters] = {}
    for entry in entries or []:
        path, text = split_assignment(entry, FORM)
        owner, _, key = path.rpartition(".")
        require(bool(owner and key), f"--set takes {FORM}", entry)
        require(owner in (ENVIRONMENT, *policies), "--set names a policy that is not run", owner)
        known = _defaults(owner, environment)
        found.setdefault(owner, {})[key] = parse_value(path, text, known.get(key))
    return found.pop(ENVIRONMENT, {}), found


def _defaults(owner: str, environment: str | None) -> Mapping[str, Any]:
    if owner == ENVIRONMENT:
        return {} if environment is None else defaults_of(find_environment(environment))
    return find_policy(owner).defaults
