"""Where types are split and merged, from the sums of all servers: by evidence (`core.plus.splits`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fclub.core.plus.packed_sums import length_of_splits, read_splits, write_splits
from fclub.core.plus.split_sums import (
    SplitSums,
    merge_types,
    put_in_half,
    split_type,
)
from fclub.core.plus.splits import (
    Prior,
    block_centres,
    direction,
    evidences,
    merge_gains,
    prior_of,
    split_gains,
)
from fclub.core.plus.type_sums import PEOPLE
from fclub.core.types import Floats
from fclub.protocol.interfaces.learner import State

PATIENCE = 9
"""Reports of each server that a type's halves are given before others take their place."""

LEAST_HALF = 1.0
"""Users in each half of a type that is split."""

REMEMBERED = 256
"""Changes of types that are kept to be shown."""


class Grouping(NamedTuple):
    """The types of users, by id, and which halves each of them may be split into, by number.

    `version` says how often types were split and merged before.
    """

    version: int
    ids: tuple[int, ...]
    candidates: tuple[int, ...]

    def same_types(self, other: Grouping) -> bool:
        return self[:2] == other[:2]


class Change(NamedTuple):
    """Type `one` was split into itself and `other`, or `other` was merged into it."""

    version: int
    kind: str
    one: int
    other: int


