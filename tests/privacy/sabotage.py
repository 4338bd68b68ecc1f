"""Mechanisms broken on purpose, each in one way; the audit has to notice every one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fclub.core.lattice import STEP
from fclub.privacy.audit import Data
from fclub.privacy.mechanisms import Increments
from fclub.privacy.noise import NoiseSource
from fclub.privacy.sensitivity import released_places
from fclub.privacy.targets import StreamTarget, noise_like, send_increments

Array = NDArray[np.float64]
Steps = NDArray[np.int64]

DIM = 3


def in_moment() -> NDArray[np.bool_]:
    return released_places(DIM)[1] == DIM


def on_diagonal() -> NDArray[np.bool_]:
    rows, columns = released_places(DIM)
    return rows == columns


def no_noise(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """Nothing is added."""
    return np.cumsum(increments, axis=1).astype(np.float64)


def gram_without_noise(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    return send_increments(increments, source, deviations * in_moment())


def fresh_noise_on_resent_data(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """Every release is the cumulative sum again, with noise that is fresh each time."""
    sent = np.cumsum(increments, axis=1) + noise_like(increments, source, deviations)
    return np.cumsum(sent, axis=1).astype(np.float64)


def variance_as_deviation(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    return send_increments(increments, source, (deviations * STEP) ** 2 / STEP)


def deviation_as_variance(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    return send_increments(increments, source, np.sqrt(deviations * STEP) / STEP)


def halved_symmetrisation(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """(N + Nᵀ)/2 has half the variance."""
    return send_increments(increments, source, deviations / np.sqrt(2.0))


def mirrored_triangle(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """The upper triangle copied down: the diagonal has half the variance it should have."""
    quiet = np.where(on_diagonal(), deviations / np.sqrt(2.0), deviations)
    return send_increments(increments, source, quiet)


def moment_noise_from_gram(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """The first row of the Gram matrix where the moment is meant."""
    sent = send_increments(increments, source, deviations)
    exact = np.cumsum(increments, axis=1)
    first = np.flatnonzero((released_places(DIM)[0] == 0) & ~in_moment())
    sent[..., in_moment()] = exact[..., in_moment()] + (sent - exact)[..., first]
    return sent


def decoder_missing(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """Prefix sums under the independent z instead of under B z."""
    noise = noise_like(increments, source, deviations)
    return (np.cumsum(increments, axis=1) + noise).astype(np.float64)


def encoder_missing(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """Increments under independent z of the deviation of a single release."""
    releases = increments.shape[1]
    column = Increments(releases, 1.0).multiplier(releases)
    noise = noise_like(increments, source, deviations / column)
    return np.cumsum(increments + noise, axis=1).astype(np.float64)


def wrong_sensitivity(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """Calibrated as if an observation could move the statistics half as far."""
    return send_increments(increments, source, deviations / 2.0)


def doubles_instead_of_integers(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """Noise with bits below a step."""
    noise = noise_like(increments, source, deviations)
    rest = noise_like(increments, source, np.where(deviations > 0.0, 1e6, 0.0)) / 2.0**22
    factor = Increments(increments.shape[1], 1.0).factor(increments.shape[1])
    decoded = np.einsum("tj,njp->ntp", factor, noise + rest)
    return np.cumsum(increments, axis=1) + decoded


def scale_by_data(increments: Steps, source: NoiseSource, deviations: Array) -> Array:
    """A twentieth more noise where the first reward is high, a twentieth less where it is not."""
    rewarded = increments[0, 0, in_moment()][0] > 0
    return send_increments(increments, source, deviations * (1.05 if rewarded else 0.95))


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


SENDERS: list[Callable[[Steps, NoiseSource, Array], Array]] = [
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
    doubles_instead_of_integers,
    scale_by_data,
]


def sabotages(honest: StreamTarget) -> dict[str, StreamTarget]:
    """An honest target broken in every way."""
    broken = {send.__name__: replace(honest, send=send) for send in SENDERS}
    return broken | {cut.__name__: replace(honest, cut=cut) for cut in (raw_trigger, extra_release)}
