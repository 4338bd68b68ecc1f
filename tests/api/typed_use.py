"""A file as users write it: `mypy --strict` must find nothing in it, and know every type."""

from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import fclub
from fclub.client import Recommendation


def simulated() -> fclub.Trace:
    environment = fclub.make_environment("synthetic", users=20, servers=2)
    policy = fclub.make_policy("linucb", ridge=0.5)
    trace = fclub.simulate(policy, environment, rounds=1000, seed=1)
    assert_type(environment, fclub.Environment)
    assert_type(policy, fclub.Policy)
    assert_type(trace.regret, NDArray[np.float64])
    assert_type(trace.communications, dict[str, NDArray[np.int64]])
    return trace


def compared() -> fclub.Comparison:
    private = fclub.CdpFclubPlus(epsilon=1.0, delta=1e-5, level="transcript")
    assert_type(private.epsilon, float)
    result = fclub.compare([private, fclub.LinUCB(ridge=0.5), "homo"], "synthetic", 1000, seeds=3)
    assert_type(result.traces["homo"], list[fclub.Trace])
    return result


def kept(policy: fclub.Policy, path: Path) -> fclub.Policy:
    policy.start(fclub.Problem(users=4, servers=2, dim=3), [0, 0, 1, 1], seed=1)
    assert_type(policy.recommend(0, np.eye(3)), int)
    policy.update(0, np.eye(3)[1], 1.0)
    policy.save(path)
    return fclub.Policy.load(path)


def asked(url: str, token: str) -> None:
    client = fclub.Client(url, token)
    try:
        shown = client.recommend("ann", {"a": [1.0, 0.0], "b": [0.0, 1.0]})
        assert_type(shown, Recommendation)
        assert_type(client.feedback(shown.decision, 1.0), bool)
        told = client.feedback_batch({shown.decision: 1.0})
        assert_type(told, dict[str, bool | fclub.errors.RequestFailed])
    except fclub.errors.RequestFailed as error:
        print(error.status)
    finally:
        client.close()


def checked(policy: fclub.Policy, environment: fclub.Environment) -> None:
    fclub.checks.check_policy(policy, environment, rounds=50)
    fclub.checks.check_environment(environment)
