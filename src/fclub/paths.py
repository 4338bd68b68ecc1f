"""Where fclub keeps what it can make or fetch again, and how a file gets to its place."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def cache_root() -> Path:
    """FCLUB_CACHE_DIR, or `fclub` in the user's cache folder."""
    own = os.environ.get("FCLUB_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(shared) / "fclub"


@contextmanager
def write_atomically(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when it is complete.

    An exception or a crash leaves what was there before; a crash also leaves a hidden file beside it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
