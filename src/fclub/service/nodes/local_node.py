"""A local server on its store: what its log holds, its sessions, what it learns from, and the node.

There is no input or output here but reads of the store.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import msgspec
import numpy as np

from fclub.cohorts.member import Member, MemberRecord
from fclub.cohorts.members import Identity, MemberList
from fclub.cohorts.plan import CohortPlan
from fclub.core.offers import mix
from fclub.core.types import Matrix, Vector
from fclub.errors import (
    CannotReplace,
    Conflict,
    FclubError,
    InvalidFile,
    InvalidMessage,
    NotFound,
    OtherReward,
    OtherSession,
    OtherVersion,
    UnknownDecision,
    WasForgotten,
)
from fclub.privacy.levels import EVENT
from fclub.protocol.exchanges.slots import SlotsLocal
from fclub.protocol.interfaces.exchange import Moment
from fclub.protocol.interfaces.family import Family, Place
from fclub.protocol.interfaces.learner import Bound, State
from fclub.protocol.interfaces.overview import LocalOverview
from fclub.protocol.messages import Message, encode
from fclub.service.link.channel import (
    GLOBAL,
    Channel,
    Cohort,
    Knock,
    Numbered,
    Offer,
    Receipt,
    Shut,
    Welcome,
    decode_frame,
)
from fclub.service.link.sessions import beginning_of, reason_for
from fclub.service.nodes.cohorts import RECORD, MemberSide
from fclub.service.nodes.handshake import (
    AGREED,
    ANOTHER_STORE,
    OTHER_RULES,
    REFUSED,
    Handshake,
    Standing,
)
from fclub.service.nodes.item_effects import LearnedItems
from fclub.service.nodes.node import Clock, Empty, Entry, Node, RecordedNoise, Work
from fclub.service.store.attributes import Attributes
from fclub.service.store.books import Books
from fclub.service.store.catalogue import Catalogue
from fclub.service.store.decisions import (
    Decisions,
    Offered,
    Own,
    Shown,
    coin_of,
    decode_events,
    encode_events,
    encode_offer,
    time_of,
)
from fclub.service.store.forgotten import DAY, ForgottenNames, Remembered
from fclub.service.store.past import Past
from fclub.service.store.store import Changes, Store


class NewUser(Empty):
    """Somebody comes for the first time; the name is in a table of its own."""

    kind = "user"

    def apply(self, node: LocalNode) -> int:
        row = node.server.add_user()
        node.journal.touched.add(row)
        return row


@dataclass(frozen=True)
class Observe(Entry):
    """Learn from a reward, and begin what that makes due; `source` is who tells of it."""

    row: int
    reward: float
    x: Vector
    told: str = ""

    kind = "observe"

    @property
    def source(self) -> str:
        return self.told

    def body(self) -> bytes:
        return struct.pack("<qd", self.row, self.reward) + self.x.tobytes()

    @classmethod
    def read(cls, source: str, body: bytes) -> Self:
        row, reward = struct.unpack_from("<qd", body)
        return cls(row, reward, np.frombuffer(body, offset=16).copy(), source)

    def apply(self, node: LocalNode) -> None:
        self._learn(node)
        node.journal.touched.add(self.row)
        work = node.server.due()
        if work is not None:
            work()
        node.feedbacks += 1

    def _learn(self, node: LocalNode) -> None:
        node.server.observe(self.row, self.x, self.reward)


class Withhold(Observe):
    """The same for what was shown before this store turned out to be old: another copy of it may have
    released it."""

    kind = "withhold"

    def _learn(self, node: LocalNode) -> None:
        node.server.observe(self.row, self.x, self.reward, releasable=False)


@dataclass(frozen=True)
class Replace(Entry):
    """A reward takes the place of one that was assumed."""

    row: int
    old: float
    new: float
    x: Vector

    kind = "replace"

    def body(self) -> bytes:
        return struct.pack("<qdd", self.row, self.old, self.new) + self.x.tobytes()

    @classmethod
    def read(cls, source: str, body: bytes) -> Replace:
        row, old, new = struct.unpack_from("<qdd", body)
        return cls(row, old, new, np.frombuffer(body, offset=24).copy())

    def apply(self, node: LocalNode) -> None:
        node.journal.touched.add(self.row)
        node.server.replace(self.row, self.x, self.old, self.new)


class Part(Empty):
    """A part of the server's work beside serving; live, whoever takes it computes it."""

    kind = "part"

    def apply(self, node: LocalNode) -> Work:
        if not node.server.busy:
            raise InvalidFile("the log holds a part of work that no entry has begun")
        part = node.server.part()
        node.journal.working = True
        return part

    def replay(self, node: LocalNode) -> None:
        self.apply(node)()
        node.journal.working = False


