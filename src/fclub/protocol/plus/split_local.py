"""A local server whose types are as many as the data of all servers call for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fclub.core.packing import flatten, inside, rebuild, under
from fclub.core.plus.beliefs import (
    Beliefs,
    PopulationPrior,
    TypeRules,
    first_beliefs,
    move_population,
    move_types,
)
from fclub.core.plus.split_sums import SplitSums, sum_splits
from fclub.core.plus.splits import (
    Halves,
    first_type,
    half_columns,
    move_halves,
    paying_types,
    prior_in,
    start_halves,
    write_variational,
)
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_sums import VISITS, Known, TypeSums
from fclub.core.types import Floats, Indices
from fclub.errors import InvalidMessage
from fclub.privacy.sensitivity import Domain
from fclub.protocol.link import Uplink
from fclub.protocol.messages import Message, PhaseStart
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.split_hub import Splitter
from fclub.protocol.plus.split_messages import (
    TypeDigest,
    TypeNews,
    check_types,
    read_splits,
    read_starts,
    read_told,
    write_splits,
)
from fclub.protocol.plus.type_local import EXCHANGES, Pass, TypeLocal
from fclub.protocol.plus.type_messages import to_bytes
from fclub.protocol.seam import TYPE, LocalOverview, State, part_known

OFTEN = 16.0
"""Visits, as a mean over users, from which on a server takes part in every phase of a simulation."""

GROWTH = 1.3
"""How much a server's observations have to grow before that: a phase looks at all users."""


OWN_USERS, OTHERS = range(2)
"""Numbers under which a server that decides alone keeps sums."""


