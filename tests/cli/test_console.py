"""Tables on a terminal."""

import io

from rich.console import Console

from fclub.cli.console import summary_table


def entry(regret: float, epsilon: float | None) -> dict[str, object]:
    return {
        "regret": {"mean": regret, "std": regret / 10},
        "communications": {"total": 1_234_567.0},
        "clusters": {"found": 14.5, "true": 10.0, "ari": 0.123},
        "privacy": None if epsilon is None else {"spent": [[epsilon, 0.1], [2 * epsilon, 1e-5]]},
        "microseconds_per_round": 251.79,
    }


def test_a_full_size_comparison_fits_on_80_columns() -> None:
    """Largest numbers of a run with the paper's settings, longest name of a policy."""
    summary = {
        "environment": {"name": "synthetic"},
        "rounds": 100_000,
        "seeds": list(range(10)),
        "policies": {"cdp-fclub-plus": entry(12_345.0, 0.97), "linucb": entry(1_445.0, None)},
    }
    screen = io.StringIO()
    Console(file=screen, width=80).print(summary_table(summary))
    text = screen.getvalue()
    assert "…" not in text
    assert "cdp-fclub-plus" in text
    assert "12,345 ± 1,234" in text
    assert "ε at δ=0.1" in " ".join(text.split())
