"""Public conformance checks: what policies, families and environments must do, ours or yours.

>>> from fclub import make_policy
>>> from fclub.checks import check_policy
>>> check_policy(make_policy("linucb"))

A failed check raises AssertionError with the reason, so they read well in anybody's test suite.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fclub.core.inputs import as_items
from fclub.core.types import Matrix
from fclub.environments.base import Environment, Outcome, as_outcome
from fclub.environments.registry import make_environment
from fclub.errors import (
    CannotForget,
    CannotReplace,
    EmptyItems,
    InvalidFeatures,
    InvalidFile,
    InvalidInput,
    InvalidReward,
    NotStarted,
    UnknownUser,
)
from fclub.own import instance_of
from fclub.policies.base import Policy
from fclub.policies.federated.families import policy_of
from fclub.privacy.noise import NoNoise, SeededNoise
from fclub.protocol.interfaces.family import Constants, Place, Shape
from fclub.protocol.link import InProcessLink
from fclub.protocol.servers import LocalServer
from fclub.simulation.loop import simulate

__all__ = ["check_environment", "check_family", "check_policy"]

RANDOMISED = "check a policy that randomises with check_policy(..., deterministic=False)"

Step = tuple[int, Matrix, int, Outcome]
Call = tuple[type[InvalidInput], Any, tuple[Any, ...]]
Visit = tuple[int, int, Matrix, float]
"""Server, row of the user there, items, and the reward of whatever is shown."""


def small_environment() -> Environment:
    """Two servers that both have users of both clusters."""
    return make_environment(
        "synthetic", users=8, clusters=2, servers=2, dim=3, items=4, placement="spread"
    )


def check_policy(
    policy: Policy,
    environment: Environment | None = None,
    *,
    rounds: int = 120,
    deterministic: bool = True,
) -> None:
    """Run every check of a policy that was not started yet.

    `deterministic=False` is for policies that randomise their recommendations.

    >>> import fclub
    >>> fclub.checks.check_policy(fclub.FclubDC(deletion=1.0), rounds=50)
    """
    policy = instance_of(policy, Policy)  # type: ignore[type-abstract]
    environment = environment or small_environment()
    environment.expect_rounds(rounds)
    check_not_started(policy)
    check_parameters(policy)
    check_estimates(policy, environment, rounds)
    check_same_seed(policy, environment, rounds)
    check_bad_input(policy, environment, rounds)
    check_saving(policy, environment, rounds)
    check_fast_path(policy, environment, rounds)
    if deterministic:
        check_permutation(policy, environment, rounds)


def _started(policy: Policy, environment: Environment, seed: int = 1) -> Policy:
    """A copy, started; the given policy stays as it is."""
    fresh = copy.deepcopy(policy)
    environment.start(seed)
    fresh.reveal(environment.labels, environment.vectors)
    fresh.start(environment.problem, environment.server_of, seed=seed)
    return fresh


def _play(policy: Policy, environment: Environment, rounds: int) -> Iterator[Step]:
    for _ in range(rounds):
        user, items = environment.visit()
        offer = np.array(items)
        try:
            index = policy.recommend(user, offer)
        except InvalidInput as error:
            raise AssertionError(str(error)) from None
        expect(np.array_equal(offer, items), "_recommend has changed the items")
        outcome = environment.feedback(index)
        policy.update(user, items[index], outcome.reward)
        yield user, items, index, outcome


def _choices(policy: Policy, environment: Environment, rounds: int) -> list[int]:
    return [index for _, _, index, _ in _play(policy, environment, rounds)]


def check_not_started(policy: Policy) -> None:
    """Used too early, a policy says so by name, and writes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.npz"
        early: dict[str, Callable[[], object]] = {
            "recommend": lambda: policy.recommend(0, [[0.0]]),
            "update": lambda: policy.update(0, [0.0], 0.0),
            "theta_": lambda: policy.theta_,
            "labels_": lambda: policy.labels_,
            "save": lambda: policy.save(path),
        }
        for name, use in early.items():
            try:
                use()
            except NotStarted:
                continue
            raise AssertionError(f"{policy.name} has {name} before it was started")
        expect(not path.exists(), f"{policy.name} was saved before it was started")


