"""How the documentation is written: lines that fit on a screen."""

from pathlib import Path

import pytest
from tests.docs.pages import FENCED, PAGES, ROOT, name_of

WIDTH = 120
WRITTEN = [*PAGES, ROOT / "CHANGELOG.md"]


def prose(page: Path) -> list[str]:
    """The lines that are neither code nor rows of a table; those have no better place to break."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [line for line in text.splitlines() if not line.lstrip().startswith("|")]


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_no_line_of_prose_is_longer_than_a_screen(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > WIDTH] == []
