"""The local server's side of agreeing: one open question, its answer, and what comes too early."""

from __future__ import annotations

import os
from typing import NamedTuple

from fclub.errors import InvalidMessage
from fclub.service.link.channel import VERSION, Hello, Numbered, Record, Welcome, encode_frame
from fclub.service.link.sessions import Verdict, judge

NUMBER_BYTES = 16
EARLY = 10_000
"""Frames that are kept at hand while the answer is awaited; the sender repeats what is not."""

AGREEING, AGREED, REFUSED = "agreeing", "agreed", "refused"


class Standing(NamedTuple):
    """Where a server is with its peer, and why, for people."""

    state: str
    reason: str | None = None


WAITING = Standing(AGREEING, "the global server has not answered yet: nothing is released")
ANOTHER_STORE = Standing(REFUSED, "another store speaks under this name: nothing is released")
OTHER_RULES = Standing(
    REFUSED, "the global server has another model or another plan: nothing is released"
)


SHUT_OUT = Standing(
    REFUSED,
    "the global server has put this server into quarantine: nothing of it is applied until the "
    "operator of the federation releases it; the log of the global server says what was refused",
)


class Handshake:
    """A question is repeated, byte for byte, until its answer comes; other answers are left alone."""

    def __init__(self) -> None:
        self.standing = WAITING
        self.frame: bytes | None = None
        self.doubt = self.shut = False
        self.early: dict[int, Numbered] = {}
        self._number, self._record = b"", Record(b"", False, 0, b"", 0, 0, 0, (b"",), b"")

    @property
    def shown(self) -> Standing:
        """What people are told."""
        return SHUT_OUT if self.shut else self.standing

    def ask(self, sender: str, record: Record) -> bytes:
        """The bytes of a new question."""
        self._number, self._record, self.doubt = os.urandom(NUMBER_BYTES), record, False
        self.frame = encode_frame(Hello(VERSION, sender, self._number, record))
        if self.standing.state == AGREED:
            self.standing = WAITING
        return self.frame

    def answered(self, welcome: Welcome) -> Verdict | None:
        """What the two records say; None if it answers another question."""
        if self.frame is None or welcome.number != self._number:
            return None
        verdict = judge(self._record, welcome.record)
        offer = welcome.offer
        if (offer is None) != (verdict.agreed or verdict.refused):
            raise InvalidMessage("the global server comes to another verdict")
        if offer is not None:
            given = Verdict(False, offer.local_new, offer.local_old, offer.global_lost)
            if given != verdict or offer.ordinal <= self._record.ordinal:
                raise InvalidMessage("the global server offers a session for another verdict")
        self.frame = None
        return verdict

    def keep(self, frame: Numbered) -> None:
        """A message that may be looked at once there is agreement."""
        if len(self.early) < EARLY:
            self.early[frame.sequence] = frame
