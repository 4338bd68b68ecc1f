"""`simulate`: any policy in any environment, round by round or in compiled blocks, same result.

The compiled loop calls the same kernels as the readable one, without leaving compiled code. It is
written once and compiled once for every kind of packed state with its kernels. Both note how good it is
for a new user: the mean regret of users' first, second, … fiftieth visit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import require
from fclub.core.clustering import adjusted_rand_index
from fclub.core.compiling import DirectCall, borrowed, compiled, for_types, is_ours
from fclub.core.inputs import as_index, as_read_only
from fclub.core.kernels import set_vector
from fclub.core.types import Flags, Floats, Indices, Matrix, Vector
from fclub.environments.base import Environment, as_outcome
from fclub.environments.registry import as_environment
from fclub.environments.world import World, draw_items, draw_reward, draw_user, regret_of
from fclub.policies.base import Policy
from fclub.policies.registry import as_policy
from fclub.protocol.interfaces.family import Kernels
from fclub.simulation.trace import CLUSTERS, COUNTERS, Trace, checkpoints

Progress = Callable[[int], None]

MOST = 50
"""Later visits are not told apart."""

EVERYBODY, NEWCOMERS = 0, 1


class Tally(NamedTuple):
    """Visits of each user so far; regret and number of k-th visits, of everybody and of newcomers."""

    visits: Indices
    is_newcomer: Flags
    regret: Floats
    counts: Indices

    @staticmethod
    def start(is_newcomer: Flags) -> Tally:
        users = len(is_newcomer)
        counts = np.zeros((2, MOST), dtype=np.int64)
        return Tally(np.zeros(users, dtype=np.int64), is_newcomer, np.zeros((2, MOST)), counts)


@compiled
def note(tally: Tally, user: int, regret: float) -> None:
    """One more visit of this user."""
    k = tally.visits[user]
    tally.visits[user] = k + 1
    if k < MOST:
        tally.regret[EVERYBODY, k] += regret
        tally.counts[EVERYBODY, k] += 1
        if tally.is_newcomer[user]:
            tally.regret[NEWCOMERS, k] += regret
            tally.counts[NEWCOMERS, k] += 1


class Late(NamedTuple):
    """Observations whose rewards are not known yet: a ring of as many as there are visits of delay.

    `user`, `x` and `reward` are the observation that has just become known.
    """

    users: Indices
    features: Matrix
    rewards: Floats
    played: Indices
    user: Indices
    x: Vector
    reward: Floats

    @staticmethod
    def start(delay: int, dim: int) -> Late:
        counts = [np.zeros(size, dtype=np.int64) for size in (delay, 1, 1)]
        rows = np.zeros((delay, dim)), np.zeros(delay)
        return Late(counts[0], *rows, counts[1], counts[2], np.zeros(dim), np.zeros(1))


@compiled
def arrived(late: Late, user: int, x: Vector, y: float) -> bool:
    """Put an observation in; whether one has come out."""
    delay = late.users.shape[0]
    if delay == 0:
        late.user[0], late.reward[0] = user, y
        set_vector(late.x, x)
        return True
    slot, known = late.played[0] % delay, late.played[0] >= delay
    late.user[0], late.reward[0] = late.users[slot], late.rewards[slot]
    set_vector(late.x, late.features[slot])
    late.users[slot], late.rewards[slot] = user, y
    set_vector(late.features[slot], x)
    late.played[0] += 1
    return bool(known)


def means(tally: Tally, group: int) -> Floats:
    """The mean regret of the group's 1st, 2nd, … visit, up to the last that anybody made."""
    made = int(np.count_nonzero(tally.counts[group]))
    averages: Floats = tally.regret[group, :made] / tally.counts[group, :made]
    return averages