class _Number(Entry):
    """An entry with one number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def body(self) -> bytes:
        return json.dumps(self.number).encode()

    @classmethod
    def read(cls, source: str, body: bytes) -> Entry:
        return cls(json.loads(body))


class Forget(_Number):
    """All data of the user in this row goes; the server begins its work anew without it.

    Returns how many of its observations have left.
    """

    kind = "forget"

    def apply(self, node: LocalNode) -> int:
        observations = int(node.server.counts[self.number])
        released = node.server.forget(self.number)
        node.feedbacks -= observations
        node.journal.touched.add(self.number)
        node.journal.forgotten.add(self.number)
        return released


@dataclass(frozen=True)
class FromGlobal(Entry):
    """A message of the global server."""

    payload: bytes

    kind = "message"

    @property
    def source(self) -> str:
        return GLOBAL

    def body(self) -> bytes:
        return self.payload

    @classmethod
    def read(cls, source: str, body: bytes) -> FromGlobal:
        return cls(body)

    def apply(self, node: LocalNode) -> None:
        node.server.receive(node.family.decode(self.payload))
        node.sessions.channel.applied(self.payload)


class Pause(Empty):
    """Nothing is released until there is an answer of the global server."""

    kind = "pause"

    def apply(self, node: LocalNode) -> None:
        node.sessions.paused = True
        node.server.pause()


class Agree(Empty):
    """Both sides agree on where they stand."""

    kind = "agree"

    @property
    def source(self) -> str:
        return GLOBAL

    def apply(self, node: LocalNode) -> None:
        node.sessions.paused = False
        node.server.go_on()


@dataclass(frozen=True)
class Begin(Entry):
    """A new session."""

    offer: Offer

    kind = "begin"

    @property
    def source(self) -> str:
        return GLOBAL

    def body(self) -> bytes:
        return msgspec.msgpack.encode(self.offer)

    @classmethod
    def read(cls, source: str, body: bytes) -> Begin:
        return cls(msgspec.msgpack.decode(body, type=Offer))

    def apply(self, node: LocalNode) -> None:
        node.sessions.begin(self.offer)


@dataclass(frozen=True)
class Tick(Entry):
    """A time has come that calls for something, such as a slot."""

    moment: Moment

    kind = "tick"

    def body(self) -> bytes:
        return struct.pack("<dd", *self.moment)

    @classmethod
    def read(cls, source: str, body: bytes) -> Tick:
        return cls(Moment(*struct.unpack("<dd", body)))

    def apply(self, node: LocalNode) -> None:
        work = node.server.due(self.moment)
        if work is None:
            raise InvalidFile("the log holds a time that calls for nothing")
        work()


class Sent(_Number):
    """This server's member of a cohort was told to go: its sum for the slot is released."""

    kind = "sent"

    def apply(self, node: LocalNode) -> None:
        node.books.note("masked", node.sessions.channel.ordinal, node.journal.changes)
        slots_of(node).sent(self.number)


