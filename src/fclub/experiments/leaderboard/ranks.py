"""Ranks: regret relative to the base, with Student's t intervals over seeds that all policies share."""

from __future__ import annotations

from math import exp, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fclub.core.types import Floats
from fclub.experiments.leaderboard.record import LeaderboardRecord
from fclub.experiments.leaderboard.suite import BASE

COVERAGE = 0.95


class MeanInterval(NamedTuple):
    """A mean and where it is with probability 95 %; only the mean where there is one seed."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Rank(NamedTuple):
    """A policy over all worlds.

    `relative` is the geometric mean over worlds of its regret over that of the base, `behind` the same
    over the policy at the place before. `settled` says that `behind` excludes 1.
    """

    place: int
    policy: str
    relative: MeanInterval
    behind: MeanInterval | None
    messages: float
    bytes: float
    epsilon: float | None
    time: float

    @property
    def settled(self) -> bool:
        return self.behind is None or self.behind.low > 1.0


def interval(logs: Floats) -> MeanInterval:
    """exp of the mean of logarithms of ratios, one for each seed, and of its limits."""
    mean, n = float(np.mean(logs)), len(logs)
    if n < 2:
        return MeanInterval(exp(mean), exp(mean), exp(mean))
    half = float(stdtrit(n - 1, 0.5 + COVERAGE / 2)) * float(np.std(logs, ddof=1)) / sqrt(n)
    return MeanInterval(exp(mean), exp(mean - half), exp(mean + half))


def logs_of(record: LeaderboardRecord, policy: str, world: str) -> Floats:
    """log of regret over that of the base, by seed."""
    cells = record.cells[world]
    ratio: Floats = np.log(np.array(cells[policy].regret) / np.array(cells[BASE].regret))
    return ratio


def in_world(record: LeaderboardRecord, world: str) -> dict[str, MeanInterval]:
    """Relative regret in one world, best first."""
    found = {policy: interval(logs_of(record, policy, world)) for policy in record.policies}
    return dict(sorted(found.items(), key=lambda item: item[1].mean))


def ranks(record: LeaderboardRecord) -> list[Rank]:
    """All policies, best first."""
    logs = {
        policy: np.mean([logs_of(record, policy, world) for world in record.cells], axis=0)
        for policy in record.policies
    }
    order = sorted(logs, key=lambda policy: float(logs[policy].mean()))
    time = {p: _mean_time(record, p) for p in order}
    lines = []
    for place, policy in enumerate(order):
        cells = [record.cells[world][policy] for world in record.cells]
        spent = [cell.epsilon for cell in cells if cell.epsilon is not None]
        behind = interval(logs[policy] - logs[order[place - 1]]) if place else None
        lines.append(
            Rank(
                place=place + 1,
                policy=policy,
                relative=interval(logs[policy]),
                behind=behind,
                messages=float(np.mean([cell.messages for cell in cells])),
                bytes=float(np.mean([cell.bytes for cell in cells])),
                epsilon=max(spent) if spent else None,
                time=time[policy] / time[BASE],
            )
        )
    return lines


def _mean_time(record: LeaderboardRecord, policy: str) -> float:
    return float(np.mean([record.cells[world][policy].microseconds for world in record.cells]))
