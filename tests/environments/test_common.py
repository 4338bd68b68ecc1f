"""What holds for every registered environment; those on data play on small files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fclub
from fclub.checks import check_environment
from fclub.environments.registry import ENVIRONMENTS
from fclub.errors import InvalidSetting
from fclub.policies.registry import POLICIES

Make = Callable[[str], fclub.Environment]
SMALL = {"users": 12, "servers": 3, "items": 5}
PAIRS = [(policy, "liked") for policy in POLICIES if policy != "oracle-types"]
PAIRS += [("fclub-dc", name) for name in ENVIRONMENTS if name not in ("liked", "synthetic")]
"""Every policy that can do without true vectors with real items; one with each of the others."""


@pytest.fixture
def make(write_ratings: Callable[..., Path], tmp_path: Path) -> Make:
    def build(name: str) -> fclub.Environment:
        if name == "synthetic":
            return fclub.make_environment(name, dim=4, clusters=3, **SMALL)
        if name == "arrays":
            rng = np.random.default_rng(0)
            vectors = np.hstack([0.3 * rng.random((4, 3)), np.full((4, 1), 0.6)])
            np.save(tmp_path / "theta.npy", vectors[rng.integers(4, size=20)])
            return fclub.make_environment(
                name, path=str(tmp_path / "theta.npy"), choice="random", **SMALL
            )
        path = str(write_ratings("ratings.dat"))
        extra = {"clusters": 3} if name in ("ratings", "liked") else {}
        return fclub.make_environment(name, path=path, dim=4, size=40, **extra, **SMALL)

    return build


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_conforms(name: str, make: Make) -> None:
    check_environment(make(name))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_same_seed_same_visits(name: str, make: Make) -> None:
    one, two = make(name), make(name)
    for environment in (one, two):
        environment.start(7)
    np.testing.assert_array_equal(one.labels, two.labels)
    for t in range(50):
        (user, items), (same_user, same_items) = one.visit(), two.visit()
        assert user == same_user
        np.testing.assert_array_equal(items, same_items)
        assert one.feedback(t % 5) == two.feedback(t % 5)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_visits_are_in_the_domain(name: str, make: Make) -> None:
    environment = make(name)
    environment.start(1)
    problem = environment.problem
    assert environment.labels.shape == environment.server_of.shape == (problem.users,)
    for t in range(200):
        user, items = environment.visit()
        assert 0 <= user < problem.users
        assert items.shape == (5, problem.dim)
        assert np.linalg.norm(items, axis=1).max() <= 1 + 1e-9
        if problem.constant is not None:
            assert (items[:, -1] == problem.constant).all()
        outcome = environment.feedback(t % 5)
        assert outcome.reward in (0.0, 1.0)
        assert 0.0 <= outcome.regret <= 1.0


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_parameters_make_the_same_environment(name: str, make: Make) -> None:
    environment = make(name)
    again = fclub.make_environment(name, **environment.get_params())
    assert again.get_params() == environment.get_params()


@pytest.mark.parametrize(("policy", "name"), PAIRS)
def test_fast_equals_readable(policy: str, name: str, make: Make) -> None:
    environment = make(name)
    fast, slow = (
        fclub.simulate(policy, environment, 300, seed=2, fast=way, record_choices=True)
        for way in (True, False)
    )
    np.testing.assert_array_equal(fast.choices, slow.choices)
    np.testing.assert_array_equal(fast.regret, slow.regret)
    np.testing.assert_array_equal(fast.reward, slow.reward)
    np.testing.assert_array_equal(fast.labels, slow.labels)


def test_nobody_knows_true_vectors_behind_real_likes(make: Make) -> None:
    with pytest.raises(InvalidSetting, match="vectors"):
        fclub.simulate("oracle-types", make("liked"), 10)


def test_spread_gives_every_server_every_large_cluster(write_ratings: Callable[..., Path]) -> None:
    path = str(write_ratings())
    environment = fclub.make_environment(
        "ratings", path=path, users=40, clusters=2, servers=4, dim=4, size=50, placement="spread"
    )
    environment.start(0)
    pairs = set(zip(environment.labels, environment.server_of, strict=True))
    assert len(pairs) == 2 * 4