class SplitLocal(TypeLocal):
    """Learns with all servers how many types there are, and what they are.

    The first type has everybody. In each exchange of a phase users are shared out between types, and
    those of a type between its two halves; where the sums of all servers say so, the global server
    splits a type into its halves, or makes one type of two. A server that does not `share` does the
    same with its own sums. Types keep their ids: of the types that one is split into, one keeps it.
    """

    def __init__(
        self,
        crowd: Crowd,
        rules: TypeRules,
        exploration: float,
        share: bool,
        domain: Domain,
        link: Uplink,
        clock: GeometricClock | None = None,
        kept: float = 1.0,
    ) -> None:
        super().__init__(crowd, rules, exploration, share, domain, link, clock, kept)
        self.alone = None if share else Splitter(rules.types, rules.dim)
        self.version = 0
        self.candidates: tuple[int, ...] = (0,)
        self._fresh: dict[int, Floats] = {}
        self.splits = SplitSums.zeros(1, rules.dim)
        self.others_splits = SplitSums.zeros(1, rules.dim)
        self.sums, self.others = self.splits.sums, self.others_splits.sums

    def _first(self) -> Beliefs:
        """A new server believes in one type."""
        self.types: tuple[int, ...] = (0,)
        self.halves, self.paying = Halves.none(1, self.rules.dim), np.ones(1)
        return first_type(first_beliefs(replace(self.rules, types=1)))

    def _believe(self, beliefs: Beliefs) -> None:
        self.beliefs = beliefs
        shape = 1, len(self.types), self.rules.dim
        self.model = self.learned = TypeModel.zeros(*shape)
        write_variational(beliefs, self.model, self.paying)
        if not self.paying.all():
            self.learned = TypeModel.zeros(*shape)
            write_variational(beliefs, self.learned, np.ones(len(self.types)))

    @property
    def served_by(self) -> Indices:
        """Places of the types that users are most probably of."""
        place_of = np.zeros(self.rules.types, dtype=np.int64)
        place_of[list(self.types)] = np.arange(len(self.types))
        found: Indices = place_of[self.labels]
        return found

    @property
    def group_of(self) -> Indices:
        labels = self.labels.astype(np.int64)
        return labels if self.share and self.ids else -1 - labels

    @property
    def ids(self) -> list[int]:
        return [*self.types] if self.share and self.sums.scalars[VISITS] else []

    @property
    def has_begun(self) -> bool:
        """Fewer observations than features say too little."""
        return super().has_begun and self.observations >= self.rules.dim

    def _new_pass(self) -> Pass:
        self._adding = SplitSums.zeros(len(self.types), self.rules.dim)
        return Pass(self._adding.sums)

    def _adder(self, sums: TypeSums) -> Callable[[Known, Indices], None]:
        return self._add_to(self._adding)

    def _add_to(self, adding: SplitSums) -> Callable[[Known, Indices], None]:
        """Adds users to these sums by the types that are believed in now."""
        beliefs, model = self.beliefs, self.learned
        told = beliefs.centres, beliefs.within, beliefs.own, half_columns(self.halves)
        ids = np.array(self.types)
        return lambda known, labels: sum_splits(model, known, *told, ids, labels, adding)

    def _finish(self, sums: TypeSums) -> None:
        self.splits = self._adding
        super()._finish(sums)

    def _ask(self) -> bool:
        if not self.asking or self.paused:
            return False
        self.owing, self.unanswered = False, True
        told = self.version, self.types, self.candidates, to_bytes(write_splits(self.splits))
        self.link.to_global(TypeDigest(self.phase, self.step, *told))
        return True

    def _move(self) -> None:
        if self.alone is not None:
            self._decide(self.alone)
        fresh, self._fresh = self._fresh, {}
        self._move_types(fresh)

    def _decide(self, types: Splitter) -> None:
        """What the global server does where servers share their sums."""
        outside, own = self._outside_sums(), (self.version, self.types, self.candidates)
        types.learn(OWN_USERS, *own, self.splits)
        if outside is None:
            types.forget(OTHERS)
        else:
            types.learn(OTHERS, *own, outside)
        types.decide()
        others = types.known.get(OTHERS, SplitSums.zeros(types.types, self.rules.dim))
        told = types.version, tuple(types.ids), tuple(types.candidates)
        self._set_types(*told, types.known[OWN_USERS], others)
        self._fresh = types.fresh

    def _outside_sums(self) -> SplitSums | None:
        """What is known of users elsewhere, if anything."""
        return None

    def _set_types(
        self,
        version: int,
        ids: tuple[int, ...],
        candidates: tuple[int, ...],
        own: SplitSums,
        others: SplitSums,
    ) -> None:
        self.splits, self.others_splits = own, others
        self.sums, self.others = own.sums, others.sums
        if ids != self.types:
            gone = np.setdiff1d(self.types, ids)
            self.people.relabel(gone, ids[int(np.argmax(own.plus(others).sums.users))])
        self.version, self.types, self.candidates = version, ids, candidates
        self.halves = Halves.none(len(ids), self.rules.dim)._replace(open=np.sign(candidates) * 1.0)

    def _move_types(self, fresh: dict[int, Floats]) -> None:
        """A step of expectation maximisation by the sums of all servers."""
        total, types, d = self.splits.plus(self.others_splits), len(self.types), self.rules.dim
        room = self.beliefs._replace(
            centres=np.zeros((types, d)),
            uncertainty=np.zeros((types, d, d)),
            users=np.zeros(types),
        )
        beliefs = move_types(room, total.sums, self.rules)
        prior = prior_in(beliefs)
        self.halves = move_halves(self.halves, prior, total)
        for place, centres in fresh.items():
            self.halves = start_halves(self.halves, beliefs, place, centres)
        self.paying = paying_types(prior, total)
        if self.step == EXCHANGES - 1:
            beliefs = move_population(beliefs, total.sums, self.rules, self.prior)
            self._known = None
            self.people.expect(self.types[int(np.argmax(beliefs.users))])
        self._believe(beliefs)

    def add_user(self) -> int:
        return self.people.add(self.types[int(np.argmax(self.beliefs.users))])

    def receive(self, message: Message) -> None:
        match message:
            case TypeNews():
                self._adopt_types(message)
            case PhaseStart() if self.clock is None:
                self.call(message.phase)
            case _:
                raise InvalidMessage(f"a server of types does not take a {type(message).__name__}")

    def call(self, phase: int) -> None:
        """In a simulation: take part in this phase if there is enough to learn from.

        Before `OFTEN` that is `GROWTH` times as much as it learned from last.
        """
        often = self.observations >= OFTEN * len(self.labels)
        grown = often or self.observations >= GROWTH * self.sums.scalars[VISITS]
        if not self.phase or (self.has_begun and grown):
            self._begin_phase(phase)

    def expect(self, prior: PopulationPrior) -> None:
        """What others have released of the population; where learning starts if it has not begun."""
        self.prior = prior
        if not self.sums.scalars[VISITS]:
            S = prior.covariance
            start = self.beliefs._replace(mean=prior.mean.copy(), covariance=S, uncertainty=S[None])
            self._believe(first_type(start))

    def _adopt_types(self, message: TypeNews) -> None:
        """Move types by the sums of all servers, and send the next ones.

        A late answer is of no use: the server has gone on without it.
        """
        asked = message.phase, message.step
        if asked < (self.phase, self.step):
            return
        if not self.unanswered or asked != (self.phase, self.step) or message.servers < 0:
            raise InvalidMessage(f"sums of others for step {message.step}, which was not asked for")
        check_types(message.ids, message.candidates, message.version, self.rules.types)
        shape = len(message.ids), self.rules.dim
        starts = read_starts(message.starts, message.fresh, *shape)
        same = (message.version, message.ids) == (self.version, self.types)
        if same == bool(message.own):
            raise InvalidMessage("own sums are told if types have changed, and only then")
        own = self.splits if same else read_told(message.own, *shape)
        others = read_told(message.sums, *shape)
        self.sharing, self.unanswered = message.servers, False
        self._set_types(message.version, message.ids, message.candidates, own, others)
        self._fresh = dict(zip(message.fresh, starts, strict=True))
        self._step_on()

    def _sent(self) -> Floats:
        """Observations by type that others know of."""
        sent: Floats = np.rint(self.sums.visits) * bool(self.ids)
        return sent

    def overview(self) -> list[LocalOverview]:
        told, beliefs, sent = self.share and bool(self.ids), self.beliefs, self._sent()
        users, own = self.people.count() if self.clock is None else self.people.members
        weights = (beliefs.users + 1.0) / (beliefs.users + 1.0).sum()
        return [
            LocalOverview(
                cluster=k if told else None,
                group=k if told else None,
                users=int(users[k]),
                own=int(own[k]),
                others=round(float(self.others.visits[place])),
                waiting=max(int(own[k] - sent[place]), 0),
                shared_by=1 + self.sharing,
                kind=TYPE,
                weight=float(weights[place]),
                known=part_known(beliefs.uncertainty[place], beliefs.covariance),
            )
            for place, k in enumerate(self.types)
        ]

    def state(self) -> State:
        arrays, values = super().state()
        arrays |= flatten(self.halves, "halves.") | {"paying": self.paying}
        for name in [name for name in arrays if name.startswith(("sums.", "others.", "pass."))]:
            del arrays[name]
        arrays |= {"splits": write_splits(self.splits), "others": write_splits(self.others_splits)}
        if self._pass is not None:
            arrays["adding"] = write_splits(self._adding)
        values |= {
            "version": self.version,
            "types": list(self.types),
            "candidates": list(self.candidates),
        }
        if self.alone is not None:
            own, values["alone"] = self.alone.state()
            arrays |= under("alone.", own)
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.types, self.candidates = tuple(values["types"]), tuple(values["candidates"])
        self.version, shape = int(values["version"]), (len(self.types), self.rules.dim)
        self.halves = rebuild(self.halves, arrays, "halves.")
        self.paying = arrays["paying"]
        self.splits = read_splits(arrays["splits"], *shape)
        self.others_splits = read_splits(arrays["others"], *shape)
        self._adding = read_splits(arrays.get("adding", arrays["splits"]), *shape)
        parts = flatten(self.splits.sums, "sums.") | flatten(self.others_splits.sums, "others.")
        super().restore(arrays | parts | flatten(self._adding.sums, "pass."), values)
        if self.alone is not None:
            self.alone.restore(inside("alone.", arrays), values["alone"])
