"""Checks at the edge: what comes from a caller is made into arrays or refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.types import Matrix, Vector
from fclub.errors import EmptyItems, InvalidFeatures, InvalidInput, InvalidReward

NORM_TOLERANCE = 1e-9
"""How far above 1 rounding may push the norm of a feature vector."""

MAX_USER_BYTES, MAX_ID = 128, 256
"""Of a user's name, and characters of an id of an item or of an observation."""


def check_user(user: str) -> None:
    """Refuse names that are empty or too long, on whichever way they come in."""
    if not user:
        raise InvalidInput("a user has a name", user)
    if len(user.encode()) > MAX_USER_BYTES:
        raise InvalidInput(f"a user has at most {MAX_USER_BYTES} bytes", user)


def check_id(key: str) -> None:
    """The same of ids that a store keeps."""
    if not 1 <= len(key) <= MAX_ID:
        raise InvalidInput(f"an id has from 1 to {MAX_ID} characters", key)


@dataclass(frozen=True)
class RewardRange:
    """Rewards as an application has them, from `low` to `high`; the model's are from 0 to 1.

    With `clip` a reward outside counts as the nearer end, otherwise it is refused.
    """

    low: float = 0.0
    high: float = 1.0
    clip: bool = False

    def to_model(self, reward: float) -> float:
        """What the model learns from."""
        if not (self.clip or self.low <= reward <= self.high):
            limits = f"{self.low:g} to {self.high:g}"
            raise InvalidReward(f"reward {reward:g} is not from {limits}", reward)
        return min(max((reward - self.low) / (self.high - self.low), 0.0), 1.0)

    def from_model(self, reward: float) -> float:
        """The same in the application's unit."""
        return self.low + reward * (self.high - self.low)


def _floats(features: object) -> Matrix:
    try:
        array = np.asarray(features)
    except ValueError as error:  # rows of different lengths
        raise InvalidFeatures(f"features are not an array: {error}", features) from None
    if array.dtype.kind not in "iuf":
        raise InvalidFeatures(f"features are not numbers but {array.dtype}", features)
    return np.ascontiguousarray(array, dtype=np.float64)


@compiled
def largest_square(rows: Matrix) -> float:
    """The largest squared norm of a row; nan if an entry is nan."""
    largest = 0.0
    for i in range(rows.shape[0]):
        square = 0.0
        for j in range(rows.shape[1]):
            entry = float(rows[i, j])
            square += entry * entry
        if square != square:
            return math.nan
        if square > largest:
            largest = square
    return largest


def _check_rows(array: Matrix, dim: int) -> None:
    if array.shape[-1] != dim:
        raise InvalidFeatures(
            f"features have length {array.shape[-1]}, expected {dim}", array.shape[-1]
        )
    # NaN and infinity show in the norm: one look at the usual input is enough.
    norm = math.sqrt(largest_square(array.reshape(-1, dim)))
    if not norm <= 1.0 + NORM_TOLERANCE:
        if not np.all(np.isfinite(array)):
            raise InvalidFeatures("features must be finite", array)
        raise InvalidFeatures(
            f"features have norm {norm:.10g}, above 1: divide them by it, with 64 bits", norm
        )


def as_items(items: object, dim: int) -> Matrix:
    """A non-empty (K, d) array of finite rows with norm at most 1."""
    array = _floats(items)
    if array.size == 0:
        raise EmptyItems("there is no item to choose from", items)
    if array.ndim != 2:
        raise InvalidFeatures(f"items must be a (K, d) array, got {array.ndim} dimensions", items)
    _check_rows(array, dim)
    return array


def as_features(x: object, dim: int) -> Vector:
    """One finite feature vector of length d with norm at most 1."""
    array = _floats(x)
    if array.ndim != 1:
        raise InvalidFeatures(f"a feature vector has one dimension, got {array.ndim}", x)
    _check_rows(array, dim)
    return array


def as_read_only(items: object) -> Matrix:
    """The same numbers; whoever is given them cannot change them."""
    shown = np.asarray(items).view()
    shown.flags.writeable = False
    return shown


def as_index(index: object, count: int, chooser: str) -> int:
    """What a policy has recommended, one of `count` items."""
    if isinstance(index, int | np.integer) and not isinstance(index, bool) and 0 <= index < count:
        return int(index)
    raise InvalidInput(
        f"{chooser}: _recommend must return an index from 0 to {count - 1}, got {index!r}", index
    )


def as_reward(reward: object, low: float = 0.0, high: float = 1.0) -> float:
    """A finite number in [low, high]."""
    if isinstance(reward, str | bytes):
        raise InvalidReward(f"reward {reward!r} is not a number", reward)
    try:
        value = float(reward)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidReward(f"reward {reward!r} is not a number", reward) from None
    if not math.isfinite(value):
        raise InvalidReward(f"reward {value!r} is not finite", reward)
    if not low <= value <= high:
        raise InvalidReward(
            f"reward {value!r} is outside [{low:g}, {high:g}]; Problem(reward=...) is the range", reward
        )
    return value
