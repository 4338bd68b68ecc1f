"""Tables on a terminal."""

import io
from typing import Any

import pytest
from rich.console import Console

from fclub.cli.console import summary_table
from fclub.cli.screen import screen


def entry(regret: float, epsilon: float | None) -> dict[str, Any]:
    return {
        "regret": {"mean": regret, "std": regret / 10},
        "communications": {"total": 1_234_567.0},
        "clusters": {"found": 14.5, "true": 10.0, "ari": 0.123},
        "privacy": None
        if epsilon is None
        else {"unit": "user", "notion": "transcript", "spent": [[epsilon, 0.1], [2 * epsilon, 1e-5]]},
        "microseconds_per_round": 251.79,
    }


def test_cells_are_not_cut_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    label = "fclub-dc exploration=0.005 deletion=1.5 merging=2.0 ridge=2.0 upload_ratio=1.01"
    summary = {"environment": {"name": "synthetic"}, "rounds": 10, "seeds": [0]}
    screen().print(summary_table(summary | {"policies": {label: entry(1.0, 1.0)}}))
    text = capsys.readouterr().out
    assert label in text
    assert "251.79" in text
    assert "10 rounds, 1 seed from 0" in text
    monkeypatch.setenv("COLUMNS", "60")
    assert screen().width == 60


def shown(policies: dict[str, Any]) -> str:
    summary = {
        "environment": {"name": "synthetic"},
        "rounds": 100_000,
        "seeds": list(range(10)),
        "policies": policies,
    }
    screen = io.StringIO()
    Console(file=screen, width=80).print(summary_table(summary))
    return screen.getvalue()


def test_a_full_size_comparison_fits_on_80_columns() -> None:
    """Largest numbers of a run with the paper's settings, longest name of a policy."""
    text = shown({"cdp-fclub-plus": entry(12_345.0, 0.97), "linucb": entry(1_445.0, None)})
    assert "…" not in text
    assert "cdp-fclub-plus" in text
    assert "12,345 ± 1,234" in text
    assert "ε of cdp-fclub-plus: user, transcript, δ=0.1" in " ".join(text.split())
    assert "ARI" in text
    assert "14.5 of 10" in text


def test_agreement_is_not_shown_where_nobody_knows_the_clusters() -> None:
    text = shown({"linucb": entry(1.0, None) | {"clusters": {"found": 3.0, "true": None, "ari": None}}})
    assert "ARI" not in text
    assert " of " not in text
