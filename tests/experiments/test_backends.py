"""The same results from a real Dask and a real Ray cluster on the loopback interface."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import numpy as np
from fclub.experiments.run.runner import run
from fclub.experiments.run.experiment import Experiment, Setting

if __name__ == "__main__":
    policies = {name: Setting(name) for name in ("linucb", "fclub-dc")}
    experiment = Experiment(policies, Setting("synthetic", {"users": 10}), 2_000, (1, 2, 3))
    here = run(experiment, jobs=1)
    there = run(experiment, jobs=2, backend=sys.argv[1])
    for label, traces in here.items():
        for trace, other in zip(traces, there[label], strict=True):
            np.testing.assert_array_equal(trace.regret, other.regret)
            np.testing.assert_array_equal(trace.labels, other.labels)
    print("equal")
"""


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_cluster_gives_the_same_results(backend: str, module: str, tmp_path: Path) -> None:
    """In a process of its own: a cluster's threads and warnings are not this project's."""
    pytest.importorskip(module, reason=f"{module} is an optional extra")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, script, backend], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("equal")
