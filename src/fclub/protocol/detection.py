"""How a local server divides its users into clusters."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fclub.core.clustering import UserGraph
from fclub.core.models import estimate_all
from fclub.core.statistics import Packed
from fclub.core.types import Indices


class Detector(Protocol):
    """Divides the users of one server into local clusters."""

    def detect(self, users: Packed) -> Indices:
        """One label per user, numbered by first user."""

    def add_user(self) -> None:
        """One user more, in the next row."""

    def arrays(self) -> dict[str, Any]:
        """What it remembers between detections."""

    def restore(self, arrays: dict[str, Any]) -> None: ...


class OneCluster:
    """All users of a server are alike (`homo`)."""

    def add_user(self) -> None:
        """There is nothing to remember."""

    def arrays(self) -> dict[str, Any]:
        return {}

    def restore(self, arrays: dict[str, Any]) -> None:
        """There is nothing to remember."""

    def detect(self, users: Packed) -> Indices:
        return np.zeros(len(users.counts), dtype=np.int64)


class EdgeDeletion:
    """Alg. 2, line 3: connected components of a graph that loses the edges condemned by Eq. 3."""

    def __init__(self, graph: UserGraph, deletion: float, ridge: float) -> None:
        self.graph, self.deletion, self.ridge = graph, deletion, ridge

    def add_user(self) -> None:
        self.graph.add_user()

    def detect(self, users: Packed) -> Indices:
        theta = np.empty_like(users.moment)
        estimate_all(users.gram, users.moment, self.ridge, theta)
        self.graph.delete_far(theta, users.counts, self.deletion)
        return self.graph.components()

    def arrays(self) -> dict[str, Any]:
        return self.graph.arrays()

    def restore(self, arrays: dict[str, Any]) -> None:
        self.graph.restore(arrays)
