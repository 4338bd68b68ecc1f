"""The seam between algorithms and what runs them: simulation, live servers, audit, dashboard.

An algorithm is a `Family`: from the parameters of a model it makes local servers, a global server and
a clock that fit together, and says what their releases promise. All other code knows only the
protocols of this module. `families.py` is the table of all families.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fclub.config import Privacy
from fclub.core.statistics import Statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.parameters import Parameter, Parameters
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.noise import NoiseSource
from fclub.privacy.sensitivity import Domain
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import Message

if TYPE_CHECKING:
    from fclub.protocol.federation import Federation


CLUSTER, TYPE = "cluster", "type"
"""Kinds of clusters: those that servers find, and types, which are the same on every server."""

USERS, OBSERVATIONS, VISITS_PER_USER, CHANGE, NOTHING = (
    "users",
    "observations",
    "visits per user",
    "change",
    "nothing",
)
"""What an `Outlook` counts. CHANGE: data that change an estimate; NOTHING: it never sends."""

Member = tuple[int, int]
"""A local cluster as the global server knows it: (server, opaque id)."""


@dataclass(frozen=True)
class LocalOverview:
    """A cluster of a local server.

    Its estimate holds `own` and `others`' observations, shared by so many local clusters in all;
    `waiting` ones of its users are not known outside yet. `cluster` and `group`, its opaque id and its
    global cluster, are None while nobody has heard of it. `known` is the part of the first uncertainty
    about its taste that data have removed; of a type, `weight` is the share of users expected in it.
    """

    cluster: int | None
    group: int | None
    users: int
    own: int
    others: int
    waiting: int
    shared_by: int
    kind: str = CLUSTER
    weight: float | None = None
    known: float | None = None


@dataclass(frozen=True)
class GlobalOverview:
    """A global cluster: observations that were released of it, and its local clusters.

    Local servers know it by `number`; `weight` and `known` are as in `LocalOverview`.
    """

    observations: int
    members: list[Member]
    number: int = 0
    kind: str = CLUSTER
    weight: float | None = None
    known: float | None = None


def part_known(covariance: Any, first: Any) -> float:
    """The part of the first uncertainty that is gone; a mixture may be more uncertain than that."""
    return max(0.0, 1.0 - float(np.trace(covariance) / np.trace(first)))


def global_overview(members: list[Member], group: Indices, counts: Counts) -> list[GlobalOverview]:
    """`group` and `counts` (of its groups) as the global server keeps them; none is without members."""
    found = [GlobalOverview(int(count), [], number) for number, count in enumerate(counts)]
    for member, k in zip(members, group, strict=True):
        found[int(k)].members.append(member)
    return [one for one in found if one.members]


@dataclass(frozen=True)
class Outlook:
    """When a local server sends next: once `now` has come to `at`, both in units of `what`.

    Without `at` nothing that is counted leads to it. `used` of `releases` are those that a limited
    number allows in a period.
    """

    what: str
    now: float = 0.0
    at: float | None = None
    used: int = 0
    releases: int | None = None


State = tuple[dict[str, Any], dict[str, Any]]
"""Arrays and JSON-ready values: what `state` gives and `restore` takes."""


class Clock(Protocol):
    """Counts observations and tells when a phase starts."""

    @property
    def phase(self) -> int: ...

    @property
    def next_start(self) -> int:
        """The number of completed observations at which the next phase starts."""

    def advance(self, observations: int) -> bool:
        """Whether a new phase starts now."""

    def state(self) -> list[int]: ...

    def restore(self, state: list[int]) -> None: ...


class Bound(NamedTuple):
    """The score of an item is `offset` + min(xᵀ`theta` + `radius`·√(xᵀ`inverse`x), `most`)."""

    theta: Vector
    inverse: Matrix
    radius: float
    offset: float = 0.0
    most: float = inf

    @property
    def ellipsoid(self) -> tuple[Vector, Matrix, float]:
        """Centre, shape and size."""
        return self.theta, self.inverse, self.radius


class Beginning(NamedTuple):
    """Why a session with a local server begins anew after an earlier one.

    The local store is new (an empty disk under an old name) or old (behind what the global server has
    heard), the global server has lost what it had heard, or none of these: it is the first session.
    `used` is the highest phase that either side knows to have been reported, or says the same of slots.
    `sure` is a local process that ran before the global server's loss: it knows what it has used.
    """

    local_new: bool = False
    local_old: bool = False
    global_lost: bool = False
    used: int = 0
    sure: bool = False


class LocalServer(Protocol):
    """Serves and learns from its users, known by their rows; speaks through the uplink it was given."""

    def add_user(self) -> int:
        """Add a new user; returns its row."""

    def recommend(self, row: int, items: Matrix) -> int:
        """The index of the item to show; changes nothing that a caller could notice."""

    def observe(self, row: int, x: Vector, y: float) -> None:
        """Learn that this user rewarded the item with features x."""

    def withhold(self, row: int, x: Vector, y: float) -> None:
        """Learn the same, but never release it: an older copy of this server may have done so."""

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """Another reward takes the place of one that was learned; nothing was sent in between, nor is
        anything added up now.

        Raises `CannotReplace`, and changes nothing, where it cannot be taken back.
        """

    def pause(self) -> None:
        """Release nothing from now on: it is not known where the global server stands."""

    def go_on(self) -> None:
        """Both sides agree: release what is due."""

    def begin(self, beginning: Beginning) -> None:
        """A session begins: send again what the global server has to know, and draw no noise for it.

        What an old store may have released is never released again.
        """

    @property
    def used(self) -> int:
        """The last phase that was reported, or what says the same of slots; 0 without both."""

    @property
    def slotted(self) -> Slotted | None:
        """The same server, if it releases whole users in slots."""

    def bound(self, row: int) -> Bound:
        """What `recommend` scores items with for this user, as a copy that nothing changes."""

    def stored(self, row: int) -> Statistics:
        """The user's own raw statistics."""

    def forget(self, row: int) -> int:
        """Remove the user's part of all that will be released; the row stays, empty, and is not used.

        Returns how many of its observations have been released at most: they cannot be taken back.
        Raises `CannotForget`, and changes nothing, where users cannot be told apart any more.
        """

    def due(self) -> Callable[[], None] | None:
        """Work that the server's own count calls for now beside serving, or None."""

    in_parts: bool
    """Whether long work waits for `part`, instead of being done at once where it is due."""

    @property
    def busy(self) -> bool:
        """Whether there is work for `part`."""

    def part(self) -> Callable[[], None]:
        """Take the next part of the work: a copy of what it needs now, or its end.

        What is returned computes it, if need be in another thread while this server goes on serving; it
        has to be called before the next part is taken, and before `state`.
        """

    @property
    def by_user(self) -> tuple[str, ...]:
        """Arrays of `state` with a row for every user that changes only when that user does."""

    def receive(self, message: Message) -> None:
        """Take a message of the global server; one that is refused changes nothing."""

    @property
    def counts(self) -> Counts:
        """Observations by user."""

    @property
    def waiting(self) -> int:
        """Observations that the global server does not know of."""

    @property
    def unanswered(self) -> bool:
        """Whether something was reported whose answer has not come."""

    @property
    def served_by(self) -> Indices:
        """By user: its cluster, as a place in `overview`."""

    @property
    def theta(self) -> Floats:
        """By user: the estimate that it is served from."""

    @property
    def group_of(self) -> Indices:
        """By user: its global cluster; below 0 while the global server does not know it."""

    @property
    def ids(self) -> list[int]:
        """The opaque ids of the clusters that were reported last."""

    def streams(self) -> dict[str, Stream]:
        """The streams of the ledger that may release more, by name."""

    def overview(self) -> list[LocalOverview]: ...

    @property
    def outlook(self) -> Outlook:
        """When it sends next, live."""

    def state(self) -> State: ...

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None: ...


