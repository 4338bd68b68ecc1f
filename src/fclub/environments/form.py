"""The form of user and item vectors: a direction of norm 1/√2 beside a constant 1/√2."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from fclub.core.types import Floats

HALF = sqrt(0.5)
"""The constant last coordinate, and the norm of the rest: θᵀx is then in [0, 1]."""


def with_constant(rows: Floats, known: Any) -> Floats:
    """Rows scaled to norm 1/√2 beside the constant; a row that is not known keeps only that."""
    norms = np.linalg.norm(rows, axis=1)
    known = known & (norms > 0.0)
    vectors = np.zeros((rows.shape[0], rows.shape[1] + 1))
    vectors[known, :-1] = HALF * rows[known] / norms[known, None]
    vectors[:, -1] = HALF
    return vectors
