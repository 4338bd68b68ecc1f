"""What `fclub reproduce` can show: the paper's figures and table, and ours, as experiments.

A figure consists of panels, each an experiment with all the policies that it compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fclub.environments.base import PLACEMENTS
from fclub.environments.registry import make_environment
from fclub.errors import DataMissing, UnknownName
from fclub.experiments.run.experiment import Experiment, Setting, policy_setting
from fclub.experiments.study.advice import ALONE
from fclub.experiments.study.study import Figure, Panel
from fclub.parameters import Parameter
from fclub.policies.base import is_compared
from fclub.policies.presets import PRESETS
from fclub.policies.registry import POLICIES, find_policy

ROUNDS, SEEDS = 100_000, 10
TITLES = {"movielens": "MovieLens", "yelp": "Yelp"}
PRINTED = "cdp-fclub-dc"
"""The paper's algorithm with its noise applied."""


@dataclass(frozen=True)
class Scale:
    """How much is simulated; `data` is the folder of the published arrays, None the usual ones."""

    rounds: int = ROUNDS
    seeds: tuple[int, ...] = tuple(range(SEEDS))
    data: str | None = None


def compared() -> list[str]:
    """Every policy that does not know the true clusters."""
    return [name for name, entry in POLICIES.items() if is_compared(entry)]


def private(name: str) -> bool:
    return POLICIES[name].switches.get("noise", "none") != "none"


def trigger(name: str) -> str:
    return POLICIES[name].switches.get("trigger", "")


def make_panel(
    key: str,
    title: str,
    scale: Scale,
    policies: dict[str, Setting],
    environment: Setting,
    value: float | None = None,
) -> Panel:
    return Panel(key, title, Experiment(policies, environment, scale.rounds, scale.seeds), value)


PAPERS_PROMISE: dict[str, Parameter] = {"unit": "event", "level": "transcript", "delta": 0.1}


def printed(name: str, scale: Scale, given: dict[str, Any]) -> Setting:
    """A policy in the paper's world: its unit and δ, and a level that covers all that is sent."""
    known = find_policy(name).defaults
    notion = {key: value for key, value in PAPERS_PROMISE.items() if key in known}
    return policy_setting(name, scale.rounds, notion | given)


def plain(names: list[str], scale: Scale) -> dict[str, Setting]:
    return {name: printed(name, scale, {}) for name in names}


def with_references(names: list[str], scale: Scale) -> dict[str, Setting]:
    """These policies, and what they are seen against.

    That is choosing at random, our own model with every server alone, one model per true cluster.
    """
    return plain(names, scale) | {
        "random": Setting("random"),
        ALONE: Setting("fclub-plus", {"share": False}),
        "oracle-pooled": Setting("oracle-pooled"),
    }


def synthetic_panel(placement: str, scale: Scale) -> Panel:
    """The default placement is left out of the settings, so that figures share its simulations."""
    parameters: dict[str, Any] = {} if placement == PLACEMENTS[0] else {"placement": placement}
    title = f"Synthetic, users placed in {placement}" if not parameters else "Synthetic, users spread"
    environment = Setting("synthetic", parameters)
    policies = with_references(compared(), scale)
    return make_panel(f"synthetic-{placement}", title, scale, policies, environment)


