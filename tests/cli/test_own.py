"""`--policy path.py:Class`, `module:Class` and `--env path.py:Class` in run, replay and reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Command

from fclub.errors import InvalidSetting, UnknownName
from fclub.experiments.run.experiment import Setting
from fclub.own import digest_of, find_class
from fclub.policies.base import Policy

MINE = """
import numpy as np
from helper import SHELF

import fclub


class Greedy(fclub.Policy):
    defaults = {"ridge": 1.0}

    def _start(self, problem, server_of, seed, seeded):
        self.gram = np.tile(self.get_params()["ridge"] * np.eye(problem.dim), (problem.users, 1, 1))
        self.moment = np.zeros((problem.users, problem.dim))

    def _recommend(self, user, items):
        return int(np.argmax(items @ self.theta_[user]))

    def _update(self, user, x, y):
        self.gram[user] += np.outer(x, x)
        self.moment[user] += y * x

    @property
    def theta_(self):
        return np.linalg.solve(self.gram, self.moment[:, :, None])[:, :, 0]


class Shelf(fclub.Environment):
    def __init__(self, users: int = 6):
        self.problem = fclub.Problem(users=users, servers=2, dim=3)
        self.labels = np.arange(users) % 2
        self.server_of = np.arange(users) % 2

    def get_params(self):
        return {"users": self.problem.users}

    def start(self, seed):
        self.rng = np.random.default_rng(seed)

    def visit(self):
        self.user, self.draw = int(self.rng.integers(self.problem.users)), self.rng.random()
        return self.user, SHELF

    def feedback(self, index):
        means = SHELF[:, self.labels[self.user]]
        return fclub.Outcome(float(self.draw < means[index]), float(means.max() - means[index]))


class Unfinished(fclub.Policy):
    def _recommend(self, user, items):
        return 0
"""


KERNELS = """
from typing import NamedTuple

import numpy as np
from helper import last

from fclub.core.compiling import compiled
from fclub.policies.base import KernelPolicy


class State(NamedTuple):
    counts: object


@compiled
def recommend(state, user, items):
    return last(items) - BACK


@compiled
def feedback(state, user, x, y):
    state.counts[user] += 1


class Fixed(KernelPolicy):
    kernels = (recommend, feedback)

    def _begin(self, problem, server_of, seed):
        return State(np.zeros(problem.users))

    @property
    def theta_(self):
        return np.zeros((self.problem.users, self.problem.dim))
"""
HELPER = """
from fclub.core.compiling import inner


@inner
def last(items):
    return len(items) - 1
"""


def fclub(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fclub", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=os.environ
    )


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with classes of one's own, and a module that they import."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helper.py").write_text("import numpy as np\n\nSHELF = np.eye(3) * 0.9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_run_report_and_resume(mine: Path) -> None:
    policies = ("--policy", "mine.py:Greedy", "--policy", "linucb", "--set", "mine.py:Greedy.ridge=2")
    world = ("--env", "mine.py:Shelf", "--set", "env.users=8")
    line = ("run", *policies, *world, "--rounds", "300", "--seeds", "2", "--out", "out", "--jobs", "2")
    done = fclub(mine, *line, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert list(summary["policies"]) == ["mine.py:Greedy", "linucb"]
    assert summary["environment"] == {"name": "shelf", "users": 8}
    files = sorted(path.name for path in (mine / "out").glob("*.npz"))
    assert [name.rpartition("-")[0] for name in files if "Greedy" in name] == [
        "mine.py_Greedy-mine.py_Shelf-0",
        "mine.py_Greedy-mine.py_Shelf-1",
    ]

    (mine / "mine.py").rename(mine / "gone.py")
    done = fclub(mine, "report", "out")
    assert done.returncode == 0, done.stderr
    assert "mine.py:Greedy" in (mine / "out" / "report.html").read_text()

    (mine / "mine.py").write_text(MINE.replace("np.argmax", "np.argmin"))
    assert fclub(mine, *line, "--resume").returncode == 0
    assert len(list((mine / "out").glob("*Greedy*.npz"))) == 4, "other code gives other results"


def test_no_kernel_of_a_former_version_is_played(tmp_path: Path) -> None:
    """Neither in the class's own file nor in one that it imports, on any way of loading it."""
    line = (
        "run",
        "--policy",
        "mine.py:Fixed",
        "--rounds",
        "50",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--json",
    )
    print_regret = "import fclub, mine; print(fclub.simulate(mine.Fixed(), 'synthetic', 50).regret[-1])"
    versions = [("0", "- 1"), ("1", "- 1"), ("1", "- 3")]
    typed, imported = [], []
    for back, end in versions:
        (tmp_path / "mine.py").write_text(KERNELS.replace("BACK", back))
        (tmp_path / "helper.py").write_text(HELPER.replace("- 1", end))
        done = fclub(tmp_path, *line)
        assert done.returncode == 0, done.stderr
        typed.append(json.loads(done.stdout)["policies"]["mine.py:Fixed"]["regret"]["mean"])
        command = [sys.executable, "-B", "-c", print_regret]
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        imported.append(float(run.stdout))
    assert len(set(typed)) == len(versions)
    assert typed == pytest.approx(imported)


