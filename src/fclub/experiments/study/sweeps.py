"""Figures in which one quantity is varied: sizes, the privacy budget, how often servers speak."""

from __future__ import annotations

from fclub.environments.registry import make_environment
from fclub.experiments.run.experiment import Setting, policy_setting
from fclub.experiments.study.panels import Scale, compared, make_panel, plain, private, trigger
from fclub.experiments.study.study import Figure

VARIED: dict[str, tuple[float, ...]] = {
    "d": (5, 10, 15, 20),
    "epsilon": (0.5, 1, 2, 4, 8),
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
BUDGETS = VARIED["epsilon"]
DELTAS = {0.1: "0.1", 1e-5: "0.00001"}
RATIOS = (1.001, 1.01, 1.1, 1.5, 2.0, 5.0, 20.0)


def parameter(letter: str, scale: Scale) -> Figure:
    """One quantity varied, the others at the paper's values; delayed communication only."""
    names = [name for name in compared() if trigger(name) != "every-round"]
    panels = []
    for value in VARIED[letter]:
        environment, policies = Setting("synthetic"), plain(names, scale)
        if letter == "epsilon":
            given = {} if value == 1 else {"epsilon": value}
            noisy = {n: policy_setting(n, scale.rounds, given) for n in names if private(n)}
            policies |= noisy
        elif value != make_environment("synthetic").get_params()[SIZES[letter]]:
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
            budget = {"epsilon": epsilon, "delta": delta}
            given = {k: v for k, v in budget.items() if v != {"epsilon": 1.0, "delta": 0.1}[k]}
            for name in noisy:
                setting = policy_setting(name, scale.rounds, given)
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
        policies = {n: policy_setting(n, scale.rounds, given) for n in delayed} | plain(fixed, scale)
        key, title = f"tradeoff-{ratio:g}", f"U = D = {ratio:g}"
        panels.append(make_panel(key, title, scale, policies, Setting("synthetic"), ratio))
    about = (
        "Every point of a line is one U=D; larger means fewer messages. Policies whose schedule has no "
        "U and D are single points. Synthetic environment in blocks."
    )
    return Figure("tradeoff", "tradeoff", "Regret versus communication", about, tuple(panels), "U = D")
