"""What a simulation leaves behind: curves at checkpoints, saved without pickle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fclub.core.types import Counts, Floats, Indices
from fclub.errors import InvalidFile
from fclub.policies.saving import read_npz, write_npz

if TYPE_CHECKING:  # heavy and optional
    import pandas
    from matplotlib.axes import Axes

FORMAT, VERSION = "fclub-trace", 1
COUNTERS = ("uploads", "downloads", "phases", "messages", "bytes", "total")
CLUSTERS = ("found", "true", "ari")


def checkpoints(rounds: int, most: int = 200) -> Counts:
    """At most `most` rounds, log-spaced, ending with the last."""
    return np.unique(np.geomspace(1, rounds, most).round().astype(np.int64))


@dataclass
class Trace:
    """Cumulative curves at the rounds `t`, of one policy in one environment with one seed."""

    policy: str
    environment: str
    seed: int
    t: Counts
    regret: Floats
    reward: Floats
    communications: dict[str, Counts]
    clusters: dict[str, Floats]
    labels: Indices
    microseconds_per_round: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    choices: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def rounds(self) -> int:
        return int(self.t[-1])

    def to_pandas(self) -> pandas.DataFrame:
        """One row per checkpoint (needs pandas)."""
        import pandas

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
        arrays: dict[str, Any] = {
            "t": self.t,
            "regret": self.regret,
            "reward": self.reward,
            "labels": self.labels,
            "choices": self.choices,
        }
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

        plain = ("t", "regret", "reward", "labels", "choices")
        named = ("policy", "environment", "seed", "settings")
        try:
            return Trace(
                **{key: arrays[key] for key in plain},
                **{key: header[key] for key in named},
                communications=part("communications"),
                clusters=part("clusters"),
            )
        except KeyError as error:
            raise InvalidFile(f"{path} does not hold a whole trace: {error} is missing") from None
