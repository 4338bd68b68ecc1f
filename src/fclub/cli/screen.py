"""Where tables are printed."""

from __future__ import annotations

import os

from rich.console import Console

WIDE = 240
"""Columns of what is no terminal, such as a pipe or a file: cells are not cut there."""


def screen() -> Console:
    """Standard output; COLUMNS says how wide it is, if anything does."""
    console = Console()
    if not (console.is_terminal or os.environ.get("COLUMNS")):
        console.width = WIDE
    return console
