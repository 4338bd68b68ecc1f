"""The lattice: every number from a private observation to a release is a whole multiple of one step.

Features and centred rewards are rounded to multiples of `GRID` where a server observes them. Their
products are then multiples of `STEP`, and so are sums of products: exactly, in doubles and in any
order, while no sum passes 2⁵³ steps. So nothing has low bits that could tell of the data, and what
noise is added to is a whole number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fclub.core.compiling import compiled
from fclub.core.types import Floats, Vector
from fclub.errors import PrivacyError

GRID = 2.0**-13
STEP = GRID * GRID
LIMIT = 2.0**53 * STEP
"""Sums below this are exact."""

MOST_OBSERVATIONS = 10**8
"""No sum over so many observations reaches `LIMIT`: an entry of one is at most (1 + √d·GRID)²."""

Whole = NDArray[np.int64]
"""Multiples of a step, counted in steps."""


@compiled
def on_grid(value: float) -> float:
    """The nearest multiple of `GRID`; of two, the even one."""
    return float(np.rint(value / GRID) * GRID)


@compiled
def snap(x: Vector, constant: float) -> Vector:
    """Features on the grid; a declared constant (0 for none) is set, so that it is always the same."""
    rounded = np.empty_like(x)
    for i in range(x.shape[0]):
        rounded[i] = on_grid(x[i])
    if constant > 0.0:
        rounded[-1] = on_grid(constant)
    return rounded


def is_whole(sums: Floats) -> bool:
    """Whether all of these are multiples of `STEP`."""
    with np.errstate(over="ignore"):  # what overflows is infinite, and so not whole
        steps = sums / STEP
    return bool(np.all(np.isfinite(steps)) and np.array_equal(steps, np.rint(steps)))


def whole(sums: Floats) -> Whole:
    """Exact sums counted in steps. What may not be exact is refused before it becomes an integer."""
    if not (is_whole(sums) and np.all(np.abs(sums) < LIMIT)):
        raise PrivacyError("sums are not whole multiples of the lattice's step")
    return (sums / STEP).astype(np.int64)
