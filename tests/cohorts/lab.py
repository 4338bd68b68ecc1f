"""A federation in one process: members and hub on stores that can be copied and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

import numpy as np

from fclub.cohorts.hub import Hub, HubRecord
from fclub.cohorts.member import Member, MemberRecord
from fclub.cohorts.members import Identity, MemberList, in_order
from fclub.cohorts.messages import Message, Outgoing, Step, decode, encode
from fclub.cohorts.plan import CohortPlan
from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.errors import FclubError

TIMES = (1_000, 2_000)
ENTRIES = 5


def plan_of(**changes: object) -> CohortPlan:
    told: dict[str, object] = {
        "federation": "lab",
        "period": 1,
        "times": TIMES,
        "steps": (1 << 20,) * 2,
        "deviations": (1 << 23,) * 2,
        "lattice": (2.0**-20,) * 2,
        "entries": ENTRIES,
        "users": 1_000,
        "colluders": 1,
        "cap": 38,
        "window": 400,
        "tolerance": 60,
        "delay": 2,
    }
    times = changes.get("times")
    if isinstance(times, tuple):
        told |= {name: (told[name][0],) * len(times) for name in ("steps", "deviations", "lattice")}  # type: ignore[index]
    return CohortPlan(**(told | changes))  # type: ignore[arg-type]


def identity_of(name: str, organisation: str = "", seed: str = "") -> Identity:
    secret = sha256(f"identity {name} {seed}".encode()).hexdigest()
    return Identity(name, organisation or f"of {name}", secret)


def list_of(identities: Sequence[Identity], epoch: int = 1) -> MemberList:
    return MemberList("lab", epoch, in_order(identity.entry for identity in identities))


class Recorded:
    """Noise that is drawn from a seeded generator and written down, with its deviations."""

    seeded = True

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.drawn: list[Whole] = []
        self.deviations: list[int] = []

    def integers(self, deviations: Floats) -> Whole:
        self.deviations.append(int(deviations[0]))
        noise = np.rint(deviations * self.rng.standard_normal(deviations.shape)).astype(np.int64)
        self.drawn.append(noise)
        return noise


class Entropy:
    """A stream of bytes that never repeats, different for every process; what it gave is known."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.given: list[bytes] = []

    def __call__(self, length: int) -> bytes:
        text = f"entropy {self.process} {len(self.given)}"
        self.given.append(sha256(text.encode()).digest()[:length])
        return self.given[-1]


@dataclass
class Lab:
    """`stores` is what each has stored, `sent` every message that left, as bytes."""

    identities: list[Identity]
    plan: CohortPlan
    now: float = 0.0
    stores: dict[str, MemberRecord] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    noise: dict[str, Recorded] = field(default_factory=dict)
    vectors: dict[str, Whole] = field(default_factory=dict)
    sent: list[tuple[str, str, bytes]] = field(default_factory=list)
    due: list[tuple[str, float]] = field(default_factory=list)
    refused: list[tuple[str, FclubError]] = field(default_factory=list)
    deaf: Callable[[str, str, Message], bool] = lambda sender, to, message: False
    hub_store: HubRecord = field(default_factory=HubRecord)
    processes: Iterator[int] = field(default_factory=count)
    entropy: dict[str, Entropy] = field(default_factory=dict)
    watch: Callable[[str, Message], None] = lambda sender, message: None

    def __post_init__(self) -> None:
        self.list = list_of(self.identities)
        for number, identity in enumerate(self.identities):
            name = identity.name
            self.stores[name] = MemberRecord()
            self.noise[name] = Recorded(number)
            rng = np.random.default_rng(1_000 + number)
            self.vectors[name] = rng.integers(-(10**6), 10**6, self.plan.entries)
            member = self.start(name)
            for step in (member.accept(self.list), member.adopt(self.plan)):
                self.store(name, step)
        self.hub = self.start_hub()

    @property
    def clock(self) -> Callable[[], float]:
        return lambda: self.now

    def start(self, name: str, record: MemberRecord | None = None) -> Member:
        """A new process of a member, on its store or on another copy."""
        identity = next(found for found in self.identities if found.name == name)
        stored = self.stores[name] if record is None else record
        self.entropy[name] = Entropy(next(self.processes))
        member = Member(identity, stored, self.clock, self.entropy[name], self.noise[name])
        self.members[name] = member
        self.store(name, member.begin())
        return member

    def start_hub(self) -> Hub:
        entropy = Entropy(next(self.processes))
        self.hub = Hub(self.list, self.plan, self.hub_store, self.clock, entropy)
        return self.hub

    def store(self, name: str, step: Step) -> Step:
        if step.change is not None and name:
            self.stores[name] = step.change
        elif step.change is not None:
            self.hub_store = step.change
        return step

    def prepare(self, slot: int, period: int = 1) -> None:
        for name, member in self.members.items():
            member.prepare(period, slot, self.vectors[name])

    def deliver(self, sender: str, step: Step) -> None:
        """Store, send, and what follows, until nothing is under way."""
        queue = [(sender, out) for out in self.store(sender, step).messages]
        while queue:
            sender, (to, message, due) = queue.pop(0)
            self.sent.append((sender, to, encode(message)))
            self.due.append((sender, due))
            self.watch(sender, message)
            if self.deaf(sender, to, message):
                continue
            message = decode(encode(message))
            try:
                if to:
                    follows = self.members[to].receive(message)
                else:
                    follows = self.hub.receive(sender, message)
            except FclubError as refusal:
                self.refused.append((to, refusal))
                continue
            queue += [(to, out) for out in self.store(to, follows).messages]

    def run(self, slot: int) -> None:
        """A whole slot, everybody being there."""
        self.now = self.plan.times[slot] + 10.0
        self.prepare(slot)
        self.deliver("", self.hub.call(slot))

    def resend(self, name: str) -> None:
        self.deliver(name, Step(None, self.members[name].resend()))

    def frames(self, kind: type[Message]) -> list[Message]:
        found = [decode(data) for _, _, data in self.sent]
        return [message for message in found if isinstance(message, kind)]


def lab_of(members: int = 4, organisations: Sequence[str] = (), **changes: object) -> Lab:
    names = [f"shop-{number}" for number in range(members)]
    owners = organisations or [f"of {name}" for name in names]
    identities = [identity_of(*pair) for pair in zip(names, owners, strict=True)]
    return Lab(identities, plan_of(**changes))


def outgoing(step: Step) -> Outgoing:
    (only,) = step.messages
    return only
