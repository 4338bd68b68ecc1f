"""`--set OWNER.NAME=VALUE`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.cli.parameters import parse_parameters, parse_value
from fclub.errors import InvalidSetting


@given(st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_are_numbers(value: float) -> None:
    assert parse_value(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("null", None), ("ratings.csv", "ratings.csv"), ("", "")]
)
def test_other_values(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_every_owner_has_its_own() -> None:
    entries = ["club.deletion=2", "env.kind=orthogonal", "env.path=a=b.csv", "linucb.ridge=0.5"]
    environment, policies = parse_parameters(entries, ["club", "linucb"])
    assert environment == {"kind": "orthogonal", "path": "a=b.csv"}
    assert policies == {"club": {"deletion": 2}, "linucb": {"ridge": 0.5}}


@pytest.mark.parametrize("entry", ["env.kind", "kind=x", ".=1", "sclub.deletion=2"])
def test_what_belongs_to_nobody_is_refused(entry: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_parameters([entry], ["club"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--policy", "linucb"], "linucb is not one of"),
        (["--set", "env.path=nowhere.csv", "--env", "ratings"], "nowhere.csv"),
        (["--set", "fclub-dc.upload_ratio=0.5"], "upload_ratio"),
    ],
)
def test_a_federation_that_cannot_be_is_refused_before_it_starts(words: list[str], text: str) -> None:
    command = [sys.executable, "-m", "fclub", "up", "--users", "4", "--servers", "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (1, 2)
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
