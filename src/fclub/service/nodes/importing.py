"""Past data: observations read from a log file, and learned by a server that does not run."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path

from fclub.core.inputs import check_id, check_user
from fclub.errors import FclubError, InvalidFile, InvalidInput
from fclub.exchanges import Observation
from fclub.service.nodes.parts import local_node, settings_of

COLUMNS = {"user": ("user", "user_id"), "item": ("item", "item_id"), "reward": ("reward", "click")}
COMMIT_EVERY = 1000


def read_past(path: Path) -> Iterator[Observation]:
    """One observation a line: user, item of the catalogue, reward, and perhaps an id of its own.

    Without one, the file's name and the line are the id: the same file again adds nothing.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            names = {
                key: _column(path, lines.fieldnames or (), known) for key, known in COLUMNS.items()
            }
            for record in lines:
                yield _observation(path, lines.line_num, record, names)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: {error}") from None


def _column(path: Path, there: Iterable[str], known: tuple[str, ...]) -> str:
    found = next((name for name in there if name in known), None)
    if found is None:
        raise InvalidFile(f"{path}: no column called {' or '.join(known)}")
    return found


def _observation(path: Path, line: int, record: dict[str, str], names: dict[str, str]) -> Observation:
    user, item = record[names["user"]], record[names["item"]]
    try:
        reward = float(record[names["reward"]])
    except (TypeError, ValueError):
        reward = float("nan")
    if not isfinite(reward) or not user or not item:
        raise InvalidFile(f"{path}, line {line}: expected a user, an item, a reward")
    return Observation(record.get("id") or f"{path.name}:{line}", user, reward, item=item)


def learn_offline(store: Path, observations: Iterable[Observation]) -> list[bool | FclubError]:
    """Let the server of this store learn; for each whether it was new, or why it was refused.

    Names and ids have the limits that a running server sets: nothing gets in that could not be asked
    for, or forgotten, over HTTP.
    """
    settings = settings_of(store)
    node, rewards = local_node(settings, create=False), settings.model.rewards
    results: list[bool | FclubError] = []
    try:
        for one in observations:
            x = node.catalogue.features(str(one.item))
            try:
                check_user(one.user)
                node.users.expect(one.user)
                check_id(one.id)
                if x is None:
                    raise InvalidInput(f"there is no item {one.item!r} in the catalogue", one.item)
                reward = rewards.to_model(one.reward)
                learned = node.rewards.learn_past(one.id, one.user, x.copy(), reward, one.item)
                results.append(learned)
            except FclubError as error:
                results.append(error)
            if len(results) % COMMIT_EVERY == 0:
                node.commit()
        node.commit()
    finally:
        node.store.close()
    return results
