"""One visit through a live server runs through few files: docs/design.md shows the walk."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np
import pytest
from tests.parts import is_a

import fclub
from fclub.service.nodes.local_node import LocalNode
from fclub.service.serve import local_app
from fclub.service.settings import Model

from .conftest import local_settings, offer, serving, wait_for

PACKAGE = Path(fclub.__file__).parent
BEFORE, WATCHED, WINDOWS, PHASE = 16, 3, 4, 4
"""Phase 4 starts at 14 visits and the next at 30; our own policy detects at 20. Between them visits are
ordinary. A server sends after it has answered, so that only a later visit shows what became of it."""
PAGES = "service/dashboard"
"""They look at the server once a second, whatever happens."""


@contextmanager
def files_of_calls() -> Iterator[set[str]]:
    """Files of the package with a function that any thread started meanwhile calls."""
    seen: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            seen.add(str(path.relative_to(PACKAGE)))

    threading.setprofile(look)
    try:
        yield seen
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def visit(client: httpx.Client, seed: int) -> None:
    items = offer(np.random.default_rng(seed))
    shown = client.post("/v1/recommend", json={"user": "ann", "items": items}).json()
    told = client.post("/v1/feedback", json={"decision": shown["decision"], "reward": 1.0})
    assert told.json() == {"counted": True}


@pytest.mark.parametrize(("policy", "most"), [("cdp-fclub-plus", 28), ("fclub-dc", 29)])
def test_a_visit_runs_through_few_files(policy: str, most: int, tmp_path: Path) -> None:
    """The local server carries its own global one; `fclub-dc` uploads at nearly every visit."""
    app, runner = local_app(local_settings(tmp_path, model=Model(dim=4, policy=policy)))
    server: Any = is_a(LocalNode, runner.node).server
    with files_of_calls() as seen, serving(app) as client:
        for seed in range(BEFORE):
            visit(client, seed)
        if policy == "fclub-dc":
            wait_for(lambda: server.status().used == PHASE and not server.status().unanswered)
        walks = []
        for window in range(WINDOWS):  # chores of the server fall into some of them
            wait_for(lambda: not server.busy)
            seen.clear()
            for seed in range(WATCHED):
                visit(client, BEFORE + WATCHED * window + seed)
            walks.append(sorted(file for file in seen if not file.startswith(PAGES)))
    walk = min(walks, key=len)
    assert len(walk) <= most, " ".join(walk)
