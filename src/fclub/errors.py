"""Every error that fclub raises on purpose.

FclubError
├── InvalidInput        a caller's value is outside the declared domain (also a ValueError)
│   ├── InvalidReward, InvalidFeatures, EmptyItems, UnknownUser
│   ├── InvalidSetting  an impossible parameter or combination of parameters
│   └── UnknownName     no policy, environment, … of that name
├── NotStarted          a policy was used before `start`
├── InvalidFile         a saved state, trace or data file is corrupted or foreign
│   └── InvalidRatings  a line of a ratings file or log cannot be read, or what it says cannot be
├── DataMissing         a data set or array that is neither here nor downloadable
├── InvalidMessage      what arrived over a link cannot be what a peer sent
├── WrongDirection      a server was asked to send where it never sends
├── NumericalError      a matrix that must be positive definite is not
└── PrivacyError        a release that the guarantee does not allow
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FclubError(Exception):
    """Root of the tree; the command line prints it as one line."""


class InvalidInput(FclubError, ValueError):
    """A value that is outside the domain; `value` is what was given."""

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value = value


class InvalidReward(InvalidInput):
    """A reward that is not a finite number in [0, 1]."""


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
        names = sorted(known)
        near = get_close_matches(name, names, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"no {kind} is called {name!r}; {hint}", name)


class NotStarted(FclubError):
    """`start(problem, server_of)` has to come first."""


class InvalidFile(FclubError):
    """A file that is not what its reader expects; nothing was changed."""


class InvalidRatings(InvalidFile):
    """A file of ratings or logged feedback with a fault; `line` is where, counted from 1."""

    def __init__(self, path: object, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.line, self.reason = line, reason


class DataMissing(FclubError):
    """Data that has to be fetched or pointed at first; the message says how."""


class InvalidMessage(FclubError):
    """A message that was refused; nothing was changed."""


class WrongDirection(FclubError):
    """A local server sends to the global server only, and the global server to local ones."""


class NumericalError(FclubError):
    """A factorisation failed: the statistics are not positive definite."""


class PrivacyError(FclubError):
    """A release was refused because its privacy cost is unknown or over the budget."""
