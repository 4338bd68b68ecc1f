"""`--policy`, `--env` and `--set OWNER.NAME=VALUE`: what is run, and with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from fclub.config import require
from fclub.environments.registry import ENVIRONMENTS, find_environment
from fclub.environments.synthetic import Synthetic
from fclub.parameters import Row, rows_of, split_assignment
from fclub.policies.federated.families import CdpFclubPlus
from fclub.policies.registry import POLICIES, find_policy

Parameters = dict[str, Any]

ENVIRONMENT = "env"
FORM = "POLICY.NAME=VALUE or env.NAME=VALUE"
HELP = f"{FORM}; repeatable."


REFERENCE = "a name, path.py:Class or module:Class"
PRESET = "fclub-dc@printed has the paper's constants, @published those of its code"


def policy_option(otherwise: str = "") -> Any:
    words = f"A policy: {REFERENCE}; repeatable. {PRESET}. {otherwise}".strip()
    return typer.Option(help=words, autocompletion=complete_policy)


def environment_option() -> Any:
    return typer.Option(help=f"The environment: {REFERENCE}.", autocompletion=complete_environment)


def declared_option(row: Row) -> Any:
    """An option for a parameter that is explained where it is declared."""
    first = row.meaning[:1]
    first = first.upper() if first.isascii() else first  # Ε would be another letter than ε
    return typer.Option(help=f"{first}{row.meaning[1:]}.")


WORLD = {name: declared_option(row) for name, row in rows_of(Synthetic).items()}
"""Options for the parameters that environments have in common."""
PROMISE = {name: declared_option(CdpFclubPlus.parameters[name]) for name in ("epsilon", "delta")}


def complete_policy(incomplete: str) -> list[str]:
    return [name for name in POLICIES if name.startswith(incomplete)]


def complete_environment(incomplete: str) -> list[str]:
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
        row = _known(owner, environment).get(key)
        found.setdefault(owner, {})[key] = text if row is None else row.parse(text, path)
    return found.pop(ENVIRONMENT, {}), found


GRID = "POLICY.NAME=VALUE,VALUE,..."


def parse_grids(entries: list[str] | None, policies: list[str]) -> dict[str, dict[str, list[Any]]]:
    """The values of every parameter of a policy that is played at several."""
    found: dict[str, dict[str, list[Any]]] = {}
    for entry in entries or []:
        path, texts = split_assignment(entry, GRID)
        owner, _, key = path.rpartition(".")
        require(bool(owner and key), f"--grid takes {GRID}", entry)
        require(owner in policies, "--grid names a policy that is not run", owner)
        row = find_policy(owner).parameters.get(key)
        values = [text if row is None else row.parse(text, path) for text in texts.split(",")]
        require(len(set(values)) == len(values), f"--grid {path} has a value twice", texts)
        found.setdefault(owner, {})[key] = values
    return found


def _known(owner: str, environment: str | None) -> Mapping[str, Row]:
    if owner == ENVIRONMENT:
        return {} if environment is None else rows_of(find_environment(environment))
    return find_policy(owner).parameters
