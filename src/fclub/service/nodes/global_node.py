"""The global server with its log, one channel per local server, and its distrust of what arrives."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from fclub.errors import InvalidMessage, OutOfOrder, Quarantined
from fclub.privacy.noise import NoNoise
from fclub.protocol.link import Communications
from fclub.protocol.messages import Message, encode
from fclub.protocol.seam import Family, GlobalServer
from fclub.service.link.channel import GLOBAL, Channel, Receipt, decode_frame
from fclub.service.nodes.node import Node, RecordedNoise
from fclub.service.store.store import Changes, Store

QUARANTINE_AFTER = 5
"""Refused messages until a server is not listened to any more."""


@dataclass
class Peer:
    """What the global server keeps about a local server beside its clusters."""

    channel: Channel
    number: int
    offences: int = 0
    quarantined: bool = False
    rejected: dict[str, int] = field(default_factory=dict)
    communications: Communications = field(default_factory=Communications)
    seen: float | None = None


class GlobalNode(Node):
    """Frames in, changes out. A refused frame changes nothing but the count of refusals."""

    server: GlobalServer

    def __init__(self, names: list[str], family: Family, store: Store) -> None:
        super().__init__(store, RecordedNoise(NoNoise()))
        self.family = family
        self.names = self._number(names)
        self.peers = {
            name: Peer(Channel(GLOBAL, name), number) for number, name in enumerate(self.names)
        }
        self.server = family.global_server([], self)
        self._recover()
        self._trust()
        self._invite()

    def _number(self, names: list[str]) -> list[str]:
        """Servers keep their numbers; new names come after the old ones."""
        known: list[str] = json.loads(self.store.get("servers") or "[]")
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
        except OutOfOrder:
            self._count(peer, "out of order")
            raise
        except InvalidMessage as error:
            self._offend(peer, error)
            raise

    def _take_in(self, peer: Peer, sender: str, data: bytes) -> None:
        frame = decode_frame(data, sender)
        peer.seen = time.time()
        if isinstance(frame, Receipt):
            peer.channel.confirm(frame, self.changes)
            return
        if peer.channel.is_next(frame):
            self._apply(peer, frame.payload)
            self._log("message", sender, frame.payload)
        else:
            self._count(peer, "repeated")
        self.changes.receipts[sender] = peer.channel.receipt()

    def _apply(self, peer: Peer, payload: bytes) -> None:
        message = self.family.decode(payload)
        self.server.receive(peer.number, message)
        peer.channel.received += 1
        peer.communications.count(message, len(payload))
        self.server.advance()

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

    def close_phase(self) -> None:
        """The deadline has passed: go on without those that have not answered."""
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
            "channels": {name: peer.channel.counters() for name, peer in self.peers.items()},
            "communications": {name: vars(p.communications) for name, p in self.peers.items()},
            "invited": len(self.server.servers),
        }

    def _take_up(self, values: dict[str, Any]) -> None:
        self.server = self.family.global_server(list(range(values.pop("invited"))), self)
        for name, counters in values.pop("channels").items():
            self.peers[name].channel = Channel(GLOBAL, name, **counters)
        for name, counts in values.pop("communications").items():
            self.peers[name].communications = Communications(**counts)

    def _replay(self, kind: str, source: str, body: bytes) -> None:
        match kind:
            case "message":
                self._apply(self.peers[source], body)
            case "close":
                self.server.advance(overdue=True)
            case "invite":
                self.server.invite(json.loads(body))

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
