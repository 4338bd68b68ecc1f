"""Results of the suite: one cell per world and policy, played, and kept in one file.

`recorded.json` beside this module is the recorded result, so that a policy of one's own can be ranked
without playing its rivals again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fclub import __version__
from fclub.errors import InvalidFile
from fclub.experiments.leaderboard.suite import (
    POLICIES,
    SEEDS,
    VERSION,
    WORLDS,
    digest,
    experiment,
)
from fclub.experiments.run.experiment import Setting
from fclub.experiments.run.runner import Report, run
from fclub.paths import write_atomically
from fclub.simulation.trace import Trace

RECORDED = Path(__file__).with_name("recorded.json")
POINTS = 40
"""Rounds at which a mean curve is kept."""


class Cell(msgspec.Struct, frozen=True):
    """One policy in one world: final regret by seed, means of the rest over seeds.

    `epsilon` is the most that was spent at the claimed δ, None without a guarantee.
    """

    regret: tuple[float, ...]
    curve: tuple[float, ...]
    messages: float
    bytes: float
    epsilon: float | None
    microseconds: float


class LeaderboardRecord(msgspec.Struct):
    """Cells by world and policy, all of the same seeds; `version` is that of fclub."""

    suite: str
    digest: str
    version: str
    seeds: tuple[int, ...]
    t: tuple[int, ...]
    cells: dict[str, dict[str, Cell]]

    @property
    def policies(self) -> list[str]:
        """Those that were played in every world."""
        return [p for p in next(iter(self.cells.values())) if all(p in c for c in self.cells.values())]


def _points(t: Any) -> list[int]:
    """Indices of checkpoints, evenly spaced in rounds."""
    wanted = np.linspace(0, t[-1], POINTS + 1)[1:]
    return [int(np.argmin(np.abs(t - point))) for point in wanted]


def cell_of(trace: Trace) -> Cell:
    """What is kept of one seed."""
    report, sent = trace.settings["privacy"], trace.communications
    return Cell(
        regret=(round(float(trace.regret[-1]), 3),),
        curve=tuple(round(float(value), 1) for value in trace.regret[_points(trace.t)]),
        messages=float(sent["messages"][-1]),
        bytes=float(sent["bytes"][-1]),
        epsilon=None if report is None else float(report["spent"][0][0]),
        microseconds=round(trace.microseconds_per_round, 2),
    )


def _joined(one: Cell, two: Cell) -> Cell:
    n, m = len(one.regret), len(two.regret)

    def mean(first: float, second: float) -> float:
        return round((n * first + m * second) / (n + m), 2)

    spent = [epsilon for epsilon in (one.epsilon, two.epsilon) if epsilon is not None]
    return Cell(
        regret=one.regret + two.regret,
        curve=tuple(mean(a, b) for a, b in zip(one.curve, two.curve, strict=True)),
        messages=mean(one.messages, two.messages),
        bytes=mean(one.bytes, two.bytes),
        epsilon=max(spent) if spent else None,
        microseconds=mean(one.microseconds, two.microseconds),
    )


def extend(record: LeaderboardRecord, other: LeaderboardRecord) -> LeaderboardRecord:
    """The seeds of both; they have the same worlds and policies."""
    cells = {
        world: {name: _joined(cell, other.cells[world][name]) for name, cell in found.items()}
        for world, found in record.cells.items()
    }
    return msgspec.structs.replace(record, seeds=record.seeds + other.seeds, cells=cells)


def merge(record: LeaderboardRecord, other: LeaderboardRecord) -> LeaderboardRecord:
    """The policies of both, with the same worlds and seeds; where both have one, that of `other`."""
    cells = {world: {**found, **other.cells[world]} for world, found in record.cells.items()}
    return msgspec.structs.replace(record, cells=cells)


def play(
    policies: dict[str, Setting],
    *,
    worlds: tuple[str, ...] = tuple(WORLDS),
    seeds: tuple[int, ...] = SEEDS,
    jobs: int = 1,
    report: Report | None = None,
    tell: Callable[[LeaderboardRecord], None] | None = None,
) -> LeaderboardRecord:
    """These policies in the worlds of the suite, seed by seed; `tell` is given what there is so far."""
    whole: LeaderboardRecord | None = None
    step = experiment(worlds[0], policies, seeds[:1]).rounds * len(policies)
    for place, seed in enumerate(seeds):
        cells: dict[str, dict[str, Cell]] = {}
        t: tuple[int, ...] = ()
        for turn, world in enumerate(worlds):
            before = step * (place * len(worlds) + turn)

            def add(played: int, before: int = before) -> None:
                if report is not None:
                    report(before + played)

            traces = run(experiment(world, policies, (seed,)), jobs=jobs, report=add)
            cells[world] = {label: cell_of(found) for label, (found,) in traces.items()}
            times = next(iter(traces.values()))[0].t
            t = tuple(int(times[k]) for k in _points(times))
        found = LeaderboardRecord(VERSION, digest(), __version__, (seed,), t, cells)
        whole = found if whole is None else extend(whole, found)
        if tell is not None:
            tell(whole)
    assert whole is not None
    return whole


def in_order(record: LeaderboardRecord) -> LeaderboardRecord:
    """Policies in the order of the suite, others after them."""
    order = list(POLICIES)

    def place(name: str) -> int:
        return order.index(name) if name in order else len(order)

    cells = {
        world: {name: found[name] for name in sorted(found, key=place)}
        for world, found in record.cells.items()
    }
    return msgspec.structs.replace(record, cells=cells)


def save(record: LeaderboardRecord, path: Path) -> None:
    with write_atomically(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(in_order(record)), indent=1) + b"\n")


def load(path: Path = RECORDED) -> LeaderboardRecord:
    """A record of this version of the suite."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LeaderboardRecord)
    except FileNotFoundError:
        raise InvalidFile(f"there is no record {path}; fclub leaderboard --record makes one") from None
    except msgspec.DecodeError as error:
        raise InvalidFile(f"{path} is not a record of the leaderboard: {error}") from None
    if record.digest != digest():
        raise InvalidFile(
            f"{path} is of suite {record.suite} ({record.digest}), expected {VERSION} ({digest()}); "
            "fclub leaderboard --record plays it again"
        )
    return record
