"""Where compiled kernels are kept."""

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fclub.core.compiling import (
    DirectCall,
    _Cache,
    cache_folder,
    compiled,
    digest_of,
    is_ready,
    set_ready,
)
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


def test_a_module_that_moves_changes_the_folder(tmp_path: Path) -> None:
    """numba finds a kernel by its file: the same texts under other names are other kernels."""
    core = tmp_path / "core"
    core.mkdir()
    (core / "a.py").write_text("one = 1")
    (core / "b.py").write_text("two = 2")
    (tmp_path / "other.py").write_text("")
    before = digest_of(tmp_path)
    (tmp_path / "other.py").write_text("three = 3")
    assert digest_of(tmp_path) == before, "there are no kernels in it"
    (core / "b.py").rename(core / "c.py")
    assert digest_of(tmp_path) != before


def test_another_layout_of_a_tuple_changes_the_folder(tmp_path: Path) -> None:
    """Code that was compiled for the old layout would read what lies beside a field."""
    declared = tmp_path / "state.py"
    declared.write_text("class Pair(NamedTuple):\n    first: int\n    second: int\n")
    before = digest_of(tmp_path)
    declared.write_text("class Pair(NamedTuple):\n    second: int\n    first: int\n")
    assert digest_of(tmp_path) != before


def test_what_is_compiled_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fclub.core.compiling.cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr("fclub.core.compiling.numba_config.DISABLE_JIT", 0)
    assert not is_ready("linucb")
    set_ready("linucb")
    assert is_ready("linucb")
    assert not is_ready("fclub")


def test_nothing_is_compiled_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fclub.core.compiling.cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr("fclub.core.compiling.numba_config.DISABLE_JIT", 1)
    assert is_ready("linucb")


def test_a_cache_that_cannot_be_written_is_borne(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fclub.core.compiling.cache_folder", lambda: str(tmp_path / "gone"))
    monkeypatch.setattr("fclub.core.compiling.numba_config.DISABLE_JIT", 0)
    set_ready("linucb")
    assert not is_ready("linucb")


class Pair(NamedTuple):
    """A tuple whose module fclub does not know."""

    first: float
    second: float


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is on disk once a kernel of the package was given numbers, and a tuple of them."""
    monkeypatch.setattr("fclub.core.compiling.cache_folder", lambda: str(folder))

    def last(pair: tuple[float, float]) -> float:
        return pair[1]

    monkeypatch.setattr(last, "__module__", "fclub.core.example")
    kernel = compiled(last)
    assert kernel((1.0, 2.0)) == kernel(Pair(1.0, 2.0)) == 2.0
    return [path.name for path in folder.rglob("*.nbc")]


@pytest.mark.skipif(not hasattr(observe, "py_func"), reason="nothing is compiled")
def test_tuples_of_others_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process would import their module, which may be gone or have another layout."""
    assert len(kept(tmp_path, monkeypatch)) == 1


@pytest.mark.skipif(not hasattr(observe, "py_func"), reason="nothing is compiled")
def test_kernels_of_others_are_not_kept() -> None:
    assert not isinstance(compiled(lambda number: number + 1)._cache, _Cache)  # type: ignore[attr-defined]
    assert isinstance(observe._cache, _Cache)  # type: ignore[attr-defined]


def state_of(first: float) -> Packed:
    found = Packed.zeros(2, 3)
    found.moment[:] = first
    return found


class Other(np.ndarray):
    """An array that is not quite one."""


WIDE = np.arange(12.0)


def fixed(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_direct_call_equals_the_usual_one_whatever_comes_in(first: int) -> None:
    """Views with gaps, other numbers and kinds: no argument is taken for what it is not."""
    calls: list[tuple[Any, Any, Any]] = [
        (1, WIDE[:3], 1),
        (1, WIDE[:3], 0.5),
        (np.int32(0), WIDE[::4], np.float64(0.25)),
        (1, WIDE[::-4], True),
        (0, WIDE[:3].astype(np.float32), 0.5),
        (0, WIDE[::4].view(Other), 0.5),
        (1, WIDE[::3].astype(np.int64)[:3], 0.5),
        (1, fixed(WIDE[4:7].copy()), np.float32(0.5)),
        (1, WIDE[4:7], 0.125),
    ]
    direct, ours, theirs = DirectCall(observe), state_of(0.0), state_of(0.0)
    for row, x, y in calls[first:] + calls:
        direct(ours, row, x, y)
        observe(theirs, row, x, y)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_a_direct_call_knows_one_state_from_another() -> None:
    direct, one, other = DirectCall(observe), state_of(0.0), state_of(1.0)
    for state in (one, other, one):
        direct(state, 0, WIDE[:3], 1.0)
    np.testing.assert_array_equal(one.moment, [[0.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(other.moment, [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])


def test_a_direct_call_can_be_stored() -> None:
    direct, state = DirectCall(observe), state_of(0.0)
    direct(state, 0, WIDE[:3], 1.0)
    pickle.loads(pickle.dumps(direct))(state, 0, WIDE[:3], 1.0)
    assert state.counts.tolist() == [2, 0]
