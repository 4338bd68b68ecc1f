"""Digests of the policies that docs/reproduction.md reports, so that a stale page is noticed.

`python docs/digests.py` records them in docs/reproduction.json; with `--check` it compares instead, and
ends with 1 if a policy differs or is not recorded. Record them in the commit that records a new run of
`fclub reproduce all`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from fclub.environments.registry import make_environment
from fclub.experiments.run.experiment import Setting
from fclub.experiments.study.figures import Scale, make_figures
from fclub.simulation.loop import simulate

FILE = Path(__file__).with_name("reproduction.json")
ROUNDS = 2_000
REPORTED = ("synthetic", "constants")
"""Together, the first panels of these figures have every policy of the page."""


def reported() -> dict[str, Setting]:
    """Every policy by its label, with the settings of the page; all are played in blocks."""
    scale = Scale(ROUNDS, (0,))
    panels = [make_figures(name, scale)[0].panels[0] for name in REPORTED]
    return {label: s for panel in panels for label, s in panel.experiment.policies.items()}


def digest(setting: Setting) -> str:
    """Of every choice, of what was sent and of the last partition."""
    environment = make_environment("synthetic")
    trace = simulate(setting.make_policy(), environment, ROUNDS, seed=0, record_choices=True)
    sent = trace.communications["total"]
    found = hashlib.sha256()
    for array in (trace.choices, sent, trace.labels):
        found.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return found.hexdigest()[:16]


def compute() -> dict[str, str]:
    return {label: digest(s) for label, s in reported().items()}


def stale(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """Policies that play otherwise than when the page was made."""
    return [label for label, value in recorded.items() if label in now and now[label] != value]


def missing(recorded: dict[str, str]) -> list[str]:
    return [label for label in reported() if label not in recorded]


def load() -> dict[str, str]:
    recorded: dict[str, str] = json.loads(FILE.read_text())["policies"]
    return recorded


def main(arguments: list[str]) -> int:
    now = compute()
    if "--check" not in arguments:
        content = {"rounds": ROUNDS, "policies": now}
        FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return 0
    changed, absent = stale(load(), now), missing(load())
    print(f"stale: {', '.join(changed) or 'none'}; not recorded: {', '.join(absent) or 'none'}")
    return 1 if changed or absent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
