"""Property-based API testing against the running service."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.serve import local_app
from fclub.service.settings import Feedback, Model

from .conftest import DIM, HEADERS, local_settings, offer, serving, wait_for

CASES = int(os.environ.get("FCLUB_API_CASES", "500"))
"""500 as a gate; `make test-api-full` asks for ten times as many."""

TABLES = (
    "decisions",
    "decisions WHERE reward IS NOT NULL",
    "users",
    "log",
    "ledger",
    "items",
    "past",
    "offers",
    "former",
)

OPERATIONS = [
    ("/v1/items", "PUT"),
    ("/v1/recommend", "POST"),
    ("/v1/feedback", "POST"),
    ("/v1/recommend/batch", "POST"),
    ("/v1/feedback/batch", "POST"),
    ("/v1/items", "GET"),
    ("/v1/items/{item}", "GET"),
    ("/v1/items/{item}/similar", "GET"),
    ("/v1/items/{item}/liked", "GET"),
    ("/v1/popular", "GET"),
    ("/v1/clusters/liked", "GET"),
    ("/v1/items/{item}", "DELETE"),
    ("/v1/observations", "POST"),
    ("/v1/users/{user}", "GET"),
    ("/v1/users/{user}/data", "GET"),
    ("/v1/users/{user}/preview", "GET"),
    ("/v1/users/{user}", "DELETE"),
]
"""Those with a body or a parameter to vary."""


def state(node: LocalNode) -> tuple[object, ...]:
    """Everything a request can change, in memory and on disk, once the federation is silent."""
    read = node.store.reader.execute
    wait_for(lambda: not node.busy)
    wait_for(
        lambda: (
            node.sessions.channel.sent == node.sessions.channel.confirmed
            and not node.server.status().unanswered
        )
    )
    last = (
        "SELECT coalesce(max(entry), 0) FROM (SELECT entry FROM log UNION SELECT entry FROM snapshot)"
    )
    wait_for(lambda: read(last).fetchone() == (node.journal.entry,))
    arrays, values = node.server.state()
    stored = [read(f"SELECT count(*) FROM {table}").fetchone() for table in TABLES]
    offer = node.catalogue.offer()
    told = read("SELECT id, attributes FROM items").fetchall()
    shelf = list(offer.ids), offer.items.tobytes(), offer.there.tobytes(), told
    contents = {name: array.tobytes() for name, array in arrays.items()}
    return (
        contents,
        values,
        node.users.rows.copy(),
        node.journal.entry,
        node.sessions.channel.counters(),
        stored,
        shelf,
    )


ARRIVALS = ("/v1/recommend", "/v1/recommend/batch", "/v1/observations")
"""Who asks these counts as arrived, and becomes known, before anything of the request is looked at."""


def taught(node: LocalNode) -> tuple[object, ...]:
    """What an arrival that is refused leaves as it is: all but that somebody came."""
    _, _, _, _, channel, stored, shelf = state(node)
    assert isinstance(stored, list)
    others = [n for table, n in zip(TABLES, stored, strict=True) if table not in ("users", "log")]
    return int(node.server.counts.sum()), channel, others, shelf


class Fuzz:
    """Sends cases; looks at the state before and after each one that is refused."""

    def __init__(self, client: httpx.Client, runner: Runner) -> None:
        self.schemathesis = pytest.importorskip("schemathesis")
        assert isinstance(runner.node, LocalNode)
        self.client, self.node = client, runner.node
        self.schema = self.schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
        self.answers: Counter[tuple[str, int]] = Counter()
        self.decision = ""

    def cases(self, path: str, method: str) -> st.SearchStrategy[Any]:
        """Bodies that fit the description, and bodies that do not."""
        operation = self.schema[path][method]
        modes = self.schemathesis.GenerationMode
        return st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    def send(self, case: Any, known: bool) -> None:
        if known and self.decision and isinstance(case.body, dict) and "decision" in case.body:
            case.body["decision"] = self.decision
        if known and isinstance(case.body, dict) and case.body.get("event"):
            case.body = {"decision": self.decision, "event": "click"}
        elif known and isinstance(case.body, dict) and "decision" in case.body:
            reward = case.body.get("reward")
            case.body = {"decision": self.decision, "reward": 1.0 if reward is None else reward}
        places = {"user": [*self.node.users.rows], "item": list(self.node.catalogue.offer().ids)}
        for name, there in places.items():
            if known and there and name in case.path_parameters:
                case.path_parameters[name] = there[0]
        look = taught if case.operation.path in ARRIVALS else state
        before = look(self.node)
        response = case.call(base_url=str(self.client.base_url), headers=HEADERS)
        self.answers[case.operation.path, response.status_code] += 1
        checks = self.schemathesis.checks
        case.validate_response(
            response,
            checks=[
                checks.not_a_server_error,
                checks.status_code_conformance,
                checks.response_schema_conformance,
            ],
        )
        if response.status_code >= 400:
            assert look(self.node) == before, "a refused request has changed something"
        elif case.operation.path == "/v1/recommend":
            answer = response.json()
            shown = answer.get("shown", [answer])
            self.decision = shown[0]["decision"] if shown else self.decision


@pytest.mark.slow
def test_no_case_makes_the_server_fail(tmp_path: Path) -> None:
    model = Model(dim=DIM, uniform=0.3, reward=(1.0, 5.0))
    feedback = Feedback(events={"click": 3.0, "purchase": 5.0}, reward_is="sum")
    # Before a server runs in a thread: CPython 3.11 fails when two threads parse sources at once.
    pytest.importorskip("schemathesis.specs.openapi.schemas")
    app, runner = local_app(local_settings(tmp_path, model=model, feedback=feedback))
    quick = settings(
        max_examples=CASES // len(OPERATIONS),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with serving(app) as client:
        fuzz = Fuzz(client, runner)
        for path, method in OPERATIONS:
            quick(given(case=fuzz.cases(path, method), known=st.booleans())(fuzz.send))()
        # Whether a case tells a decision another reward is left to chance.
        request = {"user": "ann", "items": offer(np.random.default_rng(0))}
        decision = client.post("/v1/recommend", json=request).json()["decision"]
        for reward, status in ((2.0, 200), (4.0, 409)):
            told = {"decision": decision, "reward": reward}
            assert client.post("/v1/feedback", json=told).status_code == status
    print(dict(fuzz.answers))
    assert fuzz.answers.total() >= 0.9 * CASES
    seen = {status for _, status in fuzz.answers}
    assert {200, 400, 401, 404, 422} <= seen
