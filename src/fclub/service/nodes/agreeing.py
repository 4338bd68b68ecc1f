"""How a local server and the global server agree: sessions, and slots that one process is granted."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from contextlib import suppress
from typing import Any

import msgspec

from fclub.errors import FclubError, InvalidFile
from fclub.protocol.seam import LocalServer, Slotted
from fclub.service.link.channel import GLOBAL, Channel, Grant, Numbered, Offer, Welcome
from fclub.service.link.sessions import beginning_of, reason_for
from fclub.service.nodes.handshake import AGREED, ANOTHER_STORE, Handshake, Standing
from fclub.service.nodes.node import Node, RecordedNoise
from fclub.service.store.backup import SILENT
from fclub.service.store.store import Store

MOST_UNHEARD = 10_000
"""Messages without a receipt; a question tells of each, and a broker takes a megabyte at a time."""


class AgreeingNode(Node):
    """Releases nothing before both sides agree on where they stand."""

    server: LocalServer

    def __init__(self, name: str, noise: RecordedNoise, store: Store) -> None:
        super().__init__(store, noise)
        self.name = name
        self.channel = Channel(name, GLOBAL)
        self.handshake = Handshake()
        self.marked = store.get("marked") == "true"
        self.begun: dict[str, Any] | None = json.loads(store.get("begun") or "null")
        self.paused = False
        self.era = 0

    @abstractmethod
    def _receive_numbered(self, frame: Numbered) -> None:
        """Apply a message of the global server, unless it was applied before."""

    @abstractmethod
    def _ask_for_slot(self) -> bool:
        """Ask whether this process may use the slot that is due, if one is and both sides agree."""

    def connected(self) -> None:
        self.hello()

    def hello(self) -> None:
        """Ask where the global server stands; until it has answered nothing is released."""
        self._wait()
        record = self.channel.record(self.incarnation, self.marked, self.server.used)
        self.changes.letters.append((GLOBAL, self.handshake.ask(self.name, record)))

    def _ask_in_time(self) -> None:
        """Hold back what would make the question itself too long; later sums hold it as well.

        A store that is being read, or refused, does not ask.
        """
        if self.handshake.standing.state == AGREED and self.handshake.frame is None:
            self.hello()

    def _knocked(self) -> None:
        if not self._repeat_hello():
            self.hello()

    def _repeat_hello(self) -> bool:
        """Whether a question is open; it is sent once more."""
        if self.handshake.frame is not None:
            self.changes.letters.append((GLOBAL, self.handshake.frame))
        return self.handshake.frame is not None

    def tick(self) -> bool:
        if self._repeat_hello():
            return True
        if self.handshake.doubt and self.handshake.standing.state == AGREED:
            self.hello()
            return True
        return self._ask_for_slot()

    def stuck(self, channel: Channel) -> bool:
        """Ask: the answer says what has to be sent again."""
        agreed = self.handshake.standing.state == AGREED
        if agreed:
            self.hello()
        return agreed

    def _pause(self) -> None:
        self.paused = True
        self.server.pause()

    def _wait(self) -> None:
        """Release nothing until there is an answer."""
        if not self.paused:
            self._pause()
            self._log("pause", "", b"")

    def _go_on(self) -> None:
        self.paused = False
        self.server.go_on()

    def _welcomed(self, frame: Welcome) -> None:
        verdict = self.handshake.answered(frame)
        if verdict is None:
            return
        if verdict.refused:
            self.handshake.standing = ANOTHER_STORE
            self.changes.notices.append(str(ANOTHER_STORE.reason))
        elif frame.offer is not None:
            self._accept(frame.offer)
        else:
            self.channel.confirm(frame.record.received, frame.record.heard, self.changes)
            self._agree(frame.record.used)

    def _accept(self, offer: Offer) -> None:
        """Begin the session that is offered, send again what is needed, and ask again in it."""
        self._begin(offer, self.handshake.sure)
        self._log("begin", GLOBAL, msgspec.msgpack.encode((offer, self.handshake.sure)))
        self.incarnation, self.marked = offer.incarnation, False
        reason = reason_for(offer)
        self.begun = {"session": offer.ordinal, "at": time.time(), "reason": reason}
        self.changes.note("incarnation", json.dumps(self.incarnation.hex()))
        self.changes.note("marked", "false")
        self.changes.note("begun", json.dumps(self.begun))
        if offer.ordinal > 1:
            self.changes.notices.append(f"a new session begins: {reason}")
            self.handshake.standing = Standing(self.handshake.standing.state, reason)
        self.hello()

    def _begin(self, offer: Offer, sure: bool) -> None:
        self.channel.begin(offer.ordinal, offer.session, self.changes)
        self.era += offer.local_old
        self.handshake.early.clear()
        self.server.begin(beginning_of(offer, sure))

    def _agree(self, used: int) -> None:
        """Send again what was not heard, and go on; a slot that may be granted is not given up."""
        self._send_again(self.channel)
        self._go_on()
        self._log("agree", GLOBAL, b"")
        self.handshake.standing, self.handshake.sure = Standing(AGREED), True
        server = self.server.slotted
        if server is not None and used - 1 > server.used:
            self._forgo(server, used - 1)
        self._ask_for_slot()
        early, self.handshake.early = self.handshake.early, {}
        for _, frame in sorted(early.items()):
            # What is refused now is not confirmed, so it comes again and is told then.
            with suppress(FclubError):
                self._receive_numbered(frame)

    def _granted(self, grant: Grant) -> None:
        """Compute the slot, or know that another process has it; what is not due any more is void."""
        server = self.server.slotted
        self.channel.check_session(grant.session)
        if self.paused or grant.process != self.handshake.process or server is None:
            return
        slot = server.due_slot()
        if slot is None or server.slot_number(slot) != grant.slot:
            return
        if grant.granted:
            server.release(slot)
            self._log("slot", "", json.dumps(slot).encode())
        else:
            self._forgo(server, grant.slot)

    def _forgo(self, server: Slotted, used: int) -> None:
        server.forgo(used)
        self._log("forgo", "", json.dumps(used).encode())

    def _forgo_unfinished(self) -> None:
        """Give up a slot that another process was granted: it, or one more copy of this store, may
        have sent it with noise of its own."""
        server = self.server.slotted
        if server is not None and server.unfinished:
            self._forgo(server, server.unfinished)

    def _forgo_period(self) -> None:
        """Whoever put this store back does not ask the global server which slots are used."""
        server = self.server.slotted
        if server is not None:
            self._forgo(server, server.period_end(time.time()))
        self.changes.note(SILENT, "false")

    @property
    def channels(self) -> list[Channel]:
        return [self.channel]

    def _replay(self, kind: str, source: str, body: bytes) -> None:
        server = self.server.slotted
        match kind:
            case "visit" if server is not None:
                server.arrive()
            case "slot" if server is not None:
                server.release(json.loads(body))
            case "forgo" if server is not None:
                server.forgo(json.loads(body))
            case "pause":
                self._pause()
            case "agree":
                self._go_on()
            case "begin":
                self._begin(*msgspec.msgpack.decode(body, type=tuple[Offer, bool]))
            case _:
                raise InvalidFile(f"{self.store.path} has a log entry of kind {kind!r}")
