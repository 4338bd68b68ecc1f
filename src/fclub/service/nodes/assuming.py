"""What a server learns beside rewards of its decisions: what was shown elsewhere, assumed rewards."""

from __future__ import annotations

import struct
from abc import abstractmethod

import numpy as np

from fclub.core.types import Vector
from fclub.errors import CannotReplace, OtherReward
from fclub.protocol.seam import Family
from fclub.service.nodes.agreeing import AgreeingNode
from fclub.service.nodes.node import RecordedNoise
from fclub.service.store.books import Books
from fclub.service.store.decisions import Decisions, Shown
from fclub.service.store.past import Past
from fclub.service.store.store import Store

ASSUMED = "assumed"
"""Where a log entry comes from that learns a reward which was declared for none coming."""


class AssumingNode(AgreeingNode):
    """Learns every observation once, as an entry of the log.

    `rows` are the users by name; `_gone` are rows of users who were forgotten.
    """

    books: Books
    rows: dict[str, int]

    def __init__(self, name: str, family: Family, noise: RecordedNoise, store: Store) -> None:
        super().__init__(name, noise, store)
        self.family = family
        self.decisions, self.past = Decisions(store), Past(store)
        self._gone: set[int] = set()

    @abstractmethod
    def _add_user(self, user: str) -> int:
        """The row of a user who was not there before."""

    @abstractmethod
    def _learn(self, kind: str, row: int, x: Vector, reward: float, source: str = "") -> None:
        """Learn one observation; `kind` and `source` are those of its entry."""

    def learn_past(self, key: str, user: str, x: Vector, reward: float) -> bool:
        """Learn from an observation made elsewhere; False if that of this id is known already.

        Once this store was old, another copy of it may have learned and released the same before.
        """
        known, row = self.past.find(key), self.rows.get(user)
        if known is not None and known[0] not in self._gone:
            if known != (row, reward):
                raise OtherReward(f"observation {key!r} is known with another user or reward")
            return False
        self.family.domain.check_items(x[None, :])
        if row is None:
            row = self._add_user(user)
        self._learn("withhold" if self.era else "observe", row, x, reward)
        self.past.add(key, row, reward, self.changes)
        return True

    def _replace_reward(self, key: bytes, shown: Shown, reward: float) -> None:
        """A reward takes the place of the one that was assumed since none had come."""
        if shown.reward != reward:
            if shown.era != self.era or shown.assumed != 1 + self.books.sent:
                raise CannotReplace(
                    f"no reward of decision {key.hex()!r} had come in time, so one was assumed, and "
                    "this server has sent messages since in which that may be"
                )
            x: Vector = np.frombuffer(shown.features).copy()
            told = shown.row, float(shown.reward or 0.0), reward
            self._replace(x, *told)
            body = struct.pack("<qdd", *told)
            self._log("replace", "", body + x.tobytes())
        self.decisions.reward(key, reward, self.changes)

    def _replace(self, x: Vector, row: int, old: float, new: float) -> None:
        self.touched.add(row)
        self.server.replace(row, x, old, new)

    def assume(self, before: float, reward: float) -> bool:
        """Let some decisions made before a time, whose reward has not come, count as this reward.

        False if there are no more. The log says of each that it was assumed.
        """
        keys = self.decisions.open_before(before)
        for key in keys:
            shown = self.decisions.find(key)
            if shown is not None and shown.reward is None and shown.row not in self._gone:
                kind = "observe" if shown.era == self.era else "withhold"
                x: Vector = np.frombuffer(shown.features).copy()
                sent = self.books.sent  # what learning itself sends may hold it already
                self._learn(kind, shown.row, x, reward, ASSUMED)
                self.decisions.reward(key, reward, self.changes, 1 + sent)
        if keys:
            self.decisions.looked_at(keys[-1], self.changes)
        return bool(keys)
