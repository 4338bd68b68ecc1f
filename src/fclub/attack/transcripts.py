"""What an attacker reads off the wire: facts without noise, and noised numbers, stream by stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.linalg import solve_triangular

from fclub.attack.pairs import Pair
from fclub.attack.running import Wire
from fclub.attack.scenes import EVERYBODY
from fclub.cohorts.messages import Join, Masked
from fclub.cohorts.messages import decode as decode_secret
from fclub.core.lattice import STEP
from fclub.core.types import Floats, Matrix, Vector
from fclub.errors import InvalidFile
from fclub.privacy.mechanisms import Tree
from fclub.privacy.plan import Plan
from fclub.privacy.sensitivity import noised_entries, noised_places, released_std
from fclub.protocol.exchanges.slots import Release, read_whole
from fclub.protocol.exchanges.user_streams import Digest
from fclub.protocol.interfaces.family import Family
from fclub.protocol.messages import Message, read_statistics
from fclub.service.link.channel import Cohort, Hello, Numbered, decode_frame
from fclub.service.store.books import read_books

Key = tuple[Any, ...]


def numbers_in(value: Any) -> Iterator[float]:
    """All numbers that a message holds beside its statistics, and how many entries its lists have."""
    match value:
        case int() | float():
            yield value
        case list() | tuple():
            yield len(value)
            for entry in value:
                yield from numbers_in(entry)


class Transcript(NamedTuple):
    """One run.

    `facts` are sizes, times, ids, orders, counts. `raw` are the noised numbers of each release in
    lattice steps, `white` the same in units in which the claimed noise is N(0, I), `keys` the stream of
    each. `charged` are the releases that the final ledger knows of, and `spent` is the μ that it shows;
    `refused` are messages that the global server did not take. `nonces` are the random bytes of
    greetings, and `served` what each user was served from where others' data must not show in it.
    `masked` are the vectors of secure sums as they left this server, one after the other.
    """

    facts: tuple[Any, ...]
    keys: tuple[Key, ...]
    raw: Matrix
    white: Matrix
    charged: int
    spent: float
    refused: int
    nonces: bytes
    served: dict[str, bytes]
    masked: bytes = b""


@dataclass
class _Heard:
    """What was heard so far in one run: sessions, numbers, and groups of the present session."""

    sessions: dict[bytes, int] = field(default_factory=dict)
    seen: set[tuple[bytes, bytes]] = field(default_factory=set)
    groups: dict[bytes, Vector] = field(default_factory=dict)
    session: int = 0
    masked: dict[bytes, bytes] = field(default_factory=dict)


class Reader:
    """Reads frames as somebody who knows code and configuration."""

    def __init__(self, pair: Pair, family: Family) -> None:
        self.pair, self.family = pair, family
        self.dim, self.domain = family.shape.dim, family.domain

    def read(self, running: Wire) -> Transcript:
        """After the run has finished."""
        facts: list[tuple[Any, ...]] = []
        streams: dict[Key, list[Vector]] = {}
        order: list[tuple[Key, int]] = []
        heard, nonces = _Heard(), b""
        for visits, data in running.sent:
            frame = decode_frame(data, running.name)
            fact: list[Any] = [visits, type(frame).__name__]
            if isinstance(frame, Numbered):
                message = self.family.decode(frame.payload)
                session = heard.sessions.setdefault(frame.session, len(heard.sessions))
                fact += [session, type(message).__name__]
                if not self.pair.grouped:
                    fact += [len(data), *self._plain(message)]
                for key, values in self._noised(message, session, heard):
                    streams.setdefault(key, []).append(values)
                    order.append((key, len(streams[key]) - 1))
            elif isinstance(frame, Cohort):
                said = decode_secret(frame.payload)
                fact += [type(said).__name__, len(data)]
                nonces += said.key if isinstance(said, Join) else b""
                if isinstance(said, Masked):
                    heard.masked[said.roster] = said.values
            else:
                nonces += frame.number if isinstance(frame, Hello) else b""
                if not self.pair.grouped:
                    fact += [len(data), *numbers_in(msgspec.to_builtins(frame))]
            facts.append(tuple(fact))
        facts += [(visits, "notice", text) for visits, text in running.notices]
        for found in running.sums:
            streams[(found.slot,)] = [self._whole(found.sums)]
            order.append(((found.slot,), 0))
        charged, spent = _charged(running)
        white = {key: self._whiten(key, np.array(values)) for key, values in streams.items()}
        return Transcript(
            facts=() if self.pair.printed else tuple(facts),
            keys=tuple(key for key, _ in order),
            raw=_rows([streams[key][place] for key, place in order]),
            white=_rows([white[key][place] for key, place in order]),
            charged=charged,
            spent=spent,
            refused=running.refused,
            nonces=nonces,
            served=running.served if self.pair.own else {},
            masked=b"".join(heard.masked.values()),
        )

    def _plain(self, message: Message) -> list[float]:
        found = list(numbers_in(msgspec.to_builtins(message)))
        if isinstance(message, Release):
            return [*found, len(message.sums)]
        if isinstance(message, Digest):
            found += [int.from_bytes(cluster) for cluster in message.present]
        for part in message.parts():
            sent = read_statistics(part.statistics, self.dim)
            found += [int.from_bytes(part.cluster), sent.count]
            found += [] if self.domain.constant is None else [float(sent.gram[-1, -1])]
        return found

    def _noised(self, message: Message, session: int, heard: _Heard) -> list[tuple[Key, Vector]]:
        """Numbers that were not sent before, each with its stream."""
        if isinstance(message, Release):
            return [((message.slot,), self._whole(message.sums))]
        parts = {part.cluster: self._entries(part.statistics) for part in message.parts()}
        if self.pair.printed:
            kind = type(message).__name__
            return [((kind, cluster), values) for cluster, values in parts.items()]
        if self.pair.grouped:
            assert isinstance(message, Digest)
            return self._of_all(parts, message.present, session, heard)
        new = [(c, v) for c, v in parts.items() if (c, v.tobytes()) not in heard.seen]
        heard.seen |= {(cluster, values.tobytes()) for cluster, values in new}
        return [((session, cluster), values) for cluster, values in new]

    def _whole(self, sums: bytes) -> Vector:
        family: Any = self.family
        return np.asarray(read_whole(sums, family.plan.entries).astype(np.float64))

    def _entries(self, statistics: bytes) -> Vector:
        sent = read_statistics(statistics, self.dim)
        return np.asarray(noised_entries(sent.gram, sent.moment, self.domain) / STEP)

    def _of_all(
        self, parts: dict[bytes, Vector], present: tuple[bytes, ...], session: int, heard: _Heard
    ) -> list[tuple[Key, Vector]]:
        """Whoever is in which group, the sum over all groups is that of all users' streams."""
        if session != heard.session:
            heard.session, heard.groups = session, {}
        nothing = np.zeros(len(noised_places(self.domain, self.dim)[0]))
        before = sum(heard.groups.values(), nothing)
        heard.groups = {cluster: (heard.groups | parts)[cluster] for cluster in present}
        total = sum(heard.groups.values(), nothing)
        return [((session, "all"), total)] if np.any(total != before) else []

    def _whiten(self, key: Key, values: Matrix) -> Matrix:
        family: Any = self.family
        if self.pair.unit == "user":
            return np.asarray(values / self.deviations)
        if self.pair.printed:
            return values
        factor = family.plan.mechanism.factor(len(values))
        prefixes = solve_triangular(factor, values, lower=True)
        return np.asarray(prefixes / (np.sqrt(self.streams) * self.deviations))

    @property
    def deviations(self) -> Vector:
        """Of the noise of each number of a release or of a stream, in lattice steps."""
        family: Any = self.family
        if self.pair.unit == "user":
            plan: Plan = family.plan
            total = plan.total(plan.members) if self.pair.secure else float(plan.deviation)
            return np.full(plan.entries, total)
        deviations = released_std(self.domain, self.dim, family.plan.mechanism.std) / STEP
        return np.asarray(deviations[deviations > 0.0])

    def bound(self, releases: int) -> float:
        """μ of so many releases of what one neighbour changes."""
        family: Any = self.family
        if self.pair.unit == "user":
            return float(np.sqrt(releases) * family.plan.bound / self.deviations[0])
        mechanism, sensitivity = family.plan.mechanism, family.plan.sensitivity
        rounding = mechanism.step * np.sqrt(releases * mechanism.entries)
        moved = sensitivity * mechanism.multiplier(releases) + rounding
        return float(moved / (mechanism.std * np.sqrt(self.streams)))

    @property
    def draws(self) -> tuple[int, Vector]:
        """How many draws are added up in a release, and the deviations of each of them."""
        if not self.pair.secure:
            return 1, self.deviations
        plan: Plan = self.family.plan  # type: ignore[attr-defined]
        return plan.members, np.full(plan.entries, float(plan.share(plan.members)))

    @property
    def hidden(self) -> float:
        """How much smaller noise is without the shares of those who may collude."""
        if not self.pair.secure:
            return 1.0
        plan: Plan = self.family.plan  # type: ignore[attr-defined]
        return float(np.sqrt(plan.members / plan.honest(plan.members)))

    @property
    def releases(self) -> int:
        """How many releases all of them together are."""
        family: Any = self.family
        return int(family.plan.mechanism.releases)

    @property
    def streams(self) -> int:
        """How many streams are added up in what is read as one."""
        return len(EVERYBODY) if self.pair.grouped else 1


