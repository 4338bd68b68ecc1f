"""How well found clusters agree with the true ones."""

from __future__ import annotations

import numpy as np

from fclub.core.types import Indices


def _pairs(counts: Indices) -> float:
    return float(np.sum(counts * (counts - 1)) / 2)


def adjusted_rand_index(found: Indices, true: Indices) -> float:
    """1 for equal partitions, about 0 for unrelated ones (Hubert and Arabie 1985)."""
    _, a = np.unique(found, return_inverse=True)
    _, b = np.unique(true, return_inverse=True)
    width = int(b.max()) + 1
    both = _pairs(np.unique(a.astype(np.int64) * width + b, return_counts=True)[1])
    first, second = _pairs(np.bincount(a)), _pairs(np.bincount(b))
    expected = first * second / max(1.0, _pairs(np.array([len(a)])))
    largest = 0.5 * (first + second)
    return 1.0 if largest == expected else (both - expected) / (largest - expected)
