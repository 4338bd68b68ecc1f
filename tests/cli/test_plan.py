"""`fclub plan`: dates, noise and expectations from what an operator expects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fclub.cli.plan import app
from fclub.errors import InvalidSetting
from fclub.privacy.plan import read_plan

SMALL = ["--servers", "4", "--users", "40", "--visits-per-month", "2", "--months", "2", "--dim", "3"]


def run(*words: str) -> str:
    result = CliRunner().invoke(app, [*SMALL, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plan_has_dates_and_is_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    shown = run("--start", "2026-01-31", "--seeds", "0", "--features-are-public", "--out", str(path))
    plan = read_plan(path)
    assert plan.digest[:16] in shown
    assert "2026-02-09" in shown, "0.6 of half a month later"
    assert "of whom 1 may collude" in shown
    assert "After the last slot" in shown
    assert plan.visits[-1] <= 0.9 * 4
    assert plan.level == "transcript"


def test_what_to_expect_is_tried() -> None:
    told = json.loads(run("--json", "--seeds", "2", "--epsilon", "2", "--level", "interactive"))
    assert [one["users"] for one in told["expected"]] == [10, 20, 40]
    assert all(0.3 < one["ratio"] < 2.0 and one["half"] >= 0.0 for one in told["expected"])
    assert told["secure"]
    assert told["noise"] == pytest.approx((4 / 3) ** 0.5, rel=0.01)


def test_words_say_whether_it_pays() -> None:
    shown = run("--seeds", "2", "--per-server")
    assert "whole for each of 4 servers" in shown
    assert "pay" in shown
    assert "users:" in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--start", "soon"], "start must be a day"),
        (["--level", "cdp"], "level must be"),
        (["--visits-per-month", "0"], "visits-per-month must be above 0"),
        (["--seeds", "1"], "seeds must be 0, or at least 2"),
        (["--colluders", "3"], "two more than collude"),
    ],
)
def test_impossible_expectations_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        run(*words)