class Splitter:
    """The types of a federation, or of a server alone: what every server's users add up to by them.

    `known` holds the sums of each server, by a number; they follow each split and merge. `candidates`
    number the halves of each type, 0 if it has none, and `starts` are where halves begin that no server
    has shared its users out between yet.
    """

    def __init__(self, most: int, dim: int) -> None:
        self.most, self.dim = most, dim
        self.version, self.ids = 0, [0]
        self.candidates, self.reports, self.last = [0], [0], 0
        self.starts: dict[int, Floats] = {}
        self.known: dict[int, SplitSums] = {}
        self.changes: list[Change] = []
        self._values: dict[int, Floats] = {}

    @property
    def types(self) -> int:
        return len(self.ids)

    @property
    def grouping(self) -> Grouping:
        return Grouping(self.version, tuple(self.ids), tuple(self.candidates))

    def learn(self, server: int, grouping: Grouping, sums: SplitSums) -> None:
        """A server's sums take the place of its earlier ones, if they are by the types as they are.

        If not, what was known of it counts until it has shared its users out between these: the types
        of its sums as wholes would be far worse than what the others have learned. Who knows of nobody
        else takes over its types.
        """
        if not grouping.same_types(self.grouping):
            if self.known.keys() - {server}:
                return
            self.version, self.ids = grouping.version, list(grouping.ids)
            self.candidates, self.reports, self.starts = [0] * self.types, [0] * self.types, {}
        for place, number in enumerate(grouping.candidates):
            if number and number == self.candidates[place]:
                self.reports[place] += 1
                self.starts.pop(number, None)
            else:
                put_in_half(sums, place, first=False)
        self.known[server] = sums
        self._values.pop(server, None)

    @property
    def total(self) -> SplitSums:
        """What all servers add up to."""
        return read_splits(self.added(list(self.known)), self.types, self.dim)

    def others(self, server: int) -> Floats:
        """What all other servers add up to, as it is sent."""
        return self.added([number for number in self.known if number != server])

    def own(self, server: int) -> Floats:
        """A server's sums by the types as they are, as they are sent."""
        if server not in self._values:
            nothing = SplitSums.zeros(self.types, self.dim)
            self._values[server] = write_splits(self.known.get(server, nothing))
        return self._values[server]

    def added(self, servers: list[int]) -> Floats:
        """What these servers add up to."""
        total = np.zeros(length_of_splits(self.types, self.dim))
        for server in sorted(servers):
            total += self.own(server)
        return total

    def forget(self, server: int) -> SplitSums | None:
        """Take a server's sums out."""
        self._values.pop(server, None)
        return self.known.pop(server, None)

    def freeze(self, server: int, sums: SplitSums) -> None:
        """Sums that stay, added to what stays already under this number."""
        before = self.forget(server)
        self.known[server] = sums if before is None else sums.plus(before)

    def decide(self) -> None:
        """Split and merge types where that raises F; then new halves for those without."""
        total = self.total
        people = float(total.sums.scalars[PEOPLE])
        if people < 1.0:
            return
        prior = prior_of(total.sums)
        new = self._split(prior, total, people)
        if new:
            total = self.total
        if self.types > 1 and self._merge(prior, total, people, new):
            total = self.total
        self._open(prior, total)

    def _split(self, prior: Prior, total: SplitSums, people: float) -> set[int]:
        """Places of types that have changed."""
        told = [number > 0 and number not in self.starts for number in self.candidates]
        if not any(told):
            return set()
        gains = split_gains(prior, total, evidences(prior, total.sums.rows), people)
        rest = total.sums.users - total.half_users
        small = np.minimum(total.half_users, rest) < LEAST_HALF
        gains[~np.array(told) | small] = -np.inf
        changed: set[int] = set()
        for place in np.argsort(-gains, kind="stable"):
            if not gains[place] > 0.0 or self.types == self.most:
                break
            other = min(set(range(self.most)) - set(self.ids))
            self.known = {number: split_type(sums, place) for number, sums in self.known.items()}
            self._note("split", self.ids[place], other)
            changed |= {int(place), self.types}
            self.ids.append(other)
            self.candidates.append(0)
            self.reports.append(0)
            self.candidates[place] = 0
        return changed

    def _merge(self, prior: Prior, total: SplitSums, people: float, new: set[int]) -> bool:
        """Pairs in which no type has changed in this decision, best first."""
        gains = merge_gains(prior, total, evidences(prior, total.sums.rows), people)
        pairs, used = [], new
        found = [(-float(gains[a, b]), int(a), int(b)) for a, b in np.argwhere(gains > 0.0)]
        for _, a, b in sorted(found):
            if not used & {a, b}:
                pairs.append((self.ids[a], self.ids[b]))
                used |= {a, b}
        for one, other in pairs:
            a, b = self.ids.index(one), self.ids.index(other)
            if total.sums.users[b] > total.sums.users[a]:
                one, other, a, b = other, one, b, a
            self.known = {number: merge_types(sums, a, b) for number, sums in self.known.items()}
            total = merge_types(total, a, b)
            self._note("merge", one, other)
            self.candidates[a] = 0
            for column in (self.ids, self.candidates, self.reports):
                del column[b]
        return bool(pairs)

    def _note(self, kind: str, one: int, other: int) -> None:
        self.version += 1
        self._values = {}
        self.changes = [*self.changes, Change(self.version, kind, one, other)][-REMEMBERED:]

    def _open(self, prior: Prior, total: SplitSums) -> None:
        """Halves for types that have none, or whose halves were given enough time."""
        waited = PATIENCE * len(self.known)
        due = [k for k in range(self.types) if not self.candidates[k] or self.reports[k] >= waited]
        if not due:
            return
        centres, _ = block_centres(prior, total.sums.rows)
        for place in due:
            self.candidates[place] = 0
            enough = total.sums.users[place] >= 2.0 * LEAST_HALF and self.types < self.most
            start = direction(prior, total, centres[place], place) if enough else None
            for sums in self.known.values():
                put_in_half(sums, place, first=False)
            self._values = {}
            if start is not None:
                self.last += 1
                self.candidates[place], self.reports[place] = self.last, 0
                self.starts[self.last] = start
        self.starts = {
            number: self.starts[number] for number in self.candidates if number in self.starts
        }

    @property
    def fresh(self) -> dict[int, Floats]:
        """Where the halves begin that nobody's users were shared out between, by the type's place."""
        numbers = enumerate(self.candidates)
        return {place: self.starts[number] for place, number in numbers if number in self.starts}

    def state(self) -> State:
        arrays = {f"splits{number}": write_splits(sums) for number, sums in self.known.items()}
        arrays |= {f"start{number}": start for number, start in self.starts.items()}
        return arrays, {
            "version": self.version,
            "ids": list(self.ids),
            "candidates": list(self.candidates),
            "reports": list(self.reports),
            "last": self.last,
            "known": list(self.known),
            "starts": list(self.starts),
            "changes": [list(change) for change in self.changes],
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.version, self.last = int(values["version"]), int(values["last"])
        self.ids, self.candidates = list(values["ids"]), list(values["candidates"])
        self.reports, self._values = list(values["reports"]), {}
        self.known = {
            number: read_splits(arrays[f"splits{number}"], self.types, self.dim)
            for number in values["known"]
        }
        self.starts = {number: arrays[f"start{number}"] for number in values["starts"]}
        self.changes = [Change(*change) for change in values["changes"]]
