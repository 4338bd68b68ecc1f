"""docs/notation.md names files and attributes that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = [
    line.strip("|").split(" | ")
    for line in (ROOT / "docs" / "notation.md").read_text().splitlines()
    if line.startswith("|") and "`" in line
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_names_are_in_the_files_named_beside_them(row: list[str]) -> None:
    files = [ROOT / "src" / "fclub" / name for name in re.findall(r"`([\w/]+\.py)`", row[-1])]
    text = "".join(file.read_text() for file in files)
    for name in re.findall(r"`([^`]+)`", row[1]):
        word = re.split(r"[(\[]", name)[0].split(".")[-1]
        assert re.search(rf"\b{word}\b", text), f"{name} is not in {row[-1]}"
