"""`compare` and `sweep`: policies in one environment, over seeds, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fclub.config import require
from fclub.environments.base import Environment
from fclub.environments.registry import ENVIRONMENTS, as_environment
from fclub.errors import UnknownName
from fclub.experiments.report.measured import Curve, curves_of
from fclub.experiments.report.tables import Table, Value, to_html, to_markdown
from fclub.experiments.run.experiment import Experiment, Setting, combinations, policy_setting
from fclub.experiments.run.progress import rounds_bar
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.extras import need
from fclub.own import is_reference
from fclub.parameters import Parameter, rows_of
from fclub.policies.base import Policy
from fclub.policies.registry import POLICIES, as_policy, make_policy
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

        axes, curves = axes or plt.gca(), list(self.curves.values())
        known = set.intersection(*map(set, curves))
        if metric not in known:
            raise UnknownName("metric", metric, known)
        chosen = {label: curves[metric] for label, curves in self.curves.items()}
        for place, (label, curve) in enumerate(chosen.items()):
            style = ("-", "--", "-.", ":")[place // 10 % 4]
            (line,) = axes.plot(curve.t, curve.mean, style, label=label)
            if curve.std is not None and len(chosen) <= BANDS:
                low, high = curve.mean - curve.std, curve.mean + curve.std
                axes.fill_between(curve.t, low, high, alpha=0.2, color=line.get_color())
        axes.set_xlabel("round t")
        axes.set_ylabel(f"cumulative {metric}" if metric in CUMULATIVE else metric)
        if len(chosen) <= BANDS:
            axes.legend()
        else:
            _label_ends(axes, chosen)
        return axes


CUMULATIVE = ("regret", "reward", "uploads", "downloads", "phases", "messages", "bytes", "total")
"""Metrics that add up over rounds; others are as they are at a round."""
BANDS = 4
"""Bands of more policies than this would hide each other."""


def _label_ends(axes: Axes, curves: dict[str, Curve]) -> None:
    """Names at the ends of lines, kept a line of text apart, in place of a long legend."""
    axes.margins(x=0.0)
    low, high = axes.get_ylim()
    apart = (high - low) / 25.0
    place = -float("inf")
    for line in sorted(axes.lines, key=lambda line: float(np.asarray(line.get_ydata())[-1])):
        end = float(np.asarray(line.get_ydata())[-1])
        place = max(end, place + apart)
        x = float(np.asarray(line.get_xdata())[-1])
        axes.annotate(
            str(line.get_label()),
            xy=(x, end),
            xytext=(1.02, (place - low) / (high - low)),
            textcoords="axes fraction",
            va="center",
            color=line.get_color(),
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "alpha": 0.4},
        )


Entry = Policy | str | Setting
"""What is compared; a setting is of a class of one's own, named by reference."""

Named = TypeVar("Named", bound=str | type[Policy])


