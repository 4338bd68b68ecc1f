"""Arithmetic of correlated noise: given standard normal draws, the perturbation of the next release.

Randomness comes from outside: a caller draws a (d+1)×(d+1) matrix of standard normals and passes it in.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import add_matrix, clear
from fclub.core.types import Floats, Matrix, Vector


@compiled
def symmetric(gaussian: Matrix, std: float, out: Matrix) -> None:
    """N = std·(N̄ + N̄ᵀ)/√2: off-diagonal entries have variance std², diagonal ones 2·std²."""
    p = gaussian.shape[0]
    scale = std / sqrt(2.0)
    for i in range(p):
        for j in range(p):
            out[i, j] = scale * (gaussian[i, j] + gaussian[j, i])


@compiled
def advance_tree(nodes: Floats, leaves: int, gaussian: Matrix, std: float, out: Matrix) -> None:
    """Alg. 5: write the noise of the partial sum over the first `leaves` ≥ 1 leaves into `out`.

    `nodes[r]` is the noise of the node of height r that the last partial sum used. Adding a leaf
    closes the node whose height is the number of trailing zeros of `leaves`: it is drawn from
    `gaussian`, and the nodes below it are not used again.
    """
    height = 0
    while (leaves >> height) & 1 == 0:
        clear(nodes[height], nodes[height, 0])
        height += 1
    symmetric(gaussian, std, nodes[height])
    clear(out, out[0])
    for r in range(height, nodes.shape[0]):
        if (leaves >> r) & 1 == 1:
            add_matrix(out, nodes[r], 1.0)


@compiled
def root_weights(releases: int) -> Vector:
    """f₀ = 1, f_j = f_{j−1}(1 − 1/(2j)): the first column of the square root of the prefix-sum matrix.

    These are the coefficients of (1−x)^(−1/2), whose square (1−x)^(−1) sums everything before.
    """
    f = np.empty(releases)
    value = 1.0
    for j in range(releases):
        if j > 0:
            value *= 1.0 - 0.5 / j
        f[j] = value
    return f


@compiled
def advance_root(past: Floats, step: int, gaussian: Matrix, entry_std: Matrix, out: Matrix) -> None:
    """Write the noise of the prefix released at `step` = 0, 1, … into `out`: Σ_j f_{step−j} z_j.

    `past[j]` keeps z_j = (N̄_j + N̄_jᵀ)/√2; `past[step]` is filled from `gaussian`. `entry_std` gives
    every entry its standard deviation: zero where nothing has to be hidden.
    """
    symmetric(gaussian, 1.0, past[step])
    clear(out, out[0])
    weight = 1.0
    for back in range(step + 1):
        if back > 0:
            weight *= 1.0 - 0.5 / back
        add_matrix(out, past[step - back], weight)
    p = entry_std.shape[0]
    for i in range(p):
        for j in range(p):
            out[i, j] *= entry_std[i, j]


@compiled
def privatize_increment(
    past: Floats,
    noise: Matrix,
    step: int,
    gaussian: Matrix,
    entry_std: Matrix,
    gram: Matrix,
    moment: Vector,
) -> None:
    """Turn the exact increment (gram, moment) into release number `step` of its stream, in place.

    Adds the growth of the prefix noise, so that the sum of all releases so far carries exactly
    Σ_j f_{step−j} z_j. `noise` holds the prefix noise of the last release (zero before the first).
    """
    d = moment.shape[0]
    for i in range(d):
        for j in range(d):
            gram[i, j] -= noise[i, j]
        moment[i] -= noise[i, d]
    advance_root(past, step, gaussian, entry_std, noise)
    for i in range(d):
        for j in range(d):
            gram[i, j] += noise[i, j]
        moment[i] += noise[i, d]
