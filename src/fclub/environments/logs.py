"""Logged feedback: what was shown to whom, how likely that was, and what came of it.

Two layouts are read. That of the Open Bandit data is a CSV with one line per impression, and a CSV with
the features of every item; all items could have been shown in every round. The other is what `fclub
store export` writes: JSON, one object a line, in which every round names its own offer, and items with
their features as the server had them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from fclub.core.inputs import as_items
from fclub.core.types import Floats, Indices
from fclub.environments.data.ratings_file import numbered_lines
from fclub.environments.world import HALF
from fclub.errors import InvalidFeatures, InvalidFile, InvalidRatings

ITEM = ("item_id", "item", "action")
REWARD = ("click", "reward")
PROPENSITY = ("propensity_score", "propensity", "pscore")
USER = ("user_id", "user")
EXPORTED = (".jsonl", ".ndjson")
"""How files of the second layout end."""


@dataclass(frozen=True)
class Log:
    """Round t showed item `shown[t]` of `features` (M, d) to `users[t]` with probability
    `propensity[t]`, and `rewards[t]` followed. On offer were the rows `offers[offer[t]]` of `features`
    without the rows `without[t]`; all of them if there are no `offers`. `names` are those of users 0,
    1, … where the log has any."""

    users: Indices
    shown: Indices
    rewards: Floats
    propensity: Floats
    features: Floats
    offers: list[Indices] = field(default_factory=list)
    offer: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    without: Mapping[int, Indices] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = {len(self.users), len(self.shown), len(self.rewards), len(self.propensity)}
        if len(lengths) != 1 or not len(self.users):
            raise InvalidFile(f"a log needs equally long columns, got lengths {sorted(lengths)}")
        if self.shown.min() < 0 or self.shown.max() >= len(self.features):
            raise InvalidFile(f"a log may only show items 0 to {len(self.features) - 1}")
        if not ((self.propensity > 0.0) & (self.propensity <= 1.0)).all():
            raise InvalidFile("propensities must be above 0 and at most 1")
        if self.offers and len(self.offer) != len(self.users):
            raise InvalidFile("a log with offers needs one for every round")
        if any(shown not in self.on_offer(t) for t, shown in enumerate(self.shown[: len(self.offer)])):
            raise InvalidFile("a log may only show what was on offer")

    def __len__(self) -> int:
        return len(self.users)

    def on_offer(self, t: int) -> Indices:
        """The rows of `features` that could have been shown in round t."""
        if not self.offers:
            return np.arange(len(self.features))
        rows = self.offers[self.offer[t]]
        return np.setdiff1d(rows, self.without[t]) if t in self.without else rows


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
    if source.suffix in EXPORTED:
        if position is not None:
            raise InvalidFile(f"{source} has no positions: only the first place is in it")
        return read_exported(source, Path(str(items)))
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


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """An offer with its number, or a round with the number of its offer."""

    offer: int
    items: list[str] | None = None
    user: str = ""
    item: str = ""
    reward: float = 0.0
    propensity: float = 1.0
    without: list[str] = []


_decode = msgspec.json.Decoder(_Line).decode


def read_exported(log: Path, items: Path) -> Log:
    """A log in which every round has its own offer, and the features of all items as they were."""
    if not log.is_file():
        raise InvalidFile(f"there is no file {log}")
    numbers, features = read_plain_features(items)
    reader = _Rounds(log, numbers)
    for number, text in numbered_lines(log):
        reader.read(number, text)
    if not reader.rounds:
        raise InvalidRatings(log, 1, "there is no round")
    users, shown, rewards, chances, offer = (np.array(c) for c in zip(*reader.rounds, strict=True))
    return Log(
        users, shown, rewards, chances, features, reader.offers, offer, reader.without, reader.names
    )


class _Rounds:
    """Lines of an exported log, brought together."""

    def __init__(self, path: Path, numbers: dict[str, int]) -> None:
        self._path, self._numbers = path, numbers
        self._places: dict[int, int] = {}
        self._people: dict[str, int] = {}
        self.offers: list[Indices] = []
        self.without: dict[int, Indices] = {}
        self.rounds: list[tuple[int, int, float, float, int]] = []

    @property
    def names(self) -> list[str]:
        """The users in the order of their numbers."""
        return list(self._people)

    def read(self, number: int, text: str) -> None:
        try:
            line = _decode(text)
        except msgspec.DecodeError as error:
            raise InvalidRatings(self._path, number, str(error)) from None
        if line.items is not None:
            self._places[line.offer] = len(self.offers)
            self.offers.append(self._rows(number, line.items))
            return
        if line.offer not in self._places:
            raise InvalidRatings(self._path, number, f"offer {line.offer} does not come before it")
        if not 0.0 <= line.reward <= 1.0:
            raise InvalidRatings(self._path, number, f"reward {line.reward:g} is not from 0 to 1")
        user = self._people.setdefault(line.user, len(self._people))
        (item,) = self._rows(number, [line.item]).tolist()
        if line.without:
            self.without[len(self.rounds)] = self._rows(number, line.without)
        self.rounds.append((user, item, line.reward, line.propensity, self._places[line.offer]))

    def _rows(self, number: int, items: list[str]) -> Indices:
        unknown = next((item for item in items if item not in self._numbers), None)
        if unknown is not None:
            raise InvalidRatings(self._path, number, f"item {unknown!r} has no features")
        return np.array([self._numbers[item] for item in items], dtype=np.int64)


def read_plain_features(path: Path) -> tuple[dict[str, int], Floats]:
    """Item id → row, and the rows as they are in the file: d numbers of norm at most 1."""
    numbers: dict[str, int] = {}
    rows: list[list[float]] = []
    for line, record in _records(path):
        key, *texts = record.values()
        if key in numbers:
            raise InvalidRatings(path, line, f"item {key!r} appears twice")
        numbers[key] = len(numbers)
        rows.append([_number(path, line, text, -2.0, 2.0) for text in texts])
    if not rows:
        raise InvalidRatings(path, 1, "there is no item")
    try:
        return numbers, as_items(rows, len(rows[0]))
    except InvalidFeatures as error:
        raise InvalidFile(f"{path}: {error}") from None
