"""What a local server has been told of the others, which counts from its next detection on."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from fclub.core.plus.evidence import Noise, all_information
from fclub.core.plus.items import Items
from fclub.core.statistics import pack_statistics, unpack_statistics
from fclub.core.types import Flags, Floats
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.released import ReleasedSums, check_share, read_released
from fclub.protocol.messages import read_id
from fclub.protocol.plus.messages import Shares
from fclub.protocol.plus.rules import PlusRules
from fclub.protocol.seam import State


class Outside:
    """Sums that other servers have released, by number, each with how many local clusters are in it.

    `groups` are the global clusters of the server's own clusters, by id; `gamma` is the prior mass of
    clusters that nobody has seen.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[ReleasedSums, int]] = {}
        self.groups: dict[int, int] = {}
        self.gamma = 1.0

    def adopt(self, message: Shares, rules: PlusRules) -> None:
        """Take what the global server tells; a message that is refused changes nothing."""
        arrived = {
            s.number: (read_released(s.statistics, s.noise, rules.dim, s.people), s.clusters)
            for s in message.news
        }
        for released, clusters in arrived.values():
            check_share(released, clusters, rules)
        known = self.known | arrived
        if not known.keys() >= set(message.present):
            raise InvalidMessage("shares refer to statistics that were never sent")
        if not 0.0 < message.gamma < inf:
            raise InvalidMessage("shares have a prior mass that is not positive")
        groups = {read_id(cluster): group for cluster, group in message.groups}
        self.known = {number: known[number] for number in message.present}
        self.groups, self.gamma = groups, message.gamma

    def items(self, variance: float, noise: Noise) -> Items:
        """What the sums say about vectors that users may share."""
        released = ((s.gram, s.moment, stated) for (s, stated, _), _ in self.known.values())
        people = np.array([released.people for released, _ in self.known.values()])
        return Items.of(*all_information(released, variance, noise), people)

    @property
    def masses(self) -> Floats:
        """How many local clusters each sum is of."""
        return np.array([float(clusters) for _, clusters in self.known.values()])

    @property
    def exact(self) -> Flags:
        """Which sums are without noise."""
        return np.array([r.noise == 0.0 for r, _ in self.known.values()], dtype=np.bool_)

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Observations and local clusters of each sum."""
        return [(released.statistics.count, clusters) for released, clusters in self.known.values()]

    def state(self, dim: int) -> State:
        statistics = [released.statistics for released, _ in self.known.values()]
        return pack_statistics(statistics, dim, "outside."), {
            "gamma": self.gamma,
            "groups": list(self.groups.items()),
            "outside": [(number, r.noise, k, r.people) for number, (r, k) in self.known.items()],
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.gamma, self.groups = values["gamma"], dict(values["groups"])
        self.known = {
            number: (ReleasedSums(statistics, noise, *people), clusters)
            for (number, noise, clusters, *people), statistics in zip(
                values["outside"], unpack_statistics(arrays, "outside."), strict=True
            )
        }
