"""A file is whole or as it was before."""

from pathlib import Path

import pytest

from fclub.paths import write_atomically


def test_a_file_takes_its_place_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_bytes(b"old")
    with write_atomically(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), write_atomically(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_for_its_owner_only(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "policy.npz", mode=0o600) as file:
        file.write(b"people")
    assert (tmp_path / "policy.npz").stat().st_mode & 0o777 == 0o600