def slots_of(node: LocalNode) -> SlotsLocal:
    exchange = getattr(node.server, "exchange", None)
    if not isinstance(exchange, SlotsLocal):
        raise InvalidFile(f"{node.store.path} has a log entry of secure sums, which its server has not")
    return exchange


KINDS: Mapping[str, type[Entry]] = {
    entry.kind: entry
    for entry in (
        NewUser,
        Observe,
        Withhold,
        Replace,
        Part,
        Forget,
        FromGlobal,
        Pause,
        Agree,
        Begin,
        Tick,
        Sent,
    )
}


MOST_UNHEARD = 10_000
"""Messages without a receipt; a question tells of each, and a broker takes a megabyte at a time."""


class LocalSessions:
    """Lets a node release nothing before both sides agree on where they stand.

    `era` counts how often the store has turned out to be old, `marked` tells that it was restored from
    a backup, `begun` when and why the present session began.
    """

    def __init__(self, node: LocalNode) -> None:
        self.node, self.journal = node, node.journal
        self.channel = Channel(node.name, GLOBAL)
        self.handshake = Handshake()
        self.marked = node.store.get("marked") == "true"
        self.begun: dict[str, Any] | None = json.loads(node.store.get("begun") or "null")
        self.paused = False
        self.era = 0

    def state(self) -> dict[str, Any]:
        return {"channel": self.channel.state(), "paused": self.paused, "era": self.era}

    def restore(self, values: dict[str, Any]) -> None:
        """Take out what `state` gave; a pause is of the server too, which has no state of it."""
        self.channel.restore(values.pop("channel"))
        self.era = int(values.pop("era"))
        if values.pop("paused"):
            Pause().apply(self.node)

    def recovered(self) -> None:
        """A process that has just started has no answer."""
        self.wait()

    def connected(self) -> None:
        self.hello()

    def hello(self) -> None:
        """Ask where the global server stands; until it has answered nothing is released."""
        self.wait()
        record = self.channel.record(self.node.incarnation, self.marked, self.node.server.status().used)
        record = msgspec.structs.replace(record, rules=self.node.rules)
        self._tell(self.handshake.ask(self.node.name, record))

    def _tell(self, letter: bytes) -> None:
        self.journal.changes.letters.append((GLOBAL, letter))

    def ask_in_time(self) -> None:
        """Hold back what would make the question itself too long; later sums hold it as well.

        A store that is being read, or refused, does not ask.
        """
        unheard = self.channel.sent - self.channel.confirmed
        agreed = self.handshake.standing.state == AGREED and self.handshake.frame is None
        if unheard >= MOST_UNHEARD and agreed:
            self.hello()

    def knocked(self) -> None:
        if not self._repeat_hello():
            self.hello()

    def _repeat_hello(self) -> bool:
        """Whether a question is open; it is sent once more."""
        if self.handshake.frame is not None:
            self._tell(self.handshake.frame)
        return self.handshake.frame is not None

    def tick(self) -> bool:
        if self._repeat_hello():
            return True
        if self.handshake.doubt and self.handshake.standing.state == AGREED:
            self.hello()
            return True
        return False

    def stuck(self, channel: Channel) -> bool:
        """Ask: the answer says what has to be sent again."""
        agreed = self.handshake.standing.state == AGREED
        if agreed:
            self.hello()
        return agreed

    def wait(self) -> None:
        """Release nothing until there is an answer."""
        if not self.paused:
            self.journal.do(Pause())

    def welcomed(self, frame: Welcome) -> None:
        verdict = self.handshake.answered(frame)
        if verdict is None:
            return
        if verdict.refused:
            other = frame.record.rules != self.node.rules
            self.handshake.standing = OTHER_RULES if other else ANOTHER_STORE
            self.journal.changes.notices.append(str(self.handshake.standing.reason))
        elif frame.offer is not None:
            self._accept(frame.offer)
        else:
            self.channel.confirm(frame.record.received, frame.record.heard, self.journal.changes)
            self._agree()

    def _accept(self, offer: Offer) -> None:
        """Begin the session that is offered, send again what is needed, and ask again in it."""
        self.journal.do(Begin(offer))
        self.node.incarnation, self.marked = offer.incarnation, False
        reason, changes = reason_for(offer), self.journal.changes
        self.begun = {"session": offer.ordinal, "at": time.time(), "reason": reason}
        changes.note("incarnation", json.dumps(offer.incarnation.hex()))
        changes.note("marked", "false")
        changes.note("begun", json.dumps(self.begun))
        if offer.ordinal > 1:
            changes.notices.append(f"a new session begins: {reason}")
            self.handshake.standing = Standing(self.handshake.standing.state, reason)
        self.hello()

    def begin(self, offer: Offer) -> None:
        """What the entry of a new session does."""
        self.channel.begin(offer.ordinal, offer.session, self.journal.changes)
        self.era += offer.local_old
        self.handshake.early.clear()
        self.node.server.begin(beginning_of(offer))

    def _agree(self) -> None:
        """Send again what was not heard, and go on."""
        self.journal.send_again(self.channel)
        self.journal.do(Agree())
        self.handshake.standing = Standing(AGREED)
        early, self.handshake.early = self.handshake.early, {}
        for _, frame in sorted(early.items()):
            # What is refused now is not confirmed, so it comes again and is told then.
            with suppress(FclubError):
                self._receive_numbered(frame)

    def take_in(self, frame: Numbered | Receipt) -> None:
        """While the answer to a question is awaited nothing may move: messages are kept for later."""
        try:
            self.channel.check_session(frame.session)
            if isinstance(frame, Numbered):
                if self.paused:
                    self.handshake.keep(frame)
                else:
                    self._receive_numbered(frame)
            elif not self.paused:
                self.channel.confirm(frame.sequence, frame.chain, self.journal.changes)
        except (OtherSession, Conflict):
            self.handshake.doubt = True
            raise

    def _receive_numbered(self, frame: Numbered) -> None:
        """Apply a message, unless it was applied before: then it only gets its receipt again."""
        if self.channel.is_next(frame):
            self.journal.do(FromGlobal(frame.payload))
        self.journal.changes.receipts[GLOBAL] = self.channel.receipt()


