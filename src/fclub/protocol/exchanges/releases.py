"""What a local server has released of each user's data, with noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fclub.core.lattice import MOST_OBSERVATIONS, STEP, Whole, whole
from fclub.core.packing import flatten, rebuild, with_row
from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Floats, Indices
from fclub.privacy.encoding import decode, encode
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.mechanisms import Increments, StreamPlan
from fclub.privacy.noise import NoiseSource
from fclub.privacy.sensitivity import pair_of, released_entries, released_std


class Streams(NamedTuple):
    """Every user's stream: what was released, what of the user's data it covers, noise, releases.

    `base` is what no stream may cover any more.
    """

    released: Packed
    covered: Packed
    base: Packed
    noise: Floats
    steps: Indices

    @staticmethod
    def zeros(rows: int, dim: int) -> Streams:
        return Streams(
            Packed.zeros(rows, dim),
            Packed.zeros(rows, dim),
            Packed.zeros(rows, dim),
            np.zeros(rows),
            np.zeros(rows, dtype=np.int64),
        )


class PrivateReleases:
    """One stream per user: every observation enters exactly one noisy increment of its user's stream.

    Sums over the users of a cluster are post-processing, so clusters may change without a new
    release. A release is entered in the ledger before it is computed; a stream for which the budget
    has no room is not started. What is released are whole numbers; `released` is computed from them
    and from nothing else.
    """

    def __init__(
        self, users: Packed, plan: StreamPlan, source: NoiseSource, ledger: Ledger, name: str
    ) -> None:
        rows, dim = users.moment.shape
        assert isinstance(plan.mechanism, Increments)
        self.users, self.plan, self.source, self.ledger, self.name = users, plan, source, ledger, name
        self.mechanism, self.dim = plan.mechanism, dim
        self.streams = self._room = Streams.zeros(rows, dim)
        self.era = 0
        self._deviations = released_std(plan.domain, dim, plan.mechanism.std) / STEP
        self._factor = plan.mechanism.factor(len(plan.schedule))
        self._variances = plan.mechanism.variances
        self._history: dict[int, list[tuple[Whole, Whole]]] = {}

    @property
    def released(self) -> Packed:
        return self.streams.released

    @property
    def noise(self) -> Floats:
        return self.streams.noise

    def add_user(self, users: Packed) -> None:
        """One user more; all users' statistics are in `users` from now on."""
        self.users = users
        self.streams, self._room = with_row(self.streams, self._room)

    def forget(self, row: int) -> int:
        """The user's stream never releases again; the ledger keeps what it has cost.

        Returns how many observations were released.
        """
        released = int(self.released.counts[row])
        for array in flatten(self.streams).values():
            array[row] = 0
        self._history.pop(row, None)
        return released

    def withdraw(self, row: int, part: Statistics) -> None:
        """Data that a row's releases cover are in its statistics no more; their count stays.

        The next increment must not release once more, negated, what has gone.

        The sums of earlier increments stay as they were: later releases are encoded from them.
        """
        self.streams.covered.gram[row] -= part.gram
        self.streams.covered.moment[row] -= part.moment

    @property
    def closed(self) -> int:
        """Observations that are never released, nor released again under this server's name."""
        return int(self.streams.base.counts.sum())

    def close(self) -> None:
        """Release nothing more of all that is known now, as a lost copy may have released it.

        New streams begin for what comes later; they are disjoint from all that may have been.

        One more stream is charged in full, for those that this ledger has not heard of.
        """
        self.era += 1
        self._started(f"{self.name}/lost/{self.era}")
        self._history = {}
        for array in flatten(self.streams).values():
            array[...] = 0
        for base, known in zip(self.streams.base, self.users, strict=True):
            base[...] = known

    def withhold(self, row: int, part: Statistics) -> None:
        """Never release this part of a row's statistics."""
        self.streams.base.gram[row] += part.gram
        self.streams.base.moment[row] += part.moment
        self.streams.base.counts[row] += part.count

    def _stream(self, row: int) -> str:
        return f"{self.name}/{self.era}.{row}" if self.era else f"{self.name}/{row}"

    def advance(self, start: int = 0, most: int | None = None) -> int | None:
        """Release what is due by its count, of rows from `start` on, and of `most` of them.

        Returns the row to go on with; None if there is nothing more. Beyond `MOST_OBSERVATIONS` sums
        may not be exact: nothing is due.
        """
        schedule, covered = self.plan.schedule, self.streams.covered.counts
        following = np.searchsorted(schedule, covered, side="right")
        exact = self.users.counts <= MOST_OBSERVATIONS
        open_rows = np.nonzero((following < len(schedule)) & exact)[0]
        counts = self.users.counts - self.streams.base.counts
        due = open_rows[counts[open_rows] >= schedule[following[open_rows]]]
        due = due[np.searchsorted(due, start) :]
        for row in due[:most]:
            if self._started(self._stream(row)):
                self._release(int(row))
        return None if most is None or len(due) <= most else int(due[most])

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
        streams, step = self.streams, int(self.streams.steps[row])
        covered, base = streams.covered, streams.base
        new = int(self.users.counts[row] - base.counts[row] - covered.counts[row])
        self.ledger.release(self._stream(row), new)
        gram = self.users.gram[row] - base.gram[row] - covered.gram[row]
        moment = self.users.moment[row] - base.moment[row] - covered.moment[row]
        past = self._history.setdefault(row, [])
        increment = whole(released_entries(gram, moment))
        increments = np.array([before for before, _ in past] + [increment])
        encoded = encode(self.mechanism.encoder[step, : step + 1], increments)
        past.append((increment, encoded + self.source.integers(self._deviations)))
        sent = np.array([released for _, released in past])
        prefix = decode(self._factor[step, : step + 1], sent)
        streams.released.gram[row], streams.released.moment[row] = pair_of(prefix, self.dim)
        streams.released.counts[row] += new
        for exact, known, before in zip(streams.covered, self.users, base, strict=True):
            exact[row] = known[row] - before[row]
        streams.steps[row] = step + 1
        streams.noise[row] = self._variances[step + 1]

    def open_streams(self) -> dict[str, Stream]:
        return self.ledger.streams

    def state(self) -> dict[str, Any]:
        """`history` holds releases stream by stream, each in its order."""
        rows = [row for row, past in self._history.items() for _ in past]
        pairs = np.array([pair for past in self._history.values() for pair in past], dtype=np.int64)
        pairs = pairs.reshape(len(rows), 2, len(self._deviations))
        return flatten(self.streams) | {
            "era": np.array(self.era),
            "history.rows": np.array(rows, dtype=np.int64),
            "history.increments": pairs[:, 0],
            "history.released": pairs[:, 1],
        }

    def restore(self, arrays: dict[str, Any], users: Packed) -> None:
        self.users = users
        self.streams = self._room = rebuild(self.streams, arrays)
        self.era, self._history = int(arrays["era"]), {}
        names = ("history.rows", "history.increments", "history.released")
        for row, increment, released in zip(*(arrays[name] for name in names), strict=True):
            self._history.setdefault(int(row), []).append((increment, released))
