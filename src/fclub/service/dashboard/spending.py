"""What releases cost against the claimed budget, in the numbers that the pages show."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any

from fclub.policies.federated import FederatedPolicy
from fclub.privacy.calibration import REPORTED_DELTA, epsilon_of, mu_of
from fclub.protocol.accounts import TreeAccounts
from fclub.service.parts import policy_of, rules_of
from fclub.service.settings import Model


class Spending:
    """What local servers can have spent at most, as far as the global server knows: it sees arrivals.

    The paper's streams are local clusters: a phase releases everything again under noise that is paid
    when it begins, so phases add up. The streams of the plus policies are users, paid once.
    """

    def __init__(self, model: Model) -> None:
        policy = policy_of(model)
        ledger = policy.open_ledger(seeded=False, keep=False)
        self.claimed = None if ledger is None else ledger.claimed
        self.phases_add_up = isinstance(policy, FederatedPolicy)
        if ledger is not None and self.phases_add_up:
            rules = rules_of(model)
            TreeAccounts(ledger, rules.uploads, rules.noise_std, "any").report(0, 0, 1)
            self._stream = ledger.mu
        elif ledger is not None:
            self._stream = ledger.allowed

    def state(self, phases: int) -> dict[str, Any] | None:
        """After so many phases; None where exact statistics leave."""
        if self.claimed is None:
            return None
        times = phases if self.phases_add_up else min(phases, 1)
        return {
            "claimed": list(self.claimed),
            "phases": phases if self.phases_add_up else None,
            "stream": cost(self._stream, *self.claimed),
            "server": cost(self._stream * sqrt(times), *self.claimed),
        }


@lru_cache(maxsize=1024)
def cost(mu: float, epsilon: float, delta: float) -> dict[str, float]:
    """ε at the claimed δ and at 10⁻⁵, and the share of the budget: costs add up by their squares."""
    return {
        "epsilon": epsilon_of(mu, delta),
        "reported": epsilon_of(mu, REPORTED_DELTA),
        "share": (mu / mu_of(epsilon, delta)) ** 2,
    }
