"""Where fclub keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """FCLUB_CACHE_DIR, or `fclub` in the user's cache folder."""
    own = os.environ.get("FCLUB_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(shared) / "fclub"