def _play(
    state: Any,
    world: World,
    items: Matrix,
    rounds: int,
    totals: Floats,
    tally: Tally,
    late: Late,
    choices: Indices,
) -> int:
    """Play rounds; add regret and reward to `totals`; note choices if there is room for them.

    It ends with a recommendation that is no index of an item, and returns that; else 0.
    """
    state, world, items, tally = borrowed(state), borrowed(world), borrowed(items), borrowed(tally)
    late = borrowed(late)
    for t in range(rounds):
        user = draw_user(world)
        draw_items(world, user, items)
        index: int = recommend(state, user, items)  # type: ignore[name-defined]  # noqa: F821
        if index < 0 or index >= items.shape[0]:
            return index
        regret = regret_of(world, user, items, index)
        totals[0] += regret
        note(tally, user, regret)
        y = draw_reward(world, user, items, index)
        totals[1] += y
        if arrived(late, user, items[index], y):
            feedback(  # type: ignore[name-defined]  # noqa: F821
                state, late.user[0], late.x, late.reward[0]
            )
        if choices.shape[0] > 0:
            choices[t] = index
    return 0


@cache
def _specialise(kernels: Kernels) -> Any:
    """`_play` compiled with these two kernels in place of the names that it leaves open.

    They are put in as globals: kernels in a closure would defeat numba's cache on disk, and
    kernels as arguments too. A loop with a kernel of one's own belongs to the module of that.
    """
    names = {**globals(), "recommend": kernels[0], "feedback": kernels[1]}
    loop = FunctionType(_play.__code__, names)
    homes = [kernel.__module__ for kernel in kernels]
    loop.__module__ = next((home for home in homes if not is_ours(home)), __name__)
    return compiled(loop)


def loop_for(kernels: Kernels, *arguments: Any) -> Any:
    """The loop with these kernels, compiled for arguments of these types.

    Called as it is, numba would work out the types of all arrays at every call, which takes longer
    than the first few hundred rounds.
    """
    return for_types(_specialise(kernels), *arguments)


class _Readable:
    """Plays rounds one at a time through the public methods."""

    def __init__(self, policy: Policy, environment: Environment, choices: Indices) -> None:
        self.policy, self.environment, self.choices = policy, environment, choices
        self.tally, self._note = Tally.start(environment.is_newcomer), DirectCall(note)
        self._late: deque[tuple[int, Matrix, float]] = deque()
        self._plain = policy.compiled is None

    def play(self, start: int, stop: int, totals: Floats) -> None:
        for t in range(start, stop):
            user, items = self.environment.visit()
            items = as_read_only(items) if self._plain else items
            index = self.policy.recommend(user, items)
            outcome = as_outcome(self.environment.feedback(index), self.environment.name)
            totals += (outcome.regret, outcome.reward)
            self._note(self.tally, user, outcome.regret)
            self._late.append((user, items[index], outcome.reward))
            if len(self._late) > self.environment.delay:
                self.policy.update(*self._late.popleft())
            if len(self.choices):
                self.choices[t] = index

    def finish(self) -> None:
        """There is nothing to take back: the policy holds everything."""


class _Compiled:
    """Rounds in compiled blocks that end where the policy has something to do between rounds."""

    def __init__(self, policy: Policy, environment: Environment, choices: Indices) -> None:
        assert policy.compiled is not None
        self._compiled = policy.compiled
        self.policy, self.choices, self.delay = policy, choices, environment.delay
        self.tally = Tally.start(environment.is_newcomer)
        self.late = Late.start(environment.delay, environment.problem.dim)
        self.world: Any = environment.pack()
        self.items = np.empty((environment.items, environment.problem.dim))  # type: ignore[attr-defined]
        self._pack()

    def _pack(self) -> None:
        """Take the policy's arrays over and look up the loop for their types, once for many blocks."""

        self.state: Any = self._compiled.pack()
        told = np.zeros(2), self.tally, self.late, self.choices
        self._play = loop_for(self._compiled.kernels, self.state, self.world, self.items, 0, *told)

    def _run(self, start: int, stop: int, totals: Floats) -> None:
        told = totals, self.tally, self.late, self.choices[start:stop]
        last = self._play(self.state, self.world, self.items, stop - start, *told)
        as_index(last, len(self.items), self.policy.name)

    def play(self, start: int, stop: int, totals: Floats) -> None:
        while start < stop:
            limit = self.policy.next_stop
            end = stop if limit is None else min(stop, limit + self.delay)
            self._run(start, end, totals)
            self.policy.observations = max(0, end - self.delay)
            self._compiled.count_events(self.state)
            if self.policy.observations == limit:
                self.finish()
                self.policy.after_round()
                self._pack()
            start = end

    def finish(self) -> None:
        self._compiled.unpack(self.state)


