"""Where compiled kernels are kept."""

from pathlib import Path

import pytest

from fclub.core.compiling import cache_folder


def test_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCLUB_CACHE_DIR", str(tmp_path / "mine"))
    folder = Path(cache_folder.__wrapped__())
    assert folder.parent == tmp_path / "mine"
    assert folder.is_dir()
    assert cache_folder.__wrapped__() == str(folder), "the same sources, the same folder"


def test_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FCLUB_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(cache_folder.__wrapped__()).parent == tmp_path / "fclub"


def test_without_a_writable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written, kernels are compiled into a temporary folder."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FCLUB_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Path(cache_folder.__wrapped__()).parent == tmp_path
