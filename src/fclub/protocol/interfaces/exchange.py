"""An exchange: what leaves a server and what comes back. It owns ledger, noise and messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fclub.core.statistics import Statistics
from fclub.privacy.ledger import Stream
from fclub.protocol.interfaces.learner import Arrays, Job, Learner, State
from fclub.protocol.interfaces.overview import GlobalOverview, LocalOverview, Outlook
from fclub.protocol.messages import Message

Begin = Callable[[], Job | None]
"""Begins work that is due; returns what of it is left to do beside serving."""


class Moment(NamedTuple):
    """A time, in seconds since 1970, and when the process that tells it began."""

    now: float
    began: float


class Beginning(NamedTuple):
    """Why a session with a local server begins anew after an earlier one.

    The local store is new (an empty disk under an old name) or old (behind what the global server has
    heard), the global server has lost what it had heard, or none of these: it is the first session.
    `used` is the highest phase that either side knows to have been reported, or says the same of slots.
    """

    local_new: bool = False
    local_old: bool = False
    global_lost: bool = False
    used: int = 0


@dataclass(frozen=True)
class Status:
    """Where a local exchange stands.

    `waiting` observations are not known outside. `unanswered`: something was sent whose answer has not
    come. `used` is the last phase, or slot, that was used; 0 where a number may be used again.
    `streams` of the ledger may release more. `unsent`: something was released that waits to be sent.
    """

    waiting: int
    outlook: Outlook
    unanswered: bool = False
    used: int = 0
    streams: Mapping[str, Stream] = field(default_factory=dict)
    unsent: bool = False


class LocalExchange(Protocol):
    """Decides what may leave a local server, and when; charges the ledger before noise is drawn.

    Methods that may begin work beside serving return it as a job, which comes back to `finish` once
    the learner has everybody in it. While `paused` nothing is released: it is not known where the
    global server stands.
    """

    paused: bool

    @property
    def learner(self) -> Learner[Any]:
        """Contributes to its jobs; a part of the learner that serves, or all of it."""

    @property
    def supports(self) -> frozenset[str]: ...

    @property
    def by_user(self) -> tuple[str, ...]:
        """Arrays of `state` with a row for every user that changes only when that user does."""

    def visited(self, row: int) -> Job | None:
        """This user has come for the first time, or the learner has just observed it."""

    def withhold(self, row: int, part: Statistics) -> None:
        """This part of the user's statistics is never released: an older copy may have done so."""

    def forget(self, row: int) -> int:
        """The learner is about to forget this user, of whom nothing more may be released.

        Returns how many of its observations have been released at most: they cannot be taken back.
        """

    def due(self, moment: Moment | None) -> Begin | None:
        """What the time calls for now, or, without a moment, the numbers of the server."""

    def finish(self, job: Job) -> Job | None:
        """Everybody is in this job: send it, or let the learner absorb it."""

    def receive(self, message: Message) -> Job | None:
        """Take a message of the global server; one that is refused changes nothing."""

    def resume(self) -> Job | None:
        """Both sides agree again: release what is due."""

    def start_session(self, beginning: Beginning) -> Job | None:
        """Send again what the global server has to know, and draw no noise for it.

        What an old store may have released is never released again.
        """

    def status(self) -> Status: ...

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        """The learner's clusters with what the global server knows of them."""

    def state(self) -> State: ...

    def restore(self, arrays: Arrays, values: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class GlobalStatus:
    """Where a global exchange stands.

    It starts the next phase when `reported` observations have come to `next_phase`; None where local
    servers start their own. The present phase waits for reports of the `missing`.
    """

    phase: int
    reported: int
    next_phase: int | None = None
    missing: Collection[int] = ()


class Account(NamedTuple):
    """What the global server holds of one local server.

    `paid` is what that server has paid in a period at most, as a multiple of a stream's squared μ, and
    `used` the last phase that was heard from it; 0 where a number may be used again.
    """

    released: int
    paid: float
    used: int = 0


class GlobalExchange(Protocol):
    """Brings releases of local servers together; knows their users by nothing else."""

    servers: list[int]
    gathers: bool
    """Whether what messages lead to waits for `advance`: those that arrive together are one check."""

    def invite(self, servers: int) -> None:
        """Live: servers 0, 1, … take part from now on."""

    def begin_phase(self, phase: int) -> None:
        """Simulation: let every server learn and release."""

    def advance(self, overdue: bool) -> None:
        """Live: do what is due now; what is `overdue` goes on without the missing."""

    def due(self, now: float) -> Callable[[], None] | None:
        """Live: what the time calls for now."""

    def start_session(self, server: int, beginning: Beginning) -> None:
        """Nothing that this server sends from now on may count twice."""

    def receive(self, server: int, message: Message) -> None:
        """Take a message of that server; one that is refused changes nothing."""

    def status(self) -> GlobalStatus: ...

    def account(self, server: int) -> Account: ...

    def overview(self) -> list[GlobalOverview]: ...

    def state(self) -> State: ...

    def restore(self, arrays: Arrays, values: dict[str, Any]) -> None: ...
