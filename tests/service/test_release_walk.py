"""One private release runs through few files of a local server: docs/design.md shows the walk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fclub
from fclub.cohorts.hub import Stage
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.local_node import LocalNode

from .federation import Pump, found, model_of, register
from .test_cohorts import slot, stage
from .test_slots import a_plan, visit, world

PACKAGE = Path(fclub.__file__).parent
STATEMENTS = Path(__file__).parents[1] / "privacy" / "statements.json"
PATH = ("cohorts/", "core/population/contribution", "privacy/noise", "privacy/slots")
"""What a private release is made by: each of its functions names the statement that it implements."""


class Watched(Pump):
    """Notes what is called for one of its local servers."""

    def __init__(self, *given: Any) -> None:
        self.on, self.called = False, set[tuple[str, str]]()
        super().__init__(*given)

    def open_local(self, name: str) -> LocalNode:
        node = super().open_local(name)
        if name == "s0":
            for method in ("receive", "tick"):
                setattr(node, method, self._watched(getattr(node, method)))
        return node

    def commit(self, node: LocalNode | GlobalNode) -> list[tuple[str, bytes]]:
        commit = super().commit
        if node.name != "s0":
            return commit(node)
        frames = self._watched(commit)(node)
        assert isinstance(node, LocalNode)
        self.on &= node.books.messages().get("masked", 0) < 2
        return frames

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any) -> Any:
            with self._look():
                return call(*given)

        return watched

    @contextmanager
    def _look(self) -> Iterator[None]:
        def look(frame: FrameType, event: str, _: object) -> None:
            path = Path(frame.f_code.co_filename)
            if event == "call" and PACKAGE in path.parents:
                place = str(path.relative_to(PACKAGE)), frame.f_code.co_qualname
                self.called.add(place)

        sys.setprofile(look if self.on else None)
        try:
            yield
        finally:
            sys.setprofile(None)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """Functions that were called on a local server until its part of a secure sum had left."""
    path, environment, plan = tmp_path_factory.mktemp("walk"), world(4, 8), a_plan(4, 8, secure=True)
    found(path, plan.members)
    pump = Watched(
        path, model_of(environment, "cdp-fclub-plus", plan=plan.encode().decode()), plan.members
    )
    register(pump, environment)
    pump.run()
    for _ in range(8):
        visit(pump, environment)
    slot(pump, plan, 0)
    pump.on = True
    slot(pump, plan, 1)
    assert stage(pump) == Stage.SUMMED
    pump.close()
    return pump.called


def test_a_release_runs_through_few_files(walk: set[tuple[str, str]]) -> None:
    files = sorted({file for file, _ in walk})
    assert len(files) <= 20, " ".join(files)


def test_what_makes_a_release_names_its_statement(walk: set[tuple[str, str]]) -> None:
    """`tests/privacy/statements.json` has each function that a value goes through."""
    known = json.loads(STATEMENTS.read_text())
    called = {
        f"fclub.{file.removesuffix('.py').replace('/', '.')}:{name}"
        for file, name in walk
        if file.startswith(PATH) and "<locals>" not in name
    }
    assert {name for name in called if name not in known} == set()
