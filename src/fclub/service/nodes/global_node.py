"""The global server with its log, one channel per local server, and its distrust of what arrives.

Messages that arrive together are applied one by one, each after its own check. What they make due, a
phase, a merge or answers, is looked at once when all are there; then they are one entry of the log.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, NamedTuple

import msgspec

from fclub.cohorts.hub import Hub, HubRecord
from fclub.cohorts.members import MemberList
from fclub.cohorts.plan import CohortPlan
from fclub.errors import (
    Conflict,
    InvalidFile,
    InvalidMessage,
    NotAdmitted,
    NotAgreed,
    OtherSession,
    OtherSettings,
    OtherVersion,
    OutOfOrder,
    Quarantined,
)
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.slots import SlotsGlobal
from fclub.protocol.interfaces.family import Family
from fclub.protocol.interfaces.learner import State
from fclub.protocol.link import Communications
from fclub.protocol.messages import Message, encode
from fclub.protocol.servers import GlobalServer
from fclub.service.link.channel import (
    GLOBAL,
    VERSION,
    Channel,
    Cohort,
    Hello,
    Knock,
    Numbered,
    Offer,
    Receipt,
    Shut,
    Welcome,
    decode_frame,
    encode_frame,
)
from fclub.service.link.sessions import beginning_of, judge, offer_for, reason_for
from fclub.service.nodes.cohorts import RECORD, HubSide
from fclub.service.nodes.node import Clock, Empty, Entry, Node, RecordedNoise
from fclub.service.store.store import Changes, Store

Taken = tuple[str, bytes]
"""Sender and payload."""


@dataclass(frozen=True)
class FromLocal(Entry):
    """One message of a local server, and what it makes due."""

    taken: Taken

    kind = "message"

    @property
    def source(self) -> str:
        return self.taken[0]

    def body(self) -> bytes:
        return self.taken[1]

    @classmethod
    def read(cls, source: str, body: bytes) -> FromLocal:
        return cls((source, body))

    def apply(self, node: GlobalNode) -> None:
        node.apply(*self.taken)
        node.server.advance()


@dataclass(frozen=True)
class Together(Entry):
    """Messages that came together, and what all of them make due."""

    taken: list[Taken]

    kind = "messages"

    def body(self) -> bytes:
        return msgspec.msgpack.encode(self.taken)

    @classmethod
    def read(cls, source: str, body: bytes) -> Together:
        return cls(msgspec.msgpack.decode(body, type=list[Taken]))

    def apply(self, node: GlobalNode) -> None:
        for sender, payload in self.taken:
            node.apply(sender, payload)
        node.server.advance()


@dataclass(frozen=True)
class Begin(Entry):
    """A new session with a local server."""

    peer: str
    offer: Offer

    kind = "begin"

    @property
    def source(self) -> str:
        return self.peer

    def body(self) -> bytes:
        return msgspec.msgpack.encode(self.offer)

    @classmethod
    def read(cls, source: str, body: bytes) -> Begin:
        return cls(source, msgspec.msgpack.decode(body, type=Offer))

    def apply(self, node: GlobalNode) -> None:
        node.sessions.begin(node.peers[self.peer], self.offer)


class Close(Empty):
    """The deadline of a phase has passed: go on without those that have not answered."""

    kind = "close"

    def apply(self, node: GlobalNode) -> None:
        node.server.advance(overdue=True)


@dataclass(frozen=True)
class Tick(Entry):
    """A time has come that calls for something, such as the end of a slot."""

    now: float

    kind = "tick"

    def body(self) -> bytes:
        return struct.pack("<d", self.now)

    @classmethod
    def read(cls, source: str, body: bytes) -> Tick:
        return cls(*struct.unpack("<d", body))

    def apply(self, node: GlobalNode) -> None:
        work = node.server.due(self.now)
        if work is None:
            raise InvalidFile("the log holds a time that calls for nothing")
        work()


@dataclass(frozen=True)
class Sum(Entry):
    """A cohort has added up a slot."""

    slot: int
    members: int
    share: int
    sums: bytes

    kind = "sum"

    def body(self) -> bytes:
        return msgspec.msgpack.encode((self.slot, self.members, self.share, self.sums))

    @classmethod
    def read(cls, source: str, body: bytes) -> Sum:
        return cls(*msgspec.msgpack.decode(body, type=tuple[int, int, int, bytes]))

    def apply(self, node: GlobalNode) -> None:
        slots_of(node).summed(self.slot, self.members, self.share, self.sums)


def slots_of(node: GlobalNode) -> SlotsGlobal:
    exchange = getattr(node.server, "exchange", None)
    if not isinstance(exchange, SlotsGlobal):
        raise InvalidFile(f"{node.store.path} has a log entry of secure sums, which its server has not")
    return exchange


@dataclass(frozen=True)
class Invite(Entry):
    """So many servers take part from now on."""

    servers: int

    kind = "invite"

    def body(self) -> bytes:
        return json.dumps(self.servers).encode()

    @classmethod
    def read(cls, source: str, body: bytes) -> Invite:
        return cls(json.loads(body))

    def apply(self, node: GlobalNode) -> None:
        node.server.invite(self.servers)


@dataclass(frozen=True)
class Retire(Entry):
    """A server has left for good: from now on nothing is said to it."""

    peer: str

    kind = "retire"

    @property
    def source(self) -> str:
        return self.peer

    @classmethod
    def read(cls, source: str, body: bytes) -> Retire:
        return cls(source)

    def apply(self, node: GlobalNode) -> None:
        node.peers[self.peer].retired = True


KINDS: Mapping[str, type[Entry]] = {
    entry.kind: entry for entry in (FromLocal, Together, Begin, Close, Tick, Sum, Invite, Retire)
}


LEFT_OUT = (
    "it was ready for a secure sum and sent nothing, so that slot is lost: it takes part again when an "
    "operator releases it"
)
REPLACED = "a store that another one has replaced speaks under this name"
OTHER_RULES = "it has another model or another plan"

ANSWERS = 8
"""Answers that are remembered of each server: a broker may deliver a question twice."""


class Answer(NamedTuple):
    """What a question got: the bytes, and the session that they offer, if any."""

    frame: bytes
    offer: Offer | None


_Kept = list[tuple[str, bytes, Offer | None]]


@dataclass
class Peer:
    """What the global server keeps about a local server beside its clusters."""

    channel: Channel
    number: int
    marked: bool = False
    incarnations: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    doubt: bool = False
    trouble: str | None = None
    offences: int = 0
    quarantined: bool = False
    suspended: bool = False
    retired: bool = False
    told_shut: float = -inf
    rejected: dict[str, int] = field(default_factory=dict)
    communications: Communications = field(default_factory=Communications)
    seen: bool = False
    since: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> str:
        """In words of the federation's operator."""
        return "retired" if self.retired else "suspended" if self.suspended else "active"

    @property
    def awaited(self) -> bool:
        """Whether the federation counts on it."""
        return not (self.suspended or self.retired)

    def heard(self) -> None:
        self.seen, self.since = True, time.monotonic()

    @property
    def unheard(self) -> float:
        """Seconds since its last message, or since it is expected; no clock that can be set."""
        return time.monotonic() - self.since

    def count(self, kind: str) -> None:
        """One more frame was left alone."""
        self.rejected[kind] = self.rejected.get(kind, 0) + 1


