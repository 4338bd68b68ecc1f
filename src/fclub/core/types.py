"""Names for arrays, so that signatures say what an array is."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.int64]
Edges: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]
Labels: TypeAlias = NDArray[np.int32]
