"""A policy in one .npz file: its arrays, and the rest as JSON. Never pickle."""

from __future__ import annotations

import inspect
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fclub.config import Problem
from fclub.core.packing import inside, under
from fclub.errors import FclubError, InvalidFile
from fclub.paths import write_atomically
from fclub.policies.base import Policy
from fclub.policies.registry import POLICIES, registered

FORMAT = "fclub-policy"
VERSION = 3
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError),
    *(RuntimeError, MemoryError, SyntaxError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""What numpy and zipfile raise on a damaged or foreign file."""


def write_npz(path: object, arrays: dict[str, Any], header: dict[str, Any]) -> None:
    """For its owner only: what a policy has learned is about people."""
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    with write_atomically(Path(str(path)), mode=0o600) as file:
        np.savez_compressed(file, header=text, **arrays)


def read_npz(path: object, format_name: str, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and header of a file that `write_npz` wrote, or `InvalidFile`."""
    try:
        with open(str(path), "rb") as file, np.load(file, allow_pickle=False) as members:
            arrays = {key: members[key] for key in members.files}
        header = json.loads(arrays.pop("header").tobytes())
    except FileNotFoundError:
        raise InvalidFile(f"there is no file {path}") from None
    except UNREADABLE as error:
        raise InvalidFile(f"{path} is not a {format_name} file: {error}") from None
    if not isinstance(header, dict) or header.get("format") != format_name:
        raise InvalidFile(f"{path} is not a {format_name} file")
    if header.get("version") != version:
        raise InvalidFile(f"{path} has version {header.get('version')}, expected {version}")
    return arrays, header


def save_policy(policy: Policy, path: object) -> None:
    arrays, values = policy.state()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "policy": policy.name,
        "parameters": policy.get_params(),
        "problem": vars(policy.problem),
        "observations": policy.observations,
        "seeded": policy.seeded,
        "values": values,
    }
    write_npz(path, under("state.", arrays) | _known(policy), header)


def _known(policy: Policy) -> dict[str, Any]:
    """What the policy was told before its first round."""
    told = {"truth": policy.truth, "vectors": policy.vectors}
    return {"server_of": policy.server_of} | {k: v for k, v in told.items() if v is not None}


def _make(kind: type[Policy], name: str, parameters: dict[str, Any]) -> Policy:
    """A registered policy by its name, a user's own by its class, also where both have one name."""
    own = not inspect.isabstract(kind) and kind not in POLICIES.values()
    if own and (kind.name == name or name not in POLICIES):
        return kind(**parameters)
    return registered(name, **parameters)


def load_policy(path: object, kind: type[Policy]) -> Policy:
    arrays, header = read_npz(path, FORMAT, VERSION)
    try:
        policy = _make(kind, header["policy"], header["parameters"])
        if "truth" in arrays:
            policy.reveal(arrays["truth"], arrays.get("vectors"))
        policy.start(
            Problem(**header["problem"]), arrays["server_of"], seed=0 if header["seeded"] else None
        )
        policy.restore(inside("state.", arrays), header["values"])
        policy.observations = int(header["observations"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, FclubError) as error:
        raise InvalidFile(f"{path} does not hold a whole policy: {error}") from None
    return policy
