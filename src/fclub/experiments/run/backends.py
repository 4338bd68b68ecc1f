"""Where tasks run: processes on this machine (loky), or a Dask or Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import joblib

from fclub.config import require
from fclub.errors import UnknownName
from fclub.extras import need

BACKENDS = ("loky", "dask", "ray")

Calls = list[Any]
Perform = Callable[[Calls], Iterator[Any]]
"""Takes `joblib.delayed` calls and yields their results as they are finished."""


def _as_finished(calls: Calls) -> Iterator[Any]:
    parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")
    yield from parallel(calls)


def _in_portions(calls: Calls, portion: int) -> Iterator[Any]:
    """For a backend that can only return whole lists: results come portion by portion."""
    for start in range(0, len(calls), portion):
        yield from joblib.Parallel(batch_size=1)(calls[start : start + portion])


@contextmanager
def _loky(jobs: int, address: str | None) -> Iterator[Perform]:
    require(address is None, "an address is only for the dask and ray backends", address)
    with joblib.parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=1):
        yield _as_finished


@contextmanager
def _dask(jobs: int, address: str | None) -> Iterator[Perform]:
    """A scheduler at `address`, or a cluster of processes on the loopback interface."""
    distributed = need("distributed", "backend dask", "dask")
    local = {"n_workers": jobs, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    options = local if address is None else {"address": address}
    with distributed.Client(**options), joblib.parallel_config(backend="dask"):
        yield _as_finished


@contextmanager
def _ray(jobs: int, address: str | None) -> Iterator[Perform]:
    """A cluster at `address`, or one on the loopback interface; Ray's token authentication applies."""
    ray = need("ray", "backend ray", "ray")
    need("ray.util.joblib", "backend ray", "ray").register_ray()
    local = {"num_cpus": jobs, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    options = local if address is None else {"address": address}
    ray.init(**options, log_to_driver=False, configure_logging=False)
    try:
        with joblib.parallel_config(backend="ray", n_jobs=jobs):
            yield lambda calls: _in_portions(calls, 4 * jobs)
    finally:
        ray.shutdown()


_MAKERS = {"loky": _loky, "dask": _dask, "ray": _ray}


@contextmanager
def use_backend(name: str, jobs: int, address: str | None = None) -> Iterator[Perform]:
    """The backend of that name, ready to perform calls."""
    if name not in _MAKERS:
        raise UnknownName("backend", name, BACKENDS)
    require(jobs >= 1, "jobs must be at least 1", jobs)
    with _MAKERS[name](jobs, address) as perform:
        yield perform
