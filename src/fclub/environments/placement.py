"""Who is on which server."""

from __future__ import annotations

import numpy as np

from fclub.config import require
from fclub.core.types import Indices

PLACEMENTS = ("blocks", "spread")


def place(users: int, servers: int, placement: str) -> Indices:
    """The server of every user, users being sorted by true cluster.

    `blocks`: consecutive users share a server, so a server meets few clusters. `spread`: users are
    dealt out in turn, so every server meets every cluster.
    """
    require(placement in PLACEMENTS, f"placement must be one of {', '.join(PLACEMENTS)}", placement)
    index = np.arange(users)
    return index * servers // users if placement == "blocks" else index % servers