def compare(
    policies: Policy | str | Iterable[Entry],
    environment: Environment | str,
    rounds: int,
    seeds: int | Iterable[int] = 5,
    *,
    labels: Sequence[str] | None = None,
    jobs: int = 1,
    backend: str = "loky",
    address: str | None = None,
    save: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Comparison:
    """Play every policy on the same visits, for each seed; `seeds` is their number, or the seeds.

    Policies are started anew for each seed. Two of one name are told apart by their parameters, or by
    `labels`. `jobs`, `backend` (loky, dask, ray) and `address` say where simulations run, `save` in
    which folder results are kept, as by `fclub run --out`; with `resume` those that are there are not
    played again. A policy or environment of your own is named by reference there (`"mine.py:Mine"`);
    given as an object it runs in this process only. `progress` shows a bar.

    >>> import fclub
    >>> policies = [fclub.LinUCB(), fclub.LinUCB(ridge=1.0)]
    >>> result = fclub.compare(policies, "synthetic", rounds=200, seeds=[3, 4])
    >>> sorted(result.traces)
    ['linucb', 'linucb ridge=1.0']
    >>> sorted(fclub.compare(policies, "synthetic", 200, 1, labels=["tuned", "stiff"]).traces)
    ['stiff', 'tuned']
    """
    given: list[Entry] = [policies] if isinstance(policies, str | Policy) else list(policies)
    require(len(given) > 0, "compare needs at least one policy", given)
    played = tuple(range(seeds) if isinstance(seeds, int | np.integer) else seeds)
    require(len(played) > 0, "compare needs at least one seed", seeds)
    require(save is not None or not resume, "resume needs save", resume)
    require(len(set(played)) == len(played), "seeds must be different", list(played))
    names = _labels(given, labels)
    settings = [_setting_of_policy(policy, rounds) for policy in given]
    world = _setting_of_environment(environment)
    planned = {name: setting for name, setting in zip(names, settings, strict=True) if setting}
    if world is None or len(planned) < len(given):
        alone = jobs == 1 and backend == "loky" and save is None
        objects = [name for name in names if name not in planned] + ["the environment"] * (not world)
        cure = 'objects of classes of your own; name those by reference ("mine.py:Mine")'
        require(alone, f"jobs, backend and save do not take {cure}", ", ".join(objects))
        return _here(dict(zip(names, given, strict=True)), environment, rounds, played, progress)
    experiment = Experiment(planned, world, rounds, played)
    experiment.check()
    results = None if save is None else Results.create(save, experiment, resume)
    with _bar(rounds * len(played) * len(planned), progress) as report:
        traces = run(
            experiment, jobs=jobs, backend=backend, address=address, results=results, report=report
        )
    return Comparison(traces)


def sweep(
    grids: Mapping[Named, Mapping[str, Sequence[Parameter]]],
    environment: Environment | str,
    rounds: int,
    seeds: int | Iterable[int] = 5,
    **options: Any,
) -> Comparison:
    """`compare` policies at every combination of values; a policy without a grid plays at its defaults.

    A policy of your own is named by reference (`"mine.py:Mine"`), or is its class.

    >>> import fclub
    >>> grids = {"linucb": {"ridge": [0.2, 2.0], "exploration": [0.0, 0.1]}, "greedy": {}}
    >>> result = fclub.sweep(grids, "synthetic", rounds=200, seeds=2)
    >>> print(*list(result.traces)[:2], sep=", ")
    linucb ridge=0.2 exploration=0.0, linucb ridge=0.2 exploration=0.1
    """
    require(isinstance(grids, Mapping), 'a sweep is of {"linucb": {"ridge": [0.2, 2.0]}}', grids)
    policies: list[Entry] = []
    labels = []
    for policy, grid in grids.items():
        name = policy if isinstance(policy, str) else policy.name
        for key, values in grid.items():
            several = isinstance(values, Iterable) and not isinstance(values, str)
            require(several, f"{name}: {key} needs a list of values", values)
        for label, parameters in combinations(name, grid):
            policies.append(_entry(policy, parameters, rounds))
            labels.append(label)
    return compare(policies, environment, rounds, seeds, labels=labels, **options)


def _entry(policy: str | type[Policy], parameters: dict[str, Parameter], rounds: int) -> Entry:
    """A policy with these parameters, in a form that can be sent where it is possible."""
    if not isinstance(policy, str):
        return policy(**parameters)
    if not is_reference(policy):
        return make_policy(policy, **parameters)
    setting = policy_setting(policy, rounds, {})
    return Setting.of(policy, setting.parameters | parameters)


def _labels(policies: list[Entry], labels: Sequence[str] | None) -> list[str]:
    """What results are called: the policy's name where it is the only one of it."""
    if labels is not None:
        require(len(labels) == len(policies), f"labels must be {len(policies)}", list(labels))
        require(len(set(labels)) == len(labels), "labels must be different", list(labels))
        return list(labels)
    known = [_made(policy) for policy in policies]
    names = [repr(policy).strip("<>") for policy in known]
    require(len(set(names)) == len(names), "compare needs different policies", names)
    alone = {policy.name for policy in known if sum(p.name == policy.name for p in known) == 1}
    return [p.name if p.name in alone else name for p, name in zip(known, names, strict=True)]


def _made(policy: Entry) -> Policy:
    return policy.make_policy() if isinstance(policy, Setting) else as_policy(policy)


def _setting_of_policy(policy: Entry, rounds: int) -> Setting | None:
    """A registered policy by its name and parameters; None for an object of a class of one's own."""
    if isinstance(policy, Setting):
        return policy
    if isinstance(policy, str):
        return policy_setting(policy, rounds, {})
    if POLICIES.get(policy.name) is not type(policy):
        return None
    defaults = type(policy).defaults
    changed = {k: v for k, v in policy.get_params().items() if v != defaults.get(k)}
    return Setting.of(policy.name, changed)


def _setting_of_environment(environment: Environment | str) -> Setting | None:
    """The same of an environment; what it was made of must be plain values."""
    if isinstance(environment, str):
        return Setting.of(environment, {})
    environment = as_environment(environment)
    if ENVIRONMENTS.get(environment.name) is not type(environment):
        return None
    parameters = environment.get_params()
    again = {key: rows_of(type(environment))[key].open for key in parameters}
    return None if any(again.values()) else Setting.of(environment.name, parameters)


def _bar(total: int, shown: bool) -> AbstractContextManager[Callable[[int], None] | None]:
    return rounds_bar(total) if shown else nullcontext()


def _here(
    policies: dict[str, Entry],
    environment: Environment | str,
    rounds: int,
    seeds: tuple[int, ...],
    progress: bool,
) -> Comparison:
    """In this process, with the objects that were given."""
    world = as_environment(environment)
    traces: dict[str, list[Trace]] = {}
    done = 0
    with _bar(rounds * len(seeds) * len(policies), progress) as report:
        for label, policy in policies.items():
            traces[label] = []
            for seed in seeds:
                traces[label].append(simulate(_made(policy), world, rounds, seed))
                done += rounds
                if report is not None:
                    report(done)
    return Comparison(traces)
