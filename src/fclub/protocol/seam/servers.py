"""A local server, a global server and a clock, as whoever runs them knows them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from fclub.core.statistics import Statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.privacy.ledger import Stream
from fclub.protocol.interfaces.exchange import Beginning, Moment
from fclub.protocol.interfaces.learner import Bound, State
from fclub.protocol.interfaces.overview import GlobalOverview, LocalOverview, Outlook
from fclub.protocol.messages import Message


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
        """Another reward takes the place of one that was learned.

        Raises `CannotReplace`, and changes nothing, where it cannot be taken back.
        """

    @property
    def final_once_sent(self) -> bool:
        """Whether a reward may be replaced only while no message was sent that it may be in."""

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

    def bound(self, row: int) -> Bound:
        """What `recommend` scores items with for this user, as a copy that nothing changes."""

    def stored(self, row: int) -> Statistics:
        """The user's own raw statistics."""

    def forget(self, row: int) -> int:
        """Remove the user's part of all that will be released; the row stays, empty, and is not used.

        Returns how many of its observations have been released at most: they cannot be taken back.
        Raises `CannotForget`, and changes nothing, where users cannot be told apart any more.
        """

    def due(self, moment: Moment | None = None) -> Callable[[], None] | None:
        """Work that the time, or without a moment its own count, calls for now, or None."""

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


class Gathering:
    """A global server that answers when it advances or starts a phase, and at no other time."""

    gathers = True

    def due(self, now: float) -> None:
        """It has no times."""


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

    gathers: bool
    """Whether what messages lead to waits for `advance`: those that arrive together are one check."""

    def advance(self, overdue: bool = False) -> None:
        """Live: do what is due now; what is `overdue` goes on without the missing."""

    def due(self, now: float) -> Callable[[], None] | None:
        """Live: what the time, in seconds since 1970, calls for now, or None."""

    def begin(self, server: int, beginning: Beginning) -> None:
        """A session with that server begins: nothing that it sends from now on may count twice."""

    def used_by(self, server: int) -> int:
        """The last phase that was heard from that server; 0 where a number may be used again."""

    def receive(self, server: int, message: Message) -> None:
        """Take a message of that server; one that is refused changes nothing."""

    def overview(self) -> list[GlobalOverview]: ...

    def state(self) -> State: ...

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None: ...
