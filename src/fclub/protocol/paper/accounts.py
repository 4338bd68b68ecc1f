"""Accounts of a local server whose clusters are streams: what it enters before something leaves."""

from __future__ import annotations

from typing import Protocol

from fclub.errors import PrivacyError
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.mechanisms import WholeTree
from fclub.privacy.sensitivity import Domain, noised_places, sensitivity


class Accounts(Protocol):
    """Enters what leaves before the link gets it. A stream is a cluster since its report."""

    def admits(self, phase: int) -> bool:
        """Whether a report may leave in this phase."""

    def report(self, phase: int, cluster: int, observations: int) -> None:
        """A cluster is about to be reported, with all observations of its users."""

    def upload(self, phase: int, cluster: int, observations: int) -> None:
        """A cluster that was reported in that phase is about to upload."""

    def lose(self, phases: range) -> None:
        """Charge phases whose entries were lost."""

    def catch_up(self, phase: int, cluster: int, releases: int, observations: int) -> None:
        """Enter the releases that compiled code has made; `releases` is the number of all so far."""

    def streams(self, phase: int) -> dict[str, Stream]:
        """The streams of the clusters that were reported in that phase."""


class NoAccounts:
    """For exact statistics, whose release has no finite price."""

    def admits(self, phase: int) -> bool:
        return True

    def report(self, phase: int, cluster: int, observations: int) -> None:
        """Nothing is charged."""

    def upload(self, phase: int, cluster: int, observations: int) -> None:
        """Nothing is charged."""

    def lose(self, phases: range) -> None:
        """Nothing is charged."""

    def catch_up(self, phase: int, cluster: int, releases: int, observations: int) -> None:
        """Nothing is charged."""

    def streams(self, phase: int) -> dict[str, Stream]:
        return {}


class TreeAccounts:
    """The printed mechanism: one tree per reported cluster, paid in full with the report.

    A report releases all data again, so a phase is an epoch, and phases add up; clusters of a phase
    hold disjoint data. Trees are paid in advance, so a phase that starts can be played to its end.
    """

    def __init__(self, ledger: Ledger, uploads: int, std: float, dim: int, name: str) -> None:
        self.ledger, self.name = ledger, name
        entries = len(noised_places(Domain(), dim)[0])
        self._tree = WholeTree(uploads + 1, std, entries)
        self._sensitivity = sensitivity(Domain(), dim)
        if not self.admits(0):
            raise PrivacyError("the budget does not allow a single phase")

    def admits(self, phase: int) -> bool:
        return self.ledger.admits(self._tree, self._sensitivity, epoch=phase)

    def _stream(self, phase: int, cluster: int) -> str:
        return f"{self.name}/{phase}/{cluster}"

    def report(self, phase: int, cluster: int, observations: int) -> None:
        stream = self._stream(phase, cluster)
        self.ledger.open(stream, self._tree, self._sensitivity, epoch=phase)
        self.ledger.release(stream, observations)

    def upload(self, phase: int, cluster: int, observations: int) -> None:
        self.ledger.release(self._stream(phase, cluster), observations)

    def lose(self, phases: range) -> None:
        """Each was admitted when it left, so they fit; a phase that was left out is paid too."""
        for phase in phases:
            if self.admits(phase):
                self.ledger.open(f"{self.name}/{phase}/lost", self._tree, self._sensitivity, phase)

    def catch_up(self, phase: int, cluster: int, releases: int, observations: int) -> None:
        stream = self._stream(phase, cluster)
        entered = self.ledger.streams[stream]
        if releases > entered.sequence:
            new = observations - entered.observations
            self.ledger.release(stream, new, releases - entered.sequence)

    def streams(self, phase: int) -> dict[str, Stream]:
        return {name: one for name, one in self.ledger.streams.items() if one.epoch == phase}
