"""One process per store: a lock of the operating system on a file beside it.

The lock ends with the process that holds it, however that ends: a crash leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from fclub.errors import StoreInUse

PRIVATE = 0o600
"""Only the owner may read: raw data of users are in a store."""

_LONGEST = 400


def holder(store: Path) -> int | None:
    """The process of this machine that holds the lock of a store."""
    target = store.resolve()
    try:
        file = os.open(target.with_name(f"{target.name}.lock"), os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        words = os.pread(file, _LONGEST, 0).decode(errors="replace").split()
        here = len(words) == 4 and words[3] == socket.gethostname() and words[1].isdigit()
        return int(words[1]) if here else None
    finally:
        os.close(file)
    return None


class Lock:
    """Held from its making to `release`; a process that comes meanwhile is told which one holds it."""

    def __init__(self, store: Path) -> None:
        target = store.resolve()
        self._file = os.open(target.with_name(f"{target.name}.lock"), os.O_RDWR | os.O_CREAT, PRIVATE)
        try:
            os.fchmod(self._file, PRIVATE)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, _LONGEST, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise StoreInUse(f"{store} is in use by {holder or 'another process'}") from None
        except BaseException:
            os.close(self._file)
            raise
        self._write(f"process {os.getpid()} on {socket.gethostname()}\n")

    def _write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def release(self) -> None:
        """The file stays: to remove it could take it from under the next holder."""
        self._write("")
        os.close(self._file)
