"""Learners over the exact exchange: a row for a learner of one's own, which runs live as any other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fclub.core.statistics import Packed
from fclub.parameters import meaning
from fclub.privacy.sensitivity import Domain
from fclub.protocol.exchanges import exact
from fclub.protocol.exchanges.exact import ExactGlobal, ExactLocal
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Constants, Place, Shape
from fclub.protocol.interfaces.learner import Learner, SumNews
from fclub.protocol.link import Downlink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.servers import GlobalServer, LocalServer


class ExactRow(Constants):
    """The parameters of a learner, and how it is made.

    A subclass has a `name`, parameters as annotated attributes, `make_learner` and `contribution`.
    """

    switches: ClassVar[Mapping[str, str]] = {
        "detection": "off",
        "trigger": "count",
        "noise": "none",
        "scoring": "own",
    }

    ratio: Annotated[
        float, meaning("growth of the number of visits from contribution to contribution", above=1)
    ] = 1.1

    @abstractmethod
    def make_learner(self, shape: Shape, users: Packed) -> Learner[SumNews]:
        """A learner of these users, of whom nothing is known; live there is none yet."""

    @abstractmethod
    def contribution(self, shape: Shape) -> int:
        """How many numbers the learner's `contribute` leaves as `job.total["sums"]`."""

    def make_family(self, shape: Shape) -> ExactFamily:
        return ExactFamily(self, shape)


class ExactFamily:
    """Every server has such a learner; nothing is claimed about what leaves."""

    privacy, domain = None, Domain()
    decode = staticmethod(exact.decode)

    def __init__(self, row: ExactRow, shape: Shape) -> None:
        self.row, self.shape, self.size = row, shape, row.contribution(shape)

    def fingerprint(self) -> dict[str, Any]:
        return self.row.get_params() | {"contribution": self.size}

    def ledger(self, seeded: bool, keep: bool = True) -> None:
        """Nothing is claimed."""

    def price(self) -> None:
        """Nothing is claimed."""

    def clock(self) -> GeometricClock:
        return GeometricClock(ratio=self.row.ratio)

    def users(self, count: int) -> Packed:
        return Packed.zeros(count, self.shape.dim)

    def local_server(self, place: Place, users: Packed, live: bool) -> LocalServer:
        learner = self.row.make_learner(self.shape, users)
        clock = self.clock() if live else None
        return LocalServer(learner, ExactLocal(learner, self.size, place.link, clock))

    def global_server(self, servers: list[int], link: Downlink) -> GlobalServer:
        return GlobalServer(ExactGlobal(servers, self.size, link))

    def compiled(self, federation: Federation) -> None:
        """It is played round by round."""
