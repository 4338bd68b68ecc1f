"""Arithmetic of correlated noise: given standard normal draws, the perturbation of the next release.

Randomness comes from outside: a caller draws a (d+1)×(d+1) matrix of standard normals and passes it in.
"""

from __future__ import annotations

from math import sqrt

from fclub.core.compiling import compiled
from fclub.core.kernels import add_matrix, clear
from fclub.core.types import Floats, Matrix


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