def check_parameters(policy: Policy) -> None:
    """Parameters are plain values, and handing them out does not hand out the policy."""
    parameters = policy.get_params()
    json.dumps(parameters)
    parameters["another"] = 1
    expect("another" not in policy.get_params(), "get_params hands out the policy's own dictionary")


def check_estimates(policy: Policy, environment: Environment, rounds: int) -> None:
    """`labels_` and `theta_` have one row per user at any time."""
    running, users, dim = (
        _started(policy, environment),
        environment.problem.users,
        environment.problem.dim,
    )
    for _ in (None, *_play(running, environment, rounds)):
        expect(running.labels_.shape == (users,), f"labels_ has shape {running.labels_.shape}")
        expect(np.issubdtype(running.labels_.dtype, np.integer), "labels_ are not whole numbers")
        expect(running.theta_.shape == (users, dim), f"theta_ has shape {running.theta_.shape}")
        expect(bool(np.all(np.isfinite(running.theta_))), "theta_ is not finite")
    expect(running.observations == rounds, f"{running.observations} observations in {rounds} rounds")


def check_same_seed(policy: Policy, environment: Environment, rounds: int) -> None:
    """One seed, one run."""
    first = _choices(_started(policy, environment), environment, rounds)
    second = _choices(_started(policy, environment), environment, rounds)
    expect(first == second, "the same seed gave other choices")


def check_permutation(policy: Policy, environment: Environment, rounds: int) -> None:
    """Permuting the items permutes the choice; asking again gives the same.

    Users of whom nothing is known yet are left out: for them all items may be equally good.
    """
    running, rng = _started(policy, environment), np.random.default_rng(0)
    for user, items, _, _ in _play(running, environment, rounds):
        order = rng.permutation(len(items))
        index = running.recommend(user, items)
        expect(running.recommend(user, items) == index, f"asking twice gave another item; {RANDOMISED}")
        if np.any(running.theta_[user]):
            again = order[running.recommend(user, items[order])]
            expect(bool(again == index), f"the order of the items matters; {RANDOMISED}")


def _snapshot(policy: Policy) -> tuple[dict[str, bytes], str]:
    arrays, values = policy.state()
    return {k: np.asarray(v).tobytes() for k, v in arrays.items()}, json.dumps(values, sort_keys=True)


def _bad_calls(policy: Policy, user: int, items: Matrix, x: Matrix) -> Iterator[Call]:
    """Every kind of bad value, and how it has to be refused."""
    for stranger in (-1, policy.problem.users, 10**9, "0", 0.5, True):
        yield UnknownUser, policy.recommend, (stranger, items)
        yield UnknownUser, policy.update, (stranger, x, 1.0)
    for bad in (
        2.0 * x + 2.0,
        np.append(x, 0.0),
        np.full_like(x, np.nan),
        np.full_like(x, np.inf),
        "a",
    ):
        yield InvalidFeatures, policy.recommend, (user, [bad])
        yield InvalidFeatures, policy.update, (user, bad, 1.0)
    yield EmptyItems, policy.recommend, (user, [])
    yield EmptyItems, policy.recommend, (user, items[:0])
    low, high = policy.problem.reward_range
    outside = [y for y in (low - 0.1, high + 0.1) if np.isfinite(y)]
    for reward in (*outside, np.nan, np.inf, "1"):
        yield InvalidReward, policy.update, (user, x, reward)


