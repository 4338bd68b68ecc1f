"""Linear algebra on one thread: the same bits on every machine, and no wait for a busy core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    """Looking for the libraries takes longer than what is done with them."""
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """A library's threads wait for each other by spinning: where a server's own threads keep all cores
    busy, a millisecond of work takes a hundred."""
    with _controller().limit(limits=1, user_api="blas"):
        yield
