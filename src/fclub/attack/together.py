"""Servers at once: two whose noise must have nothing in common, and a cohort that is lied to."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from math import sqrt
from pathlib import Path
from random import Random

from fclub.attack import statistics as st
from fclub.attack.live import Attack, memory
from fclub.attack.running import NAME, Running, Sent, Sum
from fclub.attack.scenes import EVERYBODY, brief
from fclub.cohorts.masks import KEY, NONCE, AgreementKey, SignedKey, roster_hash
from fclub.cohorts.member import context_of
from fclub.cohorts.messages import (
    Abort,
    Call,
    Go,
    Join,
    Masked,
    Message,
    Ready,
    Roster,
    decode,
    encode,
)
from fclub.core.types import Vector
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER
from fclub.privacy.noise import NoiseSource, NoNoise
from fclub.service.link.channel import GLOBAL, VERSION, Cohort, decode_frame, encode_frame
from fclub.service.nodes.local_node import LocalNode, slots_of
from fclub.service.settings import Model

OTHER = "s1"


@dataclass
class Beside:
    """What was heard of the second server."""

    store: Path
    name: str = OTHER
    sent: list[Sent] = field(default_factory=list)
    notices: list[tuple[int, str]] = field(default_factory=list)
    served: dict[str, bytes] = field(default_factory=dict)
    refused: int = 0
    sums: list[Sum] = field(default_factory=list)


class Together(Running):
    """The second server sees the same visits at the same times, and is never restarted."""

    names = (NAME, OTHER)

    def __init__(
        self, folder: Path, model: Model, source: NoiseSource | None, exact: bool, late: bool
    ) -> None:
        self.beside, self.other = Beside(folder / f"{OTHER}.db"), list[LocalNode]()
        super().__init__(folder, model, source, exact, late)
        self.other.append(self._read_store(OTHER))
        self.other[0].sessions.connected()
        self.deliver()

    def _nodes(self) -> dict[str, LocalNode]:
        return super()._nodes() | dict(zip((OTHER,), self.other, strict=False))

    def _hear(self, name: str, sent: Sent) -> None:
        (self.sent if name == NAME else self.beside.sent).append(sent)

    def visit(self, user: str, x: Vector, reward: float | None) -> None:
        _visit(self.other, user, x, reward)
        super().visit(user, x, reward)

    def close(self) -> None:
        super().close()
        for node in self.other:
            node.store.close()


def _visit(nodes: list[LocalNode], user: str, x: Vector, reward: float | None) -> None:
    for node in nodes:
        decision = node.recommend(user, x[None, :], ["item"])
        if reward is not None:
            node.rewards.feedback(decision.id, reward)


def attack_two_servers(attack: Attack) -> list[Finding]:
    """What one of them sends minus what the other sends is noise of twice the variance."""
    late, history = attack.pair.unit == USER, attack.neighbours()[0].first
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        running = Together(Path(folder), attack.model, attack.source, True, late)
        with closing(running):
            brief(running, history, attack.pair)
            running.finish()
        first, second = attack.reader.read(running), attack.reader.read(running.beside)
    same = len(first.raw) == len(second.raw)
    found = {"other releases": Interval(float(not same), 0.0, 0.0)}
    if same:
        noise = ((first.white - second.white) / sqrt(2.0)).reshape(1, -1)
        found["variance of the difference"] = st.variance(noise, 1)
    return [Finding("two servers", test, interval) for test, interval in found.items()]


VISITS, LIES, SCRIPTS = 40, 3, 6
"""Of a script; lies at each moment of a visit; scripts."""


class Lying(Running):
    """A global server that calls, shows rosters, says Go and aborts as it likes, in any order.

    What members say is kept, and may be shown again, in part, twice, or to somebody else. Stores are
    restarted, copied and put back meanwhile.
    """

    def __init__(self, folder: Path, model: Model, source: NoiseSource | None, rng: Random) -> None:
        self.heard: list[tuple[str, Message]] = []
        self.calls: dict[bytes, int] = {}
        """Slots by the contexts in which members answer."""
        self.shown: dict[bytes, int] = {}
        """The same by rosters that a member may accept."""
        self.slots: dict[bytes, int] = {}
        """The same of those under which somebody was ready."""
        self.sent_under, self.uncharged = set[bytes](), 0
        self.rng, self.copied = rng, False
        self.disturbed = rng.random() < 0.5
        self.joins: dict[str, SignedKey] = {}
        super().__init__(folder, model, source, False, True)
        self.hub.cohort = None

    def _hear(self, name: str, sent: Sent) -> None:
        super()._hear(name, sent)
        frame = decode_frame(sent.frame, name)
        if isinstance(frame, Cohort):
            message = decode(frame.payload)
            self.heard.append((name, message))
            if isinstance(message, Masked) and name == NAME:
                self.sent_under.add(message.roster)
                ledger = self.node.books.ledger
                assert ledger is not None
                charged = sum(stream.sequence for stream in ledger.streams.values())
                self.uncharged += not self.disturbed and charged < len(self.sent_under)
            if isinstance(message, Join):
                self.joins[name] = message.signed
            if isinstance(message, Ready):
                self.slots[message.roster] = self.shown[message.roster]

    def say(self, message: Message, names: Sequence[str]) -> None:
        for name in names:
            self._nodes()[name].receive(GLOBAL, encode_frame(Cohort(VERSION, GLOBAL, encode(message))))
        self.deliver()

    def lie(self) -> None:
        """Now and then it is what an honest one would say, so that there is something to break."""
        rng, whom = self.rng, self.rng.choice([self.names, self.names, (NAME,)])
        match rng.choice(["call", *["roster"] * 4, *["go"] * 3, "abort"]):
            case "call":
                assert self.node.cohort is not None
                record = self.node.cohort.member.record
                (plan,), members = record.plans, record.members
                assert members is not None
                due = sum(at <= self.now for at in plan.times) - 1
                call = Call(plan.period, max(0, due - (rng.random() < 0.2)), 0, rng.randbytes(NONCE))
                model = sha256(slots_of(self.node).transcript.digest).digest()
                self.calls[context_of(members, plan, call, model).digest()] = call.slot
                self.say(call, whom)
            case "roster":
                joins = sorted(self.joins.values(), key=lambda join: join.name.encode())
                if rng.random() < 0.3 and joins:
                    one = rng.randrange(len(joins))
                    key = AgreementKey(rng.randbytes(KEY)).public
                    joins[one : one + 1] = rng.choice(
                        [
                            [],
                            [joins[one]] * 2,
                            [joins[one]._replace(key=key)],
                            [joins[one]._replace(name=NAME)],
                        ]
                    )
                for context, slot in self.calls.items():
                    self.shown[roster_hash(context, joins)] = slot
                self.say(Roster(tuple(joins)), whom)
            case "go" if self.slots:
                self.say(Go(rng.choice([*self.slots])), whom)
            case "abort":
                self.say(Abort(rng.choice([b"", *self.slots])), whom)

    def _tick(self) -> None:
        super()._tick()
        for _ in range(LIES):
            self.lie()

    def wait(self, user: str = "") -> None:
        super().wait(user)
        if self.disturbed:
            self.disturb()

    def disturb(self) -> None:
        match self.rng.choice(["", "", "restart", "copy", "put back"]):
            case "restart":
                self.restart(self.rng.random() < 0.5)
            case "copy":
                (self.folder / "copy.db").unlink(missing_ok=True)
                self.copy()
                self.copied = True
            case "put back" if self.copied:
                self.put_back()


def attack_by_lies(attack: Attack) -> list[Finding]:
    """Whatever the global server says, a slot is sent once, charged, and nothing follows from data."""
    near, sent = attack.neighbours()[0], 0
    tests = "slots sent twice", "uncharged releases", "other bytes for one roster", "facts that differ"
    found = dict.fromkeys(tests, 0)
    for seed in range(SCRIPTS):
        facts = []
        for history in (near.first, near.second):
            with tempfile.TemporaryDirectory(dir=memory()) as folder:
                running = Lying(Path(folder), attack.model, NoNoise(), Random(seed))
                with closing(running):
                    for visit in range(VISITS):
                        user = EVERYBODY[visit % len(EVERYBODY)]
                        if user in history.absent:
                            running.wait()
                        else:
                            running.visit(user, *history.at(user, visit // len(EVERYBODY)))
                read = attack.reader.read(running)
            facts.append(read.facts)
            rosters = [m.roster for name, m in running.heard if name == NAME and isinstance(m, Masked)]
            slots = [running.slots[roster] for roster in set(rosters)]
            said = {(n, m.roster, m.values) for n, m in running.heard if isinstance(m, Masked)}
            sent += len(slots)
            found["slots sent twice"] += len(slots) - len(set(slots))
            found["uncharged releases"] += running.uncharged + max(0, len(slots) - read.charged)
            found["other bytes for one roster"] += len(said) - len({(n, r) for n, r, _ in said})
            for name, interval in st.masks(read.masked).items():
                found[name] = found.get(name, 0) + (not interval.inside)
        found["facts that differ"] += facts[0] != facts[1]
    found["scripts that led to nothing"] = int(sent == 0)
    return [Finding("a lying global server", n, Interval(float(v), 0.0, 0.0)) for n, v in found.items()]
