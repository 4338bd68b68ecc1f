"""Where a server's users become enough for releases of whole users to be of use."""

from __future__ import annotations

import numpy as np

from fclub.config import Problem
from fclub.policies.registry import make_policy
from fclub.protocol.plus.split_local import SplitLocal
from fclub.protocol.plus.user_local import UserLocal


def test_releases_begin_with_the_sixty_fifth_user() -> None:
    policy = make_policy("cdp-fclub-plus")
    server_of = np.repeat([0, 1], [64, 65])
    policy.start(Problem(129, 2, 3, float(np.sqrt(0.5))), server_of, seed=1)
    assert [type(server) for server in policy.servers.values()] == [SplitLocal, UserLocal]
