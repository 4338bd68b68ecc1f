"""Arithmetic of the printed policy's noise: what the next release is perturbed with.

Randomness comes from outside: a caller draws a symmetric (d+1)×(d+1) matrix and passes it in.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import add_matrix, clear
from fclub.core.lattice import STEP
from fclub.core.types import Floats, Matrix


@compiled
def draw_symmetric(rng: np.random.Generator, std: float, out: Matrix) -> None:
    """Seeded noise for compiled rounds: what `privacy.noise.symmetric` draws from the same generator.

    Multiples of `STEP` with deviation std off the diagonal and √2·std on it; the corner is never sent.
    """
    p = out.shape[0]
    for i in range(p):
        for j in range(i, p):
            scale = std * sqrt(2.0) if i == j else std
            out[i, j] = np.rint(scale / STEP * rng.standard_normal()) * STEP
            out[j, i] = out[i, j]
    if p > 0:
        out[p - 1, p - 1] = 0.0


@compiled
def advance_tree(nodes: Floats, leaves: int, drawn: Matrix, out: Matrix) -> None:
    """Alg. 5: write the noise of the partial sum over the first `leaves` ≥ 1 leaves into `out`.

    `nodes[r]` is the noise of the node of height r that the last partial sum used. Adding a leaf
    closes the node whose height is the number of trailing zeros of `leaves`: its noise is `drawn`, and
    the nodes below it are not used again.
    """
    height = 0
    while (leaves >> height) & 1 == 0:
        clear(nodes[height], nodes[height, 0])
        height += 1
    clear(nodes[height], nodes[height, 0])
    add_matrix(nodes[height], drawn, 1.0)
    clear(out, out[0])
    for r in range(height, nodes.shape[0]):
        if (leaves >> r) & 1 == 1:
            add_matrix(out, nodes[r], 1.0)
