"""A run that is killed and resumed leaves the same bytes as one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.results import INDEX, Results
from fclub.experiments.run.runner import run

ROUNDS, SEEDS = 3_000, 4
EXPERIMENT = Experiment(
    {name: Setting(name) for name in ("linucb", "sclub", "cdp-fclub-dc")},
    Setting("synthetic", {"users": 12}),
    ROUNDS,
    tuple(range(SEEDS)),
)
TOTAL = ROUNDS * SEEDS * len(EXPERIMENT.policies)

CHILD = """
import sys, msgspec
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.experiments.run.experiment import Experiment
experiment = msgspec.json.decode(sys.argv[2], type=Experiment)
results = Results.create(sys.argv[1], experiment)
run(experiment, jobs=2, results=results, report=lambda done: print(done, flush=True))
"""


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != INDEX}


def run_and_kill(folder: Path, after: int) -> None:
    """Start a run in processes of its own and kill them all once `after` rounds are reported."""
    experiment = msgspec.json.encode(EXPERIMENT).decode()
    command = [sys.executable, "-c", CHILD, str(folder), experiment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= after:
                break
        os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, TOTAL // 2])
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, after: int) -> None:
    run_and_kill(tmp_path / "killed", after)
    resumed = Results.create(tmp_path / "killed", EXPERIMENT, resume=True)
    run(EXPERIMENT, jobs=2, results=resumed)
    whole = Results.create(tmp_path / "whole", EXPERIMENT)
    run(EXPERIMENT, jobs=1, results=whole)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert len(files(tmp_path / "whole")) == SEEDS * len(EXPERIMENT.policies) + 1
