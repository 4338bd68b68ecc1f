"""Small files in the formats of the real data, and the real data where it is."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data goes to a cache of the test's own; compiled kernels have chosen theirs already."""
    from fclub.core.compiling import cache_folder

    cache_folder()
    monkeypatch.setenv("FCLUB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def write_ratings(tmp_path: Path) -> Write:
    """Random ratings of users with two tastes, in the layout of MovieLens' CSV or .dat files."""

    def write(name: str = "ratings.csv", users: int = 60, items: int = 50, seed: int = 0) -> Path:
        rng = np.random.default_rng(seed)
        taste = (np.arange(users)[:, None] % 2) == (np.arange(items)[None, :] % 2)
        rated = rng.random((users, items)) < np.where(taste, 0.7, 0.4)
        stars = np.clip(rng.integers(1, 4, rated.shape) + 2 * taste, 1, 5)
        separator = "," if name.endswith(".csv") else "::"
        lines = ["userId,movieId,rating,timestamp"] if separator == "," else []
        for u, i in np.argwhere(rated):
            lines.append(separator.join(map(str, (u + 1, i + 1, stars[u, i], 0))))
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """A file of the real data: in FCLUB_DATA_DIR, or in ../shared/data beside the checkout."""

    def find(name: str) -> Path:
        beside = Path(__file__).parents[2].parent / "shared" / "data"
        folder = Path(os.environ.get("FCLUB_DATA_DIR") or beside)
        if not (folder / name).exists():
            pytest.skip(f"{name} is not here")
        return folder / name

    return find