class GlobalSessions:
    """Answers where the global server stands; what it offers begins with the first frame in it."""

    def __init__(self, node: GlobalNode) -> None:
        self.node, self.journal = node, node.journal

    def recovered(self) -> None:
        """Take up what was answered, and for whom this store still counts as restored."""
        store, peers = self.node.store, self.node.peers
        marked = json.loads(store.get("marked") or "[]")
        for name, peer in peers.items():
            kept = store.get(f"answers of {name}")
            if kept is not None:
                for key, frame, offer in msgspec.json.decode(kept, type=_Kept):
                    peer.answers[key] = Answer(frame, offer)
            peer.marked = marked is True or (marked is not False and name in marked)

    def connected(self) -> None:
        for name, peer in self.node.peers.items():
            if peer.awaited:
                self.knock(name)

    def knock(self, name: str) -> None:
        self.journal.changes.letters.append((name, encode_frame(Knock(VERSION, GLOBAL))))

    def tick(self) -> bool:
        doubtful = [name for name, peer in self.node.peers.items() if peer.doubt]
        for name in doubtful:
            self.node.peers[name].doubt = False
            self.knock(name)
        return bool(doubtful)

    def stuck(self, channel: Channel) -> bool:
        if self.node.peers[channel.peer].awaited:
            self.journal.send_again(channel)
            return True
        return False

    def greet(self, peer: Peer, hello: Hello) -> None:
        """Answer a question; the same one gets the same bytes again."""
        channel, number = peer.channel, hello.number.hex()
        peer.doubt, peer.trouble = False, None
        if number not in peer.answers:
            self.accepted(peer, hello.record.session)
            peer.answers[number] = self._answer(peer, hello)
            while len(peer.answers) > ANSWERS:
                del peer.answers[next(iter(peer.answers))]
            kept = [(key, a.frame, a.offer) for key, a in peer.answers.items()]
            text = msgspec.json.encode(kept).decode()
            self.journal.changes.note(f"answers of {channel.peer}", text)
        self.journal.changes.letters.append((channel.peer, peer.answers[number].frame))

    def _answer(self, peer: Peer, hello: Hello) -> Answer:
        channel, theirs = peer.channel, hello.record
        last = peer.incarnations.get(theirs.incarnation.hex(), channel.ordinal)
        used, superseded = self.node.server.used_by(peer.number), last < channel.ordinal
        ours = channel.record(self.node.incarnation, peer.marked, used, superseded)
        ours = msgspec.structs.replace(ours, rules=self.node.rules)
        verdict, offer = judge(theirs, ours), None
        if verdict.agreed:
            channel.confirm(theirs.received, theirs.heard, self.journal.changes)
            self.journal.send_again(channel)
        elif verdict.refused:
            other = theirs.rules != ours.rules
            peer.trouble = OTHER_RULES if other else REPLACED
            self.journal.changes.notices.append(f"{channel.peer}: {peer.trouble}")
        else:
            offer = offer_for(theirs, ours, verdict)
        return Answer(encode_frame(Welcome(VERSION, GLOBAL, hello.number, ours, offer)), offer)

    def accepted(self, peer: Peer, session: bytes) -> None:
        """If something comes in a session that was offered, it begins."""
        for answer in peer.answers.values():
            offer = answer.offer
            if offer is not None and offer.session == session and offer.ordinal > peer.channel.ordinal:
                self.node.settle()
                self.journal.do(Begin(peer.channel.peer, offer))
                peer.marked = False
                marked = [name for name, other in self.node.peers.items() if other.marked]
                self.journal.changes.note("marked", json.dumps(marked))
                if offer.ordinal > 1:
                    self.journal.changes.notices.append(f"{peer.channel.peer}: {reason_for(offer)}")

    def begin(self, peer: Peer, offer: Offer) -> None:
        """What the entry of a new session does."""
        peer.channel.begin(offer.ordinal, offer.session, self.journal.changes)
        peer.incarnations[offer.incarnation.hex()] = offer.ordinal
        self.node.server.begin(peer.number, beginning_of(offer))
        self.node.server.advance()


