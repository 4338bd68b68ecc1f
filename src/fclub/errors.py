"""Every error that fclub raises on purpose, in one tree; docs/reference/errors.md draws it.

>>> import fclub
>>> try:
...     fclub.make_policy("linucb", ridge=-1.0)
... except fclub.errors.FclubError as error:
...     print(type(error).__name__, error)
InvalidSetting linucb: ridge must be a number above 0, got -1.0
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """What a mistaken name may have meant: the nearest known ones, or all of them."""
    names = sorted(known)
    small = {one.lower(): one for one in names}
    near = [small[one] for one in get_close_matches(name.lower(), small, n=3)]
    shown = ", ".join(prefix + one for one in near or names)
    return f"did you mean {shown}?" if near else f"known: {shown}"


class FclubError(Exception):
    """Root of the tree; the command line prints it as one line."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes whatever their constructors ask for."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[FclubError], arguments: tuple[Any, ...], values: dict[str, Any]) -> FclubError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(values)
    return error


class InvalidInput(FclubError, ValueError):
    """A value that is outside the domain; `value` is what was given."""

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value = value


class InvalidReward(InvalidInput):
    """A reward that is not a finite number in the declared range.

    It is [0, 1] unless `model.reward` says otherwise.
    """


class InvalidFeatures(InvalidInput):
    """Item features of the wrong shape, not finite, or with norm above 1."""


class EmptyItems(InvalidInput):
    """A recommendation was asked for among no items."""


class UnknownUser(InvalidInput):
    """A user that the policy was not started with."""


class InvalidSetting(InvalidInput):
    """A parameter that makes no sense, alone or together with another."""


class UnknownName(InvalidInput):
    """A name that is in no registry; the message suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {kind} is called {name!r}; {nearest(name, known)}", name)


class NotStarted(FclubError, AttributeError):
    """A policy or environment that was asked for something before its `start`."""


class InvalidFile(FclubError):
    """A file that is not what its reader expects; nothing was changed."""


class OtherSettings(InvalidFile):
    """A store that was made with other settings; the message names them."""


class OtherStoreVersion(InvalidFile):
    """A store in the form of another version of the package; the message says what to do."""


class InvalidRatings(InvalidFile):
    """A file of ratings or logged feedback with a fault; `line` is where, counted from 1."""

    def __init__(self, path: object, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.line, self.reason = line, reason


class StoreInUse(FclubError):
    """A store belongs to one process at a time; the message names the one that has it."""


class DataMissing(FclubError):
    """Data that has to be fetched or pointed at first; the message says how."""


class ExtraMissing(FclubError, ImportError):
    """An optional part whose packages are not installed; the message says what to install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra}: pip install 'fclub[{extra}]', "
            f"or '.[{extra}]' in a checkout"
        )
        self.extra = extra


class InvalidMessage(FclubError):
    """A message that was refused; nothing was changed."""


class NotAgreed(InvalidMessage):
    """A frame of a sender who stands elsewhere in its messages; it is no offence."""


class OutOfOrder(NotAgreed):
    """A frame that is missing predecessors; it will come again, after them."""


class OtherSession(NotAgreed):
    """A frame of a session that is over, or of another store of the same name."""


class Conflict(NotAgreed):
    """Other bytes were heard under a number than were sent under it."""


class OtherVersion(NotAgreed):
    """A frame in a form that another version of the package speaks."""


class CohortRefused(InvalidMessage):
    """A step of a secure sum that was not taken; nothing was changed, and nothing is sent."""


class OutsideWindow(CohortRefused):
    """A slot that is not open by this clock, or that began before this process or its member list."""


class SlotUsed(CohortRefused):
    """A slot in which something was sent, or may have been, or a slot before one."""


class OtherTerms(CohortRefused):
    """Another plan, member list, key or released model than was accepted here."""


class UnknownMember(CohortRefused):
    """A name that is not in the member list."""


class InvalidJoin(CohortRefused):
    """A Join whose signature or key is not right; the message names the member."""


class InvalidRoster(CohortRefused):
    """A roster that is out of order, or without the Join of this process."""


class TooFewMembers(CohortRefused):
    """Too few members for a secure sum; the message says how many are present and needed."""


class OutOfRange(CohortRefused):
    """Numbers that could leave 64 bits, or more members or users than the plan has room for."""


class NothingReady(CohortRefused):
    """An answer to something that this process has not said, or has given up."""


class Quarantined(FclubError):
    """The sender is not listened to until an operator releases it."""


class NotSigned(FclubError):
    """A message that its sender's key has not signed; anybody can have said it."""


class NotAdmitted(FclubError):
    """The sender is suspended, or has left the federation for good."""


class NumericalError(FclubError):
    """A factorisation failed: the statistics are not positive definite."""


class PrivacyError(FclubError):
    """A release was refused because its privacy cost is unknown or over the budget."""


class NoiseFailed(FclubError, RuntimeError):
    """Noise was needed and could not be drawn: the server stops before anything is stored or sent."""


class RequestRefused(FclubError):
    """What the HTTP service of a server refuses."""


class Malformed(RequestRefused):
    """The body is not JSON."""


class OtherBucket(RequestRefused):
    """The header `X-Fclub-User` is not that of a user whom the request is about; nothing was done."""


class Unauthorized(RequestRefused):
    """No token of a key, or one that is not known or has ended."""


class Forbidden(RequestRefused):
    """A key without the scope that this needs."""


class NotFound(RequestRefused):
    """There is no such thing."""


class UnknownDecision(NotFound):
    """No decision of that id was made here, or it is too old."""


class OtherReward(RequestRefused):
    """The decision already has another reward."""


class CannotForget(RequestRefused):
    """The policy has added this user to sums that it cannot take apart."""


class WasForgotten(RequestRefused):
    """An import for a user who was forgotten; `refuse_forgotten_days` says how long."""


class CannotReplace(RequestRefused):
    """An assumed reward, or one made of events, is final: it may have left, or it is too late."""


class TooLarge(RequestRefused):
    """More bytes, items or entries than the server takes at once."""


class TooFast(RequestRefused):
    """More requests per second than a key may make."""


class NotStored(FclubError):
    """The store has failed; what was asked may be lost and should be asked again."""


class ServiceFailed(FclubError):
    """The process cannot go on; what it has acknowledged is on disk."""


class BrokerFailed(ServiceFailed):
    """The NATS server is missing or did not start."""


class FleetFailed(ServiceFailed):
    """A process of the federation did not start."""


class RequestFailed(FclubError):
    """What a client asked was refused, or no server answered; `status` is 0 then."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
