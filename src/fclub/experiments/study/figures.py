"""What `fclub reproduce` can show: the paper's figures and table, and ours, as experiments."""

from __future__ import annotations

from collections.abc import Callable

from fclub.environments.base import PLACEMENTS
from fclub.errors import UnknownName
from fclub.experiments.study.panels import Scale, data_panels, synthetic_panel
from fclub.experiments.study.study import Figure, Panel
from fclub.experiments.study.sweeps import VARIED, parameter, privacy, tradeoff

VARIANTS = {
    "movielens": ("printed", "top40", "clustered", "users"),
    "yelp": ("top40", "clustered", "users"),
}


_FIRST = """\
The paper's first comparison. In blocks, as its code has it, most servers hold one or two clusters."""


def synthetic(scale: Scale) -> Figure:
    panels = tuple(synthetic_panel(place, scale) for place in PLACEMENTS)
    about = f"{_FIRST} Spread, every server has users of all of them."
    return Figure("synthetic", "comparison", "Synthetic comparison", about, panels)


def _data_figure(name: str, title: str, about: str) -> Callable[[Scale], Figure]:
    def make(scale: Scale) -> Figure:
        panels, skipped = data_panels(name, VARIANTS[name], scale)
        return Figure(name, "comparison", title, about, panels, skipped=skipped)

    return make


def _both_data_sets(scale: Scale) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The default synthetic panel and the MovieLens users of the published code."""
    panels, skipped = data_panels("movielens", ("top40",), scale)
    return (synthetic_panel(PLACEMENTS[0], scale), *panels), skipped


def communication(scale: Scale) -> Figure:
    panels, skipped = _both_data_sets(scale)
    about = (
        "One upload or one download counts 1, as do a reported local cluster and a plan at a phase "
        "start. Policies without a federation send nothing and are left out."
    )
    return Figure(
        "communication", "communication", "Communication cost", about, panels, skipped=skipped
    )


def runtime(scale: Scale) -> Figure:
    panels, skipped = _both_data_sets(scale)
    about = (
        "CPU time of a round, environment included, compilation excluded, beside what the paper "
        "reports from its own machine: compare the order, not the numbers."
    )
    return Figure("runtime", "runtime", "Running time", about, panels, skipped=skipped)


def bounds(scale: Scale) -> Figure:
    panel = synthetic_panel(PLACEMENTS[0], scale)
    about = (
        "Theorem 1 and the communication proposition with their constants, for the most favourable gap "
        "between clusters among the seeds, beside what was measured. A bound above what is possible "
        "at all is vacuous: true, but it says nothing."
    )
    return Figure("bounds", "bounds", "Bounds beside measurements", about, (panel,))


def clusters(scale: Scale) -> Figure:
    panels = tuple(synthetic_panel(place, scale) for place in PLACEMENTS)
    about = (
        "Number of clusters in use (the sum over servers for policies without a federation) and "
        "agreement with the true ones: adjusted Rand index 1 is the true partition, 0 is chance."
    )
    return Figure("clusters", "clusters", "Clusters found over time", about, panels)


_MOVIELENS = (
    "Users from MovieLens, items at random. printed: as the text says, from the ratings. top40, "
    "clustered and users: the published arrays (first 40 rows, 40 random rows, users not replaced by "
    "centroids)."
)
_YELP = "The same on Yelp, whose users do cluster in this representation; not in the paper's text."

SINGLE: dict[str, Callable[[Scale], Figure]] = {
    "synthetic": synthetic,
    "movielens": _data_figure("movielens", "MovieLens comparison", _MOVIELENS),
    "yelp": _data_figure("yelp", "Yelp comparison", _YELP),
    "communication": communication,
    "runtime": runtime,
    "privacy": privacy,
    "tradeoff": tradeoff,
    "bounds": bounds,
    "clusters": clusters,
}
ORDER = (
    "synthetic",
    "movielens",
    "yelp",
    "parameters",
    "communication",
    "runtime",
    "privacy",
    "tradeoff",
    "bounds",
    "clusters",
)


def make_figures(name: str, scale: Scale, only: str | None = None) -> list[Figure]:
    """The figures of a name on the command line; `only` picks one parameter of the study."""
    if only is not None and (name != "parameters" or only not in VARIED):
        raise UnknownName("part of the parameter study", only, VARIED)
    if name == "all":
        return [figure for part in ORDER for figure in make_figures(part, scale)]
    if name == "parameters":
        return [parameter(letter, scale) for letter in VARIED if only in (None, letter)]
    if name not in SINGLE:
        raise UnknownName("figure", name, (*ORDER, "all"))
    return [SINGLE[name](scale)]


def demo_figures(scale: Scale) -> list[Figure]:
    """What one comparison in blocks can show: its simulations serve all of these figures."""
    panel = synthetic_panel(PLACEMENTS[0], scale)
    made = [SINGLE[name](scale) for name in ("synthetic", "communication", "runtime", "clusters")]
    told = {"synthetic": _FIRST}
    return [
        Figure(figure.name, figure.kind, figure.title, told.get(figure.name, figure.about), (panel,))
        for figure in made
    ]
