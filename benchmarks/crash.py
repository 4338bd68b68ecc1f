"""The full crash drill: python benchmarks/crash.py --kills 100"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from drill import Drill

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--policy", default="fclub-dc")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drill = Drill(Path(folder), given.kills, policy=given.policy, seed=given.seed)
        print(json.dumps(drill.run()))
