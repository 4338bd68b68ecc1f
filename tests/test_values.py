"""Values are what the default of their parameter is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub import make_policy
from fclub.errors import InvalidSetting
from fclub.values import check_value, parse_value, split_assignment

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.one_of(st.integers(-(2**53), 2**53), FINITE))
def test_numbers_are_numbers(value: float) -> None:
    assert parse_value("x", repr(value), None) == value
    found = parse_value("x", repr(value), 1.0)
    assert (found, type(found)) == (value, float)


@given(st.text())
def test_text_stays_text(text: str) -> None:
    assert parse_value("x", text, "default") == text


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("true", None, True),
        ("null", None, None),
        ("ratings.csv", None, "ratings.csv"),
        ("", None, ""),
        ("5", 1.0, 5.0),
        ("1e-5", 0.1, 1e-5),
        ("inf", 0.1, float("inf")),
        ("20", 4, 20),
        ("false", True, False),
        ("TRUE", False, True),
        ("5", "text", "5"),
    ],
)
def test_other_values(text: str, default: object, value: object) -> None:
    found = parse_value("x", text, default)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "default", "kind"),
    [
        ("no", True, "true or false"),
        ("banana", True, "true or false"),
        ("banana", 1.0, "a number"),
        ("0.5", 1, "a whole number"),
        ("true", 1.0, "a number"),
        ("", 1, "a whole number"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, default: object, kind: str) -> None:
    with pytest.raises(InvalidSetting, match=f"model.share must be {kind}"):
        parse_value("model.share", text, default)


@pytest.mark.parametrize("entry", ["key", "=value", ""])
def test_an_assignment_needs_both_sides(entry: str) -> None:
    with pytest.raises(InvalidSetting, match="key=value"):
        split_assignment(entry)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("fclub-plus", {"share": "no"}),
        ("fclub-plus", {"share": None}),
        ("fclub-plus", {"prior": "1"}),
        ("fclub-plus", {"prior": True}),
        ("cdp-fclub-plus", {"level": 2}),
        ("fclub-dc", {"sparse": "no"}),
    ],
)
def test_a_policy_takes_no_value_of_another_kind(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(parameters))):
        make_policy(name, **parameters)


def test_numbers_may_come_from_numpy() -> None:
    for value in (np.float64(2.0), np.int64(2), 2):
        check_value("ridge", value, 1.0)
