"""`simulate`: reproducible, bounded in memory, without drift, and a trace that can be kept."""

import gc
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.parts import packed

import fclub
from fclub.core.compiling import compiled
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidFile, InvalidInput, InvalidSetting, UnknownName
from fclub.policies.base import KernelPolicy
from fclub.policies.saving import read_npz, write_npz
from fclub.simulation.trace import FORMAT, VERSION, checkpoints


def small(**changes: Any) -> fclub.Environment:
    sizes = {"users": 8, "clusters": 2, "servers": 2, "dim": 3, "items": 4}
    return fclub.make_environment("synthetic", **sizes | changes)


def peak(name: str, rounds: int, fast: bool) -> int:
    environment = small()
    gc.collect()
    tracemalloc.start()
    fclub.simulate(name, environment, rounds, seed=1, fast=fast)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


@pytest.mark.parametrize("name", ["cdp-fclub-dc", "fclub", "sclub", "linucb"])
def test_memory_does_not_grow_with_the_horizon(name: str) -> None:
    """One number kept per round would be 250 kB more.

    A run of the same length comes first: what is loaded or cached once does not count.
    """
    fclub.simulate(name, small(), 34_000, seed=1, fast=True)
    assert peak(name, 34_000, fast=True) < peak(name, 2_000, fast=True) + 150_000


def test_memory_of_the_readable_loop_does_not_grow() -> None:
    """One message kept per round would be 500 kB more; a run of that length comes first here too."""
    fclub.simulate("fclub", small(), 1_500, seed=1, fast=False)
    assert peak("fclub", 1_500, fast=False) < peak("fclub", 500, fast=False) + 150_000


def drift(policy: Any) -> float:
    """How far the kept inverses are from inverses: the largest entry of A⁻¹A − I."""
    worst = 0.0
    for server in policy.servers.values():
        local = server.learner.clusters
        for c in np.flatnonzero(local.fresh):
            for kept, matrix in (
                (local.inverse[c], local.gram[c]),
                (local.trial_inverse[c], local.gram[c] + local.buffer_gram[c]),
            ):
                worst = max(worst, float(np.abs(kept @ matrix - np.eye(len(matrix))).max()))
            grown = np.linalg.slogdet(local.gram[c] + local.buffer_gram[c])[1]
            worst = max(worst, abs(local.growth[c] - (grown - np.linalg.slogdet(local.gram[c])[1])))
    return worst


@pytest.mark.parametrize("name", ["cdp-fclub-dc", "fclub-dc", "fclub", "homo-dc"])
def test_inverses_do_not_drift(name: str) -> None:
    policy = fclub.make_policy(name)
    fclub.simulate(policy, small(), 5_000, seed=1)
    assert drift(policy) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cdp-fclub-dc", "fclub-dc", "fclub", "homo-dc"])
def test_inverses_do_not_drift_in_a_million_rounds(name: str) -> None:
    """Uploads become rare, so a trial inverse lives through hundreds of rank-one updates."""
    needed = {"horizon": 1_000_000} if name == "cdp-fclub-dc" else {}
    policy = fclub.make_policy(name, **needed)
    fclub.simulate(policy, "synthetic", 1_000_000, seed=1)
    assert drift(policy) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["club", "sclub", "linucb"])
def test_models_do_not_drift_in_a_million_rounds(name: str) -> None:
    policy = fclub.make_policy(name, ridge=1.0)
    fclub.simulate(policy, "synthetic", 1_000_000, seed=1)
    state = packed(policy)
    for models in (getattr(state, "models", None), getattr(state, "users", None)):
        if models is not None:
            shifted = models.gram + np.eye(models.gram.shape[1])
            fresh = np.linalg.solve(shifted, models.moment[..., None])[..., 0]
            np.testing.assert_allclose(models.theta, fresh, atol=1e-10)


def test_every_policy_meets_the_same_world() -> None:
    """Same seed: the reward of a choice is the same draw, whatever was played before."""
    visits = []
    for name in ("linucb", "cdp-fclub-dc"):
        environment = small()
        fclub.simulate(name, environment, 200, seed=4)
        visits.append([environment.visit() for _ in range(3)])
    for (user, items), (other, others) in zip(*visits, strict=True):
        assert user == other
        np.testing.assert_array_equal(items, others)


def test_seeds_differ() -> None:
    first, second = (fclub.simulate("linucb", small(), 200, seed=s).regret[-1] for s in (0, 1))
    assert first != second


