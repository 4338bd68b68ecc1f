"""Borrowed arrays are the same arrays, and nothing is freed too early or kept too long."""

import sys
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core import config as numba_config

from fclub.core.compiling import borrowed, for_types

CONFIG: Any = numba_config


class Inner(NamedTuple):
    matrix: np.ndarray
    vector: np.ndarray


class Outer(NamedTuple):
    inner: Inner
    scale: float
    rng: np.random.Generator


def add_draws(state, rounds):
    state = borrowed(state)
    for _ in range(rounds):
        part = state.inner
        row = part.matrix[1]
        row += state.scale * state.rng.random()
        part.vector[0] += row[0]


def make() -> Outer:
    return Outer(Inner(np.zeros((2, 3)), np.zeros(2)), 2.0, np.random.default_rng(3))


@pytest.mark.skipif(CONFIG.DISABLE_JIT, reason="nothing is compiled")
def test_a_borrowed_state_is_the_callers() -> None:
    compiled, plain = make(), make()
    arrays = (*compiled.inner, compiled.rng)
    before = [sys.getrefcount(array) for array in arrays]
    kernel = for_types(numba.njit(add_draws), compiled, 0)
    for _ in range(100):
        kernel(compiled, 10)
        add_draws.__globals__["borrowed"] = lambda state: state
        try:
            add_draws(plain, 10)
        finally:
            add_draws.__globals__["borrowed"] = borrowed
    assert [sys.getrefcount(array) for array in arrays] == before
    np.testing.assert_array_equal(compiled.inner.matrix, plain.inner.matrix)
    np.testing.assert_array_equal(compiled.inner.vector, plain.inner.vector)
    assert compiled.rng.random() == plain.rng.random()


@pytest.mark.skipif(not CONFIG.DISABLE_JIT, reason="kernels are compiled")
def test_without_a_compiler_it_is_the_value_itself() -> None:
    state = make()
    assert borrowed(state) is state
    assert for_types(add_draws, state, 0) is add_draws
