"""Saving in mid-run and loading continues identically; what is no such file is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fclub
from fclub.checks import check_saving
from fclub.errors import InvalidFile, InvalidSetting
from fclub.policies.local.independent import LinUCB
from fclub.policies.registry import POLICIES
from fclub.policies.saving import VERSION, read_npz, write_npz


def started(name: str) -> fclub.Policy:
    environment = fclub.make_environment("synthetic", users=6, clusters=2, servers=2, dim=3)
    policy = fclub.make_policy(name)
    environment.start(1)
    policy.reveal(environment.labels, environment.vectors)
    policy.start(environment.problem, environment.server_of, seed=1)
    for user in (0, 5, 3, 3, 1, 0):
        policy.update(user, np.full(3, 0.5), 1.0)
    return policy


@pytest.mark.parametrize("placement", ["blocks", "spread"])
@pytest.mark.parametrize("name", POLICIES)
def test_continues_identically(name: str, placement: str) -> None:
    environment = fclub.make_environment(
        "synthetic", users=12, clusters=3, servers=3, dim=4, items=5, placement=placement
    )
    eager = {"deletion": 0.6} if "deletion" in POLICIES[name].defaults else {}
    check_saving(fclub.make_policy(name, **eager), environment, 150)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("saved")
    files = {}
    for name in ("fclub-dc", "sclub"):
        started(name).save(folder / name)
        files[name] = (folder / name).read_bytes()
    return files


def same_state(first: fclub.Policy, second: fclub.Policy) -> bool:
    (a, u), (b, v) = first.state(), second.state()
    return u == v and a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["fclub-dc", "sclub"]), st.data())
def test_a_flipped_bit_is_refused_or_harmless(
    saved: dict[str, bytes], tmp_path: Path, name: str, data: st.DataObject
) -> None:
    """Some bytes of a zip archive mean nothing; any other damage has a name."""
    content = bytearray(saved[name])
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "policy.npz"
    path.write_bytes(content)
    try:
        policy = fclub.Policy.load(path)
    except InvalidFile:
        assert path.read_bytes() == content
    else:
        assert same_state(policy, started(name))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved: dict[str, bytes], tmp_path: Path, part: float) -> None:
    path = tmp_path / "policy.npz"
    path.write_bytes(saved["fclub-dc"][: int(part * len(saved["fclub-dc"]))])
    with pytest.raises(InvalidFile):
        fclub.Policy.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(InvalidFile, match="no file"):
        fclub.Policy.load(path)
    with pytest.raises(InvalidFile):
        fclub.Policy.load(tmp_path)
    path.write_text("hello")
    with pytest.raises(InvalidFile):
        fclub.Policy.load(path)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InvalidFile):
        fclub.Policy.load(path)
    with open(path, "wb") as file:
        np.savez(file, x=np.zeros(3))
    with pytest.raises(InvalidFile):
        fclub.Policy.load(path)
    fclub.simulate("linucb", "synthetic", 10).save(path)
    with pytest.raises(InvalidFile, match="fclub-policy"):
        fclub.Policy.load(path)


class _Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was executed",))


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with open(path, "wb") as file:
        np.savez(file, header=np.array([_Boom()], dtype=object))
    with pytest.raises(InvalidFile):
        fclub.Policy.load(path)


def rewritten(path: Path, arrays: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A file like the saved one, but for some arrays or parts of its header."""
    old, header = read_npz(path, "fclub-policy", VERSION)
    write_npz(path, old | (arrays or {}), header | changes)
    return path


@pytest.mark.parametrize("name", ["fclub-dc", "sclub", "linucb"])
def test_files_that_contradict_themselves_are_refused(name: str, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"version": 99},
        {"format": "other"},
        {"policy": "nobody"},
        {"parameters": {"no": 1}},
        {"problem": {"users": 6, "servers": 9, "dim": 3, "constant": None}},
        {"problem": {"users": 6, "servers": 2, "dim": 4, "constant": None}},
        {"problem": {}},
        {"values": 3} if name == "fclub-dc" else {"observations": "many"},
        {"arrays": {"server_of": np.array([0, 1])}},
        {"arrays": {"server_of": np.array([0, 1, 0, 1, 0, 9])}},
    ]
    for changes in cases:
        path = tmp_path / "policy.npz"
        started(name).save(path)
        rewritten(path, **changes)
        before = path.read_bytes()
        with pytest.raises(InvalidFile):
            fclub.Policy.load(path)
        assert path.read_bytes() == before


def test_another_class_is_refused(tmp_path: Path) -> None:
    started("fclub-dc").save(tmp_path / "policy.npz")
    with pytest.raises(InvalidSetting, match="LinUCB"):
        LinUCB.load(tmp_path / "policy.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    policy = started("linucb")
    policy.save(path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_npz(path, {}, {"not": object()})
    with pytest.raises(ValueError, match="inhomogeneous"):
        write_npz(path, {"ragged": [[1], [1, 2]]}, {})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["policy.npz"]
    assert json.dumps(policy.get_params())
