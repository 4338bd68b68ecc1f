"""The pages of the documentation, and their blocks of code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r'^( *)```(\w*)(?: title="([^"\n]*)")?\n(.*?)^ *```$', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """`language` is empty for what is not code: drawings and the like. `title` says whose it is."""

    language: str
    text: str
    title: str = ""


def blocks(page: Path) -> list[Block]:
    """In the order of the page; those inside lists lose their indentation."""
    found = []
    for indent, language, title, body in FENCED.findall(page.read_text(encoding="utf-8")):
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        found.append(Block(language, "\n".join(lines), title))
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
