"""The global server with its log, one channel per local server, and its distrust of what arrives.

Messages that arrive together are applied one by one, each after its own check. What they make due, a
phase, a merge or answers, is looked at once when all are there; then they are one entry of the log.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from fclub.errors import (
    Conflict,
    InvalidFile,
    InvalidMessage,
    NotAgreed,
    OtherSession,
    OtherSettings,
    OtherVersion,
    OutOfOrder,
    Quarantined,
)
from fclub.privacy.noise import NoNoise
from fclub.protocol.link import Communications
from fclub.protocol.messages import Message, encode
from fclub.protocol.seam import Family, GlobalServer
from fclub.service.link.channel import (
    GLOBAL,
    VERSION,
    Ask,
    Channel,
    Grant,
    Hello,
    Knock,
    Numbered,
    Offer,
    Receipt,
    Welcome,
    decode_frame,
    encode_frame,
)
from fclub.service.link.sessions import beginning_of, judge, offer_for, reason_for
from fclub.service.nodes.node import Node, RecordedNoise
from fclub.service.store.store import Changes, Store

QUARANTINE_AFTER = 5
"""Refused messages until a server is not listened to any more."""

ANSWERS = 8
"""Answers that are remembered of each server: a broker may deliver a question twice."""

KINDS: dict[type[NotAgreed], str] = {
    OutOfOrder: "out of order",
    OtherSession: "other session",
    Conflict: "conflict",
    OtherVersion: "other version",
}


class Answer(NamedTuple):
    """What a question got: the bytes, and the session that they offer, if any."""

    frame: bytes
    offer: Offer | None


_Kept = list[tuple[str, bytes, Offer | None]]
_Taken = list[tuple[str, bytes]]
"""Senders and payloads."""


@dataclass
class Peer:
    """What the global server keeps about a local server beside its clusters."""

    channel: Channel
    number: int
    marked: bool = False
    incarnations: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    granted: tuple[int, str] = (0, "")
    doubt: bool = False
    trouble: str | None = None
    offences: int = 0
    quarantined: bool = False
    rejected: dict[str, int] = field(default_factory=dict)
    communications: Communications = field(default_factory=Communications)
    seen: float | None = None


class GlobalNode(Node):
    """Frames in, changes out. A refused frame changes nothing but the count of refusals."""

    server: GlobalServer
    name = GLOBAL

    def __init__(self, names: list[str], family: Family, store: Store) -> None:
        super().__init__(store, RecordedNoise(NoNoise()))
        self._taken: _Taken = []
        self.family = family
        self.names = self._number(names)
        self.peers = {
            name: Peer(Channel(GLOBAL, name), number) for number, name in enumerate(self.names)
        }
        self.server = self._make_server(0)
        self._recover()
        self._remember_answers()
        self._trust()
        self._invite()

    def _make_server(self, invited: int) -> GlobalServer:
        server = self.family.global_server(list(range(invited)), self)
        server.gathers = True
        return server

    def _number(self, names: list[str]) -> list[str]:
        """Servers keep their numbers; new names come after the old ones."""
        known: list[str] = json.loads(self.store.get("servers") or "[]")
        gone = [name for name in known if name not in names]
        if gone:
            raise OtherSettings(
                f"servers: {', '.join(gone)} missing; names may be added, none removed "
                f"({self.store.path} knows {', '.join(known)})"
            )
        names = known + [name for name in names if name not in known]
        self.store.note("servers", json.dumps(names))
        return names

    @property
    def communications(self) -> Communications:
        """Communication with all servers together."""
        return sum((peer.communications for peer in self.peers.values()), Communications())

    def to_local(self, server: int, message: Message) -> None:
        """The link of the global server."""
        payload, peer = encode(message), self.peers[self.names[server]]
        if peer.channel.ordinal:
            peer.communications.count(message, len(payload))
            peer.channel.send(payload, self.changes)

    def receive(self, sender: str, data: bytes) -> None:
        """A frame on the subject of `sender`; raises what was wrong with it after counting that."""
        peer = self.peers.get(sender)
        if peer is None:
            raise InvalidMessage(f"no server is called {sender!r}")
        if peer.quarantined:
            raise Quarantined(f"{sender} is in quarantine")
        try:
            self._take_in(peer, sender, data)
        except NotAgreed as error:
            self._count(peer, KINDS[type(error)])
            peer.doubt |= isinstance(error, OtherSession | Conflict)
            if isinstance(error, OtherVersion):
                peer.trouble = str(error)
            raise
        except InvalidMessage as error:
            self._offend(peer, error)
            raise

    def _take_in(self, peer: Peer, sender: str, data: bytes) -> None:
        frame = decode_frame(data, sender)
        peer.seen = time.time()
        match frame:
            case Hello():
                self._settle()
                self._greet(peer, frame)
            case Numbered():
                self._receive_numbered(peer, frame)
            case Ask():
                peer.channel.check_session(frame.session)
                self._grant(peer, frame)
            case Receipt():
                peer.channel.check_session(frame.session)
                peer.channel.confirm(frame.sequence, frame.chain, self.changes)
            case _:
                raise InvalidMessage(f"the global server does not take a {type(frame).__name__}")

    def _receive_numbered(self, peer: Peer, frame: Numbered) -> None:
        sender = peer.channel.peer
        self._accepted(peer, frame.session)
        peer.channel.check_session(frame.session)
        if peer.channel.is_next(frame):
            self._apply(peer, frame.payload)
            self._taken.append((sender, frame.payload))
        else:
            self._count(peer, "repeated")
        self.changes.receipts[sender] = peer.channel.receipt()

    def _settle(self) -> None:
        taken, self._taken = self._taken, []
        if taken:
            self.server.advance()
        if len(taken) == 1:
            self._log("message", *taken[0])
        elif taken:
            self._log("messages", "", msgspec.msgpack.encode(taken))

    def _grant(self, peer: Peer, ask: Ask) -> None:
        """A slot is granted once, to one process; none up to the highest that is known to be used."""
        if ask.slot > self._used(peer):
            peer.granted = ask.slot, ask.process.hex()
            kept = {name: other.granted for name, other in self.peers.items()}
            self.changes.note("grants", json.dumps(kept))
        granted = peer.granted == (ask.slot, ask.process.hex())
        answer = Grant(VERSION, GLOBAL, ask.session, ask.process, ask.slot, granted)
        self.changes.letters.append((peer.channel.peer, encode_frame(answer)))

    def _used(self, peer: Peer) -> int:
        """What the server has used at least, or may have used."""
        return max(self.server.used_by(peer.number), peer.granted[0])

    def _greet(self, peer: Peer, hello: Hello) -> None:
        """Answer where this side stands; what is offered begins with the first frame in it."""
        channel, number = peer.channel, hello.number.hex()
        peer.doubt, peer.trouble = False, None
        if number not in peer.answers:
            self._accepted(peer, hello.record.session)
            peer.answers[number] = self._answer(peer, hello)
            while len(peer.answers) > ANSWERS:
                del peer.answers[next(iter(peer.answers))]
            kept = [(key, a.frame, a.offer) for key, a in peer.answers.items()]
            self.changes.note(f"answers of {channel.peer}", msgspec.json.encode(kept).decode())
        self.changes.letters.append((channel.peer, peer.answers[number].frame))

    def _answer(self, peer: Peer, hello: Hello) -> Answer:
        channel, theirs = peer.channel, hello.record
        last = peer.incarnations.get(theirs.incarnation.hex(), channel.ordinal)
        used, superseded = self._used(peer), last < channel.ordinal
        ours = channel.record(self.incarnation, peer.marked, used, superseded)
        verdict, offer = judge(theirs, ours), None
        if verdict.agreed:
            channel.confirm(theirs.received, theirs.heard, self.changes)
            self._send_again(channel)
        elif verdict.refused:
            peer.trouble = "a store that another one has replaced speaks under this name"
            self.changes.notices.append(f"{channel.peer}: {peer.trouble}")
        else:
            offer = offer_for(theirs, ours, verdict)
        return Answer(encode_frame(Welcome(VERSION, GLOBAL, hello.number, ours, offer)), offer)

    def _accepted(self, peer: Peer, session: bytes) -> None:
        """If something comes in a session that was offered, it begins."""
        for answer in peer.answers.values():
            offer = answer.offer
            if offer is not None and offer.session == session and offer.ordinal > peer.channel.ordinal:
                self._settle()
                self._begin(peer, offer)
                self._log("begin", peer.channel.peer, msgspec.msgpack.encode(offer))
                peer.marked = False
                marked = [name for name, other in self.peers.items() if other.marked]
                self.changes.note("marked", json.dumps(marked))
                if offer.ordinal > 1:
                    self.changes.notices.append(f"{peer.channel.peer}: {reason_for(offer)}")

    def _begin(self, peer: Peer, offer: Offer) -> None:
        peer.channel.begin(offer.ordinal, offer.session, self.changes)
        peer.incarnations[offer.incarnation.hex()] = offer.ordinal
        self.server.begin(peer.number, beginning_of(offer, sure=False))
        self.server.advance()

    def _remember_answers(self) -> None:
        """Take up what was answered, and for whom this store still counts as restored."""
        marked = json.loads(self.store.get("marked") or "[]")
        for name, (slot, process) in json.loads(self.store.get("grants") or "{}").items():
            self.peers[name].granted = slot, process
        for name, peer in self.peers.items():
            kept = self.store.get(f"answers of {name}")
            if kept is not None:
                for key, frame, offer in msgspec.json.decode(kept, type=_Kept):
                    peer.answers[key] = Answer(frame, offer)
            peer.marked = marked is True or (marked is not False and name in marked)

    def connected(self) -> None:
        for name in self.names:
            self._knock(name)

    def _knock(self, name: str) -> None:
        self.changes.letters.append((name, encode_frame(Knock(VERSION, GLOBAL))))

    def tick(self) -> bool:
        doubtful = [name for name, peer in self.peers.items() if peer.doubt]
        for name in doubtful:
            self.peers[name].doubt = False
            self._knock(name)
        return bool(doubtful)

    def stuck(self, channel: Channel) -> bool:
        self._send_again(channel)
        return True

    def _apply(self, peer: Peer, payload: bytes) -> None:
        message = self.family.decode(payload)
        self.server.receive(peer.number, message)
        peer.channel.applied(payload)
        peer.communications.count(message, len(payload))

    def _offend(self, peer: Peer, error: InvalidMessage) -> None:
        self._count(peer, "invalid")
        peer.offences += 1
        peer.quarantined = peer.offences >= QUARANTINE_AFTER
        self._remember_trust()

    def _count(self, peer: Peer, kind: str) -> None:
        peer.rejected[kind] = peer.rejected.get(kind, 0) + 1

    def release(self, name: str) -> None:
        """An operator trusts a server again."""
        peer = self.peers[name]
        peer.offences, peer.quarantined = 0, False
        self._remember_trust()

    def _remember_trust(self) -> None:
        value = json.dumps({name: (p.offences, p.quarantined) for name, p in self.peers.items()})
        self.changes.note("trust", value)

    def _trust(self) -> None:
        """Take up what was remembered about the servers."""
        for name, (offences, quarantined) in json.loads(self.store.get("trust") or "{}").items():
            self.peers[name].offences, self.peers[name].quarantined = offences, quarantined

    def troubles(self) -> dict[str, str]:
        """Servers with which it is not clear where both sides stand, and why."""
        restored = "this store was restored, and no new session with that server has begun"
        return {
            name: peer.trouble or restored
            for name, peer in self.peers.items()
            if peer.trouble or peer.marked
        }

    def close_phase(self) -> None:
        """The deadline has passed: go on without those that have not answered."""
        self._settle()
        if self.server.missing:
            self.server.advance(overdue=True)
            self._log("close", "", b"")

    def _invite(self) -> None:
        """Let servers that are new on the list take part."""
        if len(self.server.servers) < len(self.names):
            self.server.invite(len(self.names))
            self._log("invite", "", json.dumps(len(self.names)).encode())

    @property
    def channels(self) -> list[Channel]:
        return [peer.channel for peer in self.peers.values()]

    def committed(self, changes: Changes) -> None:
        """There is nothing to note: the global server waits for no commit."""

    def _values(self) -> dict[str, Any]:
        return {
            "channels": {name: peer.channel.state() for name, peer in self.peers.items()},
            "incarnations": {name: peer.incarnations for name, peer in self.peers.items()},
            "communications": {name: vars(p.communications) for name, p in self.peers.items()},
            "invited": len(self.server.servers),
        }

    def _take_up(self, values: dict[str, Any]) -> None:
        self.server = self._make_server(values.pop("invited"))
        for name, counters in values.pop("channels").items():
            self.peers[name].channel.restore(counters)
        for name, incarnations in values.pop("incarnations").items():
            self.peers[name].incarnations = dict(incarnations)
        for name, counts in values.pop("communications").items():
            self.peers[name].communications = Communications(**counts)

    def _replay(self, kind: str, source: str, body: bytes) -> None:
        match kind:
            case "message":
                self._apply(self.peers[source], body)
                self.server.advance()
            case "messages":
                for sender, payload in msgspec.msgpack.decode(body, type=_Taken):
                    self._apply(self.peers[sender], payload)
                self.server.advance()
            case "begin":
                self._begin(self.peers[source], msgspec.msgpack.decode(body, type=Offer))
            case "close":
                self.server.advance(overdue=True)
            case "invite":
                self.server.invite(json.loads(body))
            case _:
                raise InvalidFile(f"{self.store.path} has a log entry of kind {kind!r}")

    def summary(self) -> dict[str, Any]:
        """Numbers for people."""
        groups = self.server.overview()
        return {
            "phase": self.server.phase,
            "reported": self.server.reported,
            "clusters": len(groups),
            "members": sum(len(group.members) for group in groups),
            "communications": self.communications.as_dict(),
        }