def simulate(
    policy: Policy | str,
    environment: Environment | str,
    rounds: int,
    seed: int = 0,
    *,
    fast: bool | None = None,
    record_choices: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Play `rounds` visits and return the curves.

    A class of your own is given as an object or by reference (`"mine.py:Mine"`). One root seed: the
    environment's streams come from one child, the policy's noise and graphs from another. `fast` forces
    or forbids the compiled loop; by default it is used where it can be.

    >>> import fclub
    >>> one = fclub.simulate("fclub-plus", "synthetic", rounds=300, seed=1)
    >>> one == fclub.simulate("fclub-plus", "synthetic", rounds=300, seed=1, fast=False)
    True
    """
    require(isinstance(rounds, int), "rounds must be a whole number", rounds)
    require(rounds >= 1, "rounds must be at least 1", rounds)
    require(isinstance(seed, int) and seed >= 0, "seed must be a whole number from 0", seed)
    policy, environment = as_policy(policy), as_environment(environment)
    world_seed, policy_seed = SeedSequence(seed).spawn(2)
    environment.expect_rounds(rounds)
    environment.start(world_seed)
    policy.reveal(environment.labels, environment.vectors)
    policy.start(environment.problem, environment.server_of, seed=policy_seed)
    possible = policy.compiled is not None and environment.pack() is not None
    require(possible or not fast, "the compiled loop cannot play this", (policy, environment.name))
    choices = np.zeros(rounds if record_choices else 0, dtype=np.int64)
    use = possible if fast is None else fast
    player = (_Compiled if use else _Readable)(policy, environment, choices)
    return _record(policy, environment, player, rounds, seed, progress)


class _Agreement:
    """Number of clusters found, true number and agreement; worked out again when labels change."""

    def __init__(self, true: Indices) -> None:
        self._true, self._number = true.copy(), len(np.unique(true))
        self._last: Indices = np.zeros(0, dtype=np.int64)
        self._values: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def of(self, labels: Indices) -> tuple[float, float, float]:
        users, shape = len(self._true), np.shape(labels)
        require(shape == (users,), f"labels_ must be {users} whole numbers, one per user", shape)
        if not np.array_equal(labels, self._last):
            ari = adjusted_rand_index(labels, self._true)
            self._last, self._values = labels, (len(np.unique(labels)), self._number, ari)
        return self._values


def _record(
    policy: Policy,
    environment: Environment,
    player: _Readable | _Compiled,
    rounds: int,
    seed: int,
    progress: Progress | None,
) -> Trace:
    times = checkpoints(rounds)
    curves = np.zeros((len(times), 2))
    counters = np.zeros((len(times), len(COUNTERS)), dtype=np.int64)
    known = CLUSTERS if environment.knows_clusters else CLUSTERS[:1]
    clusters = np.zeros((len(times), len(known)))
    agreement = _Agreement(environment.labels)
    totals, start, before = np.zeros(2), 0, time.process_time()
    for row, stop in enumerate(times):
        player.play(start, int(stop), totals)
        curves[row] = totals
        sent = policy.communications.as_dict()
        counters[row] = [sent[kind] for kind in COUNTERS]
        clusters[row] = agreement.of(policy.labels_)[: len(known)]
        if progress is not None:
            progress(int(stop) - start)
        start = int(stop)
    player.finish()
    seconds = time.process_time() - before
    return Trace(
        policy=policy.name,
        environment=environment.name,
        seed=seed,
        t=times,
        regret=curves[:, 0],
        reward=curves[:, 1],
        communications=dict(zip(COUNTERS, counters.T.copy(), strict=True)),
        clusters=dict(zip(known, clusters.T.copy(), strict=True)),
        labels=policy.labels_,
        by_visit=means(player.tally, EVERYBODY),
        newcomers_by_visit=means(player.tally, NEWCOMERS),
        microseconds_per_round=1e6 * seconds / rounds,
        settings={
            "policy": policy.get_params(),
            "environment": environment.get_params(),
            "privacy": policy.privacy_report(),
        },
        choices=player.choices,
    )
