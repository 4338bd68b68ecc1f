"""Mechanisms broken on purpose, each in one way; the audit has to notice every one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fclub.core.noise import root_weights
from fclub.privacy.audit import Data
from fclub.privacy.targets import StreamTarget, add_growth, send_increments

Array = NDArray[np.float64]


def symmetric(draws: Array) -> Array:
    return (draws + draws.swapaxes(-1, -2)) / np.sqrt(2.0)


def no_noise(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """Nothing is added."""


def gram_without_noise(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    send_increments(gram.copy(), moment, draws, deviations)


def fresh_noise_on_resent_data(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """Every release is the cumulative sum again, with noise that is fresh each time."""
    gram[:], moment[:] = np.cumsum(gram, axis=1), np.cumsum(moment, axis=1)
    add_growth(gram, moment, np.cumsum(deviations * symmetric(draws), axis=1))


def variance_as_deviation(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    send_increments(gram, moment, draws, deviations**2)


def deviation_as_variance(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    send_increments(gram, moment, draws, np.sqrt(deviations))


def halved_symmetrisation(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """(N + Nᵀ)/2 has half the variance."""
    send_increments(gram, moment, draws / np.sqrt(2.0), deviations)


def mirrored_triangle(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """The upper triangle copied down: the diagonal has half the variance it should have."""
    upper = np.triu(draws)
    mirrored = upper + np.triu(draws, 1).swapaxes(-1, -2)
    send_increments(gram, moment, mirrored / np.sqrt(2.0), deviations)


def moment_noise_from_gram(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """Column d−1 where column d is meant."""
    exact = gram.copy()
    send_increments(gram, moment.copy(), draws, deviations)
    moment += (gram - exact)[..., 0]


def decoder_missing(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """Prefix sums under the independent z instead of under B z."""
    add_growth(gram, moment, deviations * symmetric(draws))


def encoder_missing(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """Increments under independent z of the deviation of a single release."""
    column = np.linalg.norm(root_weights(draws.shape[1]))
    add_growth(gram, moment, np.cumsum(deviations / column * symmetric(draws), axis=1))


def wrong_sensitivity(gram: Array, moment: Array, draws: Array, deviations: Array) -> None:
    """Calibrated as if an observation could move the statistics half as far."""
    send_increments(gram, moment, draws, deviations / 2.0)


def raw_trigger(data: Data, schedule: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first release waits until the exact Gram matrix has grown enough, as in Eq. 5."""
    gram = np.eye(data.features.shape[1])
    counts = schedule.copy()
    for count, x in enumerate(data.features[: schedule[1]], start=1):
        gram += x[:, None] * x
        if np.linalg.slogdet(gram)[1] > np.log(3.5):
            counts[0] = count
            break
    return counts


def extra_release(data: Data, schedule: NDArray[np.int64]) -> NDArray[np.int64]:
    """One more message than was accounted for, when the first reward is high."""
    return np.append(schedule, schedule[-1]) if data.rewards[0] == data.rewards.max() else schedule


SENDERS: list[Callable[[Array, Array, Array, Array], None]] = [
    no_noise,
    gram_without_noise,
    fresh_noise_on_resent_data,
    variance_as_deviation,
    deviation_as_variance,
    halved_symmetrisation,
    mirrored_triangle,
    moment_noise_from_gram,
    decoder_missing,
    encoder_missing,
    wrong_sensitivity,
]


def sabotages(honest: StreamTarget) -> dict[str, StreamTarget]:
    """An honest target broken in every way."""
    broken = {send.__name__: replace(honest, send=send) for send in SENDERS}
    return broken | {cut.__name__: replace(honest, cut=cut) for cut in (raw_trigger, extra_release)}
