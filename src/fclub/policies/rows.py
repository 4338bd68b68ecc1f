"""Users in rows sorted by server, so that a server's users are one slice of every array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fclub.core.types import Indices


@dataclass(frozen=True)
class Rows:
    """`row_of[user]` and its inverse `user_of[row]`; server s has rows first[s] to first[s+1]."""

    row_of: Indices
    user_of: Indices
    server: Indices
    first: Indices

    @staticmethod
    def by_server(server_of: Indices, servers: int) -> Rows:
        user_of = np.argsort(server_of, kind="stable").astype(np.int64)
        row_of = np.empty_like(user_of)
        row_of[user_of] = np.arange(len(user_of))
        server = server_of[user_of]
        first = np.searchsorted(server, np.arange(servers + 1)).astype(np.int64)
        return Rows(row_of, user_of, server, first)