def nothing() -> None:
    """A part of work that was done when it was taken."""


class AtOnce:
    """A local server that does all work where it is due, and whose state is kept as a whole."""

    in_parts = busy = False
    by_user: tuple[str, ...] = ()

    def part(self) -> Callable[[], None]:
        return nothing


class Slotted(Protocol):
    """A local server that releases whole users in slots, each of which it may compute once, ever.

    Whoever runs it live says when somebody arrives, asks which slot is due, and lets it compute that
    slot once it may be used. In a simulation servers do this themselves when a phase starts.
    """

    def arrive(self) -> None:
        """Somebody visits; nothing was offered and answered yet."""

    def period_start(self, now: float) -> int:
        """The number up to which slots cannot be used any more in the period of this time."""

    @property
    def used(self) -> int:
        """The number of the last slot that was used, or given up."""

    def due_slot(self) -> int | None:
        """The slot that the numbers of visits and users call for now: both are public."""

    def release(self, slot: int) -> None:
        """Compute this slot and send it; a slot that was used, or left out, is a `PrivacyError`."""

    def slot_number(self, slot: int) -> int:
        """What `used` will be once this slot is used."""

    def forgo(self, used: int) -> None:
        """Count everything up to this number as used: somebody else may have done so."""


class GlobalServer(Protocol):
    """Brings the clusters of local servers together; knows them by what they have released."""

    @property
    def servers(self) -> list[int]:
        """The numbers of the servers that take part."""

    @property
    def phase(self) -> int: ...

    @property
    def next_phase(self) -> int | None:
        """The reported total at which it starts a phase; None where local servers start their own."""

    @property
    def missing(self) -> Collection[int]:
        """Servers whose report the present phase waits for."""

    @property
    def reported(self) -> int:
        """How many observations the global statistics hold."""

    def released_by(self, server: int) -> int:
        """How many of them are of this server."""

    def paid_by(self, server: int) -> float:
        """What this server has paid in a period at most, as a multiple of a stream's squared μ."""

    def limit(self, clusters: int) -> float | None:
        """Most uploads and downloads that `clusters` local clusters can have had; None: no limit."""

    def begin_phase(self, phase: int) -> None:
        """Simulation: let every server detect and report."""

    def invite(self, servers: int) -> None:
        """Live: servers 0, 1, … take part from now on."""

    def advance(self, overdue: bool = False) -> None:
        """Live: do what is due now; what is `overdue` goes on without the missing."""

    def begin(self, server: int, beginning: Beginning) -> None:
        """A session with that server begins: nothing that it sends from now on may count twice."""

    def used_by(self, server: int) -> int:
        """The last phase that was heard from that server; 0 where a number may be used again."""

    def receive(self, server: int, message: Message) -> None:
        """Take a message of that server; one that is refused changes nothing."""

    def overview(self) -> list[GlobalOverview]: ...

    def state(self) -> State: ...

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Shape:
    """What all servers know of a federation before the first visit.

    `constant` is the last feature of every item where all items share one. `clusters` bounds the local
    clusters of the whole federation.
    """

    dim: int
    clusters: int
    constant: float | None = None


