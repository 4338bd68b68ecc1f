"""The users of a server of types: what is kept of each, and which type each is most likely of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fclub.core.packing import flatten, rebuild, with_room, with_row
from fclub.core.plus.fading import fade_in, mean_weight
from fclub.core.plus.type_rounds import keep
from fclub.core.statistics import Packed, replace_reward
from fclub.core.types import Counts, Floats, Indices, Labels, Vector


class Crowd(NamedTuple):
    """What is kept of each user: statistics of centred rewards, and the sum of their squares."""

    users: Packed
    squares: Floats

    @staticmethod
    def zeros(count: int, dim: int) -> Crowd:
        return Crowd(Packed.zeros(count, dim), np.zeros(count))

    def slice(self, start: int, stop: int) -> Crowd:
        """The same memory, fewer rows."""
        return Crowd(self.users.slice(start, stop), self.squares[start:stop])

    def copy(self, start: int, stop: int) -> Crowd:
        """Some rows, which nothing changes any more."""
        part = self.slice(start, stop)
        return Crowd(part.users.copy(), part.squares.copy())


class UserTypes(NamedTuple):
    """The most probable type of every user."""

    labels: Labels


class People:
    """A row for each user; at first they may be a slice of a federation's arrays.

    It counts all observations (`seen`) and, for every type, its users and their observations
    (`members`) on the way. Compiled rounds of a simulation write into the arrays themselves, and then
    only `count` tells.

    With `kept` < 1 users are served from `recent`, what is left of observations that fade.
    """

    def __init__(self, crowd: Crowd, types: int, kept: float = 1.0) -> None:
        self.crowd = self._room = crowd
        self.kept, self.recent = kept, Packed.zeros(0, crowd.users.moment.shape[1])
        if kept < 1.0:
            self.recent = crowd.users.copy()
        self._recent_room = self.recent
        self._types = self._types_room = UserTypes(np.zeros(len(crowd.squares), dtype=np.int32))
        self._number = types
        self._count_all()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def users(self) -> Packed:
        return self.crowd.users

    @property
    def serving(self) -> Packed:
        """What users are served from."""
        return self.users if self.kept == 1.0 else self.recent

    @property
    def counts(self) -> Counts:
        return self.users.counts

    @property
    def labels(self) -> Labels:
        return self._types.labels

    @staticmethod
    def fading(all_people: list[People]) -> Packed:
        """What is left of observations that fade, of everybody, in order."""
        parts = [people.recent for people in all_people]
        return Packed(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    @staticmethod
    def faded(all_people: list[People], recent: Packed) -> None:
        """Share out what compiled rounds have left."""
        start = 0
        for people in all_people:
            if people.kept < 1.0:
                people.recent = people._recent_room = recent.slice(start, start + len(people))
            start += len(people)

    def count(self, start: int = 0, stop: int | None = None) -> Counts:
        """Of these rows: users and observations of every type."""
        labels = self.labels[start:stop]
        users = np.bincount(labels, minlength=self._number)
        own = np.bincount(labels, weights=self.counts[start:stop], minlength=self._number)
        return np.stack([users, own.astype(np.int64)])

    def _count_all(self) -> None:
        self.seen, self.members = int(self.counts.sum()), self.count()

    def add(self, label: int) -> int:
        """One more user, of whom nothing is known; returns its row."""
        self.crowd, self._room = with_row(self.crowd, self._room)
        self._types, self._types_room = with_row(self._types, self._types_room)
        if self.kept < 1.0:
            self.recent, self._recent_room = with_row(self.recent, self._recent_room)
        self.labels[-1] = label
        self.members[0, label] += 1
        return len(self) - 1

    def observe(self, row: int, x: Vector, y: float) -> None:
        """A centred reward."""
        keep(self.users, self.crowd.squares, row, x, y)
        if self.kept < 1.0:
            fade_in(self.recent, row, x, y, self.kept)
        self.seen += 1
        self.members[1, self.labels[row]] += 1

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """How old the observation is is not kept: of what fades, it is taken for an average one."""
        change = replace_reward(self.users, self.crowd.squares, row, x, old, new)
        if self.kept < 1.0:
            self.recent.moment[row] += mean_weight(int(self.counts[row]), self.kept) * change

    def forget(self, row: int, label: int) -> None:
        """A row of which nothing is known again."""
        self.seen -= int(self.counts[row])
        self.members -= self.count(row, row + 1)
        self.users.clear(row)
        self.crowd.squares[row] = 0.0
        if self.kept < 1.0:
            self.recent.clear(row)
        self.labels[row] = label
        self.members[0, label] += 1

    def label(self, start: int, labels: Indices) -> None:
        """Types of so many users from a row on."""
        stop = start + len(labels)
        self.members -= self.count(start, stop)
        self.labels[start:stop] = labels
        self.members += self.count(start, stop)

    def relabel(self, gone: Indices, label: int) -> None:
        """Users of types that are gone are of another one."""
        rows = np.flatnonzero(np.isin(self.labels, gone))
        self.members[:, label] += self.members[:, gone].sum(axis=1)
        self.members[:, gone] = 0
        self.labels[rows] = label

    def expect(self, label: int) -> None:
        """Count users of whom nothing is known with this type."""
        unknown = np.flatnonzero(self.counts == 0)
        self.members[0] -= np.bincount(self.labels[unknown], minlength=self._number)
        self.labels[unknown] = label
        self.members[0, label] += len(unknown)

    @property
    def by_user(self) -> tuple[str, ...]:
        return tuple(flatten(self.crowd, "crowd.") | self._fading())

    def _fading(self) -> dict[str, Any]:
        return flatten(self.recent, "recent.") if self.kept < 1.0 else {}

    def arrays(self) -> dict[str, Any]:
        return flatten(self.crowd, "crowd.") | self._fading() | {"labels": self.labels}

    def restore(self, arrays: dict[str, Any]) -> None:
        if len(arrays["labels"]) == len(self):
            for name, array in flatten(self.crowd, "crowd.").items():
                array[...] = arrays[name]
        else:
            self.crowd, self._room = with_room(rebuild(self.crowd, arrays, "crowd."))
        if self.kept < 1.0:
            faded = "recent.counts" in arrays  # else what was kept has not faded yet
            kept = rebuild(self.recent, arrays, "recent.") if faded else self.users.copy()
            self.recent, self._recent_room = with_room(kept)
        self._types, self._types_room = with_room(UserTypes(arrays["labels"]))
        self._count_all()
