"""The regret of fclub-plus and cdp-fclub-plus beside baselines at their best constants.

    python benchmarks/compare.py [--jobs N] [--seeds N] [--rounds T] [--only NAME ...]

Every ratio is taken within one run over the same seeds; results are kept in out/compare, so an
interrupted run continues. Prints a Markdown table. The MovieLens and Yelp rows need the published
arrays in FCLUB_DATA_DIR and are left out without them.
"""

from __future__ import annotations

import argparse
import sys
from math import sqrt
from pathlib import Path

import numpy as np

from fclub.errors import FclubError
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.parameters import Parameter

LOCAL = ("club", "sclub", "linucb")
LIMITS = ("oracle-local", "oracle-pooled")
PRIVATE, EXACT = "cdp-fclub-plus", "fclub-plus"


def synthetic(**parameters: object) -> Setting:
    return Setting("synthetic", parameters)  # type: ignore[arg-type]


def promise(level: str, epsilon: float, delta: float, **parameters: Parameter) -> Setting:
    """The paper's unit at this level."""
    budget: dict[str, Parameter] = {"epsilon": epsilon, "delta": delta}
    return Setting(PRIVATE, {"unit": "event", "level": level} | budget | parameters)


def promises(level: str, *budgets: tuple[float, float]) -> dict[str, Setting]:
    return {f"event, {level}, ε={e:g}, δ={d:g}": promise(level, e, d) for e, d in budgets}


def changed(**parameters: Parameter) -> Setting:
    """One thing is other than in the paper's promise at ε=1, δ=0.1."""
    return promise("cdp", 1.0, 0.1, **parameters)


STRICT = ((1.0, 1e-5), (8.0, 1e-5))
PAPER = promises("transcript", (1.0, 0.1), *STRICT) | promises(
    "cdp", *((epsilon, 0.1) for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)), *STRICT
)
"""What covers the transcript comes first."""

DEFAULT = promises("transcript", (1.0, 0.1)) | promises("cdp", (1.0, 0.1))
ALONE = {"alone": Setting(EXACT, {"share": False})}
ABLATION = {
    "rewards not centred": changed(centre=False),
    "detection twice as often": changed(ratio=1.05),
    "trigger at 20 observations": changed(first_release=20),
    "trigger at growth by 1.3": changed(release_ratio=1.3),
    "scoring without exploration": changed(type_exploration=0.0),
    "printed detection, trigger and tree": Setting("cdp-fclub-dc"),
}
CASES: dict[str, tuple[Setting, dict[str, Setting]]] = {
    "blocks": (synthetic(), PAPER | ALONE | ABLATION),
    "spread": (synthetic(placement="spread"), PAPER | ALONE | ABLATION),
    "movielens clustered": (Setting("movielens", {"variant": "clustered"}), DEFAULT),
    "yelp clustered": (Setting("yelp", {"variant": "clustered"}), DEFAULT),
    "40 different": (synthetic(clusters=40), DEFAULT | ALONE),
    "movielens users": (Setting("movielens", {"variant": "users"}), DEFAULT | ALONE),
    "n=200 m=10 L=8 blocks": (synthetic(users=200, clusters=10, servers=8), DEFAULT),
    "n=200 m=10 L=8 spread": (
        synthetic(users=200, clusters=10, servers=8, placement="spread"),
        DEFAULT,
    ),
    "d=5 blocks": (synthetic(dim=5), DEFAULT),
    "d=5 spread": (synthetic(dim=5, placement="spread"), DEFAULT),
    "d=20 blocks": (synthetic(dim=20), DEFAULT),
    "d=20 spread": (synthetic(dim=20, placement="spread"), DEFAULT),
}


def compare(name: str, rounds: int, seeds: int, jobs: int, folder: Path) -> list[str]:
    """Rows of the table for one environment."""
    environment, ours = CASES[name]
    policies = {policy: Setting(policy) for policy in (*LOCAL, *LIMITS, "fclub-dc", EXACT)} | ours
    experiment = Experiment(policies, environment, rounds, tuple(range(seeds)))
    results = Results.create(folder / name.replace(" ", "-"), experiment, resume=True)
    traces = run(experiment, jobs=jobs, results=results)
    regret = {label: np.array([t.regret[-1] for t in runs]) for label, runs in traces.items()}
    best = min(LOCAL, key=lambda policy: regret[policy].mean())
    messages = np.mean([t.communications["total"][-1] for t in traces["fclub-dc"]])
    rows = []
    for label, values in regret.items():
        sent = np.mean([t.communications["total"][-1] for t in traces[label]])
        error = values.std(ddof=1) / sqrt(len(values)) if len(values) > 1 else 0.0
        spent = [t.settings["privacy"] for t in traces[label] if t.settings.get("privacy")]
        epsilon = max((report["spent"][0][0] for report in spent), default=None)
        rows.append(
            f"| {name} | {label} | {values.mean():.0f} ± {error:.0f} "
            f"| {values.mean() / regret[best].mean():.2f} × {best} "
            f"| {values.mean() / regret['oracle-local'].mean():.2f} "
            f"| {values.mean() / regret['oracle-pooled'].mean():.2f} "
            f"| {100 * sent / messages:.1f} % | {'' if epsilon is None else f'{epsilon:.3g}'} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("out/compare"))
    options = parser.parse_args()
    print(
        "| environment | policy | regret | to best local | to oracle-local | to oracle-pooled ", end=""
    )
    print("| sent, of fclub-dc's | ε spent at its δ |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only or CASES:
        try:
            rows = compare(name, options.rounds, options.seeds, options.jobs, options.out)
        except FclubError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
