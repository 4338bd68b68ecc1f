"""Users of other servers as a local server knows them: by what was released of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.noisy import Noise, all_information
from fclub.core.statistics import Packed, pack_statistics, unpack_statistics
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.released import Limits, ReleasedSums, check_released, read_released
from fclub.protocol.plus.messages import Shares
from fclub.protocol.seam import State


class Outside:
    """What was released of each user of another server, by a number that the global server gave."""

    def __init__(self) -> None:
        self.known: dict[int, ReleasedSums] = {}

    def adopt(self, message: Shares, limits: Limits) -> None:
        """Take what the global server tells; a message that is refused changes nothing."""
        dim = len(limits.prior)
        arrived = {s.number: read_released(s.statistics, s.noise, dim) for s in message.news}
        for released in arrived.values():
            check_released(released, limits)
        known = self.known | arrived
        if not known.keys() >= set(message.present):
            raise InvalidMessage("shares refer to statistics that were never sent")
        if message.servers < 0:
            raise InvalidMessage(f"shares of {message.servers} servers")
        self.known = {number: known[number] for number in message.present}

    def users(self, variance: float, noise: Noise) -> Packed:
        """Exact statistics that would say as much of each user as the released ones do.

        With the information Q, q about θ these are vQ and vq, v being the variance of a reward.
        """
        released = [(r.statistics.gram, r.statistics.moment, r.noise) for r in self.known.values()]
        Q, q = all_information(released, variance, noise)
        counts = [r.statistics.count for r in self.known.values()]
        return Packed(variance * Q, variance * q, np.array(counts, dtype=np.int64))

    def state(self, dim: int) -> State:
        statistics = [released.statistics for released in self.known.values()]
        return pack_statistics(statistics, dim, "outside."), {
            "outside": [(number, released.noise) for number, released in self.known.items()]
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        known = unpack_statistics(arrays, "outside.")
        self.known = {
            number: ReleasedSums(statistics, noise)
            for (number, noise), statistics in zip(values["outside"], known, strict=True)
        }