class Place(NamedTuple):
    """What a local server is given: a name for its streams, its link, noise, books, a generator."""

    name: str
    link: Uplink
    noise: NoiseSource
    ledger: Ledger | None
    rng: np.random.Generator


class Price(NamedTuple):
    """What a stream costs to its end, as far as others can tell.

    `distance` is the total variation up to which the cost of a stream holds.
    """

    stream: float
    distance: float = 0.0


class Users(Protocol):
    """The arrays of many users; the rows of a slice are the same memory."""

    def slice(self, start: int, stop: int) -> Any: ...


class Family(Protocol):
    """Parts that fit together, for one shape and one set of constants."""

    @property
    def shape(self) -> Shape: ...

    @property
    def privacy(self) -> Privacy | None:
        """The claimed budget; None where exact statistics leave."""

    @property
    def domain(self) -> Domain:
        """The observations for which the claim holds."""

    def decode(self, data: bytes) -> Message:
        """One of the family's messages, or `InvalidMessage`."""

    def fingerprint(self) -> Any:
        """JSON-ready: all that servers must agree on and that a store is bound to."""

    def ledger(self, seeded: bool, keep: bool = True) -> Ledger | None:
        """Empty books for the claim; None where nothing is claimed."""

    def price(self) -> Price | None:
        """None where nothing is claimed."""

    def clock(self) -> Clock: ...

    def users(self, count: int) -> Users:
        """Users of whom nothing is known."""

    def local_server(self, place: Place, users: Any, live: bool) -> LocalServer:
        """A server of these users (`users` or a slice of it).

        A live one starts phases by its own count if the family has it so; in a simulation one clock
        counts for all.
        """

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer: ...

    def compiled(self, federation: Federation) -> Compiled | None:
        """How this federation is played inside compiled code; None where it cannot be."""


Kernels = tuple[Callable[..., int], Callable[..., None]]
"""recommend(state, user, items) and feedback(state, user, x, y), compiled."""


class Compiled(Protocol):
    """Whole blocks of rounds on packed arrays, with the same arithmetic as round by round."""

    @property
    def kernels(self) -> Kernels: ...

    def pack(self) -> Any:
        """The state of all servers as named tuples of arrays."""

    def count_events(self, state: Any) -> None:
        """Add what the state has sent to the link's count."""

    def unpack(self, state: Any) -> None:
        """Give the servers what the rounds have changed."""


class Forecast(NamedTuple):
    """What one user's server will release of its observations, in the order of sending.

    Release r holds the sum over observations with `weights[r]`; the noise of all releases has base
    deviation `std` and the covariance `across` at deviation 1.
    """

    weights: Floats
    across: Matrix
    std: float


@dataclass(frozen=True)
class Rehearsal:
    """A small federation for the audit to attack: its settings, and what it will release of a user.

    There are so many `users`; if several, each is a stream and all release at the same time.
    """

    forecast: Callable[[Any], Forecast]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    constant: float | None = None
    users: int = 1


class Constants(Parameters, ABC):
    """A row of the table of families: the parameters of a policy, from which its family is made.

    `switches` tell the policies of a family apart. A private one has a `rehearsal`.
    """

    name: ClassVar[str]
    switches: ClassVar[Mapping[str, str]] = {}
    rehearsal: ClassVar[Rehearsal | None] = None

    @abstractmethod
    def make_family(self, shape: Shape) -> Family: ...
