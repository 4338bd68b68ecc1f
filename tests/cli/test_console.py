"""Tables on a terminal."""

import io
from typing import Any

from rich.console import Console

from fclub.cli.console import summary_table


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
