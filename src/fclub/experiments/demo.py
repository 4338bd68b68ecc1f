"""The main job in short: the paper's synthetic comparison with all policies and a few seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fclub.experiments.results import Results
from fclub.experiments.runner import Report, run
from fclub.experiments.spec import Experiment, Setting, policy_setting
from fclub.experiments.summary import summarise
from fclub.policies.registry import POLICIES

PICTURE = "regret.png"


def demo_experiment(rounds: int, seeds: int) -> Experiment:
    """Every registered policy, the oracles included, at its defaults."""
    policies = {name: policy_setting(name, rounds, {}) for name in POLICIES}
    return Experiment(policies, Setting("synthetic"), rounds, tuple(range(seeds)))


def run_demo(
    experiment: Experiment, folder: Path, jobs: int, report: Report | None = None
) -> dict[str, Any]:
    """Run into the folder, taking over what is already there, and draw the curves."""
    results = Results.create(folder, experiment, resume=True)
    summary = summarise(experiment, run(experiment, jobs=jobs, results=results, report=report))
    draw_regret(summary, folder / PICTURE)
    return summary


def draw_regret(summary: dict[str, Any], path: Path) -> None:
    """Mean regret ± one standard deviation over rounds; what fits no scale is left to the table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, entry in summary["policies"].items():
        t, mean, std = zip(*entry["regret"]["curve"], strict=True)
        axes.plot(t, mean, label=name)
        if None not in std:
            low = [m - s for m, s in zip(mean, std, strict=True)]
            high = [m + s for m, s in zip(mean, std, strict=True)]
            axes.fill_between(t, low, high, alpha=0.15)
    linucb = summary["policies"]["linucb"]["regret"]["mean"]
    axes.set(xlabel="round t", ylabel="cumulative regret", ylim=(0, 2.5 * linucb))
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
