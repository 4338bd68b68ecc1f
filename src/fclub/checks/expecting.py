"""The one way in which a check fails."""

from __future__ import annotations


def expect(condition: bool, message: str) -> None:
    """An assertion that `python -O` keeps."""
    if not condition:
        raise AssertionError(message)
