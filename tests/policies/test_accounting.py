"""What the printed mechanism spends, and that it stops at its budget."""

import numpy as np
import pytest

import fclub
from fclub.config import Privacy
from fclub.core.ucb import NoiseBounds
from fclub.errors import PrivacyError
from fclub.policies.accounting import PhaseAccounts


def bounds(std: float) -> NoiseBounds:
    return NoiseBounds(1.0, 1.0, 0.0, 1.0, 0.0, noise_std=std, uploads=7, depth=4)


def test_every_phase_is_charged_before_it_starts() -> None:
    trace = fclub.simulate("cdp-fclub-dc", "synthetic", 300, seed=1)
    report = trace.settings["privacy"]
    assert report["claimed"] == [1.0, 0.1]
    assert report["unaccounted"] == ["raw-partition", "raw-trigger"]
    assert report["spent"][0] == [0.0, 0.1], "δ = 0.1 alone allows this much"
    assert 0.0 < report["spent"][1][0] < 2.0


def test_phases_add_up_until_the_budget_is_used() -> None:
    accounts = PhaseAccounts(Privacy(1.0, 1e-5), bounds(std=60.0), seeded=True)
    phases = 0
    while accounts.charge(phases + 1, 10):
        phases += 1
        assert accounts.ledger.mu == pytest.approx(np.sqrt(phases) * 2.0 * np.sqrt(4) / 60.0)
    assert phases > 1
    assert accounts.ledger.spent(1e-5) <= 1.0
    assert accounts.charged == [[phase, 10] for phase in range(1, phases + 1)]


def test_a_budget_that_allows_no_phase_is_refused() -> None:
    with pytest.raises(PrivacyError):
        PhaseAccounts(Privacy(1.0, 1e-5), bounds(std=0.1), seeded=True).charge(1, 0)
