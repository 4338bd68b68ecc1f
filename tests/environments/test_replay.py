"""Replay and importance weighting against simulated logs, where the truth is known."""

from pathlib import Path

import numpy as np
import pytest

import fclub
from fclub.core.types import Floats, Matrix, Vector
from fclub.environments.base import place
from fclub.environments.logs import Log, read_item_features, read_log
from fclub.environments.replay import evaluate_replay
from fclub.errors import InvalidFile, InvalidRatings, InvalidSetting

USERS, ITEMS, DIM = 8, 6, 4


def world(seed: int = 0) -> tuple[Floats, Floats]:
    """Item features, and how likely each user rewards each item."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((USERS + ITEMS, DIM - 1))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    vectors = np.hstack([directions, np.ones((USERS + ITEMS, 1))]) * np.sqrt(0.5)
    return vectors[USERS:], vectors[:USERS] @ vectors[USERS:].T


def simulated_log(rounds: int, seed: int, propensities: Floats) -> Log:
    features, chance = world()
    rng = np.random.default_rng(seed)
    users = rng.integers(USERS, size=rounds)
    shown = rng.choice(ITEMS, size=rounds, p=propensities)
    rewards = (rng.random(rounds) < chance[users, shown]).astype(float)
    return Log(users, shown, rewards, propensities[shown], features)


class Fixed:
    """Shows every user always the same item."""

    def start(self, problem: fclub.Problem, server_of: object, seed: object = None) -> None:
        self.updates = 0

    def recommend(self, user: int, items: Matrix) -> int:
        return user % ITEMS

    def update(self, user: int, x: Vector, reward: float) -> None:
        self.updates += 1


UNIFORM = np.full(ITEMS, 1 / ITEMS)
SKEWED = np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])


@pytest.mark.parametrize("propensities", [UNIFORM, SKEWED])
def test_intervals_hold_the_truth_at_their_rate(propensities: Floats) -> None:
    _, chance = world()
    truth = float(np.mean([chance[user, user % ITEMS] for user in range(USERS)]))
    logs, hits = 300, np.zeros(2)
    rounds = round(75 / propensities.min())  # 75 of them are kept, so both logs are as hard
    for seed in range(logs):
        result = evaluate_replay(Fixed(), simulated_log(rounds, seed, propensities), seed=seed)
        for k, estimate in enumerate((result.replay, result.importance)):
            hits[k] += estimate.low <= truth <= estimate.high
    deviation = np.sqrt(0.95 * 0.05 / logs)
    assert (np.abs(hits / logs - 0.95) < 4 * deviation).all(), hits / logs


def test_wrong_propensities_are_noticed() -> None:
    """The same logs evaluated as if they were uniform miss the truth: the test above has power."""
    _, chance = world()
    truth = float(np.mean([chance[user, user % ITEMS] for user in range(USERS)]))
    log = simulated_log(40_000, 1, np.array([0.6, 0.3, 0.04, 0.03, 0.02, 0.01]))
    right = evaluate_replay(Fixed(), log).importance
    lying = Log(log.users, log.shown, log.rewards, np.full(len(log), 1 / ITEMS), log.features)
    wrong = evaluate_replay(Fixed(), lying).importance
    assert right.low <= truth <= right.high
    assert not wrong.low <= truth <= wrong.high


@pytest.mark.slow
def test_learning_policy_earns_in_replay_what_it_earns_online() -> None:
    features, chance = world()
    runs = 12
    replayed, online = np.zeros(runs), np.zeros(runs)
    for seed in range(runs):
        result = evaluate_replay(fclub.make_policy("linucb"), simulated_log(3000, seed, UNIFORM))
        replayed[seed] = result.replay.value
        policy = fclub.make_policy("linucb")
        policy.start(fclub.Problem(USERS, 1, DIM), place(USERS, 1, "spread"), seed=seed)
        rng = np.random.default_rng(10_000 + seed)
        for _ in range(result.kept):
            user = int(rng.integers(USERS))
            index = policy.recommend(user, features)
            reward = float(rng.random() < chance[user, index])
            policy.update(user, features[index], reward)
            online[seed] += reward / result.kept
    error = np.sqrt((replayed.var(ddof=1) + online.var(ddof=1)) / runs)
    assert abs(replayed.mean() - online.mean()) < 4 * error
    assert replayed.mean() > simulated_log(3000, 0, UNIFORM).rewards.mean()


def test_uniform_logs_make_both_estimates_equal() -> None:
    log = simulated_log(2000, 5, UNIFORM)
    policy = Fixed()
    result = evaluate_replay(policy, log)
    assert result.fitting == result.kept == policy.updates
    assert result.replay.value == pytest.approx(result.importance.value)
    assert result.logged.value == pytest.approx(log.rewards.mean())


def test_without_learning_nothing_is_learnt() -> None:
    policy = Fixed()
    policy.start(fclub.Problem(USERS, 1, DIM), np.zeros(USERS))
    evaluate_replay(policy, simulated_log(500, 5, UNIFORM), learn=False)
    assert policy.updates == 0


def test_equal_rewards_are_not_certainty() -> None:
    log = simulated_log(60, 5, UNIFORM)
    never = Log(log.users, log.shown, np.zeros(60), log.propensity, log.features)
    estimate = evaluate_replay(Fixed(), never).replay
    assert estimate.value == estimate.low == 0.0
    assert estimate.high > 0.1


def test_nothing_fits() -> None:
    features, _ = world()
    log = Log(np.array([0]), np.array([1]), np.array([1.0]), np.array([0.5]), features)
    estimate = evaluate_replay(Fixed(), log).replay
    assert np.isnan(estimate.value)
    assert (estimate.low, estimate.high) == (0.0, 1.0)


LOG = """timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1
t,0,1,0,0.5,a,b
t,1,1,1,0.5,a,c
t,1,2,0,0.5,a,b
"""
CONTEXT = "item_id,item_feature_0,item_feature_1\n0,1.5,red\n1,-0.5,blue\n"


def write(texts: dict[Path, str]) -> tuple[Path, Path]:
    """A log, and the items in it."""
    for path, text in texts.items():
        path.write_text(text)
    log, items = texts
    return log, items


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write({tmp_path / "log.csv": LOG, tmp_path / "item_context.csv": CONTEXT})


def test_open_bandit_layout(files: tuple[Path, Path]) -> None:
    log = read_log(*files)
    np.testing.assert_array_equal(log.users, [0, 1, 0])
    np.testing.assert_array_equal(log.shown, [0, 1, 1])
    np.testing.assert_array_equal(log.rewards, [0, 1, 0])
    assert log.features.shape == (2, 1 + 2 + 1)
    assert np.linalg.norm(log.features, axis=1).max() == pytest.approx(1.0)
    assert len(read_log(*files, position="1")) == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("t,1,1,1,0.5,a,c", "t,1,1,2,0.5,a,c", 3, "between 0 and 1"),
        ("t,1,1,1,0.5,a,c", "t,1,1,yes,0.5,a,c", 3, "not a number"),
        ("t,1,1,1,0.5,a,c", "t,1,1,1,0,a,c", 3, "between"),
        ("t,1,1,1,0.5,a,c", "t,7,1,1,0.5,a,c", 3, "no features"),
        ("t,1,1,1,0.5,a,c", "t,1,1", 3, "fields"),
        ("click", "clack", 1, "no column called click"),
    ],
)
def test_fault_has_its_line(
    old: str, new: str, line: int, reason: str, files: tuple[Path, Path]
) -> None:
    files[0].write_text(LOG.replace(old, new))
    with pytest.raises(InvalidRatings, match=reason) as caught:
        read_log(*files)
    assert caught.value.line == line


def test_unfit_logs(files: tuple[Path, Path], tmp_path: Path) -> None:
    log, context = files
    with pytest.raises(InvalidFile, match="there is no file"):
        read_log(tmp_path / "nowhere.csv", context)
    with pytest.raises(InvalidRatings, match="no impression"):
        read_log(log, context, position="9")
    context.write_text(CONTEXT + "1,0,red\n")
    with pytest.raises(InvalidRatings, match="appears twice"):
        read_item_features(context)
    context.write_bytes(b"item_id,a\n0,\xff\n")
    with pytest.raises(InvalidRatings, match=r"line 2: not UTF-8"):
        read_item_features(context)
    with pytest.raises(InvalidSetting, match="confidence"):
        evaluate_replay(Fixed(), simulated_log(10, 0, UNIFORM), confidence=1.0)
    features, _ = world()
    one = np.array([1.0])
    with pytest.raises(InvalidFile, match="propensities"):
        Log(np.array([0]), np.array([0]), one, np.array([0.0]), features)
    with pytest.raises(InvalidFile, match="items 0 to"):
        Log(np.array([0]), np.array([9]), one, one, features)
    with pytest.raises(InvalidFile, match="equally long"):
        Log(np.array([0, 1]), np.array([0]), one, one, features)


EXPORTED = """{"offer": 0, "items": ["a", "b"]}
{"user": "7", "item": "a", "reward": 1.0, "propensity": 0.5, "offer": 0}
{"offer": 4, "items": ["a", "b", "c"]}
{"user": "2", "item": "c", "reward": 0.25, "propensity": 0.1, "offer": 4, "without": ["b"]}
{"user": "7", "item": "b", "reward": 0.0, "propensity": 0.9, "offer": 4}
"""
PLAIN = "id,x0,x1\na,0.6,0.5\nb,0.1,0.5\nc,-0.3,0.5\n"


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Path]:
    return write({tmp_path / "log.jsonl": EXPORTED, tmp_path / "items.csv": PLAIN})


def test_every_round_may_have_its_own_offer(exported: tuple[Path, Path]) -> None:
    log = read_log(*exported)
    assert [log.on_offer(t).tolist() for t in range(3)] == [[0, 1], [0, 2], [0, 1, 2]]
    assert (log.users.tolist(), log.names) == ([0, 1, 0], ["7", "2"])
    np.testing.assert_array_equal(log.features, [[0.6, 0.5], [0.1, 0.5], [-0.3, 0.5]])
    result = evaluate_replay(fclub.make_policy("linucb"), log)
    assert result.rounds == 3
    assert result.doubly_robust.low <= result.doubly_robust.high


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ('"reward": 1.0', '"reward": 2.0', 2, "not from 0 to 1"),
        ('"reward": 1.0', '"reward": "x"', 2, "Expected `float`"),
        ('"item": "a"', '"item": "z"', 2, "no features"),
        ('"offer": 4, "items"', '"offer": 5, "items"', 4, "does not come before"),
        ('"items": ["a", "b"]}', '"items": ["a", "y"]}', 1, "no features"),
        (EXPORTED, '{"offer": 0, "items": ["a"]}', 1, "no round"),
    ],
)
def test_fault_of_an_export_has_its_line(
    old: str, new: str, line: int, reason: str, exported: tuple[Path, Path]
) -> None:
    exported[0].write_text(EXPORTED.replace(old, new))
    with pytest.raises(InvalidRatings, match=reason) as caught:
        read_log(*exported)
    assert caught.value.line == line


def test_unfit_exports(exported: tuple[Path, Path]) -> None:
    log, items = exported
    with pytest.raises(InvalidFile, match="no positions"):
        read_log(log, items, position="1")
    log.write_text(EXPORTED.replace('"item": "c"', '"item": "b"'))
    with pytest.raises(InvalidFile, match="what was on offer"):
        read_log(log, items)
    for text, reason in (
        (PLAIN + "a,0,0.5\n", "appears twice"),
        ("id,x0\n", "no item"),
        ("id,x0,x1\na,1,1\n", "norm"),
    ):
        items.write_text(text)
        with pytest.raises(InvalidFile, match=reason):
            read_log(log, items)
    log.unlink()
    with pytest.raises(InvalidFile, match="there is no file"):
        read_log(log, items)
    one = np.array([1.0])
    with pytest.raises(InvalidFile, match="one for every round"):
        Log(np.array([0]), np.array([0]), one, one, world()[0], [np.array([0])])