@pytest.mark.parametrize("rounds", [1, 2, 199, 200, 5000])
def test_checkpoints(rounds: int) -> None:
    times = checkpoints(rounds)
    assert times[0] == 1
    assert times[-1] == rounds
    assert len(times) <= 200
    assert np.all(np.diff(times) > 0)


def test_progress_adds_up() -> None:
    told: list[int] = []
    fclub.simulate("linucb", "synthetic", 500, progress=told.append)
    assert sum(told) == 500


@pytest.mark.parametrize(("rounds", "seed"), [(0, 0), (-1, 0), (1.5, 0), (10, -1), (10, None)])
def test_bad_arguments(rounds: int, seed: int) -> None:
    with pytest.raises(InvalidSetting):
        fclub.simulate("linucb", small(), rounds, seed=seed)


def test_a_fraction_of_a_round_is_refused_as_such() -> None:
    with pytest.raises(InvalidSetting, match="rounds must be a whole number"):
        fclub.simulate("linucb", small(), 1000.0)  # type: ignore[arg-type]


class Fixed(fclub.Policy):
    """Recommends what it is told to."""

    answer: Any = None

    def _start(self) -> None:
        pass

    def _recommend(self, user: int, items: Any) -> Any:
        return self.answer

    def _update(self, user: int, x: Any, y: float) -> None:
        pass

    @property
    def theta_(self) -> Any:
        return np.zeros((self.problem.users, self.problem.dim))


@pytest.mark.parametrize("answer", [None, 1.0, True, -1, 4, [0]])
def test_what_is_no_index_is_refused(answer: object) -> None:
    with pytest.raises(InvalidInput, match="fixed: _recommend must return an index from 0 to 3, got"):
        fclub.simulate(Fixed(answer=answer), small(), 10)


class Short(Fixed):
    answer: Any = 0

    @property
    def labels_(self) -> Any:
        return np.zeros(3, dtype=np.int64)


class Asking(Fixed):
    def _start(self, rng: object) -> None:  # type: ignore[override]
        pass


def test_what_a_policy_lacks_is_named() -> None:
    with pytest.raises(InvalidSetting, match=r"labels_ must be 8 whole numbers.*got \(3,\)"):
        fclub.simulate(Short(), small(), 10)
    with pytest.raises(UnknownName, match="no argument of asking's _start is called 'rng'; known: "):
        fclub.simulate(Asking(), small(), 10)
    with pytest.raises(InvalidSetting, match=r"got a class; call it: Short\(\)"):
        fclub.simulate(Short, small(), 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"got a class; call it: Synthetic\(\)"):
        fclub.simulate("linucb", Synthetic, 10)  # type: ignore[arg-type]


