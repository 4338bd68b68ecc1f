"""`fclub policies`: every policy, and every parameter of one, with its meaning."""

import json

import pytest
from typer.testing import CliRunner

from fclub.cli.policies import app
from fclub.errors import UnknownName
from fclub.policies.registry import POLICIES

RUN = CliRunner(env={"COLUMNS": "200"})


def test_all_policies_are_listed_with_defaults() -> None:
    shown = RUN.invoke(app, [])
    assert shown.exit_code == 0
    for name in POLICIES:
        assert name in shown.stdout
    listed = json.loads(RUN.invoke(app, ["--json"]).stdout)
    assert listed.keys() == POLICIES.keys()
    assert listed["linucb"]["parameters"] == dict(POLICIES["linucb"].defaults)


def test_no_value_is_cut_on_a_narrow_screen() -> None:
    shown = RUN.invoke(app, [], env={"COLUMNS": "80"}).stdout
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    words = shown.replace(",", " ").split()
    for kind in POLICIES.values():
        assert {f"{key}={value}" for key, value in kind.defaults.items()} <= set(words)


@pytest.mark.parametrize("name", POLICIES)
def test_every_parameter_is_explained(name: str) -> None:
    shown = RUN.invoke(app, [name]).stdout
    told = json.loads(RUN.invoke(app, [name, "--json"]).stdout)[name]["meanings"]
    assert told.keys() == POLICIES[name].defaults.keys()
    for key, entry in told.items():
        assert key in shown
        assert entry["meaning"]
        assert entry["values"]


def test_an_unknown_policy_is_refused() -> None:
    result = RUN.invoke(app, ["linucp"])
    assert isinstance(result.exception, UnknownName)
