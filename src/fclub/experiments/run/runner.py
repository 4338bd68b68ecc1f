"""Runs the tasks of an experiment in processes on this machine (loky), or on a Dask or Ray cluster.

A task's result depends on the task alone, so neither the backend nor the number of jobs nor their order
can change it. Only this process writes results. While workers play, a counter in a file tells how many
rounds they have played.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from fclub.config import require
from fclub.core.types import Counts
from fclub.errors import UnknownName
from fclub.experiments.run.experiment import Experiment, Setting, Task
from fclub.experiments.run.results import Results
from fclub.extras import need
from fclub.policies.base import Policy
from fclub.simulation.loop import Progress
from fclub.simulation.trace import Trace
from fclub.simulation.warming import is_warm, warm

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


INTERVAL = 0.2
"""Seconds between two looks at the counter."""


@dataclass(frozen=True)
class RoundCounter:
    """One number per task in a file that workers on this machine map into memory.

    A worker on another machine does not find the file: its tasks then count when they are finished.
    """

    path: str
    tasks: int

    @staticmethod
    def create(folder: Path, tasks: int) -> RoundCounter:
        counter = RoundCounter(str(folder / "rounds"), tasks)
        np.memmap(counter.path, dtype=np.int64, mode="w+", shape=(max(1, tasks),)).flush()
        return counter

    def _open(self) -> Counts | None:
        try:
            return np.memmap(self.path, dtype=np.int64, mode="r+", shape=(max(1, self.tasks),))
        except OSError:
            return None

    @contextmanager
    def slot(self, position: int) -> Iterator[Progress | None]:
        """A callback for the rounds of one task, until `finish` sets the final number."""
        rounds = self._open()
        if rounds is None:
            yield None
            return

        def count(played: int) -> None:
            rounds[position] += played

        yield count

    def finish(self, position: int, rounds: int) -> None:
        counts = self._open()
        if counts is not None:
            counts[position] = rounds

    def total(self) -> int:
        counts = self._open()
        return 0 if counts is None else int(counts.sum())


@contextmanager
def watching(counter: RoundCounter, report: Callable[[int], None]) -> Iterator[None]:
    """Report the total from time to time from a thread, and once more at the end."""
    done = Event()

    def watch() -> None:
        while not done.wait(INTERVAL):
            report(counter.total())

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        report(counter.total())


Report = Callable[[int], None]


def _perform(position: int, task: Task, counter: RoundCounter) -> tuple[int, Trace]:
    """One task in a worker, with the BLAS held to one thread: the cores are taken by other tasks."""
    with threadpool_limits(1), counter.slot(position) as count:
        return position, task.run(count)


def _perform_all(
    tasks: list[Task], jobs: int, backend: str, address: str | None, counter: RoundCounter
) -> Iterator[tuple[int, Trace]]:
    """Results in the order in which they are finished."""
    calls = [joblib.delayed(_perform)(place, task, counter) for place, task in enumerate(tasks)]
    with use_backend(backend, jobs, address) as perform:
        yield from perform(calls)


def run(
    experiment: Experiment,
    *,
    jobs: int = 1,
    backend: str = "loky",
    address: str | None = None,
    results: Results | None = None,
    report: Report | None = None,
) -> dict[str, list[Trace]]:
    """All traces by label, in the order of the seeds; those already in `results` are not run again.

    `report` is told from time to time how many rounds have been played, those found included.
    """
    experiment.check()
    tasks = _in_turns(experiment)
    missing = tasks if results is None else results.missing(tasks)
    traces: dict[str, Trace] = {}
    found = experiment.rounds * (len(tasks) - len(missing))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fclub-")))
        counter = RoundCounter.create(folder, len(missing))
        if report is not None:
            stack.enter_context(watching(counter, lambda played: report(found + played)))
        for position, trace in _perform_all(missing, jobs, backend, address, counter):
            task = missing[position]
            counter.finish(position, task.rounds)
            traces[task.file] = trace
            if results is not None:
                results.add(task, trace)

    def trace_of(task: Task) -> Trace:
        if results is None or task.file in traces:
            return traces[task.file]
        return results.load(task)

    return experiment.traces(trace_of)


def _code_of(policy: Policy) -> object:
    """What policies of a kind have in common: their family, their kernels, or their class."""
    kind = type(policy)
    return getattr(kind, "make_family", None) or vars(kind).get("kernels") or kind


def _in_turns(experiment: Experiment) -> list[Task]:
    """Within a seed one policy of each kind before the others."""
    turn = _turns(experiment.policies)
    seeds = {seed: place for place, seed in enumerate(experiment.seeds)}
    return sorted(experiment.tasks(), key=lambda task: (seeds[task.seed], turn[task.label]))


def _turns(policies: Mapping[str, Setting]) -> dict[str, int]:
    """Without compiled kernels, workers that start together then compile different ones."""
    seen: dict[object, int] = {}
    turn: dict[str, int] = {}
    for label, setting in policies.items():
        code = _code_of(setting.make_policy())
        turn[label] = seen[code] = seen.get(code, -1) + 1
    return turn


def cold(policies: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those whose kernels this machine has not compiled yet."""
    return {k: s for k, s in policies.items() if not is_warm(s.name, s.parameters)}


def compile_kernels(policies: Mapping[str, Setting], jobs: int, report: Report) -> None:
    """Compile what these policies need, on this machine; `report` is told how many are done."""
    turn = _turns(policies)
    settings = [policies[label] for label in sorted(policies, key=lambda label: turn[label])]
    calls = [joblib.delayed(warm)(setting.name, setting.parameters) for setting in settings]
    with use_backend("loky", jobs) as perform:
        for done, _ in enumerate(perform(calls), start=1):
            report(done)
