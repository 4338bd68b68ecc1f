"""What all policies with local servers, a global server and phases have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from fclub.core.types import Matrix, Vector
from fclub.policies.base import Policy
from fclub.policies.rows import Rows
from fclub.privacy.ledger import Ledger, ReleaseEvent
from fclub.protocol.link import Communications, InProcessLink


class ServersPolicy(Policy):
    """Subclasses set `rows`, `servers`, `hub`, `link` and `clock` in `_start`.

    A server recommends to and observes the users in its rows; the hub begins phases by the clock.
    """

    rows: Rows
    servers: Any
    hub: Any
    clock: Any
    link: InProcessLink
    ledger: Ledger | None = None

    def _locate(self, user: int) -> tuple[Any, int]:
        """The server of a user, and the user's row there."""
        row = int(self.rows.row_of[user])
        server = int(self.rows.server[row])
        return self.servers[server], row - int(self.rows.first[server])

    def _recommend(self, user: int, items: Matrix) -> int:
        server, row = self._locate(user)
        index: int = server.recommend(row, items)
        return index

    def _update(self, user: int, x: Vector, y: float) -> None:
        server, row = self._locate(user)
        server.observe(row, x, y)

    def after_round(self) -> None:
        self._begin_phase_if_due(self.observations)

    def _begin_phase_if_due(self, observations: int) -> None:
        if self.clock.advance(observations):
            self.hub.begin_phase(self.clock.phase)

    def privacy_report(self) -> dict[str, object] | None:
        return self.ledger.summary() if self.ledger is not None else None

    def ledger_entries(self) -> list[Any]:
        """JSON-ready, for `restore_ledger`."""
        return [msgspec.to_builtins(event) for event in self.ledger.events] if self.ledger else []

    def restore_ledger(self, entries: list[Any]) -> None:
        if self.ledger is not None:
            self.ledger.restore(msgspec.convert(entries, list[ReleaseEvent]))

    @property
    def next_stop(self) -> int:
        stop: int = self.clock.next_start
        return stop

    @property
    def communications(self) -> Communications:
        return self.link.communications
