"""The generator of the audit: histories of requests, made from the table of routes, and neighbours.

Every route that takes a body is searched, with bodies made from the body's own type: a route that is
added to the table is searched with the others. Bodies hold names for what is only known in a run: a
vector of the domain, the newest decision of a user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import msgspec.inspect as types
import numpy as np
from hypothesis import strategies as st

from fclub.attack.pairs import DIM, Pair
from fclub.core.types import Vector
from fclub.privacy.audit import canaries
from fclub.privacy.levels import USER
from fclub.privacy.sensitivity import Domain
from fclub.service.http.api import OPERATIONS

USERS = ("u0", "u1", "u2", "u3")
ITEMS = ("a", "b", "c", "d", "e")
REWARDS = (1.0, 0.0, 0.5)
OUTSIDE = 9.0
"""A reward that every server refuses."""

MOST_ROUNDS, REFUSED = 8, 9
FORGET = ("delete", "/v1/users/{user}")
RECOMMEND, FEEDBACK = "/v1/recommend", "/v1/feedback"


@dataclass(frozen=True)
class Vec:
    """A vector of the palette; those behind the last one are refused."""

    number: int


@dataclass(frozen=True)
class Latest:
    """The decision that a user was shown so many decisions ago."""

    user: str
    back: int


@dataclass(frozen=True)
class Entry:
    """What one user asks for or tells, and what it asks for or tells instead in the neighbour."""

    user: str
    here: dict[str, Any]
    there: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request to a route of the table; the body may hold entries of several users."""

    method: str
    path: str
    body: Any = None


@dataclass(frozen=True)
class Visits:
    """Users take turns: each is shown one item, and answers at once.

    Seeds 0 and 1 are extremes; with the last all requests are refused. Items that are `known` are those
    of the catalogue, which have effects.
    """

    count: int
    seed: int
    other: int
    known: bool = False

    def requests(self) -> Iterator[Request]:
        for visit in range(self.count):
            user = USERS[visit % 3]
            here, there = (_visit(user, seed, visit, self.known) for seed in (self.seed, self.other))
            yield Request("post", RECOMMEND, Entry(user, here[0], there[0]))
            yield Request("post", FEEDBACK, Entry(user, here[1], there[1]))


