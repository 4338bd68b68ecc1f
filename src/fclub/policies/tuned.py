"""Constants that benchmarks/tune.py found best, one setting for both placements; they are defaults.

A test keeps them equal to benchmarks/baselines.toml. The theory's own values are in each policy's
`defaults`, and exploration = 1 is what the proofs need. Federated policies have theirs in the table of
`protocol.families`.
"""

from __future__ import annotations

from fclub.config import Parameter

Constants = dict[str, Parameter]

TUNED: dict[str, Constants] = {
    "linucb": {"exploration": 0.15, "ridge": 0.2, "sigma_0": 0.5},
    "club": {"deletion": 2.5, "exploration": 0.3, "ridge": 0.5},
    "sclub": {"deletion": 2.5, "exploration": 0.02, "ridge": 1.0, "frequency": 2.0},
    "oracle-local": {"exploration": 0.2, "ridge": 1.0, "sigma_0": 0.5},
    "oracle-pooled": {"exploration": 0.05, "ridge": 5.0, "sigma_0": 0.5},
}
"""By policy; a policy without an entry keeps its own defaults."""


def tuned(policy: str) -> Constants:
    return TUNED.get(policy, {})
