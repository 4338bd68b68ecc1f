"""`fclub privacy` and `fclub audit` parse, call one function and print."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fclub.attack.everything import SURFACES
from fclub.cli import audit, privacy
from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.errors import InvalidSetting, UnknownName
from fclub.privacy.ledger import Ledger, write_ledger
from fclub.privacy.levels import CDP, Flag
from fclub.privacy.mechanisms import calibrate
from fclub.privacy.noise import DiscreteNoise
from fclub.protocol.interfaces.family import Shape
from fclub.protocol.rows.population import PopulationFamily
from fclub.protocol.rows.private import PrivatePlusConstants, StreamFamily

runner = CliRunner()


def test_noise_of_the_default_promise() -> None:
    answer = json.loads(runner.invoke(privacy.app, ["--json"]).stdout)
    family = PrivatePlusConstants().make_family(Shape(10, 1))
    assert isinstance(family, PopulationFamily)
    assert answer["budget"] == [1.0, 1e-5]
    assert answer["mu"] == family.plan.mu
    assert answer["epsilon_at_1e-5"] <= 1.0
    assert answer["releases"] == 13
    first, last = answer["first_release"], answer["last_release"]
    assert first["visits_per_user"] == 0.6
    assert last["visits_per_user"] == pytest.approx(0.6 * 1.45**12)
    for release in (first, last):
        assert release["std"] == pytest.approx(release["clip_norm"] * 13**0.5 / answer["mu"])
    assert "clip_norm" in runner.invoke(privacy.app, []).stdout
    few = json.loads(runner.invoke(privacy.app, ["--visits", "10", "--json"]).stdout)
    assert few["releases"] == 8
    wrong = runner.invoke(privacy.app, ["--unit", "crowd"])
    assert isinstance(wrong.exception, UnknownName)


def test_noise_of_a_stream() -> None:
    """As `cdp-fclub-plus` has it."""
    event = ["--unit", "event"]
    given = [*event, "--epsilon", "1", "--delta", "0.1", "--constant", "0.70710678", "--json"]
    answer = json.loads(runner.invoke(privacy.app, given).stdout)
    family = PrivatePlusConstants(unit="event", delta=0.1).make_family(Shape(10, 1, 0.70710678))
    assert isinstance(family, StreamFamily)
    assert answer["mu"] == family.plan.mu == pytest.approx(0.92091, abs=1e-5)
    assert answer["sensitivity"] == pytest.approx(0.875, abs=1e-3)
    assert answer["releases"] == len(family.plan.schedule)
    assert (answer["std"], answer["last_std"]) == (family.plan.mechanism.std, family.plan.last_std)
    assert "sensitivity" in runner.invoke(privacy.app, event).stdout


def test_what_a_ledger_spent(tmp_path: Path) -> None:
    ledger = Ledger(CDP, 1.0, 0.1, flags=[Flag.RAW_PARTITION])
    ledger.open("a", calibrate("increments", 0.5, 1.25, 4), 1.25)
    ledger.release("a", 30)
    write_ledger(ledger, tmp_path / "ledger")
    arguments = ["--ledger", str(tmp_path / "ledger"), "--json", "--delta", "0.01"]
    answer = json.loads(runner.invoke(privacy.app, arguments).stdout)
    assert answer["spent"] == [[ledger.spent(0.01), 0.01], [ledger.spent(1e-5), 1e-5]]
    assert answer["unaccounted"] == ["raw-partition"]
    assert (answer["streams"], answer["releases"], answer["observations"]) == (1, 1, 30)
    shown = runner.invoke(privacy.app, arguments[:2]).stdout
    assert "raw-partition" in shown
    assert "ε = 1 at δ = 0.1" in shown
    assert "Flag" not in shown


@pytest.mark.parametrize("option", ["--epsilon", "--dim"])
@pytest.mark.parametrize("unit", ["user", "event"])
def test_a_budget_out_of_range_is_named_as_its_option(option: str, unit: str) -> None:
    error = runner.invoke(privacy.app, ["--unit", unit, option, "-1"]).exception
    assert isinstance(error, InvalidSetting)
    assert re.fullmatch(rf"{option} must be a (whole )?number .*, got -1(\.0)?", str(error))


@pytest.mark.parametrize("more", [[], ["--ledger", "a.ledger"]])
def test_a_delta_out_of_range_is_named_as_its_option(more: list[str]) -> None:
    error = runner.invoke(privacy.app, ["--delta", "2", *more]).exception
    assert str(error) == "--delta must be a number above 0 and below 1, got 2.0"


class Silent:
    seeded = True

    def integers(self, deviations: Floats) -> Whole:
        return np.zeros(deviations.shape, dtype=np.int64)


ONE = ["--policy", "cdp-homo", "--epsilon", "1", "--numbers", "100"]


@pytest.mark.slow
def test_audit_of_running_servers_says_what_it_covered() -> None:
    result = runner.invoke(audit.app, ONE)
    assert result.exit_code == 0
    assert "cdp-homo" in result.stdout
    assert all(surface in result.stdout for surface in SURFACES)


@pytest.mark.slow
def test_audit_of_running_servers_that_draw_nothing_exits_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DiscreteNoise, "integers", Silent.integers)
    result = runner.invoke(audit.app, [*ONE, "--json"])
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    fixed = sum(not finding["passed"] for finding in answer["findings"])
    found = len(answer["search"]["failed"])
    assert answer["leaks"] == fixed + found
    assert min(fixed, found) > 0
    assert set(answer["surfaces"]) == set(SURFACES)


def test_all_is_the_default_of_an_audit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def attack_nothing(policy: str | None, *_: object) -> int:
        asked.append(policy)
        return 0

    monkeypatch.setattr(audit, "_live", attack_nothing)
    for words in ([], ["--all"], ["--policy", "cdp-homo"]):
        assert runner.invoke(audit.app, words).exit_code == 0
    assert asked == [None, None, "cdp-homo"]
    (option,) = [one for one in get_command(audit.app).params if "--all" in one.opts]
    said = getattr(option, "help", "")
    assert said == "Attack all live policies, units and levels (the default without --policy)."


def test_audit_refuses_what_it_cannot_do() -> None:
    assert isinstance(runner.invoke(audit.app, ["--policy", "fclub"]).exception, UnknownName)