def data_panels(
    name: str, variants: tuple[str, ...], scale: Scale
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The variants of a data set that are here, and why the others are left out."""
    panels, skipped = [], []
    for variant in variants:
        environment = Setting(name, _variant(variant, scale))
        try:
            make_environment(name, **environment.parameters)
        except DataMissing as error:
            skipped.append(f"{name} {variant}: {error}")
            continue
        title = f"{TITLES[name]}, {variant}"
        policies = with_references(compared(), scale)
        key = f"{name}-{variant.replace(', ', '-')}"
        panels.append(make_panel(key, title, scale, policies, environment))
    return tuple(panels), tuple(skipped)


SMALL = "printed, small"
"""The paper's pipeline on MovieLens small."""


def _variant(variant: str, scale: Scale) -> dict[str, Parameter]:
    if variant == SMALL:
        return {"variant": "printed", "path": "movielens-latest-small"}
    given: dict[str, Parameter] = {"variant": variant}
    if scale.data is not None and variant != "printed":
        given["path"] = scale.data
    return given


VARIED: dict[str, tuple[float, ...]] = {
    "d": (5, 10, 15, 20),
    "epsilon": (0.5, 1, 2, 4, 8, 20, 100),
    "L": (2, 3, 5, 8),
    "m": (2, 4, 6, 8),
    "n": (20, 40, 60, 80),
}
SIZES = {"d": "dim", "L": "servers", "m": "clusters", "n": "users"}
AXES = {
    "d": "dimension d",
    "epsilon": "privacy budget ε",
    "L": "local servers L",
    "m": "true clusters m",
    "n": "users n",
}
BUDGETS = (0.5, 1, 2, 4, 8)
OURS = ("fclub-plus", "cdp-fclub-plus")
"""Not in the study of the paper's parameters; `privacy` and `pays` are about them."""
LEARNING = (20, 100)
"""Budgets at which the paper's private policy learns."""
DELTAS = {0.1: "0.1", 1e-5: "0.00001"}
RATIOS = (1.001, 1.01, 1.1, 1.5, 2.0, 5.0, 20.0)


def parameter(letter: str, scale: Scale) -> Figure:
    """One quantity varied, the others at the paper's values; delayed communication only.

    At ε=1 the paper's policy does not learn, so it is also played at budgets where it does.
    """
    names = [name for name in compared() if trigger(name) != "every-round" and name not in OURS]
    panels = []
    for value in VARIED[letter]:
        environment, policies = Setting("synthetic"), with_references(names, scale)
        if letter == "epsilon":
            given = {} if value == 1 else {"epsilon": value}
            noisy = {n: printed(n, scale, given) for n in names if private(n)}
            policies |= noisy
        else:
            policies |= {f"{PRINTED}, ε={e}": printed(PRINTED, scale, {"epsilon": e}) for e in LEARNING}
        if letter != "epsilon" and value != make_environment("synthetic").get_params()[SIZES[letter]]:
            environment = Setting("synthetic", {SIZES[letter]: int(value)})
        title = f"{letter} = {value:g}" if letter != "epsilon" else f"ε = {value:g}"
        panels.append(
            make_panel(f"{letter}-{value:g}", title, scale, policies, environment, float(value))
        )
    about = "Synthetic environment in blocks; everything else as in the comparison."
    title = f"Parameter study: {AXES[letter]}"
    return Figure(f"parameters-{letter}", "sweep", title, about, tuple(panels), AXES[letter])


def privacy(scale: Scale) -> Figure:
    """Private policies over ε at two δ, beside what needs no noise."""
    noisy, quiet = [n for n in compared() if private(n)], ["fclub-dc", "linucb"]
    panels = []
    for epsilon in BUDGETS:
        policies = plain(quiet, scale)
        for delta in DELTAS:
            given = {"delta": delta} | ({} if epsilon == 1 else {"epsilon": epsilon})
            for name in noisy:
                setting = printed(name, scale, given)
                policies[f"{name}, δ={DELTAS[delta]}"] = setting
        panel = make_panel(
            f"privacy-{epsilon:g}", f"ε = {epsilon:g}", scale, policies, Setting("synthetic"), epsilon
        )
        panels.append(panel)
    about = (
        "Regret bought by a privacy budget, on the synthetic environment in blocks. δ=0.1 would allow "
        "publishing every tenth record, so δ=0.00001 is shown beside the paper's."
    )
    return Figure("privacy", "privacy", "Privacy and regret", about, tuple(panels), AXES["epsilon"])


def tradeoff(scale: Scale) -> Figure:
    """Delayed policies over U=D; the others, at their own setting, are points of reference."""
    names = compared()
    delayed = [name for name in names if trigger(name) == "determinant"]
    fixed = [name for name in names if trigger(name) not in ("determinant", "")]
    panels = []
    for ratio in RATIOS:
        given = {} if ratio == 1.01 else {"upload_ratio": ratio, "download_ratio": ratio}
        policies = {n: printed(n, scale, given) for n in delayed} | plain(fixed, scale)
        key, title = f"tradeoff-{ratio:g}", f"U = D = {ratio:g}"
        panels.append(make_panel(key, title, scale, policies, Setting("synthetic"), ratio))
    about = (
        "Every point of a line is one U=D; larger means fewer messages. Policies whose schedule has no "
        "U and D are single points. Synthetic environment in blocks."
    )
    return Figure("tradeoff", "tradeoff", "Regret versus communication", about, tuple(panels), "U = D")


VARIANTS = {
    "movielens": ("printed", SMALL, "top40", "clustered", "users"),
    "yelp": ("top40", "clustered", "users"),
}


_FIRST = """\
The paper's first comparison. In blocks, as its code has it, most servers hold one or two clusters."""


ORTHOGONAL = Setting("synthetic", {"kind": "orthogonal"})
"""The set-up that the paper prints: orthogonal vectors, so that clusters are √2 apart."""


def synthetic(scale: Scale) -> Figure:
    title = "Synthetic, orthogonal vectors"
    policies = with_references(compared(), scale)
    printed_world = make_panel("synthetic-orthogonal", title, scale, policies, ORTHOGONAL)
    panels = (*(synthetic_panel(place, scale) for place in PLACEMENTS), printed_world)
    about = (
        f"{_FIRST} Spread, every server has users of all of them. Orthogonal vectors with gap √2 are "
        "what its text describes."
    )
    return Figure("synthetic", "comparison", "Synthetic comparison", about, panels)


def constants(scale: Scale) -> Figure:
    """The paper's policies at tuned, printed and published constants."""
    rows = ("fclub-dc", "cdp-fclub-dc", "homo-dc")
    names = [f"{row}{preset}" for row in rows for preset in ("", *(f"@{p}" for p in PRESETS))]
    policies = plain([*names, "linucb"], scale)
    worlds = {"blocks": Setting("synthetic"), "orthogonal vectors": ORTHOGONAL}
    panels = tuple(
        make_panel(f"constants-{key.split()[0]}", f"Constants, {key}", scale, policies, world)
        for key, world in worlds.items()
    )
    about = (
        "The same policies at tuned constants (0.15·β, α₁ = 2), with @printed those of the text "
        "(β as in Lemma 1; it names no α₁: 1.5), with @published those of the published code "
        "(0.005·β, α₁ = 1.5, ridge 2)."
    )
    return Figure("constants", "comparison", "Tuned, printed and published constants", about, panels)


DEGENERATE: dict[str, tuple[str, dict[str, Parameter]]] = {
    "one": ("m = L = 1", {"clusters": 1, "servers": 1}),
    "one-server": ("L = 1", {"servers": 1}),
    "one-cluster": (
        "m = 1, a user per server, in turns",
        {"clusters": 1, "users": 5, "visits": "round-robin"},
    ),
    "turns": ("the paper's setting, users in turns", {"visits": "round-robin"}),
}


def degenerate(scale: Scale) -> Figure:
    """The three cases of the paper's discussion, and arrivals in turns at its own setting."""
    names = [name for name in compared() if trigger(name) != "every-round"]
    panels = tuple(
        make_panel(
            f"degenerate-{key}",
            f"Degenerate case, {title}",
            scale,
            with_references(names, scale),
            Setting("synthetic", given),
        )
        for key, (title, given) in DEGENERATE.items()
    )
    about = (
        "The cases to which the paper's discussion reduces its setting: private linear bandits "
        "(m = L = 1), private clustering of bandits (L = 1), and distributed linear bandits (m = 1, "
        "one user per server, round-robin arrivals); last, its own setting with round-robin arrivals."
    )
    return Figure("degenerate", "degenerate", "Degenerate cases", about, panels)


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


CROWDS = ((500, 10), (2_000, 10), (10_000, 10), (2_000, 2), (2_000, 40))
"""Users and servers of the panels in which federating is compared with staying alone."""


FEW = 64
"""Users of a server up to which streams for each of them, as unit event needs them, are affordable."""


def pays(scale: Scale) -> Figure:
    """The same model alone, federated without noise, and with noise for users or for events."""
    strict: dict[str, Parameter] = {"delta": 1e-5, "level": "transcript"}
    plain = {
        ALONE: Setting("fclub-plus", {"share": False}),
        "fclub-plus": Setting("fclub-plus"),
    }
    panels = []
    for users, servers in CROWDS:
        budgets = [("user", 1.0), ("user", 4.0), ("user", 16.0)]
        if users <= FEW * servers:
            budgets += [("event", 1.0), ("event", 16.0)]
        noisy = {
            f"{unit}, ε={epsilon:g}": Setting(
                "cdp-fclub-plus", {"unit": unit, "epsilon": epsilon, **strict}
            )
            for unit, epsilon in budgets
        }
        given: dict[str, Parameter] = {"users": users, "servers": servers, "clusters": 10}
        world = Setting("synthetic", {**given, "placement": "spread"})
        title, key = f"{users:,} users on {servers} servers", f"pays-{users}-{servers}"
        panels.append(make_panel(key, title, scale, plain | noisy, world))
    about = (
        "Regret in units of what the same model reaches where every server learns alone, by visits per "
        "user. Below 1, federating pays; what noise takes from it depends on how many users a server "
        "has, on how often they come and on ε. Level transcript, δ=0.00001."
    )
    return Figure("pays", "gain", "Does federating pay?", about, tuple(panels), "visits per user")


_MOVIELENS = (
    "Users from MovieLens, items at random. printed: as the text says, from the ratings of "
    "MovieLens-1M. printed, small: the same from MovieLens small, which has 610 users. top40, "
    "clustered and users: the published arrays (first 40 rows, 40 random rows, users not replaced by "
    "centroids)."
)
_YELP = "The same on Yelp, whose users do cluster in this representation; not in the paper's text."

SINGLE: dict[str, Callable[[Scale], Figure]] = {
    "synthetic": synthetic,
    "constants": constants,
    "movielens": _data_figure("movielens", "MovieLens comparison", _MOVIELENS),
    "yelp": _data_figure("yelp", "Yelp comparison", _YELP),
    "degenerate": degenerate,
    "communication": communication,
    "runtime": runtime,
    "privacy": privacy,
    "tradeoff": tradeoff,
    "bounds": bounds,
    "clusters": clusters,
    "pays": pays,
}
ORDER = (
    "synthetic",
    "constants",
    "movielens",
    "yelp",
    "parameters",
    "degenerate",
    "communication",
    "runtime",
    "privacy",
    "tradeoff",
    "bounds",
    "clusters",
    "pays",
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


SMALL_SERVERS, SMALL_VISITS = 40, 20


def small_servers(scale: Scale) -> Figure:
    """Many servers with few users each, who come a few times; two fifths of the rounds, two seeds.

    The other figures of the demo compare everything in the paper's world, where servers are large.
    """
    rounds = max(1, 2 * scale.rounds // 5)
    users = max(2 * SMALL_SERVERS, rounds // SMALL_VISITS)
    policies = {
        "linucb": Setting("linucb"),
        ALONE: Setting("fclub-plus", {"share": False}),
        "cdp-fclub-plus": Setting("cdp-fclub-plus", {"visits": float(SMALL_VISITS)}),
        "fclub-plus": Setting("fclub-plus"),
        "oracle-types": Setting("oracle-types"),
    }
    given: dict[str, Parameter] = {"users": users, "servers": SMALL_SERVERS, "clusters": 10}
    world = Setting("synthetic", {**given, "placement": "spread"})
    title = f"{users:,} users on {SMALL_SERVERS} servers, {rounds / users:.3g} visits each"
    panel = make_panel("small-servers", title, Scale(rounds, scale.seeds[:2]), policies, world)
    about = (
        "Where servers are small and users come a few times, they learn from each other. "
        "cdp-fclub-plus protects all that a user ever did, at ε=1 and δ=0.00001, with secure sums. "
        "oracle-types knows the tastes of all types from the start."
    )
    return Figure("small-servers", "comparison", "Many small servers", about, (panel,))


def demo_figures(scale: Scale) -> list[Figure]:
    """What one comparison in blocks can show, in four figures, and small servers."""
    panel = synthetic_panel(PLACEMENTS[0], scale)
    made = [SINGLE[name](scale) for name in ("synthetic", "communication", "runtime", "clusters")]
    told = {"synthetic": _FIRST}
    shown = [
        Figure(figure.name, figure.kind, figure.title, told.get(figure.name, figure.about), (panel,))
        for figure in made
    ]
    return [shown[0], small_servers(scale), *shown[1:]]