class Answering(Synthetic):
    answer: Any = None

    def pack(self) -> Any:
        """Has to be played visit by visit."""

    def feedback(self, index: int) -> Any:
        return self.answer() if callable(self.answer) else self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((1.0, 0.0), r"answering: feedback must return an Outcome, got \(1.0, 0.0\)"),
        (lambda: fclub.Outcome(float("nan"), 0.0), "reward must be a finite number, got nan"),
        (lambda: fclub.Outcome(0.0, None), "regret must be a finite number, got None"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_outcome_is_refused(answer: object, said: str) -> None:
    environment = Answering()
    environment.answer = answer
    with pytest.raises(InvalidInput, match=said):
        fclub.simulate("linucb", environment, 10)
    with pytest.raises(InvalidInput, match=said):
        fclub.checks.check_environment(environment)


def test_references_are_taken_wherever_names_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "import fclub\nfrom fclub.environments.synthetic import Synthetic\n"
    classes = "class Mine(fclub.Greedy):\n    pass\nclass World(Synthetic):\n    pass\n"
    Path("mine.py").write_text(lines + classes)
    trace = fclub.simulate("mine.py:Mine", "mine.py:World", 10)
    assert (trace.policy, trace.environment) == ("mine", "world")
    assert fclub.make_policy("mine.py:Mine", ridge=2.0).get_params()["ridge"] == 2.0
    assert fclub.make_environment("mine.py:World", users=9).get_params()["users"] == 9


class State(NamedTuple):
    answer: int


def answer_of(state: State, user: int, items: Any) -> int:
    return state.answer


def ignore(state: State, user: int, x: Any, y: float) -> None:
    pass


class FixedKernel(KernelPolicy[State]):
    kernels = (compiled(answer_of), compiled(ignore))
    answer: int = 0

    def _begin(self, problem: fclub.Problem, server_of: Any, seed: Any) -> State:
        return State(self.answer)

    @property
    def theta_(self) -> Any:
        return np.zeros((self.problem.users, self.problem.dim))


@pytest.mark.parametrize("answer", [-1, 4])
@pytest.mark.parametrize("fast", [True, False])
def test_kernels_cannot_read_beyond_the_items(answer: int, fast: bool) -> None:
    said = f"fixedkernel: _recommend must return an index from 0 to 3, got {answer}"
    with pytest.raises(InvalidInput, match=said):
        fclub.simulate(FixedKernel(answer=answer), small(), 10, fast=fast)


class Mutating(Fixed):
    def _recommend(self, user: int, items: Any) -> int:
        items[:] = 0.0
        return 0


def test_items_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        fclub.simulate(Mutating(), small(), 10)
    with pytest.raises(AssertionError, match="changed the items"):
        fclub.checks.check_policy(Mutating())


class Walked(Synthetic):
    def pack(self) -> Any:
        """Has to be played visit by visit."""


def test_fast_cannot_be_forced() -> None:
    with pytest.raises(InvalidSetting, match="compiled"):
        fclub.simulate("linucb", Walked(), 10, fast=True)
    assert fclub.simulate("linucb", Walked(), 10).rounds == 10


def test_trace_survives_its_file(tmp_path: Path) -> None:
    trace = fclub.simulate("fclub-dc", small(), 300, seed=2, record_choices=True)
    trace.save(tmp_path / "trace.npz")
    again = fclub.Trace.load(tmp_path / "trace.npz")
    np.testing.assert_array_equal(again.regret, trace.regret)
    np.testing.assert_array_equal(again.choices, trace.choices)
    assert again.communications.keys() == trace.communications.keys()
    assert (again.policy, again.seed, again.settings) == (trace.policy, trace.seed, trace.settings)
    assert again == trace
    assert trace.plot().get_ylabel() == "cumulative regret"


def test_traces_are_equal_if_all_but_their_time_is() -> None:
    first, same = (fclub.simulate("linucb", small(), 100, seed=1) for _ in range(2))
    same.microseconds_per_round += 1.0
    assert first == same
    assert first != fclub.simulate("linucb", small(), 100, seed=2)
    assert first != "linucb"
    changes: list[dict[str, Any]] = [
        {"labels": first.labels + 1},
        {"settings": {}},
        {"communications": {}},
    ]
    for change in changes:
        assert first != replace(first, **change)


def test_a_trace_is_shown_in_short() -> None:
    trace = fclub.simulate("linucb", small(), 100, seed=1)
    trace.policy = "<mine>"
    assert len(repr(trace)) < 100
    assert "regret" in repr(trace)
    shown = trace._repr_html_()
    assert shown.startswith("<table>")
    assert "&lt;mine&gt;" in shown


def test_part_of_a_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    fclub.simulate("linucb", small(), 30).save(path)
    arrays, header = read_npz(path, FORMAT, VERSION)
    arrays.pop("regret")
    write_npz(path, arrays, header)
    with pytest.raises(InvalidFile, match="regret"):
        fclub.Trace.load(path)


OWN = """
from typing import NamedTuple

import fclub
import numpy as np
from fclub.core.compiling import compiled
from fclub.policies.base import KernelPolicy


class State(NamedTuple):
    seen: np.ndarray


@compiled
def recommend(state, user, items):
    return 0


@compiled
def feedback(state, user, x, y):
    state.seen[user] += 1


class Mine(KernelPolicy):
    kernels = (recommend, feedback)

    def _begin(self, problem, server_of, seed):
        return State(np.zeros(problem.users, dtype=np.int64))

    @property
    def theta_(self):
        return np.zeros((self.problem.users, self.problem.dim))
"""


@pytest.mark.slow
def test_kernels_of_ones_own_leave_the_cache_readable_for_others(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text(OWN)
    own = "import fclub, mine; print(fclub.simulate(mine.Mine(), 'synthetic', 50))"
    ours = "import fclub; print(fclub.simulate('random', 'synthetic', 50))"
    variables = os.environ | {"FCLUB_CACHE_DIR": str(tmp_path / "cache")}
    for folder, code in (("mine", own), (".", ours), ("mine", own)):
        place = tmp_path / folder
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=place, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
