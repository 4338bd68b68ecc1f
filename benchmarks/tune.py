"""Tune every policy's constants and write benchmarks/baselines.toml.

    python benchmarks/tune.py [--jobs N] [--policy NAME ...]

Seeds 1000–1004, T = 100,000, both placements of the authors' synthetic environment; about fifteen
minutes of CPU time. With --policy only those are tuned again and the others' entries are kept.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

from tuning import GRIDS, to_toml, tune

TARGET = Path(__file__).with_name("baselines.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--policy", nargs="*", choices=list(GRIDS))
    options = parser.parse_args()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    kept = tomllib.loads(TARGET.read_text())["policies"] if TARGET.exists() else {}
    for policy in options.policy or GRIDS:
        kept[policy] = tune(policy, tell, options.jobs)
        TARGET.write_text(to_toml({name: kept[name] for name in GRIDS if name in kept}))


if __name__ == "__main__":
    main()
