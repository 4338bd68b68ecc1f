"""A family: the parts of an algorithm that fit together, and the row of parameters it is made from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fclub.config import Privacy
from fclub.parameters import Parameters
from fclub.privacy.ledger import Ledger
from fclub.privacy.noise import NoiseSource
from fclub.privacy.sensitivity import Domain
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import Message
from fclub.protocol.servers import GlobalServer, LocalServer

if TYPE_CHECKING:
    from fclub.protocol.federation import Federation


@dataclass(frozen=True)
class Shape:
    """What all servers know of a federation before the first visit.

    `constant` is the last feature of every item where all items share one. `clusters` bounds the local
    clusters of the whole federation. `users` and `members` are those that a simulation expects; `live`
    servers know them from a plan, if at all.
    """

    dim: int
    clusters: int
    constant: float | None = None
    users: int = 1
    members: int = 1
    live: bool = False


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


class Constants(Parameters, ABC):
    """A row of the table of families: the parameters of a policy, from which its family is made.

    `switches` tell the policies of a family apart.
    """

    name: ClassVar[str]
    switches: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def make_family(self, shape: Shape) -> Family: ...


def learns_items(constants: object) -> bool:
    """Whether whoever serves may learn effects of items at home; no server knows of them.

    At level `interactive` nobody does: what one user does to an item shows in what others are offered.
    """
    effects = getattr(constants, "item_effects", False)
    return bool(effects and getattr(constants, "level", "") != "interactive")