def test_replay(mine: Path) -> None:
    lines = [f"{t % 3},{t % 2},{t % 2},0.5" for t in range(60)]
    (mine / "log.csv").write_text("\n".join(["user,item,reward,propensity", *lines]))
    (mine / "items.csv").write_text("item,kind\n0,a\n1,b\n")
    done = fclub(mine, "replay", "log.csv", "--items", "items.csv", "--policy", "mine:Greedy", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == ["mine:Greedy"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_error_in_code_of_ones_own_is_told_with_its_place(mine: Path, jobs: str) -> None:
    """In a process of its own, whose workers begin where it does."""
    (mine / "mine.py").write_text(MINE.replace("items @ self", "items[:, 1:] @ self"))
    run = ("run", "--policy", "mine.py:Greedy", "--rounds", "9", "--seeds", "1", "--jobs", jobs)
    done = fclub(mine, *run)
    assert done.returncode == 1
    place, line, told = [one for one in done.stderr.splitlines() if "rounds" not in one][:3]
    assert place.startswith(f'  File "{mine / "mine.py"}", line ')
    assert "np.argmax(items[:, 1:] @ self.theta_[user])" in line
    assert "fclub: ValueError: matmul" in done.stderr
    assert "site-packages" not in done.stderr + told


def test_what_numba_says_of_a_kernel_is_told_without_its_own_frames(
    mine: Path, command: Command
) -> None:
    (mine / "ends.py").write_text(HELPER)
    text = KERNELS.replace("from helper", "from ends").replace("BACK", "state.missing")
    (mine / "kernels.py").write_text(text)
    done = command(
        "run", "--policy", "kernels.py:Fixed", "--rounds", "9", "--seeds", "1", "--jobs", "1"
    )
    assert done.returncode == 1
    assert "fclub: TypingError: " in done.stderr
    assert "return last(items) - state.missing" in done.stderr
    assert "site-packages" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nosuch\n", "fclub: ModuleNotFoundError: No module named 'nosuch'"),
        ("def\n", "fclub: SyntaxError: invalid syntax"),
    ],
)
def test_an_error_at_import_is_told_with_its_place(
    mine: Path, command: Command, text: str, said: str
) -> None:
    (mine / "mine.py").write_text(text)
    done = command("run", "--policy", "mine.py:Greedy")
    assert done.returncode == 1
    assert done.stderr.startswith('  File "')
    assert "mine.py" in done.stderr.splitlines()[0]
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 4


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("mine.py:Gredy", "no Policy in mine.py is called 'Gredy'; did you mean Greedy?"),
        ("mine.py:Shelf", "no Policy in mine.py is called 'Shelf'"),
        ("mine.py:Unfinished", "mine.py:Unfinished lacks _start, _update, theta_"),
        ("yours.py:Greedy", "there is no file yours.py"),
        ("yours:Greedy", "there is no module yours"),
    ],
)
def test_what_is_not_there_is_said(mine: Path, command: Command, reference: str, said: str) -> None:
    done = command("run", "--policy", reference)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"fclub: {said}")


def test_a_class_is_loaded_once_for_each_content(mine: Path) -> None:
    first = find_class("mine.py:Greedy", Policy)  # type: ignore[type-abstract]
    assert find_class("mine.py:Greedy", Policy) is first  # type: ignore[type-abstract]
    before = digest_of("mine.py:Greedy")
    setting = Setting.of("mine.py:Greedy", {"ridge": 0.5})
    assert type(setting.make_policy()) is first
    (mine / "mine.py").write_text(MINE + "\n# another word\n")
    assert find_class("mine.py:Greedy", Policy) is not first  # type: ignore[type-abstract]
    assert digest_of("mine.py:Greedy") != before
    with pytest.raises(InvalidSetting, match="has changed"):
        setting.make_policy()


def test_names_that_were_read_are_never_imported(mine: Path) -> None:
    """A file of results or of a policy cannot make anybody run its code."""
    with pytest.raises(UnknownName):
        Setting("mine.py:Greedy").make_policy()
    with pytest.raises(UnknownName):
        Setting("mine.py:Shelf").make_environment()
