"""dp-accounting, which knows nothing of this package, finds the same ε in an exported ledger."""

import json
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from typer.testing import CliRunner

from fclub.cli.privacy import app
from fclub.privacy.calibration import epsilon_of
from fclub.privacy.events import dp_events
from fclub.privacy.ledger import Ledger, write_ledger
from fclub.privacy.levels import EVENT, LEVELS, USER
from fclub.privacy.mechanisms import Increments, Slots, Tree
from fclub.privacy.slots import plan_slots

DELTA = 1e-5


def as_event(told: dict[str, Any]) -> Any:
    """The object of dp-accounting that an exported event names."""
    kind, rest = getattr(dp_accounting, told["event"]), {k: v for k, v in told.items() if k != "event"}
    if "events" in rest:
        return kind([as_event(one) for one in rest["events"]])
    if "of" in rest:
        return kind(as_event(rest["of"]), rest["count"])
    return kind(**rest)


def recomputed(told: dict[str, Any]) -> float:
    accountant = PLDAccountant()
    accountant.compose(as_event(told))
    return float(accountant.get_epsilon(DELTA))


def slots() -> Ledger:
    ledger, plan = Ledger(LEVELS["interactive"], 1.0, DELTA, unit=USER), plan_slots(1.0, DELTA, 80, 24)
    for period in (0, 3):
        ledger.open(f"s/{period}", plan.mechanism, 1.0, period)
        ledger.release(f"s/{period}", 10, 5 + period)
    return ledger


def streams() -> Ledger:
    """Two streams of one epoch, of which the dearer counts, and one of another epoch."""
    ledger = Ledger(LEVELS["transcript"], 8.0, DELTA, unit=EVENT)
    ledger.open("a", Increments(9, 3e6, 10, 1.0), 2e6, 0)
    ledger.open("b", Tree(9, 3e6, 10, 1.0), 1e6, 0)
    ledger.open("c", Slots(4, 3e6, 10, 1.0), 1e6, 1)
    for stream, releases in (("a", 3), ("b", 5), ("c", 2)):
        ledger.release(stream, 4, releases)
    return ledger


@pytest.mark.parametrize("make", [slots, streams])
def test_dp_accounting_finds_the_same_epsilon(make: Any) -> None:
    ledger = make()
    expected = epsilon_of(ledger.mu, DELTA)
    assert recomputed(dp_events(ledger)) == pytest.approx(expected, rel=2e-3)
    assert ledger.spent(DELTA) >= expected


def test_a_ledger_without_releases_is_no_event() -> None:
    empty = Ledger(LEVELS["transcript"], 1.0, DELTA)
    assert dp_events(empty) == {"event": "ComposedDpEvent", "events": []}


def test_the_command_exports_a_ledger_file(tmp_path: Path) -> None:
    ledger, path = streams(), tmp_path / "ledger.jsonl"
    write_ledger(ledger, path)
    found = CliRunner().invoke(app, ["--ledger", str(path), "--events"])
    told = json.loads(found.stdout)
    assert told["unit"] == "event"
    assert told["distance"] == ledger.distance
    assert recomputed(told["events"]) == pytest.approx(epsilon_of(ledger.mu, DELTA), rel=2e-3)
    assert CliRunner().invoke(app, ["--events"]).exit_code == 2
