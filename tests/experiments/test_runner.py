"""Results depend on the task alone; files say what they are; what is wrong is refused by name."""

from pathlib import Path

import numpy as np
import pytest

from fclub.errors import InvalidFile, InvalidSetting, UnknownName
from fclub.experiments.report.measured import summarise
from fclub.experiments.run.experiment import Experiment, Setting, policy_setting
from fclub.experiments.run.results import INDEX, Results
from fclub.experiments.run.runner import run

EXPERIMENT = Experiment(
    {"linucb": Setting("linucb"), "eager": Setting("linucb", {"exploration": 0.1})},
    Setting("synthetic", {"users": 10}),
    500,
    (3, 4),
)


def test_number_of_jobs_and_order_do_not_matter() -> None:
    backwards = Experiment(
        dict(reversed(EXPERIMENT.policies.items())), EXPERIMENT.environment, 500, (4, 3)
    )
    one, two = run(EXPERIMENT, jobs=1), run(backwards, jobs=2)
    for label, traces in one.items():
        for trace, other in zip(traces, reversed(two[label]), strict=True):
            assert trace.seed == other.seed
            np.testing.assert_array_equal(trace.regret, other.regret)


def test_progress_ends_with_all_rounds() -> None:
    seen: list[int] = []
    run(EXPERIMENT, jobs=1, report=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 500 * 4


def test_finished_tasks_are_not_run_again(tmp_path: Path) -> None:
    run(EXPERIMENT, results=Results.create(tmp_path, EXPERIMENT))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    again = Results.create(tmp_path, EXPERIMENT, resume=True)
    assert again.missing(EXPERIMENT.tasks()) == []
    traces = run(EXPERIMENT, results=again)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")} == written
    assert traces["eager"][1].microseconds_per_round > 0


def test_a_folder_with_results_is_not_overwritten(tmp_path: Path) -> None:
    run(EXPERIMENT, results=Results.create(tmp_path, EXPERIMENT))
    with pytest.raises(InvalidSetting, match="already holds results"):
        Results.create(tmp_path, EXPERIMENT)
    assert Results(tmp_path).experiment() == EXPERIMENT


def test_torn_line_and_changed_file_are_done_again(tmp_path: Path) -> None:
    tasks = EXPERIMENT.tasks()
    run(EXPERIMENT, results=Results.create(tmp_path, EXPERIMENT))
    index = tmp_path / INDEX
    index.write_bytes(index.read_bytes()[:-5])
    (tmp_path / tasks[0].file).write_bytes(b"damaged")
    missing = Results(tmp_path).missing(tasks)
    assert tasks[0] in missing
    assert len(missing) == 2


def test_foreign_index_and_missing_experiment_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="holds no experiment"):
        Results(tmp_path).experiment()
    (tmp_path / INDEX).write_text("not json\n")
    with pytest.raises(InvalidFile, match="index"):
        Results(tmp_path)


def test_impossible_experiments_are_refused() -> None:
    with pytest.raises(UnknownName, match="linucb"):
        Experiment({"x": Setting("linucbb")}, Setting("synthetic"), 10, (0,)).check()
    environment = Setting("synthetic", {"users": 2, "clusters": 1})
    with pytest.raises(InvalidSetting, match="servers"):
        Experiment({"x": Setting("linucb")}, environment, 10, (0,)).check()
    with pytest.raises(UnknownName, match="loky"):
        run(EXPERIMENT, backend="locky")


def test_shared_parameters_reach_only_the_policies_that_have_them() -> None:
    assert policy_setting("linucb", 10, {"epsilon": 2.0}).parameters == {}
    private = policy_setting("cdp-fclub-dc", 10**6, {"epsilon": 2.0})
    assert private.parameters == {"epsilon": 2.0, "horizon": 10**6}


def test_summary_has_means_over_seeds() -> None:
    traces = run(EXPERIMENT)
    summary = summarise(EXPERIMENT, traces)
    entry = summary["policies"]["eager"]
    finals = [trace.regret[-1] for trace in traces["eager"]]
    assert entry["regret"]["mean"] == pytest.approx(np.mean(finals))
    assert entry["regret"]["std"] == pytest.approx(np.std(finals, ddof=1))
    assert entry["regret"]["curve"][-1][0] == 500
    assert entry["privacy"] is None
    assert entry["clusters"]["true"] == 4
