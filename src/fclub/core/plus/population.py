"""What all users have in common: where tastes lie, how much they differ, and how much within a cluster.

A user's vector is its cluster's centre and a deviation of its own, θ_u = c_k + w_u:

    c_k ~ N(μ, (1−ρ)Σ),    w_u ~ N(0, ρΣ).

Two users of different clusters differ alike whatever ρ is; ρ = 0 makes the users of a cluster equal,
ρ → 1 makes clusters meaningless. All of this is drawn along with the partition, from the priors

    μ ~ N(0, Σ/`MEMORY`),    Σ ~ inverse Wishart of mean diag(scale),    ρ from `SPREADS`.

The scale is learned too, once for the constant coordinate and once for all others: its factor to what
is expected is log-normal, so that a few centres which happen to be close do not make tastes look small
for good.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import add_outer, add_scaled, cholesky, clear, solve_lower, solve_upper
from fclub.core.types import Floats, Matrix, Vector

SPREADS = np.array([0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9])
"""The values that ρ may have."""
EQUAL = log(100.0)
"""Log prior odds of ρ = 0 against each of the others."""
MEMORY = 4.0
"""The prior of μ weighs as much as so many centres."""
FREEDOM = 20.0
"""The prior of Σ weighs as much as so many centres, beyond the d+1 that make its mean exist."""
DOUBT = 0.5
"""Standard deviation of the logarithm of a scale."""


class Population(NamedTuple):
    """μ, Σ⁻¹, the expected diagonal of Σ now (`scale`) and before any data (`expected`), ρ (one entry).

    `constant` is the place of the constant coordinate, or −1.
    """

    mean: Vector
    precision: Matrix
    scale: Vector
    expected: Vector
    spread: Floats
    constant: int

    @staticmethod
    def expecting(variances: Vector, constant: int) -> Population:
        """Before any data: tastes about 0 with these variances, users of a cluster equal."""
        d = len(variances)
        return Population(
            mean=np.zeros(d),
            precision=np.diag(1.0 / variances),
            scale=variances.copy(),
            expected=variances.copy(),
            spread=np.zeros(1),
            constant=constant,
        )

    @property
    def covariance(self) -> Matrix:
        """Σ."""
        return np.asarray(np.linalg.inv(self.precision))

    @property
    def sizes(self) -> Vector:
        """E[θ_i²] of a user of whom nothing is known."""
        return np.asarray(np.diag(self.covariance) + self.mean**2)


@inner
def draw_gaussian(
    precision: Matrix, vector: Vector, rng: np.random.Generator, lower: Matrix, out: Vector
) -> None:
    """A draw from N(P⁻¹r, P⁻¹)."""
    cholesky(precision, lower)
    solve_lower(lower, vector, out)
    for i in range(vector.shape[0]):
        out[i] += rng.standard_normal()
    solve_upper(lower, out, out)


@compiled
def draw_population(
    population: Population, centres: Floats, deviations: Floats, rng: np.random.Generator
) -> None:
    """μ given Σ and the centres, Σ given μ, centres and deviations ~ N(0, ρΣ), the scales given Σ."""
    count, d = centres.shape
    between = 1.0 / (1.0 - population.spread[0])
    _draw_mean(population, centres, between, rng)
    scatter, apart = np.zeros((d, d)), np.empty(d)
    for i in range(d):
        scatter[i, i] = FREEDOM * population.scale[i]
    add_outer(scatter, population.mean, MEMORY)
    for k in range(count):
        for i in range(d):
            apart[i] = centres[k, i] - population.mean[i]
        add_outer(scatter, apart, between)
    freedom = FREEDOM + d + 1.0 + count + 1.0
    if population.spread[0] > 0.0:
        for u in range(deviations.shape[0]):
            add_outer(scatter, deviations[u], 1.0 / population.spread[0])
        freedom += deviations.shape[0]
    _draw_precision(scatter, freedom, rng, population.precision)
    _draw_scales(population, rng)


@inner
def _draw_mean(
    population: Population, centres: Floats, between: float, rng: np.random.Generator
) -> None:
    """Gaussian, with precision (MEMORY + `between`·centres)·Σ⁻¹."""
    count, d = centres.shape
    weight = MEMORY + between * count
    lower, noise = np.empty((d, d)), np.empty(d)
    cholesky(population.precision, lower)
    for i in range(d):
        noise[i] = rng.standard_normal() / sqrt(weight)
    solve_upper(lower, noise, population.mean)
    for k in range(count):
        add_scaled(population.mean, centres[k], between / weight)


@inner
def _draw_precision(scatter: Matrix, freedom: float, rng: np.random.Generator, out: Matrix) -> None:
    """Σ⁻¹ = (L⁻ᵀA)(L⁻ᵀA)ᵀ with scatter = LLᵀ and A lower triangular (Bartlett)."""
    d = scatter.shape[0]
    lower, column, solved = np.empty((d, d)), np.empty(d), np.empty(d)
    cholesky(scatter, lower)
    clear(out, column)
    for j in range(d):
        column[j] = sqrt(2.0 * rng.standard_gamma(0.5 * (freedom - j)))
        for i in range(j + 1, d):
            column[i] = rng.standard_normal()
        solve_upper(lower, column, solved)
        add_outer(out, solved, 1.0)
        column[j] = 0.0


@inner
def _draw_scales(population: Population, rng: np.random.Generator) -> None:
    """A gamma distribution given Σ, but for the prior: its draw is accepted by the priors' ratio."""
    d = population.mean.shape[0]
    for constant in (False, True):
        members, rate, old = 0.0, 0.0, 1.0
        for i in range(d):
            if (i == population.constant) == constant:
                members += 1.0
                rate += 0.5 * FREEDOM * population.expected[i] * population.precision[i, i]
                old = population.scale[i] / population.expected[i]
        if members > 0.0:
            new = rng.standard_gamma(0.5 * (FREEDOM + d + 1.0) * members) / rate
            odds = 0.5 * (log(old) ** 2 - log(new) ** 2) / DOUBT**2
            if rng.random() < exp(min(odds, 0.0)):
                for i in range(d):
                    if (i == population.constant) == constant:
                        population.scale[i] = new * population.expected[i]
