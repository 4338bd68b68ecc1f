"""What a local server has released of each user's data, exactly or with noise."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from fclub.core.noise import privatize_increment
from fclub.core.packing import flatten, rebuild, with_row
from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Floats, Indices
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.mechanisms import StreamPlan
from fclub.privacy.noise import NoiseSource


class Releases(Protocol):
    """Released prefix sums by user, and the variance of their noise by entry."""

    @property
    def released(self) -> Packed: ...

    @property
    def noise(self) -> Floats: ...

    def add_user(self, users: Packed) -> None:
        """One user more; all users' statistics are in `users` from now on."""

    def forget(self, row: int) -> int:
        """Drop what was released of a user; returns how many observations that were at most."""

    def withdraw(self, row: int, part: Statistics) -> None:
        """Data that a row's releases cover are in its statistics no more; their count stays."""

    def advance(self) -> None:
        """Release what is due by its count."""

    def open_streams(self) -> dict[str, Stream]:
        """The ledger's streams, which all may release more, by name."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, arrays: dict[str, Any], users: Packed) -> None:
        """Continue from what `state` gave; all users' statistics are in `users`."""


class ExactReleases:
    """Everything, without noise: what is released is what is known."""

    def __init__(self, users: Packed) -> None:
        self.add_user(users)

    def add_user(self, users: Packed) -> None:
        self.released = users
        self.noise: Floats = np.zeros(len(users.counts))

    def forget(self, row: int) -> int:
        """What is released are the user's statistics themselves, which their owner clears."""
        return int(self.released.counts[row])

    def withdraw(self, row: int, part: Statistics) -> None:
        """What is released are the statistics themselves."""

    def advance(self) -> None:
        """Nothing is held back."""

    def open_streams(self) -> dict[str, Stream]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, arrays: dict[str, Any], users: Packed) -> None:
        self.add_user(users)


class Streams(NamedTuple):
    """Every user's stream: what was released, what of the user's data it covers, noise, releases.

    `past` and `prefix` are what the next release's noise is made from (`core.noise`).
    """

    released: Packed
    covered: Packed
    noise: Floats
    steps: Indices
    past: Floats
    prefix: Floats

    @staticmethod
    def zeros(rows: int, dim: int) -> Streams:
        return Streams(
            Packed.zeros(rows, dim),
            Packed.zeros(rows, dim),
            np.zeros(rows),
            np.zeros(rows, dtype=np.int64),
            np.zeros((rows, 0, dim + 1, dim + 1)),
            np.zeros((rows, dim + 1, dim + 1)),
        )


class PrivateReleases:
    """One stream per user: every observation enters exactly one noisy increment of its user's stream.

    Sums over the users of a cluster are post-processing, so clusters may change without a new
    release. A release is entered in the ledger before it is computed; a stream for which the budget
    has no room is not started.
    """

    def __init__(
        self, users: Packed, plan: StreamPlan, source: NoiseSource, ledger: Ledger, name: str
    ) -> None:
        rows, dim = users.moment.shape
        self.users, self.plan, self.source, self.ledger, self.name = users, plan, source, ledger, name
        self.streams = self._room = Streams.zeros(rows, dim)
        self._std = plan.entry_std(dim)
        self._variances = np.cumsum(plan.mechanism.factor(len(plan.schedule))[:, 0] ** 2)

    @property
    def released(self) -> Packed:
        return self.streams.released

    @property
    def noise(self) -> Floats:
        return self.streams.noise

    def add_user(self, users: Packed) -> None:
        self.users = users
        self.streams, self._room = with_row(self.streams, self._room)

    def forget(self, row: int) -> int:
        """The user's stream never releases again; the ledger keeps what it has cost."""
        released = int(self.released.counts[row])
        for array in flatten(self.streams).values():
            array[row] = 0
        return released

    def withdraw(self, row: int, part: Statistics) -> None:
        """The next increment must not release once more, negated, what has gone."""
        self.streams.covered.gram[row] -= part.gram
        self.streams.covered.moment[row] -= part.moment

    def advance(self) -> None:
        schedule, covered = self.plan.schedule, self.streams.covered.counts
        following = np.searchsorted(schedule, covered, side="right")
        open_rows = np.nonzero(following < len(schedule))[0]
        due = open_rows[self.users.counts[open_rows] >= schedule[following[open_rows]]]
        for row in due:
            if self._started(f"{self.name}/{row}"):
                self._release(int(row))

    def _started(self, stream: str) -> bool:
        """Whether the stream is open, or can be opened now."""
        mechanism, sensitivity = self.plan.mechanism, self.plan.sensitivity
        if self.ledger.is_open(stream):
            return True
        if not self.ledger.admits(mechanism, sensitivity):
            return False
        self.ledger.open(stream, mechanism, sensitivity)
        return True

    def _release(self, row: int) -> None:
        step = int(self.streams.steps[row])
        new = int(self.users.counts[row] - self.streams.covered.counts[row])
        self.ledger.release(f"{self.name}/{row}", new)
        self._make_room(step)
        streams = self.streams
        gram = self.users.gram[row] - streams.covered.gram[row]
        moment = self.users.moment[row] - streams.covered.moment[row]
        gaussian = self.source.gaussian(len(moment) + 1)
        past, prefix = streams.past[row], streams.prefix[row]
        privatize_increment(past, prefix, step, gaussian, self._std, gram, moment)
        streams.released.gram[row] += gram
        streams.released.moment[row] += moment
        streams.released.counts[row] += new
        for exact, known in zip(streams.covered, self.users, strict=True):
            exact[row] = known[row]
        streams.steps[row] = step + 1
        streams.noise[row] = self.plan.mechanism.std**2 * self._variances[step]

    def open_streams(self) -> dict[str, Stream]:
        return self.ledger.streams

    def _make_room(self, step: int) -> None:
        """For the draw of this step; every stream has as many as the longest."""
        past = self.streams.past
        if step >= past.shape[1]:
            longer = np.concatenate([past, np.zeros((len(past), 1, *past.shape[2:]))], axis=1)
            self.streams = self._room = self.streams._replace(past=longer)

    def state(self) -> dict[str, Any]:
        return flatten(self.streams)

    def restore(self, arrays: dict[str, Any], users: Packed) -> None:
        self.users = users
        empty = self.streams._replace(past=arrays["past"])
        self.streams = self._room = rebuild(empty, arrays)
