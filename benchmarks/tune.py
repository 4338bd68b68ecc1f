"""Tune every policy's constants and write benchmarks/baselines.toml.

    python benchmarks/tune.py [--jobs N] [--policy NAME ...]

Seeds 1000–1004, T = 100,000, both placements of the authors' synthetic environment; about a quarter of
an hour of CPU time. With --policy, only those are tuned and the file is printed, not written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fclub.experiments.tuning import GRIDS, to_toml, tune

TARGET = Path(__file__).with_name("baselines.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--policy", nargs="*", choices=list(GRIDS))
    options = parser.parse_args()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    searches = [tune(policy, tell, jobs=options.jobs) for policy in options.policy or GRIDS]
    if options.policy:
        print(to_toml(searches))
    else:
        TARGET.write_text(to_toml(searches))


if __name__ == "__main__":
    main()
