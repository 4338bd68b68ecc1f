"""`compare`: policies in one environment, over seeds, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fclub.config import require
from fclub.environments.base import Environment
from fclub.environments.registry import make_environment
from fclub.experiments.report.measured import Curve, curves_of
from fclub.experiments.report.tables import Table, Value, to_html, to_markdown
from fclub.extras import need
from fclub.policies.base import Policy
from fclub.policies.registry import make_policy
from fclub.simulation.loop import simulate
from fclub.simulation.trace import Trace

if TYPE_CHECKING:  # heavy and optional
    import pandas
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Comparison:
    """Traces of every policy, one per seed; printed, it is a table, and so it is in a notebook.

    >>> import fclub
    >>> result = fclub.compare(["linucb", fclub.Club(deletion=1.0)], "synthetic", rounds=300, seeds=2)
    >>> result.table.columns
    ('policy', 'regret', 'reward', 'messages', 'clusters')
    >>> result.to_pandas().groupby("policy").seed.nunique().to_dict()
    {'club': 2, 'linucb': 2}
    >>> _, second = result.traces["club"]
    >>> second
    <Trace of club in synthetic, seed 1: 300 rounds, regret ...>
    """

    traces: dict[str, list[Trace]]

    @property
    def curves(self) -> dict[str, dict[str, Curve]]:
        """Mean and deviation over seeds by policy and metric."""
        return {label: curves_of(runs) for label, runs in self.traces.items()}

    @property
    def table(self) -> Table:
        """A row per policy, lowest regret first."""
        first = next(iter(self.traces.values()))
        seeds = f"{len(first)} seeds" if len(first) > 1 else f"seed {first[0].seed}"
        title = f"{first[0].environment}, {first[0].rounds:,} rounds, {seeds}"
        ends = {
            label: {
                "regret": Value(curves["regret"].end, curves["regret"].spread, 1),
                "reward": Value(curves["reward"].end, curves["reward"].spread),
                "messages": Value(curves["total"].end),
                "clusters": Value(curves["found"].end, digits=1),
            }
            for label, curves in self.curves.items()
        }
        ranked = sorted(ends, key=lambda label: ends[label]["regret"].mean)
        columns = ("policy", *ends[ranked[0]])
        return Table("comparison", title, columns, [(name, *ends[name].values()) for name in ranked])

    def __repr__(self) -> str:
        return f"{self.table.title}\n\n{to_markdown(self.table)}"

    def _repr_html_(self) -> str:
        return to_html(self.table)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per policy, seed and checkpoint."""
        pandas = need("pandas", "Comparison.to_pandas", "pandas")

        parts = [
            trace.to_pandas().assign(policy=label, seed=trace.seed)
            for label, runs in self.traces.items()
            for trace in runs
        ]
        return pandas.concat(parts, ignore_index=True)

    def plot(self, metric: str = "regret", axes: Axes | None = None) -> Axes:
        """The metric's mean over rounds, with a band of one standard deviation."""
        import matplotlib.pyplot as plt

        axes = axes or plt.gca()
        for label, curves in self.curves.items():
            curve = curves[metric]
            axes.plot(curve.t, curve.mean, label=label)
            if curve.std is not None:
                axes.fill_between(curve.t, curve.mean - curve.std, curve.mean + curve.std, alpha=0.2)
        axes.set_xlabel("round t")
        axes.set_ylabel(f"cumulative {metric}")
        axes.legend()
        return axes


def compare(
    policies: Iterable[Policy | str],
    environment: Environment | str,
    rounds: int,
    seeds: int | Iterable[int] = 5,
) -> Comparison:
    """Play every policy on the same visits, for each seed; `seeds` is their number, or the seeds.

    Policies are started anew for each seed. Two of one name are told apart by their parameters.

    >>> import fclub
    >>> policies = [fclub.LinUCB(), fclub.LinUCB(ridge=1.0)]
    >>> result = fclub.compare(policies, "synthetic", rounds=200, seeds=[3, 4])
    >>> sorted(result.traces)
    ['linucb', 'linucb ridge=1.0']
    """
    known = [make_policy(policy) if isinstance(policy, str) else policy for policy in policies]
    require(len(known) > 0, "compare needs at least one policy", known)
    world = make_environment(environment) if isinstance(environment, str) else environment
    played = list(range(seeds) if isinstance(seeds, int | np.integer) else seeds)
    require(len(played) > 0, "compare needs at least one seed", seeds)
    names = [repr(policy).strip("<>") for policy in known]
    require(len(set(names)) == len(names), "compare needs different policies", names)
    alone = {policy.name for policy in known if sum(p.name == policy.name for p in known) == 1}
    labels = [p.name if p.name in alone else name for p, name in zip(known, names, strict=True)]
    return Comparison(
        {
            label: [simulate(policy, world, rounds, seed) for seed in played]
            for label, policy in zip(labels, known, strict=True)
        }
    )
