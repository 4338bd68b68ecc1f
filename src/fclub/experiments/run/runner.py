"""Runs the tasks of an experiment on all cores or on a cluster, through joblib's backends.

A task's result depends on the task alone, so neither the backend nor the number of jobs nor their order
can change it. Only this process writes results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import joblib
from threadpoolctl import threadpool_limits

from fclub.experiments.run.backends import use_backend
from fclub.experiments.run.experiment import Experiment, Task
from fclub.experiments.run.progress import RoundCounter, watching
from fclub.experiments.run.results import Results
from fclub.simulation.trace import Trace

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
    tasks = experiment.tasks()
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
    return _by_label(experiment, tasks, traces, results)


def _by_label(
    experiment: Experiment, tasks: list[Task], traces: dict[str, Trace], results: Results | None
) -> dict[str, list[Trace]]:
    ordered: dict[str, list[Trace]] = {label: [] for label in experiment.policies}
    for task in tasks:
        trace = traces.get(task.file)
        if trace is None:
            assert results is not None
            trace = results.load(task)
        ordered[task.label].append(trace)
    return ordered