@dataclass(frozen=True)
class Forgotten:
    """A user is gone with these observations, of which `released` at most had left before."""

    observations: int
    released: int


class UsersByName:
    """`rows` of users who are there, by name, and rows that are `gone` with who was forgotten."""

    def __init__(self, node: LocalNode) -> None:
        self.node, self.journal = node, node.journal
        self.rows: dict[str, int] = {}
        self.gone: set[int] = set()
        self.names_forgotten, self.refuse_forgotten_days = ForgottenNames(node.store, time.time()), 0.0

    def recover(self) -> None:
        """Once the server has its users again."""
        self.rows, rows = self.node.store.users(), len(self.node.server.counts)
        if len(self.rows) < rows:
            self.gone = set(range(rows)) - set(self.rows.values())

    def row_of(self, user: str) -> int:
        row = self.rows.get(user)
        if row is None:
            raise NotFound(f"there is no user {user!r}")
        return row

    def row_of_new(self, user: str) -> int:
        """The row of a user, who may be new."""
        row = self.rows.get(user)
        return self.add(user) if row is None else row

    def add(self, user: str) -> int:
        """The row of a user who was not there before."""
        row: int = self.journal.do(NewUser())
        self.rows[user] = row
        self.journal.changes.add_user(row, user)
        return row

    def expect(self, user: str) -> int:
        """The row of a user for whom an import brings something, before that is looked at."""
        gone, now = self.names_forgotten.find(user), time.time()
        if gone is not None and gone.refused_until > now:
            days = (gone.refused_until - now) / DAY
            raise WasForgotten(
                f"user {user!r} was forgotten; imports are refused for another {days:.1f} days "
                "(refuse_forgotten_days)"
            )
        return self.row_of_new(user)

    def forget(self, user: str) -> Forgotten:
        """Remove all that is stored of a user; a name that returns is a new account.

        A snapshot replaces the log, in which the user's observations are; until it is whole the journal
        is `erasing`.
        """
        row, node = self.row_of(user), self.node
        observations = int(node.server.counts[row])
        released = self.journal.do(Forget(row))
        del self.rows[user]
        self.gone.add(row)
        ledger, days = node.books.ledger, self.refuse_forgotten_days
        until = time.time() + DAY * days if days > 0.0 else 0.0
        kept = Remembered(until, ledger is not None and ledger.unit == EVENT)
        self.names_forgotten.add(user, kept, self.journal.changes)
        node.items.forget(row, self.journal.changes)
        node.decisions.delete_user(row, self.journal.changes)
        self.journal.changes.forget_user(row)
        self.journal.working = False  # the part that was taken last is of no use any more
        self.journal.save_some()
        return Forgotten(observations, released)


