"""Constants that benchmarks/tune.py found best, one setting for both placements; they are defaults.

A test keeps them equal to benchmarks/baselines.toml. The theory's own values are in each policy's
`defaults`, and exploration = 1 is what the proofs need.
"""

from __future__ import annotations

Constants = dict[str, float | int | str | bool | None]

_CLUSTERED: Constants = {
    "deletion": 2.0,
    "merging": 2.0,
    "exploration": 0.15,
    "ridge": 1.0,
    "sigma_0": 0.5,
}
_POOLED: Constants = {"exploration": 0.15, "ridge": 1.0, "sigma_0": 0.5}

TUNED: dict[str, Constants] = {
    "linucb": {"exploration": 0.15, "ridge": 0.2, "sigma_0": 0.5},
    "club": {"deletion": 2.5, "exploration": 0.3, "ridge": 0.5},
    "sclub": {"deletion": 2.5, "exploration": 0.02, "ridge": 1.0, "frequency": 2.0},
    "fclub-dc": _CLUSTERED,
    "fclub": _CLUSTERED,
    "cdp-fclub-dc": _CLUSTERED,
    "homo-dc": _POOLED,
    "homo": _POOLED,
    "oracle-local": {"exploration": 0.2, "ridge": 1.0, "sigma_0": 0.5},
    "oracle-pooled": {"exploration": 0.05, "ridge": 5.0, "sigma_0": 0.5},
}
"""By policy; a policy without an entry keeps its own defaults."""


def tuned(policy: str) -> Constants:
    return TUNED.get(policy, {})
