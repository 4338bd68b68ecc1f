"""Ten crashes under load; `benchmarks/crash.py` is the long form."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.crash import Drill


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fclub-dc", "cdp-fclub-dc", "fclub-plus", "cdp-fclub-plus"])
def test_ten_crashes_lose_nothing(tmp_path: Path, policy: str) -> None:
    result = Drill(tmp_path, kills=10, policy=policy).run()
    assert sum(result["killed"].values()) == 10
    assert result["acknowledged"] > 100
    assert result["observations"] == result["released"] + result["waiting"]
