"""Disks that are lost under load, with real processes; `benchmarks/restore.py` is the same by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.restore import CASES, RestoreDrill


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_federation_comes_back_by_itself(tmp_path: Path, case: str) -> None:
    result = RestoreDrill(tmp_path, kills=0, case=case).run()
    assert result["acknowledged"] > 100
    assert result["released"] > 0
