"""Where compiled kernels are kept."""

from pathlib import Path

import numpy as np
import pytest

from fclub.core.compiling import Direct, cache_folder
from fclub.core.statistics import Packed, observe


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


def state_of(first: float) -> Packed:
    found = Packed.zeros(2, 3)
    found.moment[:] = first
    return found


def test_a_direct_call_equals_the_usual_one_whatever_comes_in() -> None:
    """Another state, views with gaps, other numbers: no array is taken for what it is not."""
    direct, ours, theirs = Direct(observe), state_of(0.0), state_of(0.0)
    wide = np.arange(12.0)
    for x in (wide[:3], wide[::4], wide[4:7], wide[::-4], wide[:3].astype(np.float32)):
        direct(ours, 1, x, 0.5)
        observe(theirs, 1, x, 0.5)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, expected)
    other = state_of(1.0)
    direct(other, 0, wide[:3], 1.0)
    np.testing.assert_array_equal(other.moment, [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    assert ours.counts.tolist() == [0, 5]
