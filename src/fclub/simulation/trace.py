"""What a simulation leaves behind: curves at checkpoints, saved without pickle."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from fclub.core.types import Counts, Floats, Indices
from fclub.errors import InvalidFile
from fclub.extras import need
from fclub.policies.saving import read_npz, write_npz

if TYPE_CHECKING:  # heavy and optional
    import pandas
    from matplotlib.axes import Axes

FORMAT, VERSION = "fclub-trace", 2
COUNTERS = ("uploads", "downloads", "phases", "messages", "bytes", "total")
CLUSTERS = ("found", "true", "ari")
ARRAYS = ("t", "regret", "reward", "labels", "by_visit", "newcomers_by_visit", "choices")
"""Fields of a trace that are one array each."""


def checkpoints(rounds: int, most: int = 200) -> Counts:
    """At most `most` rounds, log-spaced, ending with the last."""
    return np.unique(np.geomspace(1, rounds, most).round().astype(np.int64))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return all(_same(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other)


@dataclass(eq=False, repr=False)
class Trace:
    """Cumulative curves at the rounds `t`, of one policy in one environment with one seed.

    `communications` counts uploads, downloads, phases, messages, bytes and their `total`; `clusters`
    has the number found and, where the environment knows the true clusters, their number (`true`) and
    the agreement with them (`ari`). `by_visit` is the mean regret of users' 1st, 2nd, … visit, 50 at
    most, and `newcomers_by_visit` the same of newcomers alone. Two traces are equal if all but the time
    that they took is equal, so a trace equals what is loaded from its file.

    >>> import fclub
    >>> trace = fclub.simulate("linucb", "synthetic", rounds=500)
    >>> trace
    <Trace of linucb in synthetic, seed 0: 500 rounds, regret 100.8>
    >>> int(trace.t.max()), float(trace.clusters["found"].max())
    (500, 40.0)
    >>> trace.to_pandas().columns[:3].to_list()
    ['t', 'regret', 'reward']
    """

    policy: str
    environment: str
    seed: int
    t: Counts
    regret: Floats
    reward: Floats
    communications: dict[str, Counts]
    clusters: dict[str, Floats]
    labels: Indices
    by_visit: Floats
    newcomers_by_visit: Floats
    microseconds_per_round: float = field(default=0.0, compare=False)
    settings: dict[str, Any] = field(default_factory=dict)
    choices: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def rounds(self) -> int:
        return int(self.t[-1])

    def __repr__(self) -> str:
        return (
            f"<Trace of {self.policy} in {self.environment}, seed {self.seed}: "
            f"{self.rounds:,} rounds, regret {self.regret[-1]:,.1f}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: where the curves end."""
        ends = {"regret": f"{self.regret[-1]:,.1f}", "reward": f"{self.reward[-1]:,.0f}"}
        ends |= {"messages": f"{self.communications['total'][-1]:,}"}
        counted = [self.clusters[kind][-1] for kind in ("found", "true") if kind in self.clusters]
        ends |= {"clusters": " of ".join(f"{count:.0f}" for count in counted)}
        title = f"{self.policy} in {self.environment}, seed {self.seed}, {self.rounds:,} rounds"
        head = "".join(f"<th>{name}</th>" for name in ends)
        row = "".join(f"<td>{value}</td>" for value in ends.values())
        return f"<table><caption>{escape(title)}</caption><tr>{head}</tr><tr>{row}</tr></table>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        compared = (part.name for part in fields(self) if part.compare)
        return all(_same(getattr(self, name), getattr(other, name)) for name in compared)

    __hash__ = None  # type: ignore[assignment]

    def to_pandas(self) -> pandas.DataFrame:
        """One row per checkpoint."""
        pandas = need("pandas", "Trace.to_pandas", "pandas")

        columns: dict[str, Any] = {"t": self.t, "regret": self.regret, "reward": self.reward}
        return pandas.DataFrame(columns | self.communications | self.clusters)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Cumulative regret over rounds."""
        import matplotlib.pyplot as plt

        axes = axes or plt.gca()
        axes.plot(self.t, self.regret, label=f"{self.policy} (seed {self.seed})")
        axes.set_xlabel("round t")
        axes.set_ylabel("cumulative regret")
        axes.legend()
        return axes

    def save(self, path: object) -> None:
        """One .npz file with its JSON inside; without the time it took, so the same run, same bytes."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {f"communications.{k}": v for k, v in self.communications.items()}
        arrays |= {f"clusters.{k}": v for k, v in self.clusters.items()}
        header = {
            "format": FORMAT,
            "version": VERSION,
            "policy": self.policy,
            "environment": self.environment,
            "seed": self.seed,
            "settings": self.settings,
        }
        write_npz(path, arrays, header)

    @staticmethod
    def load(path: object) -> Trace:
        arrays, header = read_npz(path, FORMAT, VERSION)

        def part(prefix: str) -> dict[str, Any]:
            start = f"{prefix}."
            return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}

        named = ("policy", "environment", "seed", "settings")
        try:
            return Trace(
                **{key: arrays[key] for key in ARRAYS},
                **{key: header[key] for key in named},
                communications=part("communications"),
                clusters=part("clusters"),
            )
        except KeyError as error:
            raise InvalidFile(f"{path} does not hold a whole trace: {error} is missing") from None