def check_bad_input(policy: Policy, environment: Environment, rounds: int) -> None:
    """Every bad value is refused by a name that carries it, and nothing has changed."""
    running = _started(policy, environment)
    user, items, index, _ = list(_play(running, environment, rounds))[-1]
    before = _snapshot(running)
    for error, call, arguments in _bad_calls(running, user, items, items[index]):
        try:
            call(*arguments)
        except error as refusal:
            expect(refusal.value is not None, f"{refusal!r} carries no value")
        else:
            raise AssertionError(f"{call.__name__}{arguments} was not refused as {error.__name__}")
    expect(_snapshot(running) == before, "refused input has changed the state")


def check_saving(policy: Policy, environment: Environment, rounds: int) -> None:
    """A saved policy continues identically; a damaged file is refused and left alone."""
    running = _started(policy, environment)
    _choices(running, environment, rounds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.npz"
        running.save(path)
        again = type(policy).load(path)
        damaged = path.read_bytes()[:-100]
        path.write_bytes(damaged)
        try:
            type(policy).load(path)
        except InvalidFile:
            expect(path.read_bytes() == damaged, "reading a damaged file has changed it")
        else:
            raise AssertionError("a truncated file was loaded")
    expect(_snapshot(again) == _snapshot(running), "loading gave another state")
    for user, items, index, outcome in _play(running, environment, rounds):
        expect(again.recommend(user, items) == index, "a loaded policy chooses otherwise")
        again.update(user, items[index], outcome.reward)
    expect(_snapshot(again) == _snapshot(running), "a loaded policy continues otherwise")


def check_fast_path(policy: Policy, environment: Environment, rounds: int) -> None:
    """Where both can be compiled, the compiled loop gives exactly what the readable one gives."""
    traces = [
        simulate(copy.deepcopy(policy), environment, rounds, seed=3, fast=fast, record_choices=True)
        for fast in (None, False)
    ]
    fast, slow = traces
    expect(np.array_equal(fast.choices, slow.choices), "the compiled loop chooses otherwise")
    expect(np.array_equal(fast.regret, slow.regret), "the compiled loop has another regret")
    expect(np.array_equal(fast.by_visit, slow.by_visit), "the compiled loop has other visits")
    expect(np.array_equal(fast.labels, slow.labels), "the compiled loop finds other clusters")
    for kind, counts in slow.communications.items():
        expect(np.array_equal(fast.communications[kind], counts), f"other {kind} when compiled")


def expect(condition: bool, message: str) -> None:
    """An assertion that `python -O` keeps."""
    if not condition:
        raise AssertionError(message)


class _Live:
    """Two live local servers of a family, which work in parts, and their global server."""

    def __init__(self, row: Constants, shape: Shape) -> None:
        family, self.rng = row.make_family(shape), np.random.default_rng(1)
        noise = NoNoise() if family.privacy is None else SeededNoise(self.rng)
        link, self.ledger = InProcessLink(family.decode), family.ledger(seeded=True)
        self.servers = {}
        for number in range(2):
            own = np.random.default_rng(number)
            place = Place(str(number), link.uplink(number), noise, self.ledger, own)
            self.servers[number] = family.local_server(place, family.users(0), live=True)
            self.servers[number].in_parts = True
        self.hub = family.global_server([0, 1], link)
        link.connect(self.hub, self.servers)

    def play(self, visits: list[Visit]) -> list[int]:
        """Rows are users; a user who has not come before is added."""
        shown = []
        for number, row, items, reward in visits:
            server = self.servers[number]
            while len(server.counts) <= row:
                server.add_user()
            shown.append(server.recommend(row, items))
            server.observe(row, items[shown[-1]], reward)
            self._work(server)
        return shown

    def _work(self, server: LocalServer) -> None:
        begin = server.due()
        if begin is not None:
            begin()
        for one in self.servers.values():
            while one.busy:
                one.part()()
        self.hub.advance(overdue=True)

    def state(self) -> dict[str, Any]:
        parts = {f"server{number}": one.state() for number, one in self.servers.items()}
        return {**parts, "hub": self.hub.state()}

    def restored(self, row: Constants, shape: Shape) -> _Live:
        """Another one that continues from a copy of this one's state."""
        again, saved = _Live(row, shape), copy.deepcopy(self.state())
        for number, server in again.servers.items():
            server.restore(*saved[f"server{number}"])
        again.hub.restore(*saved["hub"])
        again.rng.bit_generator.state = self.rng.bit_generator.state
        if again.ledger is not None and self.ledger is not None:
            again.ledger.restore(copy.deepcopy(self.ledger.events))
        return again


def check_family(row: Constants, environment: Environment | None = None, *, rounds: int = 120) -> None:
    """Run every check of a row of the table of families, or of a learner of your own.

    It is simulated as any policy. Live servers of it replay to the same bits, continue from what was
    saved, and forget and replace, or refuse to by name.

    >>> from fclub.checks import check_family
    >>> from fclub.protocol.families import FAMILIES
    >>> check_family(FAMILIES["homo-dc"](), rounds=50)
    """
    environment = environment or small_environment()
    policy = policy_of(type(row))(**row.get_params())
    check_policy(policy, environment, rounds=rounds)
    problem = environment.problem
    shape = Shape(problem.dim, problem.users, problem.constant, problem.users, 2)
    visits = _live_visits(environment, rounds)
    check_replay(row, shape, visits)
    check_continuing(row, shape, visits)
    check_forgetting(row, shape, visits)
    check_replacing(row, shape, visits)


def _live_visits(environment: Environment, rounds: int) -> list[Visit]:
    """Users by server and row; rewards that do not depend on what is shown."""
    rows: dict[int, tuple[int, int]] = {}
    rng, found = np.random.default_rng(2), []
    environment.start(1)
    for _ in range(rounds):
        user, items = environment.visit()
        environment.feedback(0)
        number = int(environment.server_of[user]) % 2
        if user not in rows:
            rows[user] = number, sum(server == number for server, _ in rows.values())
        found.append((*rows[user], np.asarray(items, dtype=np.float64), float(rng.integers(2))))
    return found


def _expect_same(first: _Live, second: _Live, what: str) -> None:
    """Bit by bit, whatever is in the states."""
    try:
        np.testing.assert_equal(first.state(), second.state())
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def check_replay(row: Constants, shape: Shape, visits: list[Visit]) -> None:
    """The same visits give the same bits, as when a log is replayed."""
    first, second = _Live(row, shape), _Live(row, shape)
    expect(first.play(visits) == second.play(visits), "the same visits were shown other items")
    _expect_same(first, second, "the same visits gave another state")


def check_continuing(row: Constants, shape: Shape, visits: list[Visit]) -> None:
    """Servers that were saved and restored halfway continue identically."""
    half, first = len(visits) // 2, _Live(row, shape)
    first.play(visits[:half])
    second = first.restored(row, shape)
    _expect_same(first, second, "restoring gave another state")
    expect(first.play(visits[half:]) == second.play(visits[half:]), "restored servers choose otherwise")
    _expect_same(first, second, "restored servers continue otherwise")


def check_forgetting(row: Constants, shape: Shape, visits: list[Visit]) -> None:
    """A forgotten user leaves an empty row and the others as they were; or it is refused by name."""
    live = _Live(row, shape)
    live.play(visits)
    server, before = live.servers[visits[0][0]], copy.deepcopy(live.state())
    user, others = visits[0][1], range(len(live.servers[visits[0][0]].counts))
    stored = {one: server.stored(one) for one in others if one != user}
    try:
        server.forget(user)
    except CannotForget:
        np.testing.assert_equal(live.state(), before, "a refusal to forget has changed the state")
        return
    left, reason = server.stored(user), "forgetting has changed what is known of others"
    empty = left.count == 0 and not left.gram.any() and not left.moment.any()
    expect(empty and int(server.counts[user]) == 0, "something is left of a forgotten user")
    for one, known in stored.items():
        np.testing.assert_equal(server.stored(one).gram, known.gram, reason)
        np.testing.assert_equal(server.stored(one).moment, known.moment, reason)
    live.play([visit for visit in visits if visit[:2] != (visits[0][0], user)])


def check_replacing(row: Constants, shape: Shape, visits: list[Visit]) -> None:
    """A reward that takes the place of another counts as if it had come first; or it is refused."""
    number, user, items, _ = visits[0]
    changed, right = _Live(row, shape), _Live(row, shape)
    for live, reward in ((changed, 0.0), (right, 1.0)):
        while len(live.servers[number].counts) <= user:
            live.servers[number].add_user()
        live.servers[number].observe(user, items[0], reward)
    before = copy.deepcopy(changed.state())
    try:
        changed.servers[number].replace(user, items[0], 0.0, 1.0)
    except CannotReplace:
        np.testing.assert_equal(changed.state(), before, "a refusal to replace has changed the state")
        return
    one, other = (live.servers[number].stored(user) for live in (changed, right))
    expect(one.count == other.count, "replacing a reward has changed how many there are")
    np.testing.assert_allclose(one.moment, other.moment, atol=1e-9, err_msg="a replaced reward counts")
    np.testing.assert_allclose(one.gram, other.gram, atol=1e-9, err_msg="a replaced reward counts")


def check_environment(environment: Environment, *, visits: int = 100) -> None:
    """Run every check of an environment.

    >>> import fclub
    >>> fclub.checks.check_environment(fclub.make_environment("synthetic", users=6, servers=2))
    """
    environment = instance_of(environment, Environment)  # type: ignore[type-abstract]
    environment.expect_rounds(visits)
    check_description(environment)
    check_visits(environment, visits)
    check_same_visits(environment, visits)


def check_description(environment: Environment) -> None:
    """The problem, the placement of users and their true clusters fit together."""
    environment.start(0)
    problem, users = environment.problem, environment.problem.users
    expect(bool(environment.name), "an environment needs a name")
    json.dumps(environment.get_params())
    expect(environment.server_of.shape == (users,), "server_of needs one server per user")
    expect(environment.labels.shape == (users,), "labels needs one cluster per user")
    expect(set(environment.server_of) <= set(range(problem.servers)), "server_of names unknown servers")


def check_visits(environment: Environment, visits: int) -> None:
    """Users exist, items are valid, rewards are in their range, nothing beats the best item."""
    environment.start(1)
    for turn in range(visits):
        user, items = environment.visit()
        expect(0 <= user < environment.problem.users, f"user {user} does not exist")
        as_items(items, environment.problem.dim)
        if environment.problem.constant is not None:
            expect(np.allclose(items[:, -1], environment.problem.constant), "constant feature varies")
        outcome = as_outcome(environment.feedback(turn % len(items)), environment.name)
        low, high = environment.problem.reward_range
        inside = bool(np.isfinite(outcome.reward)) and low <= outcome.reward <= high
        expect(inside, f"reward {outcome.reward} is outside [{low:g}, {high:g}]")
        expect(-1e-12 <= outcome.regret < np.inf, f"regret {outcome.regret} makes no sense")


def check_same_visits(environment: Environment, visits: int) -> None:
    """One seed gives one sequence of users and items, whatever is chosen; another gives another."""
    sequences = [_visits(environment, seed, visits, last) for seed, last in ((1, 0), (1, 1), (2, 0))]
    expect(sequences[0] == sequences[1], "the visits depend on the choices")
    expect(sequences[0] != sequences[2], "another seed gave the same visits")


def _visits(environment: Environment, seed: int, visits: int, last: int) -> list[tuple[int, bytes]]:
    environment.start(seed)
    seen = []
    for _ in range(visits):
        user, items = environment.visit()
        environment.feedback(len(items) - 1 if last else 0)
        seen.append((int(user), np.asarray(items).tobytes()))
    return seen
