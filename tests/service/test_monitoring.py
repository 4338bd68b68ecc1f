"""What Prometheus reads: names and units as its conventions want them, values as the state has them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fclub.service.monitoring import Monitor
from fclub.service.nodes.handshake import AGREED
from fclub.service.serve import local_app

from .conftest import local_settings, serving, visit, wait_for

UNITS = ("ms", "milliseconds", "microseconds", "minutes", "kb", "mb", "kilobytes", "percent")
"""Units that are not the base ones: seconds, bytes, ratios."""


def settled(node: Any) -> bool:
    """Whether both sides agree where they stand, and have heard all that was sent."""
    return bool(
        node.sessions.handshake.standing.state == AGREED
        and node.sessions.channel.sent == node.sessions.channel.confirmed
    )


def samples(text: str) -> dict[str, Sample]:
    families = list(text_string_to_metric_families(text))
    return {sample.name: sample for family in families for sample in family.samples}


def test_names_and_units_follow_the_conventions(client: httpx.Client) -> None:
    visit(client, 0)
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    assert len(families) > 10
    for family in families:
        assert re.fullmatch("fclub(_[a-z]+)+", family.name)
        assert family.documentation.endswith(".")
        assert not set(family.name.split("_")) & set(UNITS)
        counts = all(sample.name.endswith("_total") for sample in family.samples)
        assert counts == (family.type == "counter"), family.name


def test_a_total_of_the_state_survives_a_restart_and_one_of_the_process_does_not(
    tmp_path: Path,
) -> None:
    settings = local_settings(tmp_path)
    with serving(local_app(settings)[0]) as client:
        visit(client, 0, reward=0.5)
        first = samples(client.get("/metrics").text)
    with serving(local_app(settings)[0]) as client:
        second = samples(client.get("/metrics").text)
    assert first["fclub_observations_total"].value == second["fclub_observations_total"].value == 1.0
    assert first["fclub_feedback_total"].value == 1.0
    assert second["fclub_feedback_total"].value == 0.0


def test_no_number_for_prometheus_depends_on_a_reward(tmp_path: Path) -> None:
    """Whoever scrapes before and after a visit must not learn what the visitor gave."""
    seen = []
    for reward in (0.25, 0.75):
        app, runner = local_app(local_settings(tmp_path, store=str(tmp_path / f"{reward}.db")))
        with serving(app) as client:
            wait_for(partial(settled, runner.node))
            visit(client, 0, reward=reward)
            wait_for(partial(settled, runner.node))
            found = samples(client.get("/metrics").text)
        seen.append({name: s.value for name, s in found.items() if "_seconds" not in name})
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", ["upload", "download"])
def test_totals_may_have_a_label(kind: str) -> None:
    monitor = Monitor("global")
    monitor.count_by("fclub_communications_total", "Sent.", "kind", {"upload": 3.0, "download": 1.0})
    monitor.count_by("fclub_communications_total", "Sent.", "kind", {"upload": 4.0, "download": 2.0})
    expected = {"upload": 4.0, "download": 2.0}[kind]
    assert monitor.registry.get_sample_value("fclub_communications_total", {"kind": kind}) == expected
