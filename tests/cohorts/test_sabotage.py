"""Every sabotage is noticed by the check that is named beside it."""

import pytest
from tests.cohorts.checks import CHECKS
from tests.cohorts.sabotage import SABOTAGES

from fclub.errors import FclubError


@pytest.mark.parametrize("name", SABOTAGES)
def test_it_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caught_by, patch = SABOTAGES[name]
    patch(monkeypatch)
    with pytest.raises((AssertionError, FclubError, ValueError)):
        CHECKS[caught_by]()


def test_every_check_catches_something() -> None:
    """But for those that play an attack from outside, which nothing here weakens."""
    outside = {
        "go_without_a_roster_sends_nothing",
        "different_rosters_open_nothing",
        "frames_are_small",
    }
    assert set(CHECKS) - {caught_by for caught_by, _ in SABOTAGES.values()} == outside
