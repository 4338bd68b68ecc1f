"""Nothing leaves a server, and nothing comes back: it learns from its own users alone."""

from __future__ import annotations

from typing import Any

from fclub.core.statistics import Statistics
from fclub.errors import InvalidMessage
from fclub.protocol.interfaces.exchange import Beginning, Moment, Status
from fclub.protocol.interfaces.learner import ANYTIME, FORGET, REPLACE, Job, State
from fclub.protocol.interfaces.overview import NOTHING, LocalOverview, Outlook
from fclub.protocol.learners.types import Types
from fclub.protocol.messages import Message, PhaseStart


class SilentLocal:
    """What a learner learns at home is a study, which is no business of an exchange."""

    supports = frozenset({FORGET, REPLACE, ANYTIME})
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(self, learner: Types) -> None:
        self.learner = learner

    def visited(self, row: int) -> None: ...

    def withhold(self, row: int, part: Statistics) -> None: ...

    def forget(self, row: int) -> int:
        return 0

    def due(self, moment: Moment | None) -> None: ...

    def finish(self, job: Job) -> None: ...

    def receive(self, message: Message) -> None:
        """In a simulation the clock of all servers tells when a phase starts."""
        if not isinstance(message, PhaseStart):
            raise InvalidMessage(f"a server alone does not take a {type(message).__name__}")

    def resume(self) -> None: ...

    def start_session(self, beginning: Beginning) -> None: ...

    def status(self) -> Status:
        return Status(self.learner.observations, Outlook(NOTHING))

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        return clusters

    def state(self) -> State:
        return {}, {}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None: ...
