"""Noise sources are normal, independent, and say whether they can be replayed."""

import os
import sys

import numpy as np
import pytest
from scipy.stats import kstest

from fclub.errors import ExtraMissing, PrivacyError
from fclub.privacy.noise import (
    DiscreteNoise,
    NoiseSource,
    NoNoise,
    SecureNoise,
    SeededNoise,
    require_secure,
)


def discrete() -> NoiseSource:
    pytest.importorskip("opendp", reason="the extra opendp is not installed")
    return DiscreteNoise()


def sources() -> dict[str, object]:
    return {
        "seeded": lambda: SeededNoise(np.random.default_rng(5)),
        "secure": SecureNoise,
        "discrete": discrete,
    }


@pytest.mark.parametrize("name", sources())
def test_standard_normal(name: str) -> None:
    source: NoiseSource = sources()[name]()  # type: ignore[operator]
    draws = np.array([source.gaussian(10) for _ in range(100)])
    assert draws.shape == (100, 10, 10)
    assert kstest(draws.ravel(), "norm").pvalue > 1e-6
    lagged = np.corrcoef(draws.ravel()[1:], draws.ravel()[:-1])[0, 1]
    assert abs(lagged) < 5 / np.sqrt(draws.size)


def test_only_the_seeded_source_repeats() -> None:
    first, second = (SeededNoise(np.random.default_rng(1)).gaussian(4) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(SecureNoise().gaussian(4), SecureNoise().gaussian(4))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_extreme_entropy_gives_finite_noise(byte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: byte * size)
    draw = SecureNoise().gaussian(2)
    assert np.all(np.isfinite(draw))
    assert np.all(np.abs(draw) > 16.0)


def test_without_opendp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ExtraMissing, match=r"fclub\[opendp\]"):
        DiscreteNoise()


def test_no_noise_draws_nothing() -> None:
    assert NoNoise().gaussian(4).size == 0


def test_a_deployment_needs_a_secure_source() -> None:
    require_secure(SecureNoise())
    with pytest.raises(PrivacyError, match="seed"):
        require_secure(SeededNoise(np.random.default_rng()))
    with pytest.raises(PrivacyError, match="without noise"):
        require_secure(NoNoise())


def test_the_discrete_source_may_be_deployed() -> None:
    require_secure(discrete())
