"""A policy in one .npz file: its arrays, and the rest as JSON. Never pickle."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fclub.config import Problem
from fclub.errors import FclubError, InvalidFile
from fclub.policies.base import Policy
from fclub.policies.registry import make_policy

FORMAT = "fclub-policy"
VERSION = 1


def write_npz(path: object, arrays: dict[str, Any], header: dict[str, Any]) -> None:
    """Write to a temporary file and move it in place, so that a crash leaves the old file."""
    target = Path(str(path))
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, header=text, **arrays)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def read_npz(path: object, format_name: str, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and header of a file that `write_npz` wrote, or `InvalidFile`."""
    try:
        with np.load(str(path), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        header = json.loads(arrays.pop("header").tobytes())
    except FileNotFoundError:
        raise InvalidFile(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
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
        "values": values,
    }
    known = {"server_of": policy.server_of}
    if policy.truth is not None:
        known["truth"] = policy.truth
    write_npz(path, arrays | known, header)


def load_policy(path: object) -> Policy:
    arrays, header = read_npz(path, FORMAT, VERSION)
    try:
        policy = make_policy(header["policy"], **header["parameters"])
        if "truth" in arrays:
            policy.reveal(arrays["truth"])
        policy.start(Problem(**header["problem"]), arrays["server_of"], seed=0)
        policy.restore(arrays, header["values"])
        policy.observations = int(header["observations"])
    except (KeyError, TypeError, ValueError, IndexError, FclubError) as error:
        raise InvalidFile(f"{path} does not hold a whole policy: {error}") from None
    return policy
