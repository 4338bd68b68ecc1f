"""Logged bandit feedback: what was shown to whom, how likely that was, and what came of it.

The layout is that of the Open Bandit data: a CSV with one line per impression, and a CSV with the
features of every item. All items could have been shown in every round.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fclub.core.types import Floats, Indices
from fclub.environments.data.ratings_file import numbered_lines
from fclub.environments.world import HALF
from fclub.errors import InvalidFile, InvalidRatings

ITEM = ("item_id", "item", "action")
REWARD = ("click", "reward")
PROPENSITY = ("propensity_score", "propensity", "pscore")
USER = ("user_id", "user")


@dataclass(frozen=True)
class Log:
    """Round t showed item `shown[t]` of `features` (M, d) to `users[t]` with probability
    `propensity[t]`, and `rewards[t]` followed."""

    users: Indices
    shown: Indices
    rewards: Floats
    propensity: Floats
    features: Floats

    def __post_init__(self) -> None:
        lengths = {len(self.users), len(self.shown), len(self.rewards), len(self.propensity)}
        if len(lengths) != 1 or not len(self.users):
            raise InvalidFile(f"a log needs equally long columns, got lengths {sorted(lengths)}")
        if self.shown.min() < 0 or self.shown.max() >= len(self.features):
            raise InvalidFile(f"a log may only show items 0 to {len(self.features) - 1}")
        if not ((self.propensity > 0.0) & (self.propensity <= 1.0)).all():
            raise InvalidFile("propensities must be above 0 and at most 1")

    def __len__(self) -> int:
        return len(self.users)


def _records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Numbered lines of a CSV with a header."""
    if not path.is_file():
        raise InvalidFile(f"there is no file {path}")
    reader = csv.DictReader(line for _, line in numbered_lines(path))
    for record in reader:
        if None in record or None in record.values():
            fields = len(reader.fieldnames or ())
            raise InvalidRatings(path, reader.line_num, f"expected {fields} fields")
        yield reader.line_num, record


def _field(path: Path, record: dict[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in record:
            return record[name]
    raise InvalidRatings(path, 1, f"no column called {' or '.join(names)}")


def _number(path: Path, line: int, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidRatings(path, line, f"{text!r} is not a number") from None
    if not least <= value <= most:
        raise InvalidRatings(path, line, f"{text} is not between {least:g} and {most:g}")
    return value


def _user(record: dict[str, str]) -> tuple[str, ...]:
    """The user's id; in anonymous logs, users with the same features are one."""
    for name in USER:
        if name in record:
            return (record[name],)
    return tuple(record[name] for name in sorted(record) if name.startswith("user_feature"))


def read_log(path: object, items: object, position: str | None = None) -> Log:
    """A log and its items' features; `position` keeps only impressions at that place of the page."""
    source = Path(str(path))
    numbers, features = read_item_features(items)
    people: dict[tuple[str, ...], int] = {}
    rows: list[tuple[int, int, float, float]] = []
    for line, record in _records(source):
        if position is not None and _field(source, record, ("position",)) != position:
            continue
        item = _field(source, record, ITEM)
        if item not in numbers:
            raise InvalidRatings(source, line, f"item {item!r} has no features in {items}")
        reward = _number(source, line, _field(source, record, REWARD), 0.0, 1.0)
        chance = _number(source, line, _field(source, record, PROPENSITY), 1e-12, 1.0)
        user = people.setdefault(_user(record), len(people))
        rows.append((user, numbers[item], reward, chance))
    if not rows:
        raise InvalidRatings(source, 1, "there is no impression")
    users, shown, rewards, chances = (np.array(column) for column in zip(*rows, strict=True))
    return Log(users, shown, rewards, chances, features)


def read_item_features(path: object) -> tuple[dict[str, int], Floats]:
    """Item id → row, and the rows: numbers standardised, words as indicators, beside a constant.

    The longest row is scaled to norm 1/√2 beside the constant 1/√2, so that all are in the unit ball.
    """
    source = Path(str(path))
    records = list(_records(source))
    if not records:
        raise InvalidRatings(source, 1, "there is no item")
    numbers: dict[str, int] = {}
    for line, record in records:
        item = _field(source, record, ITEM)
        if item in numbers:
            raise InvalidRatings(source, line, f"item {item!r} appears twice")
        numbers[item] = len(numbers)
    names = [name for name in records[0][1] if name and name not in ITEM]
    blocks = [_encode([record[name] for _, record in records]) for name in names]
    free = np.hstack([*blocks, np.zeros((len(numbers), 1))])[:, :-1]
    longest = float(np.linalg.norm(free, axis=1).max(initial=0.0))
    scaled = free * (HALF / longest) if longest > 0.0 else free
    return numbers, np.hstack([scaled, np.full((len(numbers), 1), HALF)])


def _encode(column: list[str]) -> Floats:
    try:
        values = np.array(column, dtype=np.float64)
    except ValueError:
        words = sorted(set(column))
        return np.array([[float(word == entry) for word in words] for entry in column])
    spread = values.std()
    centred: Floats = (values - values.mean()) / (spread if spread > 0.0 else 1.0)
    return centred[:, None]
