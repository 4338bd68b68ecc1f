"""Features under a budget: what one user adds, what leaves, and what the ledger says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack
from typer.testing import CliRunner

from fclub.cli.features import app
from fclub.cli.plan import app as plan
from fclub.core.types import Counts, Floats
from fclub.environments.data.features import private_features
from fclub.environments.data.private_features import (
    new_ledger,
    opinion_sums,
    plan_features,
    release_features,
    triangle_sums,
)
from fclub.errors import InvalidSetting
from fclub.privacy.ledger import read_ledger
from fclub.privacy.noise import DiscreteNoise, NoNoise, SeededNoise
from fclub.service.store.items_file import read_items

STEPS = 1_000_003
ITEMS = 12


def ratings_of(rng: np.random.Generator, users: int) -> Any:
    """Users by items; an entry is 1 or 5, or there is none."""
    found = rng.choice([0.0, 1.0, 5.0], (users, ITEMS), p=[0.5, 0.2, 0.3])
    return csr_matrix(found)


def likes_of(rated: Any) -> Any:
    return rated.data >= 3.0


def both(rated: Any) -> list[Counts]:
    return [opinion_sums(rated, likes_of(rated), STEPS), triangle_sums(rated, STEPS)]


@pytest.mark.parametrize("seed", range(20))
def test_a_user_adds_at_most_the_bound_to_each_sum(seed: int) -> None:
    """In whole numbers: ‖z‖² ≤ steps². Whoever is added or removed moves a sum by just that."""
    rng = np.random.default_rng(seed)
    others, own = ratings_of(rng, 7), ratings_of(rng, 1)
    alone = both(own)
    for total, rest, part in zip(both(vstack([others, own]).tocsr()), both(others), alone, strict=True):
        assert np.array_equal(total - rest, part)
        assert sum(int(entry) ** 2 for entry in part) <= STEPS**2
        if own.nnz:
            assert np.linalg.norm(part) > 0.999 * STEPS


def test_a_user_without_ratings_adds_nothing() -> None:
    nobody = csr_matrix((1, ITEMS))
    assert not any(total.any() for total in both(nobody))


def slow_vectors(rated: Any, items: Any, count: int) -> Floats:
    """Leading eigenvectors of Σ x xᵀ, x a row of norm 1, in doubles."""
    rows = (rated.toarray()[:, items] > 0).astype(np.float64)
    rows = rows[rows.any(axis=1)]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :count])


def test_without_noise_vectors_are_leading_eigenvectors() -> None:
    rated, dim, size = ratings_of(np.random.default_rng(3), 200), 5, 8
    source = NoNoise()
    plan, ledger = plan_features(1.0, 1e-5, ITEMS, size), new_ledger(1.0, 1e-5, source)
    made = release_features(rated, likes_of(rated), dim, size, False, plan, ledger, source)
    slow = slow_vectors(rated, made.items, dim - 1)
    slow /= np.linalg.norm(slow, axis=1, keepdims=True)
    got = made.rows[:, :-1] / np.linalg.norm(made.rows[:, :-1], axis=1, keepdims=True)
    assert np.allclose(np.abs(got), np.abs(slow), atol=1e-3)
    assert np.allclose(np.linalg.norm(made.rows, axis=1), 1.0)


def test_noise_is_that_of_the_plan_and_the_ledger_charges_both_sums() -> None:
    rated, size = ratings_of(np.random.default_rng(4), 50), 6
    source = SeededNoise(np.random.default_rng(0))
    plan, ledger = plan_features(2.0, 1e-5, ITEMS, size), new_ledger(2.0, 1e-5, source)
    made = release_features(rated, likes_of(rated), 4, size, True, plan, ledger, source)
    assert [event.releases for event in ledger.events] == [0, 1, 1]
    assert ledger.mu == pytest.approx(plan.mu)
    assert ledger.spent(1e-5) <= 2.0
    assert plan.deviation / plan.steps == pytest.approx(np.sqrt(2.0) / plan.mu)
    assert made.rows.shape == (size, 4)
    assert np.linalg.norm(made.rows, axis=1).max() <= 1.0 + 1e-12


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    rng, path = np.random.default_rng(0), tmp_path / "ratings.csv"
    lines = ["user,item,rating"]
    for user in range(60):
        for item in range(20):
            alike = (user - item) % 2 == 0
            if rng.random() < (0.7 if alike else 0.25):
                lines.append(f"{user},{item},{5 if rng.random() < (0.9 if alike else 0.1) else 1}")
    path.write_text("\n".join(lines))
    return path


def test_a_large_budget_gives_features_that_predict(ratings: Path) -> None:
    rng = np.random.default_rng(5)
    small, large = (
        private_features(str(ratings), 4, 12, 3.0, epsilon, 1e-5, SeededNoise(rng)).check.features
        for epsilon in (0.01, 14.0)
    )
    assert large > 0.65
    assert large > small


def features(*words: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output, result.exception


def test_the_command_writes_a_ledger_and_does_not_spend_twice(ratings: Path, tmp_path: Path) -> None:
    out = tmp_path / "items.csv"
    words = [str(ratings), "--dim", "4", "--size", "10", "--out", str(out), "--epsilon", "3"]
    code, _, error = features(*words)
    assert code == 1
    assert isinstance(error, InvalidSetting)
    code, text, _ = features(*words, "--threshold", "3", "--json")
    assert code == 0, text
    told = json.loads(text)
    ledger = read_ledger(tmp_path / "items.csv.ledger")
    assert not ledger.seeded
    assert told["privacy"]["claimed"] == [3.0, 1e-5]
    assert ledger.spent(1e-5) <= 3.0
    assert told["privacy"]["spent"][0][0] == pytest.approx(ledger.spent(1e-5))
    ((ids, rows),) = read_items(out, 4)
    assert (len(ids), rows.shape) == (10, (10, 4))
    _, _, error = features(*words, "--threshold", "3")
    assert isinstance(error, InvalidSetting)
    assert "exists" in str(error)


def test_who_makes_features_without_noise_is_told_what_that_assumes(
    ratings: Path, tmp_path: Path
) -> None:
    words = [str(ratings), "--dim", "4", "--out", str(tmp_path / "items.csv")]
    assert "--features-are-public" in features(*words)[1]
    assert "--features-are-public" not in features(*words, "--features-are-public")[1]


SMALL = ["--servers", "3", "--users", "500", "--visits-per-month", "4", "--seeds", "0"]


def test_a_plan_that_is_used_says_where_its_features_are_from(ratings: Path, tmp_path: Path) -> None:
    used = [*SMALL, "--out", str(tmp_path / "plan.json")]
    refused = CliRunner().invoke(plan, used)
    assert isinstance(refused.exception, InvalidSetting)
    assert not (tmp_path / "plan.json").exists()
    assert "public: they follow" in CliRunner().invoke(plan, [*used, "--features-are-public"]).output
    assert "taken for public" in CliRunner().invoke(plan, SMALL).output
    out = tmp_path / "items.csv"
    budget = ["--epsilon", "3", "--threshold", "3"]
    assert features(str(ratings), "--dim", "4", "--size", "10", "--out", str(out), *budget)[0] == 0
    shown = CliRunner().invoke(plan, [*used, "--features-ledger", f"{out}.ledger"])
    assert "released for ε = 3" in shown.output


def test_two_releases_share_no_noise(ratings: Path) -> None:
    source = DiscreteNoise()
    one, two = (private_features(str(ratings), 4, 10, 3.0, 1.0, 1e-5, source).rows for _ in range(2))
    assert not np.any(one[:, :-2] == two[:, :-2]), "the best quality is 1, whatever the noise"
