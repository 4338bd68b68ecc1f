"""Ten crashes under load; `benchmarks/crash.py` is the long form."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.crash import Drill, SlotDrill


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fclub-dc", "cdp-fclub-dc", "fclub-plus", "cdp-fclub-plus"])
def test_ten_crashes_lose_nothing(tmp_path: Path, policy: str) -> None:
    result = Drill(tmp_path, kills=10, policy=policy).run()
    assert sum(result["killed"].values()) == 10
    assert result["acknowledged"] > 100
    assert result["observations"] == result["released"] + result["waiting"]


@pytest.mark.long
def test_ten_kills_during_secure_sums_charge_and_sum_each_slot_once(tmp_path: Path) -> None:
    result = SlotDrill(tmp_path, kills=10).run()
    assert sum(result["killed"].values()) == 10
    assert result["slots summed"] > 0
