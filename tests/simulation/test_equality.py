"""The compiled loop gives exactly what the readable loop gives, for every registered policy."""

import numpy as np
import pytest

import fclub
from fclub.policies.registry import POLICIES


@pytest.mark.parametrize("placement", ["blocks", "spread"])
@pytest.mark.parametrize("name", POLICIES)
def test_fast_equals_readable(name: str, placement: str) -> None:
    environment = fclub.make_environment("synthetic", placement=placement)
    fast = fclub.simulate(name, environment, 700, seed=3, fast=True, record_choices=True)
    slow = fclub.simulate(name, environment, 700, seed=3, fast=False, record_choices=True)
    np.testing.assert_array_equal(fast.choices, slow.choices)
    np.testing.assert_array_equal(fast.regret, slow.regret)
    np.testing.assert_array_equal(fast.by_visit, slow.by_visit)
    np.testing.assert_array_equal(fast.labels, slow.labels)
    for kind, counts in slow.communications.items():
        np.testing.assert_array_equal(fast.communications[kind], counts)
