"""Structured logs: one JSON object a line, or a readable line for a console."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

FORMATS = ("json", "console")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        facts = " ".join(f"{key}={value}" for key, value in getattr(record, "facts", {}).items())
        text = f"{clock} {record.levelname.lower():7} {record.getMessage()} {facts}".rstrip()
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def set_up(style: str, level: str = "info") -> None:
    """Send the log of the service and of its libraries to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Console())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("fclub").setLevel(level.upper())
