"""`--set OWNER.NAME=VALUE`."""

from __future__ import annotations

import pytest
from tests.conftest import Command

from fclub.cli.parameters import PROMISE, WORLD, parse_parameters
from fclub.errors import InvalidSetting


def test_every_owner_has_its_own() -> None:
    entries = ["club.deletion=2", "env.kind=orthogonal", "env.path=a=b.csv", "linucb.ridge=0.5"]
    environment, policies = parse_parameters(entries, ["club", "linucb"], "synthetic")
    assert environment == {"kind": "orthogonal", "path": "a=b.csv"}
    assert policies == {"club": {"deletion": 2}, "linucb": {"ridge": 0.5}}


def test_a_value_has_the_type_of_the_default() -> None:
    entries = ["env.path=2024", "env.users=12", "fclub-plus.share=false", "fclub-plus.ratio=2"]
    environment, policies = parse_parameters(entries, ["fclub-plus"], "ratings")
    assert environment == {"path": "2024", "users": 12}
    assert policies == {"fclub-plus": {"share": False, "ratio": 2.0}}


def test_help_begins_with_a_capital_but_keeps_greek_letters() -> None:
    assert PROMISE["epsilon"].help == "ε that is promised."
    assert PROMISE["delta"].help == "δ that is promised."
    assert WORLD["users"].help == "Number of users."


@pytest.mark.parametrize("text", ["no", "banana", "", "2"])
def test_what_is_no_truth_value_is_not_taken_for_true(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"fclub-plus\.share must be true or false"):
        parse_parameters([f"fclub-plus.share={text}"], ["fclub-plus"], "synthetic")


@pytest.mark.parametrize("entry", ["env.kind", "kind=x", ".=1", "sclub.deletion=2"])
def test_what_belongs_to_nobody_is_refused(entry: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_parameters([entry], ["club"], "synthetic")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--policy", "linucb"], "linucb is not one of"),
        (["--set", "env.path=nowhere.csv", "--env", "ratings"], "nowhere.csv"),
        (["--policy", "fclub-dc", "--set", "fclub-dc.upload_ratio=0.5"], "upload_ratio"),
    ],
)
def test_a_federation_that_cannot_be_is_refused_before_it_starts(
    command: Command, words: list[str], text: str
) -> None:
    done = command("up", "--users", 4, "--servers", 2, *words)
    assert done.returncode in (1, 2)
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
