"""Releases of a stream in whole numbers: increments are encoded, noise is added, the sums decoded.

Whoever decodes needs only what was released, so the noise of a prefix sum is correlated by
post-processing. docs/privacy.md has the proof.
"""

from __future__ import annotations

import numpy as np

from fclub.core.lattice import STEP, Whole
from fclub.core.types import Floats, Vector
from fclub.privacy.mechanisms import WEIGHT


def encode(weights: Whole, increments: Whole) -> Whole:
    """Σ_j weights[j]·increments[j] / 2²⁶, to the nearest whole number.

    Products have up to 79 bits, so they are Python's numbers. |weights| ≤ 2²⁶ and sums of increments
    are below 2⁵³, so that the result has room in 64 bits.
    """
    total = weights.astype(object) @ increments.astype(object)
    rounded = (total + (1 << (WEIGHT - 1))) >> WEIGHT
    return np.asarray(rounded, dtype=np.int64)


def decode(weights: Vector, released: Whole) -> Floats:
    """The noisy prefix sum, back on the lattice: a function of what was released and nothing else.

    Release after release is added, in an order that does not depend on the machine.
    """
    return np.asarray(np.rint((weights[:, None] * released).sum(axis=0)) * STEP)
