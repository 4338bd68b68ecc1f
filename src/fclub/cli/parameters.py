"""`--set OWNER.NAME=VALUE`: parameters of policies, and of the environment, on the command line."""

from __future__ import annotations

from typing import Any

import msgspec

from fclub.config import require

Parameters = dict[str, Any]

ENVIRONMENT = "env"
FORM = "POLICY.NAME=VALUE or env.NAME=VALUE"
HELP = f"{FORM}; repeatable."


def parse_value(text: str) -> Any:
    """A JSON number, truth value or null, else the text itself."""
    try:
        return msgspec.json.decode(text, type=float | int | bool | None)
    except msgspec.DecodeError:
        return text


def parse_parameters(
    entries: list[str] | None, policies: list[str]
) -> tuple[Parameters, dict[str, Parameters]]:
    """Parameters of the environment, and those of policies by name; others are refused.

    `club.deletion=2` is for the policy club, `env.kind=orthogonal` for the environment.
    """
    found: dict[str, Parameters] = {}
    for entry in entries or []:
        path, equals, value = entry.partition("=")
        owner, dot, key = path.partition(".")
        require(bool(equals and dot and key), f"--set takes {FORM}", entry)
        require(owner in (ENVIRONMENT, *policies), "--set names a policy that is not run", owner)
        found.setdefault(owner, {})[key] = parse_value(value)
    return found.pop(ENVIRONMENT, {}), found