def _rows(releases: list[Vector]) -> Matrix:
    """One release a row; a run without any has none."""
    return np.array(releases) if releases else np.zeros((0, 1))


def _charged(running: Wire) -> tuple[int, float]:
    """Releases that the ledger in the store has paid for, and μ; a lost stream may have had all.

    A ledger that does not add up has paid for nothing.
    """
    try:
        ledger = read_books(running.store)
    except InvalidFile:
        return 0, 0.0
    lost = (name for name in ledger.streams if "/lost" in name)
    rest = sum(ledger.streams[name].mechanism.releases for name in lost)
    return rest + sum(stream.sequence for stream in ledger.streams.values()), ledger.mu


def whiten_printed(runs: Floats, keys: tuple[Key, ...], std: float, dim: int, family: Family) -> Floats:
    """Runs of the printed algorithm: the first report and all uploads are leaves of one tree.

    A later report that changes nothing has noise of its own.
    """
    deviations = released_std(family.domain, dim, std) / STEP
    white = runs / deviations
    reports = [place for place, key in enumerate(keys) if key[0] == "Report"]
    leaves = [place for place in range(len(keys)) if place not in reports[1:]]
    factor = Tree(len(leaves), 1.0).factor(len(leaves))
    prefixes = np.cumsum(white[:, leaves], axis=1)
    white[:, leaves] = np.einsum("ij,njp->nip", np.linalg.inv(factor), prefixes)
    return np.asarray(white)
