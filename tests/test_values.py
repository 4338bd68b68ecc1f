"""Values are what the type of their parameter says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub import LinUCB, make_policy
from fclub.errors import InvalidSetting
from fclub.parameters import check_value, meaning, parse_value, split_assignment

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.one_of(st.integers(-(2**53), 2**53), FINITE))
def test_numbers_are_numbers(value: float) -> None:
    assert parse_value("x", repr(value), Any) == value
    found = parse_value("x", repr(value), float)
    assert (found, type(found)) == (value, float)


@given(st.text())
def test_text_stays_text(text: str) -> None:
    assert parse_value("x", text, str) == text


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("true", Any, True),
        ("null", Any, None),
        ("ratings.csv", Any, "ratings.csv"),
        ("", Any, ""),
        ("5", float, 5.0),
        ("1e-5", float, 1e-5),
        ("inf", float, float("inf")),
        ("20", int, 20),
        ("false", bool, False),
        ("TRUE", bool, True),
        ("5", str, "5"),
        ("null", bool | None, None),
        ("true", bool | None, True),
        ("7", Annotated[int, meaning("a number", least=1)] | None, 7),
        ("cdp", Literal["cdp", "transcript"], "cdp"),
    ],
)
def test_other_values(text: str, kind: object, value: object) -> None:
    found = parse_value("x", text, kind)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("no", bool, "true or false"),
        ("banana", bool, "true or false"),
        ("banana", float, "a number"),
        ("0.5", int, "a whole number"),
        ("true", float, "a number"),
        ("", int, "a whole number"),
        (
            "0",
            Annotated[int, meaning("a number", least=1)] | None,
            "a whole number of at least 1 or null",
        ),
        ("1", Annotated[float, meaning("a share", above=0, below=1)], "a number above 0 and below 1"),
        ("all", Literal["cdp", "transcript"], "cdp or transcript"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, kind: object, words: str) -> None:
    with pytest.raises(InvalidSetting, match=f"model.share must be {words}, got"):
        parse_value("model.share", text, kind)


@pytest.mark.parametrize("entry", ["key", "=value", ""])
def test_an_assignment_needs_both_sides(entry: str) -> None:
    with pytest.raises(InvalidSetting, match="key=value"):
        split_assignment(entry)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("fclub-plus", {"share": "no"}),
        ("fclub-plus", {"share": None}),
        ("fclub-plus", {"ratio": "2"}),
        ("fclub-plus", {"ratio": True}),
        ("cdp-fclub-plus", {"level": 2}),
        ("fclub-dc", {"sparse": "no"}),
    ],
)
def test_a_policy_takes_no_value_of_another_kind(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(parameters))):
        make_policy(name, **parameters)


def test_numbers_may_come_from_numpy() -> None:
    for value in (np.float64(2.0), np.int64(2), 2):
        assert check_value("ridge", value, float) == 2.0


def test_a_parameter_needs_a_default() -> None:
    """Other attributes may be declared without one."""
    with pytest.raises(InvalidSetting, match="Lacking: the parameter width needs a default"):
        type("Lacking", (LinUCB,), {"__annotations__": {"width": float}})
    type("Fitting", (LinUCB,), {"__annotations__": {"rows": np.ndarray, "_width": float}})
