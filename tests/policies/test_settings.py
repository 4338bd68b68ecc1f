"""Impossible settings are refused by a name that carries the value."""

from typing import Any

import numpy as np
import pytest

import fclub
from fclub.errors import InvalidSetting, NotStarted, UnknownName
from fclub.policies.registry import POLICIES


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("fclub-dc", "upload_ratio", 0.99),
        ("fclub-dc", "download_ratio", np.nan),
        ("fclub-dc", "deletion", -1.0),
        ("fclub-dc", "merging", np.nan),
        ("fclub-dc", "ridge", 0.0),
        ("fclub-dc", "sigma_0", -1.0),
        ("fclub-dc", "alpha", 0.0),
        ("fclub-dc", "alpha", 1.0),
        ("fclub-dc", "exploration", np.inf),
        ("fclub-dc", "cluster_bound", 0),
        ("fclub-dc", "cluster_bound", 2.5),
        ("cdp-fclub-dc", "epsilon", 0.0),
        ("cdp-fclub-dc", "epsilon", "1"),
        ("cdp-fclub-dc", "delta", 0.0),
        ("cdp-fclub-dc", "delta", 1.0),
        ("cdp-fclub-dc", "horizon", 1),
        ("cdp-fclub-dc", "horizon", True),
        ("club", "ridge", -1.0),
        ("sclub", "frequency", 0.0),
        ("sclub", "frequency", "often"),
        ("linucb", "alpha", -1.0),
    ],
)
def test_parameters(name: str, parameter: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=parameter) as refusal:
        fclub.make_policy(name, **{parameter: value})
    assert refusal.value.value is value or refusal.value.value == value


@pytest.mark.parametrize(
    "sizes",
    [
        {"users": 4, "servers": 5, "dim": 2},
        {"users": 0, "servers": 1, "dim": 2},
        {"users": 4, "servers": 0, "dim": 2},
        {"users": 4, "servers": 1, "dim": 0},
        {"users": 4.0, "servers": 1, "dim": 2},
        {"users": 4, "servers": 1, "dim": 2, "constant": 0.0},
        {"users": 4, "servers": 1, "dim": 2, "constant": 1.5},
    ],
)
def test_problems(sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        fclub.Problem(**sizes)


@pytest.mark.parametrize("server_of", [[0, 1], [0, 1, 2], [0, 1, -1], [0.0, 1.0, 1.0], "abc", None])
def test_placements(server_of: object) -> None:
    policy = fclub.make_policy("fclub-dc")
    with pytest.raises(InvalidSetting):
        policy.start(fclub.Problem(3, 2, 2), server_of)
    with pytest.raises(NotStarted):
        policy.recommend(0, [[0.5, 0.5]])


def test_the_printed_privatizer_needs_delays() -> None:
    policy = fclub.make_policy("cdp-fclub-dc", upload_ratio=1.0)
    with pytest.raises(InvalidSetting, match="above 1"):
        policy.start(fclub.Problem(3, 2, 2), [0, 1, 1])


@pytest.mark.parametrize("name", [name for name, entry in POLICIES.items() if entry.oracle])
def test_oracles_have_to_be_told(name: str) -> None:
    with pytest.raises(InvalidSetting, match="reveal"):
        fclub.make_policy(name).start(fclub.Problem(3, 2, 2), [0, 1, 1])


def test_types_have_to_have_vectors() -> None:
    policy = fclub.make_policy("oracle-types")
    policy.reveal(np.array([0, 1, 1]))
    with pytest.raises(InvalidSetting, match="vectors"):
        policy.start(fclub.Problem(3, 2, 2), [0, 1, 1])


def test_unknown_names_suggest_near_ones() -> None:
    with pytest.raises(UnknownName, match="fclub-dc"):
        fclub.make_policy("fclub-dcc")
    with pytest.raises(UnknownName, match="linucb"):
        fclub.make_policy("zzz")
    with pytest.raises(UnknownName, match="did you mean linucb"):
        fclub.make_policy("linUCB")
    with pytest.raises(UnknownName, match="deletion"):
        fclub.make_policy("club", deletoin=1.0)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_can_be_started_again(name: str) -> None:
    environment = fclub.make_environment("synthetic", users=8, clusters=2, servers=2, dim=3)
    policy = fclub.make_policy(name)
    first = fclub.simulate(policy, environment, 100, seed=1, record_choices=True)
    again = fclub.simulate(policy, environment, 100, seed=1, record_choices=True)
    np.testing.assert_array_equal(first.choices, again.choices)
    assert name in repr(policy)
