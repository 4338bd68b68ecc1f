"""The paper's two bounds at every T, beside the measured curves of its algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import SeedSequence

from fclub.core.types import Counts
from fclub.environments.registry import make_environment
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidSetting
from fclub.experiments.report.charts import GREEN, GREY, Line, Style, line_of
from fclub.experiments.report.measured import Measured
from fclub.experiments.report.tables import Cell, Table
from fclub.experiments.study.figures import PRINTED
from fclub.protocol.rows.paper import Printed
from fclub.theory import Theory, UpperBound

LOWEST = Style(GREEN, "dot")
LEAST = 10
"""The bounds are computed from this T on."""


def _gap(environment: Synthetic, seeds: tuple[int, ...]) -> float:
    """The largest γ of the seeds: it gives the smallest bounds."""
    gaps = []
    for seed in seeds:
        environment.start(SeedSequence(seed).spawn(2)[0])
        distinct = np.unique(environment.theta, axis=0)
        apart = np.linalg.norm(distinct[:, None] - distinct[None], axis=2)
        gaps.append(float(apart[~np.eye(len(distinct), dtype=bool)].min()))
    return max(gaps)


def make_theory(measured: Measured, rounds: int) -> Theory:
    """The bounds' inputs for the panel's environment and the printed policy's constants.

    Items are a uniform direction of norm √½ in d−1 dimensions beside a constant, so that λ_x, the least
    eigenvalue of E[x xᵀ], is 1/(2(d−1)).
    """
    experiment = measured.panel.experiment
    environment: Any = make_environment(
        experiment.environment.name, **experiment.environment.parameters
    )
    setting = experiment.policies[PRINTED]
    if not isinstance(environment, Synthetic) or setting.name != PRINTED:
        raise InvalidSetting("bounds are only known for the synthetic environment", environment.name)
    constants = Printed(**setting.parameters)  # type: ignore[arg-type]
    return Theory(
        environment.problem,
        environment.clusters,
        _gap(environment, experiment.seeds),
        1 / (2 * (environment.problem.dim - 1)),
        rounds,
        constants.protocol,
        constants.privacy,
    )


def _at(theory: Theory, rounds: int) -> Theory:
    return Theory(**vars(theory) | {"rounds": rounds})


def bounds_lines(measured: Measured) -> tuple[list[Line], list[Line]]:
    """Lines of regret and of messages: measured, bound, what is possible at all."""
    t = measured.curve(PRINTED, "regret").t
    x = t[t >= LEAST] if t[-1] >= LEAST else t[-1:]
    theory = make_theory(measured, int(x[-1]))
    theories = [_at(theory, int(T)) for T in x]
    regret = [each.regret() for each in theories]
    messages = [each.communication() for each in theories]
    order = np.array([each.lower_bound for each in theories])
    lowest = Line("√(dmT), order of the lower bound", x.astype(np.float64), order, None, LOWEST)
    return (
        [*_lines(measured, "regret", x, regret, "Theorem 1", "regret 1 every round"), lowest],
        _lines(measured, "total", x, messages, "proposition", "everything sent at once"),
    )


def _lines(
    measured: Measured, metric: str, t: Counts, bounds: list[UpperBound], name: str, most: str
) -> list[Line]:
    """A bound is called vacuous if it is so at the last round."""
    x = t.astype(np.float64)
    label = f"{name} (vacuous)" if bounds[-1].vacuous else name
    own = [policy for policy in (PRINTED, "fclub-dc") if policy in measured.curves]
    return [
        *(line_of(policy, measured.curve(policy, metric)) for policy in own),
        Line(label, x, np.array([bound.value for bound in bounds]), None, Style(GREEN, "dash")),
        Line(most, x, np.array([bound.trivial for bound in bounds]), None, Style(GREY, "dot")),
    ]


def bounds_table(measured: Measured) -> Table:
    """At the last round: bound, what is possible at all, measured, and the word."""
    rounds = measured.panel.experiment.rounds
    theory = make_theory(measured, max(2, rounds))
    rows: list[tuple[Cell, ...]] = []
    for name, bound, metric in (
        ("regret (Theorem 1)", theory.regret(), "regret"),
        ("messages (proposition)", theory.communication(), "total"),
    ):
        seen = measured.curve(PRINTED, metric).end
        word = "vacuous" if bound.vacuous else "informative"
        rows.append((name, f"{bound.value:.3g}", f"{bound.trivial:,.0f}", f"{seen:,.0f}", word))
    found = theory.detection_time().rounds
    word = "vacuous" if found >= rounds else "informative"
    rows.append(
        ("rounds until clusters are proven found, T₀", f"{found:.3g}", f"{rounds:,}", "–", word)
    )
    columns = ("quantity", "bound", "possible at all", f"measured, {PRINTED}", "the bound is")
    title = f"Bounds at T = {rounds:,}, gap γ = {theory.gap:.3f}"
    return Table("bounds-results", title, columns, rows)
