"""Optional packages: imported where they are used, or named with the extra that brings them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import ExtraMissing


def need(module: str, what: str, extra: str) -> Any:
    """The module, without which `what` cannot be had."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ExtraMissing(what, extra) from None