@dataclass(frozen=True)
class Membership:
    """Who takes part: names of servers, those of them that pause, and those that have left for good."""

    servers: Sequence[str]
    suspended: Collection[str] = ()
    retired: Collection[str] = ()


QUARANTINE_AFTER = 5
"""Refused messages until a server is not listened to any more."""

TELL_SHUT_SECONDS = 5.0
"""How long a server in quarantine waits at least to be told of it again."""

UNHEARD_SECONDS = 60.0
"""A server is missed that says nothing for so long, at the start or with messages waiting for it."""

REFUSALS: dict[type[NotAgreed], str] = {
    OutOfOrder: "out of order",
    OtherSession: "other session",
    Conflict: "conflict",
    OtherVersion: "other version",
}


class Members:
    """Who takes part, whom the global server does not listen to any more, and what is wrong with whom.

    `names` are in the order of their numbers.
    """

    def __init__(self, node: GlobalNode) -> None:
        self.node, self.journal = node, node.journal
        self.names: list[str] = json.loads(node.store.get("servers") or "[]")
        self.peers = {
            name: Peer(Channel(GLOBAL, name), number) for number, name in enumerate(self.names)
        }

    def recover(self) -> None:
        for name, (offences, quarantined) in json.loads(self.node.store.get("trust") or "{}").items():
            self.peers[name].offences, self.peers[name].quarantined = offences, quarantined

    def follow(self, wanted: Membership) -> None:
        """Take up who is a member from now on; servers keep their numbers, new ones come after them."""
        self.check(wanted)
        for name in wanted.servers:
            if name not in self.peers:
                self.peers[name] = Peer(Channel(GLOBAL, name), len(self.names))
                self.names.append(name)
                self.journal.changes.note("servers", json.dumps(self.names))
        if len(self.node.server.servers) < len(self.names):
            self.node.settle()
            self.journal.do(Invite(len(self.names)))
        for name, peer in self.peers.items():
            back = peer.suspended and name not in wanted.suspended
            peer.suspended = name in wanted.suspended
            if name in wanted.retired and not peer.retired:
                self._retire(peer)
            elif back:
                self.node.sessions.knock(name)

    def check(self, wanted: Membership) -> None:
        """Refuse to lose a server that the store knows, or to take back one that has left for good."""
        gone = [name for name in self.names if name not in (*wanted.servers, *wanted.retired)]
        if gone:
            raise OtherSettings(
                f"servers: {', '.join(gone)} missing; one that has left belongs into retired "
                f"({self.node.store.path} knows {', '.join(self.names)})"
            )
        back = [name for name, peer in self.peers.items() if peer.retired and name in wanted.servers]
        if back:
            raise OtherSettings(f"servers: {', '.join(back)} left for good; choose another name")

    def _retire(self, peer: Peer) -> None:
        """What waits for it is dropped as if it had been heard; what it has released stays."""
        self.node.settle()
        self.journal.do(Retire(peer.channel.peer))
        if peer.channel.ordinal:
            last = peer.channel.sent
            peer.channel.confirm(last, peer.channel.chains[last], self.journal.changes)
        peer.doubt, peer.marked, peer.trouble, peer.quarantined = False, False, None, False
        self._remember_trust()

    @property
    def missing(self) -> set[int]:
        """Servers that are members and without whose reports a phase does not go on."""
        return {n for n in self.node.server.missing if self.peers[self.names[n]].awaited}

    def offended(self, peer: Peer) -> None:
        """It has sent what cannot be true."""
        peer.offences += 1
        peer.quarantined = peer.offences >= QUARANTINE_AFTER
        self._remember_trust()

    def tell_shut(self, peer: Peer) -> None:
        """Let a server know why nothing is confirmed, now and then while it speaks."""
        now = time.monotonic()
        if now - peer.told_shut >= TELL_SHUT_SECONDS:
            peer.told_shut = now
            self.journal.changes.letters.append(
                (peer.channel.peer, encode_frame(Shut(VERSION, GLOBAL)))
            )

    def release(self, name: str) -> None:
        """An operator trusts a server again."""
        peer = self.peers[name]
        peer.offences, peer.quarantined, peer.told_shut = 0, False, -inf
        if self.node.cohort is not None:
            self.node.cohort.readmit(name)
        self._remember_trust()
        self.node.sessions.knock(name)

    def _remember_trust(self) -> None:
        value = json.dumps({name: (p.offences, p.quarantined) for name, p in self.peers.items()})
        self.journal.changes.note("trust", value)

    def troubles(self) -> dict[str, str]:
        """Servers with which something is wrong, and what an operator can do."""
        found = {name: self._trouble(name, peer) for name, peer in self.peers.items()}
        return {name: text for name, text in found.items() if text is not None}

    def _trouble(self, name: str, peer: Peer) -> str | None:
        if peer.retired:
            return None
        if peer.suspended:
            return "suspended; fclub federation resume lets it in again"
        if peer.quarantined:
            return (
                f"in quarantine after {peer.offences} messages that cannot be true; find out why, then "
                f"POST /v1/servers/{name}/release"
            )
        if peer.trouble or peer.marked:
            restored = "this store was restored, and no new session with that server has begun"
            return peer.trouble or restored
        if self.node.cohort is not None and name in self.node.cohort.hub.record.left_out:
            return LEFT_OUT
        waiting = peer.channel.sent > peer.channel.confirmed
        if peer.unheard >= UNHEARD_SECONDS and (waiting or not peer.seen):
            return f"not heard for {peer.unheard:.0f} s; look whether it runs and reaches the broker"
        return None


