"""A global side that adds up what servers send of their own accord, and tells each the others' sum."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fclub.protocol.link import Downlink
from fclub.protocol.messages import PhaseStart


class GatheringGlobal(ABC):
    """Tells all servers together once some have sent something new."""

    gathers = True

    def __init__(self, servers: list[int], link: Downlink) -> None:
        self.servers, self.link = sorted(servers), link
        self.phase, self._news = 0, False

    @abstractmethod
    def _tell(self, server: int) -> None:
        """What the others have sent."""

    def invite(self, servers: int) -> None:
        self.servers = list(range(servers))

    def begin_phase(self, phase: int) -> None:
        """Let every server send what is due; tell all if somebody did."""
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        self.advance(overdue=False)
        self.phase = phase

    def due(self, now: float) -> None:  # noqa: B027 - it has no times
        """Nothing is due by the clock."""

    def advance(self, overdue: bool) -> None:
        if self._news:
            self._news = False
            self.phase += 1
            for server in self.servers:
                self._tell(server)