ASSUMED = "assumed"
"""Where a log entry comes from that learns a reward which was declared for none coming."""


NEVER = -1
"""The era of what must not be released."""


class Rewards:
    """What a node learns from. A reward is known by its decision, or by an id that came with it."""

    def __init__(self, node: LocalNode) -> None:
        self.node, self.journal = node, node.journal

    def _find(self, decision: str) -> tuple[bytes, Shown]:
        try:
            key = bytes.fromhex(decision)
        except ValueError:
            key = b""
        shown = self.node.decisions.find(key)
        if shown is None or shown.row in self.node.users.gone:
            raise UnknownDecision(f"there is no decision {decision!r}")
        return key, shown

    def event(
        self,
        decision: str,
        name: str,
        value: float,
        reward_of: Callable[[list[float]], float],
        final_after: float | None = None,
    ) -> bool:
        """Learn from what happened to a decision; False if that is known already.

        The reward is a function of the values of all its events. It takes the place of the one before
        as a reward does of an assumed one: where the promise is about single rewards, not once messages
        were sent that it may be in.
        """
        key, shown = self._find(decision)
        events = decode_events(shown.events)
        for kind, before in events:
            if kind == name:
                if before != value:
                    raise OtherReward(f"decision {decision!r} already has a {name} of another value")
                return False
        if shown.reward is not None and not shown.assumed:
            raise OtherReward(f"decision {decision!r} already has a reward")
        if final_after is not None and time.time() > time_of(key) + final_after:
            raise CannotReplace(f"the reward of decision {decision!r} is final (feedback.final_after)")
        events.append((name, value))
        reward, known = reward_of([number for _, number in events]), shown.assumed
        if shown.reward is None:
            known = 1 + self.node.books.sent  # what learning itself sends may hold it already
            self._learn(shown.era, shown.row, np.frombuffer(shown.features).copy(), reward)
        else:
            self._change(key, shown, reward)
        self._compare(key, shown, reward)
        told = encode_events(events)
        self.node.decisions.reward(key, reward, self.journal.changes, known, told)
        return True

    def feedback(self, decision: str, reward: float) -> bool:
        """Learn from a reward; False if it is known already."""
        key, shown = self._find(decision)
        if shown.assumed:
            self._change(key, shown, reward)
            self._compare(key, shown, reward)
            self.node.decisions.reward(key, reward, self.journal.changes, events=shown.events)
            return True
        if shown.reward is not None:
            if shown.reward != reward:
                raise OtherReward(f"decision {decision!r} already has another reward")
            return False
        self._learn(shown.era, shown.row, np.frombuffer(shown.features).copy(), reward)
        self._compare(key, shown, reward)
        self.node.decisions.reward(key, reward, self.journal.changes)
        return True

    def _compare(self, key: bytes, shown: Shown, reward: float) -> None:
        """With what was expected when the item was shown."""
        if shown.expected is not None:
            told = shown.row, shown.item, shown.expected
            self.node.items.learn(key, *told, reward, shown.reward)

    def learn_past(
        self, key: str, user: str, x: Vector, reward: float, item: str | None = None
    ) -> bool:
        """Learn from an observation made elsewhere; False if that of this id is known already.

        An `item` of the catalogue counts as seen by the user from now on.

        Once this store was old, another copy of it may have learned and released the same before; and
        so may this one, if the user was forgotten since. The user is there whatever becomes of the
        observation: how many users there are must not follow from what is refused.
        """
        known, row = self.node.past.find(key), self.node.users.expect(user)
        if known is not None and known[0] not in self.node.users.gone:
            if known != (row, reward):
                raise OtherReward(f"observation {key!r} is known with another user or reward")
            return False
        gone = self.node.users.names_forgotten.find(user)
        again = gone is not None and gone.never_released
        items, bound = self.node.items, None if item is None else self.node.server.bound(row)
        expected = None if bound is None else items.expected(bound, x)
        self._learn(NEVER if again else 0, row, x, reward)
        if item is not None and not items.learn(key, row, item, expected, reward):
            expected = None
        self.node.past.add(key, row, reward, item, self.journal.changes, expected)
        return True

    def _check(self, x: Vector, reward: float) -> None:
        """Refuse what the sensitivity does not cover, before anything is learned from it."""
        domain = self.node.family.domain
        domain.check(x, reward - domain.centre)

    def assume(self, before: float, reward: float) -> bool:
        """Let some decisions made before a time, whose reward has not come, count as this reward.

        False if there are no more. The log says of each that it was assumed.
        """
        decisions = self.node.decisions
        keys = decisions.open_before(before)
        for key in keys:
            shown = decisions.find(key)
            if shown is not None and shown.reward is None and shown.row not in self.node.users.gone:
                x: Vector = np.frombuffer(shown.features).copy()
                sent = self.node.books.sent  # what learning itself sends may hold it already
                self._learn(shown.era, shown.row, x, reward, ASSUMED)
                self._compare(key, shown, reward)
                decisions.reward(key, reward, self.journal.changes, 1 + sent)
        if keys:
            decisions.looked_at(keys[-1], self.journal.changes)
        return bool(keys)

    def _learn(self, era: int, row: int, x: Vector, reward: float, source: str = "") -> None:
        """What was shown in an earlier era of the store may have been released by another copy."""
        self._check(x, reward)
        kind = Observe if era == self.node.sessions.era else Withhold
        try:
            self.journal.do(kind(row, reward, x, source))
        except FclubError as error:
            raise RuntimeError("an observation was learned in part") from error

    def _change(self, key: bytes, shown: Shown, reward: float) -> None:
        """A reward takes the place of one that was assumed, or that fewer events had made."""
        if shown.reward != reward:
            old_store = shown.era != self.node.sessions.era
            final = self.node.server.final_once_sent and shown.assumed != 1 + self.node.books.sent
            if old_store or final:
                raise CannotReplace(
                    f"decision {key.hex()!r} has a reward, assumed since none had come or made of its "
                    "events, and this server has sent messages since in which that may be"
                )
            x: Vector = np.frombuffer(shown.features).copy()
            self._check(x, reward)
            self.journal.do(Replace(shown.row, float(shown.reward or 0.0), reward, x))