class GlobalNode(Node):
    """Frames in, changes out. A refused frame changes nothing but the count of refusals."""

    name = GLOBAL
    sessions: GlobalSessions
    cohort: HubSide | None = None

    def __init__(
        self, wanted: Membership, family: Family, store: Store, clock: Clock = time.time
    ) -> None:
        super().__init__(store, RecordedNoise(NoNoise()), clock)
        self._taken: list[Taken] = []
        self.family, self._wanted = family, wanted
        self.members = Members(self)
        self.names, self.peers = self.members.names, self.members.peers
        self.server = self._make_server(0)
        self.sessions = GlobalSessions(self)

    def recover(self) -> None:
        self.journal.recover(KINDS)
        self.sessions.recovered()
        self.members.recover()
        self.members.follow(self._wanted)

    def _make_server(self, invited: int) -> GlobalServer:
        server = self.family.global_server(list(range(invited)), self)
        server.gathers = True
        return server

    @property
    def channels(self) -> list[Channel]:
        return [peer.channel for peer in self.peers.values()]

    @property
    def communications(self) -> Communications:
        return sum((peer.communications for peer in self.peers.values()), Communications())

    def to_local(self, server: int, message: Message) -> None:
        """The link of the global server."""
        payload, peer = encode(message), self.peers[self.names[server]]
        if peer.channel.ordinal and not peer.retired:
            peer.communications.count(message, len(payload))
            peer.channel.send(payload, self.journal.changes)

    def receive(self, sender: str, data: bytes) -> None:
        """A frame on the subject of `sender`; raises what was wrong with it after counting that."""
        peer = self.peers.get(sender)
        if peer is None:
            raise InvalidMessage(f"no server is called {sender!r}")
        if not peer.awaited:
            raise NotAdmitted(f"{sender} {'has left' if peer.retired else 'is suspended'}")
        if peer.quarantined:
            self.members.tell_shut(peer)
            raise Quarantined(f"{sender} is in quarantine")
        try:
            self._take_in(peer, sender, data)
        except NotAgreed as error:
            peer.count(REFUSALS[type(error)])
            peer.doubt |= isinstance(error, OtherSession | Conflict)
            if isinstance(error, OtherVersion):
                peer.trouble = str(error)
            raise
        except InvalidMessage:
            peer.count("invalid")
            self.members.offended(peer)
            raise

    def _take_in(self, peer: Peer, sender: str, data: bytes) -> None:
        frame = decode_frame(data, sender)
        peer.heard()
        match frame:
            case Hello():
                self.settle()
                self.sessions.greet(peer, frame)
            case Numbered():
                self._receive_numbered(peer, frame)
            case Cohort() if self.cohort is not None:
                self.cohort.receive(sender, frame.payload)
            case Receipt():
                peer.channel.check_session(frame.session)
                peer.channel.confirm(frame.sequence, frame.chain, self.journal.changes)
            case _:
                raise InvalidMessage(f"the global server does not take a {type(frame).__name__}")

    def _receive_numbered(self, peer: Peer, frame: Numbered) -> None:
        sender = peer.channel.peer
        self.sessions.accepted(peer, frame.session)
        peer.channel.check_session(frame.session)
        if peer.channel.is_next(frame):
            self.tick()
            self.apply(sender, frame.payload)
            self._taken.append((sender, frame.payload))
        else:
            peer.count("repeated")
        self.journal.changes.receipts[sender] = peer.channel.receipt()

    def apply(self, sender: str, payload: bytes) -> None:
        """Take a message of a local server; what it makes due is done when the server advances."""
        peer, message = self.peers[sender], self.family.decode(payload)
        self.server.receive(peer.number, message)
        peer.channel.applied(payload)
        peer.communications.count(message, len(payload))

    def settle(self) -> None:
        """Do and log what all messages since the last call make due together."""
        taken, self._taken = self._taken, []
        if taken:
            self.server.advance()
            self.journal.log(FromLocal(taken[0]) if len(taken) == 1 else Together(taken))

    def take(self) -> Changes:
        self.settle()
        return super().take()

    def tick(self) -> bool:
        now = self.now
        due = self.server.due(now) is not None
        if due:
            self.settle()
            self.journal.do(Tick(now))
        return due

    def close_phase(self) -> None:
        """The deadline has passed: go on without those that have not answered."""
        self.settle()
        if self.server.missing:
            self.journal.do(Close())

    def state(self) -> State:
        self.settle()
        arrays, values = self.server.state()
        own = {
            "channels": {name: peer.channel.state() for name, peer in self.peers.items()},
            "incarnations": {name: peer.incarnations for name, peer in self.peers.items()},
            "communications": {name: vars(p.communications) for name, p in self.peers.items()},
            "invited": len(self.server.servers),
            "retired": [name for name, peer in self.peers.items() if peer.retired],
        }
        return arrays, values | own

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.server = self._make_server(values.pop("invited"))
        for name in values.pop("retired", ()):
            self.peers[name].retired = True
        for name, counters in values.pop("channels").items():
            self.peers[name].channel.restore(counters)
        for name, incarnations in values.pop("incarnations").items():
            self.peers[name].incarnations = dict(incarnations)
        for name, counts in values.pop("communications").items():
            self.peers[name].communications = Communications(**counts)
        self.server.restore(arrays, values)

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


PATIENCE = 10.0
"""Seconds that the global server waits for somebody in a cohort, before it goes on without."""


def lead(node: GlobalNode, members: MemberList, plan: CohortPlan) -> None:
    """Call for secure sums, and add them up."""
    kept = node.store.get(RECORD)
    record = msgspec.json.decode(kept, type=HubRecord) if kept else HubRecord()
    patience = min(PATIENCE, plan.window / 4.0)
    hub = Hub(members, plan, record, lambda: node.now, os.urandom, patience)

    def summed(slot: int, members: int, share: int, sums: bytes) -> None:
        node.settle()
        node.journal.do(Sum(slot, members, share, sums))

    node.cohort = HubSide(node.journal, partial(slots_of, node), hub, lambda: node.now, summed)
