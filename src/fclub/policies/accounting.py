"""Accounts of the printed mechanism: one tree per local cluster, renewed every phase."""

from __future__ import annotations

from fclub.config import Privacy
from fclub.core.ucb import NoiseBounds
from fclub.errors import PrivacyError
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import CDP, Flag
from fclub.privacy.mechanisms import Tree
from fclub.privacy.sensitivity import Domain, sensitivity


class PhaseAccounts:
    """A phase releases all data again, so phases add up; its clusters hold disjoint data.

    One entry per phase stands for all local clusters, and charges whole trees before anything of the
    phase leaves. The trigger and the partition are functions of raw data, which no noise accounts for.
    """

    def __init__(self, privacy: Privacy, bounds: NoiseBounds, seeded: bool) -> None:
        self._tree = Tree(bounds.uploads + 1, bounds.noise_std)
        flags = (Flag.RAW_TRIGGER, Flag.RAW_PARTITION)
        self.ledger = Ledger(CDP, privacy.epsilon, privacy.delta, flags, seeded)

    def charge(self, phase: int, observations: int) -> bool:
        """False when the budget does not allow this phase.

        The first one it has to allow, or there would be no clusters to serve from.
        """
        stream = f"phase {phase}"
        try:
            self.ledger.open(stream, self._tree, sensitivity(Domain()), epoch=phase)
            self.ledger.release(stream, observations, self._tree.releases)
        except PrivacyError:
            if phase == 1:
                raise
            return False
        return True

    @property
    def charged(self) -> list[list[int]]:
        """Phase and observations of every charge, for `charge` to repeat."""
        return [[event.epoch, event.observations] for event in self.ledger.events if event.releases]