def _visit(user: str, seed: int, visit: int, known: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    vector, reward = 0 if seed < REFUSED else VALID, float(seed == 0)
    if 1 < seed < REFUSED:
        rng = np.random.default_rng([seed, visit])
        vector, reward = int(rng.integers(VALID)), float(rng.integers(2))
    told, item = {"decision": Latest(user, 0), "reward": reward}, ITEMS[visit % 5]
    if known and seed < REFUSED:
        return {"user": user, "items": [item], "exclude_seen": False}, told
    return {"user": user, "items": [{"id": item, "features": Vec(vector)}]}, told


@dataclass(frozen=True)
class Restart:
    """The process ends, and another one opens the store."""

    snapshot: bool


@dataclass(frozen=True)
class Copy:
    """Somebody copies the store."""


@dataclass(frozen=True)
class PutBack:
    """The newest copy, if there is one, takes the place of the store."""


@dataclass(frozen=True)
class TimePasses:
    """What a server does by the clock: it asks again, assumes rewards, forgets old decisions."""

    seconds: float
    assume: bool = False
    expire: bool = False


Step = Request | Visits | Restart | Copy | PutBack | TimePasses

STOCK = Request(
    "put", "/v1/items", {"items": [{"id": item, "features": Vec(k)} for k, item in enumerate(ITEMS)]}
)
"""What is on offer before anybody comes."""

WITHDRAWN, REMOVED, REPLACED = "withdrawn", "removed", "replaced"
ANYTHING, ONE = "anything", "one observation"


@dataclass(frozen=True)
class History:
    """Steps, and how its neighbour differs.

    `withdrawn`: the target gives no data. `removed`: it never comes, nor asks to be forgotten.
    `replaced`: it asks for and tells something else. `one observation`: its `place`-th entry has other
    numbers. `anything`: all data are others, so that only what no noise covers must be equal.
    Where items are `alike`, all of a request have the features of the first, and what a user has seen
    does not matter unless everybody is served `alone`: data do not follow from what is chosen.
    """

    steps: tuple[Step, ...]
    kind: str
    target: str
    place: int = 0
    swap: tuple[Vec, float] = (Vec(0), 0.0)
    alike: bool = True
    by_user: bool = True
    alone: bool = False

    @property
    def factor(self) -> float:
        """Times the claim: what telling the two apart may cost."""
        known = {WITHDRAWN: 1.0, REMOVED: 1.0, REPLACED: 2.0, ONE: 1.0, ANYTHING: inf}
        assumed = any(isinstance(step, TimePasses) and step.assume for step in self.steps)
        return 2.0 if assumed and self.kind == WITHDRAWN else known[self.kind]

    def __str__(self) -> str:
        told = f"of {self.target}: {self.kind}"
        if self.kind == ONE:
            told += f" ({self.place}, then {self.swap[0]} and reward {self.swap[1]:g})"
        lines = [f"{told}; items {'alike' if self.alike else 'differ'}", *map(str, self.steps)]
        return "\n  ".join(lines)


def _palette() -> list[Vector]:
    """Extremes of the domain, worst neighbours among them, zero, and two that are refused."""
    half = float(np.sqrt(0.5))
    pairs = canaries(Domain(constant=half), DIM, 1)
    found = [np.asarray(side.features[0]) for _, *sides in pairs for side in sides]
    zero = np.zeros(DIM)
    zero[-1] = half
    found.append(zero)
    for place in (1, 2):
        x = zero.copy()
        x[place] = 0.9 * half
        found.append(x)
    long = zero.copy()
    long[0] = half + 1e-6
    return [*found, long, zero[:-1]]


PALETTE = _palette()
VALID = len(PALETTE) - 2


def _values(name: str, kind: types.Type, user: str) -> st.SearchStrategy[Any]:
    """Values of a field: by its name where that says what it is, else by its type."""
    match name:
        case "user":
            return st.just(user)
        case "decision":
            return st.builds(Latest, st.just(user), st.integers(0, 3))
        case "features":
            return st.builds(Vec, st.integers(0, len(PALETTE) - 1)) | _nothing(kind)
        case "reward":
            return st.sampled_from([*REWARDS, OUTSIDE])
    match kind:
        case types.StructType():
            return _body(kind.cls, user)
        case types.ListType() | types.VarTupleType():
            least, item = kind.min_length or 0, kind.item_type
            options = item.types if isinstance(item, types.UnionType) else (item,)
            return st.one_of(*(_several(_values("", one, user), least) for one in options))
        case types.UnionType():
            return st.one_of(*(_values("", one, user) for one in kind.types))
        case types.StrType():
            return st.sampled_from(ITEMS)
        case types.IntType():
            return st.integers(kind.ge or 0, (kind.ge or 0) + 3)
        case types.FloatType():
            return st.sampled_from([0.0, 0.5, 1.0])
        case types.BoolType():
            return st.booleans()
        case types.DictType():
            return st.just({})
    return st.none()


def _several(values: st.SearchStrategy[Any], least: int) -> st.SearchStrategy[list[Any]]:
    """No id twice, but now and then."""
    once = st.lists(values, min_size=least, max_size=least + 3, unique_by=_id_of)
    return st.one_of(once, once, once, st.lists(values, min_size=least, max_size=least + 3))


def _id_of(value: Any) -> Any:
    return value.get("id") if isinstance(value, dict) else repr(value)


def _nothing(kind: types.Type) -> st.SearchStrategy[Any]:
    optional = isinstance(kind, types.UnionType) and kind.includes_none
    return st.none() if optional else st.nothing()


def _names(kind: types.StructType) -> set[str]:
    return {field.encode_name for field in kind.fields}


def _holds(kind: types.Type, cls: type) -> bool:
    """Whether a type holds a class: a condition that is made of conditions is not searched deeper."""
    match kind:
        case types.StructType():
            return kind.cls is cls
        case types.UnionType():
            return any(_holds(one, cls) for one in kind.types)
        case types.ListType() | types.VarTupleType():
            return _holds(kind.item_type, cls)
    return False


@cache
def _body(cls: type, user: str) -> st.SearchStrategy[dict[str, Any]]:
    """Kept, since hypothesis looks at every new strategy for long."""
    kind = types.type_info(cls)
    assert isinstance(kind, types.StructType)
    required = {f.encode_name: f for f in kind.fields if f.required}
    optional = {f.encode_name: f for f in kind.fields if not (f.required or _holds(f.type, cls))}
    must, may = (
        {name: _values(name, field.type, user) for name, field in some.items()}
        for some in (required, optional)
    )
    return st.fixed_dictionaries(must, optional=may)


@st.composite
def _entry(draw: st.DrawFn, kind: types.StructType, alone: bool) -> Entry:
    """`alone`: not one of a batch, so that what cannot be read concerns nobody else."""
    user = draw(st.sampled_from(USERS))
    here, there = draw(_body(kind.cls, user)), draw(_body(kind.cls, user))
    if "decision" in there:
        there["decision"] = here["decision"]
    if alone and draw(st.integers(0, 7)) == 7:
        there["unknown"] = 1
    return Entry(user, here, there)


def _whole(kind: types.Type, name: str = "", alone: bool = True) -> st.SearchStrategy[Any]:
    """The body of a request; entries are where a user or a decision is named."""
    if isinstance(kind, types.StructType):
        if _names(kind) & {"user", "decision"}:
            return _entry(kind, alone)
        fields = [field for field in kind.fields if field.required]
        return st.fixed_dictionaries({f.encode_name: _whole(f.type, f.name, False) for f in fields})
    if isinstance(kind, types.ListType) and name != "features":
        return _several(_whole(kind.item_type, alone=False), 1)
    return _values(name, kind, "")


def searched(pair: Pair) -> list[tuple[str, str]]:
    """Routes that change something; of groups only their sum is read, and not when somebody leaves."""
    return [key for key in OPERATIONS if key[0] != "get" and not (key == FORGET and pair.grouped)]


def requests(key: tuple[str, str]) -> st.SearchStrategy[Request]:
    """Requests to one route of the table."""
    method, path = key
    body = OPERATIONS[key].body
    paths = st.just(path)
    for name, values in (("{user}", USERS), ("{item}", ITEMS)):
        if name in path:
            paths = st.sampled_from([path.replace(name, value) for value in values])
    bodies = st.none() if body is None else _whole(types.type_info(body))
    return st.builds(Request, st.just(method), paths, bodies)


def _steps(pair: Pair) -> st.SearchStrategy[Step]:
    world: list[st.SearchStrategy[Step]] = [
        st.builds(Restart, st.booleans()),
        st.just(Copy()),
        st.just(PutBack()),
        st.builds(TimePasses, st.just(3600.0), st.booleans(), st.booleans()),
    ]
    asked = st.one_of(*map(requests, searched(pair)))
    return st.one_of(asked, asked, st.one_of(*world))


@st.composite
def histories(draw: st.DrawFn, pair: Pair) -> History:
    """A history and its neighbour, for one promise."""
    kinds = (WITHDRAWN, REMOVED, REPLACED) if pair.unit == USER else (ONE,)
    kind = draw(st.sampled_from([*kinds, ANYTHING]))
    # Where nobody is served from others' raw data, theirs do not follow from the target's.
    alike = pair.unit != USER or (kind != ANYTHING and not pair.own) or draw(st.booleans())
    most = 12 if pair.unit == USER else 30
    visits = st.builds(
        Visits,
        st.integers(0, most),
        st.integers(0, REFUSED - 1),
        st.integers(0, REFUSED),
        st.booleans(),
    )
    rounds = draw(st.lists(st.tuples(visits, _steps(pair)), min_size=1, max_size=MOST_ROUNDS))
    steps = [step for both in rounds for step in both]
    swap = Vec(draw(st.integers(0, VALID - 1))), draw(st.sampled_from(REWARDS))
    return History(
        steps=tuple(steps),
        kind=kind,
        target=draw(st.sampled_from(USERS[:3])),
        place=draw(st.integers(0, 5)),
        swap=swap,
        alike=alike,
        by_user=pair.unit == USER,
        alone=pair.own,
    )
