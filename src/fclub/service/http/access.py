"""Who asked for what, in the log.

A line names the route and never the path, which may hold the name of a user.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.types import Scope

REFUSED = frozenset({401, 403, 413, 429})
"""Requests that somebody should know of: a wrong token, too much, too often."""

TELL_AGAIN_SECONDS = 60.0
REMEMBERED = 1024
"""Kinds of refusals that are remembered; more come from nobody but an attacker."""

log = logging.getLogger("fclub.access")


class Access:
    """Every request if `all_requests`; else those that were refused.

    Refusals of one address, route and status are told at once, and then once a minute with how many
    there were: nobody fills a disk by asking.
    """

    def __init__(self, all_requests: bool) -> None:
        self.all_requests = all_requests
        self._told: dict[tuple[str, str, int], tuple[float, int]] = {}

    def answered(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        client = scope.get("client") or ("unknown", 0)
        facts = {"method": scope["method"], "route": route, "status": status, "client": client[0]}
        if self.all_requests:
            level = logging.WARNING if status in REFUSED else logging.INFO
            log.log(level, "request", extra={"facts": facts | {"seconds": round(seconds, 6)}})
        elif status in REFUSED:
            self._refused(facts, (client[0], route, status))

    def _refused(self, facts: dict[str, Any], key: tuple[str, str, int]) -> None:
        now = time.monotonic()
        last, more = self._told.pop(key, (None, 0))
        if last is not None and now - last < TELL_AGAIN_SECONDS:
            self._told[key] = last, more + 1
            return
        self._told[key] = now, 0
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        log.warning("refused", extra={"facts": facts | ({"unmentioned": more} if more else {})})