@dataclass(frozen=True)
class Decision:
    """What was shown; `id` names it in the feedback."""

    id: str
    index: int


class LocalNode(Node):
    """One local server as a state machine: users, decisions, rewards, frames in, changes out."""

    sessions: LocalSessions
    cohort: MemberSide | None = None

    def __init__(
        self,
        name: str,
        family: Family,
        noise: RecordedNoise,
        rng: np.random.Generator,
        store: Store,
        uniform: float = 0.0,
        clock: Clock = time.time,
    ) -> None:
        super().__init__(store, noise, clock)
        self.name, self.family, self.uniform = name, family, uniform
        ledger = family.ledger(seeded=noise.seeded, keep=False)
        if ledger is not None:
            ledger.library_cost = noise.cost
        place = Place(name, self, noise, ledger, rng)
        self.server = family.local_server(place, family.users(0), live=True)
        self.server.in_parts = True
        self.books = Books(ledger, store)
        self.journal.charge = self.books.enter
        self.decisions, self.past = Decisions(store), Past(store)
        self.catalogue = Catalogue(store, family.shape.dim, keep=uniform > 0.0)
        self.items = LearnedItems(self.catalogue, self.decisions, self.past)
        self.sessions, self.rewards = LocalSessions(self), Rewards(self)
        self.users, self.feedbacks = UsersByName(self), 0

    def recover(self) -> None:
        self.books.compare(self.journal.recover(KINDS))
        self.users.recover()
        self.sessions.recovered()
        self.tick()  # what an earlier process may have sent is charged before anything else is done

    @property
    def channels(self) -> list[Channel]:
        return [self.sessions.channel]

    def to_global(self, message: Message) -> None:
        """The link of the local server: everything that it sends is numbered and stored."""
        channel, changes = self.sessions.channel, self.journal.changes
        self.books.post(message, channel.ordinal, changes)
        channel.send(encode(message), changes)

    def recommend(self, user: str, items: Matrix, ids: Sequence[str]) -> Decision:
        """Somebody arrives, and is shown one of these items."""
        self.users.row_of_new(user)
        return self.choose(user, items, ids)

    def choose(self, user: str, items: Matrix, ids: Sequence[str]) -> Decision:
        """Choose an item for somebody who has arrived, and remember what was shown to whom.

        The items are the application's own: of those of the catalogue more is known (`show`).
        """
        self.family.domain.check_items(items)
        row = self.users.rows[user]
        offered: Offered | None = None
        index = self.server.recommend(row, items)
        key = self.decisions.new_key(user)
        if self.uniform > 0.0:
            index, chance = mix(index, len(items), self.uniform, coin_of(key))
            offer = encode_offer(Own(list(ids), items.tobytes()))
            offered = Offered(chance, self.catalogue.version, offer)
        shown = Shown(row, items[index].tobytes(), era=self.sessions.era)
        self.decisions.add(key, shown, ids[index], self.journal.changes, offered)
        return Decision(key.hex(), index)

    def bound(self, user: str) -> Bound:
        """What items are scored with for this user, who has arrived and may be forgotten since."""
        return self.server.bound(self.users.row_of_new(user))

    def show(
        self,
        user: str,
        item: str,
        features: Vector,
        key: bytes | None = None,
        offered: Offered | None = None,
        bound: Bound | None = None,
    ) -> str:
        """Remember that an item was chosen for this user; returns the decision.

        `key` is given where the choice has followed from it, with what was `offered`. An item of the
        catalogue comes with the `bound` by which it was scored.
        """
        row = self.users.row_of_new(user)
        key = self.decisions.new_key(user) if key is None else key
        told = None if bound is None else self.items.expected(bound, features)
        shown = Shown(row, features.tobytes(), era=self.sessions.era, expected=told)
        self.decisions.add(key, shown, item, self.journal.changes, offered)
        return key.hex()

    def put_items(
        self, ids: list[str], items: Matrix, attributes: list[Attributes] | None = None
    ) -> int:
        """Insert or replace items of the catalogue; returns how many are new."""
        self.family.domain.check_items(items)
        return self.catalogue.put(ids, items, self.journal.changes, attributes)

    def delete_item(self, key: str) -> None:
        if not self.catalogue.delete(key, self.journal.changes):
            raise NotFound(f"there is no item {key!r}")

    def receive(self, sender: str, data: bytes) -> None:
        """A frame of the global server; a number that was applied only gets its receipt again."""
        try:
            frame = decode_frame(data, sender)
        except OtherVersion as error:
            self.sessions.handshake.standing = Standing(REFUSED, str(error))
            raise
        self.sessions.handshake.shut = isinstance(frame, Shut)
        match frame:
            case Shut():
                pass
            case Welcome():
                self.sessions.welcomed(frame)
            case Knock():
                self.sessions.knocked()
            case Numbered() | Receipt():
                self.sessions.take_in(frame)
            case Cohort() if self.cohort is not None:
                self.cohort.receive(sender, frame.payload)
            case _:
                raise InvalidMessage(f"a local server does not take a {type(frame).__name__}")

    def tick(self) -> bool:
        moment = Moment(self.now, self.began)
        due = self.server.due(moment) is not None
        while self.server.due(moment) is not None:
            self.journal.do(Tick(moment))
        return due

    def state(self) -> State:
        arrays, values = self.server.state()
        books = {"entries": self.books.entries, "messages": self.books.sent}
        return arrays, values | self.sessions.state() | books | {"feedbacks": self.feedbacks}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.feedbacks = int(values.pop("feedbacks"))
        self.books.recover(values.pop("entries"), values.pop("messages"))
        self.sessions.restore(values)
        self.server.restore(arrays, values)

    @property
    def by_user(self) -> tuple[str, ...]:
        return self.server.by_user

    @property
    def busy(self) -> bool:
        return self.server.busy

    def part(self) -> Work | None:
        self.journal.working = False
        if self.journal.forgotten:
            self.journal.save()
        self.journal.save_if_due()
        if not self.server.busy:
            return None
        part: Work = self.journal.do(Part())
        return part

    def overview(self) -> list[LocalOverview]:
        """The clusters, without the rows of forgotten users, which stay empty."""
        clusters = self.server.overview()
        if not self.users.gone:
            return clusters
        gone = np.bincount(self.server.cluster_of_user[list(self.users.gone)], minlength=len(clusters))
        left = zip(clusters, gone.tolist(), strict=True)
        return [replace(one, users=one.users - n) for one, n in left]

    def forget(self, before: float) -> bool:
        """Drop some decisions made before a time; False if there are none. Feedback is unknown then."""
        old = self.decisions.made_before(before)
        if old:
            self.items.forget_old(old, self.journal.changes)
            self.decisions.forget(old, self.journal.changes)
        return bool(old)

    @property
    def exhausted(self) -> bool:
        """Nothing more may leave: the budget has refused it, or all releases of the period are used."""
        outlook = self.server.status().outlook
        return self.books.exhausted or outlook.used == outlook.releases

    def take(self) -> Changes:
        self.sessions.ask_in_time()
        changes = super().take()
        changes.notices += self.books.news(self.exhausted)
        return changes

    def committed(self, changes: Changes) -> None:
        if changes.rewards:
            self.decisions.committed(changes)
        if self.items.waiting or changes.dropped:
            self.items.committed(changes)
        if changes.past:
            self.past.committed(changes)

    def summary(self) -> dict[str, Any]:
        """Numbers for people: counts that must agree, and the channel."""
        own = int(self.server.counts.sum())
        return {"users": len(self.users.rows), "observations": own, "feedbacks": self.feedbacks} | (
            self.sessions.channel.counters() | {"entry": self.journal.entry}
        )


def join(node: LocalNode, identity: Identity, members: MemberList, plan: CohortPlan) -> None:
    """Take part in secure sums.

    What an earlier process may have sent is charged, and stored with the first commit.
    """
    kept = node.store.get(RECORD)
    record = msgspec.json.decode(kept, type=MemberRecord) if kept else MemberRecord()
    member = Member(identity, record, lambda: node.now, os.urandom, node.journal.noise.source)

    def sent(slot: int) -> None:
        node.journal.do(Sent(slot))

    side = MemberSide(node.name, node.journal, partial(slots_of, node), member, plan, sent)
    for step in (member.begin(), member.accept(members), member.adopt(plan)):
        side.done(step)
    node.cohort = side
