"""What a local server has released of each user's data, exactly or with noise."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fclub.core.noise import privatize_increment
from fclub.core.packing import flatten
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Indices
from fclub.privacy.ledger import Ledger
from fclub.privacy.noise import NoiseSource
from fclub.privacy.plan import StreamPlan


class Releases(Protocol):
    """Released prefix sums by user, and the variance of their noise by entry."""

    released: Packed
    noise: Floats

    def advance(self) -> None:
        """Release what is due by its count."""

    def arrays(self) -> dict[str, Any]: ...

    def restore(self, arrays: dict[str, Any]) -> None: ...


class ExactReleases:
    """Everything, without noise: what is released is what is known."""

    def __init__(self, users: Packed) -> None:
        self.released = users
        self.noise: Floats = np.zeros(len(users.counts))

    def advance(self) -> None:
        """Nothing is held back."""

    def arrays(self) -> dict[str, Any]:
        return {}

    def restore(self, arrays: dict[str, Any]) -> None:
        """The users' statistics are all there is."""


class PrivateReleases:
    """One stream per user: every observation enters exactly one noisy increment of its user's stream.

    Sums over the users of a cluster are post-processing, so clusters may change without a new
    release. A release is entered in the ledger before it is computed.
    """

    def __init__(
        self, users: Packed, plan: StreamPlan, source: NoiseSource, ledger: Ledger, name: str
    ) -> None:
        rows, dim = users.moment.shape
        self.users, self.plan, self.source, self.ledger, self.name = users, plan, source, ledger, name
        self.released, self.covered = Packed.zeros(rows, dim), Packed.zeros(rows, dim)
        self.noise: Floats = np.zeros(rows)
        self.steps: Indices = np.zeros(rows, dtype=np.int64)
        self._std = plan.entry_std(dim)
        self._variances = np.cumsum(plan.mechanism.factor(len(plan.schedule))[:, 0] ** 2)
        self._past: Floats = np.zeros((rows, 0, dim + 1, dim + 1))
        self._prefix: Floats = np.zeros((rows, dim + 1, dim + 1))

    def advance(self) -> None:
        schedule = self.plan.schedule
        following = np.searchsorted(schedule, self.covered.counts, side="right")
        open_rows = np.nonzero(following < len(schedule))[0]
        due = open_rows[self.users.counts[open_rows] >= schedule[following[open_rows]]]
        for row in due:
            self._release(int(row))

    def _release(self, row: int) -> None:
        step = int(self.steps[row])
        stream = f"{self.name}/{row}"
        if not self.ledger.is_open(stream):
            self.ledger.open(stream, self.plan.mechanism, self.plan.sensitivity)
        new = int(self.users.counts[row] - self.covered.counts[row])
        self.ledger.release(stream, new)
        if step >= self._past.shape[1]:
            room = np.zeros((len(self._past), 1, *self._past.shape[2:]))
            self._past = np.concatenate([self._past, room], axis=1)
        gram = self.users.gram[row] - self.covered.gram[row]
        moment = self.users.moment[row] - self.covered.moment[row]
        gaussian = self.source.gaussian(len(moment) + 1)
        past, prefix = self._past[row], self._prefix[row]
        privatize_increment(past, prefix, step, gaussian, self._std, gram, moment)
        self.released.gram[row] += gram
        self.released.moment[row] += moment
        self.released.counts[row] += new
        for exact, known in zip(self.covered, self.users, strict=True):
            exact[row] = known[row]
        self.steps[row] = step + 1
        self.noise[row] = self.plan.mechanism.std**2 * self._variances[step]

    def arrays(self) -> dict[str, Any]:
        own = {"noise": self.noise, "steps": self.steps, "past": self._past, "prefix": self._prefix}
        return own | flatten(self.released, "released.") | flatten(self.covered, "covered.")

    def restore(self, arrays: dict[str, Any]) -> None:
        self.noise, self.steps = arrays["noise"], arrays["steps"]
        self._past, self._prefix = arrays["past"], arrays["prefix"]
        for part, prefix in ((self.released, "released."), (self.covered, "covered.")):
            for name, array in flatten(part, prefix).items():
                array[...] = arrays[name]
