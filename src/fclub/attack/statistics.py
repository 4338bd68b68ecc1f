"""What an attacker computes from many transcripts of two neighbours, and where it has to lie.

Each test of a mechanism that keeps its claim fails with a chance of at most `RISK`.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np
from scipy.special import bdtr, bdtrc, chdtri, ndtr, ndtri

from fclub.core.types import Floats, Matrix, Vector
from fclub.privacy.audit import Interval, linear_discriminant, mu_lower_bound

RISK = 1e-6
"""An audit of everything makes a few hundred tests."""


def _chi_square(freedom: int, tests: int = 1) -> tuple[float, float]:
    """Where the mean of so many squared normal numbers lies, for each of several tests."""
    risk = RISK / (2.0 * tests)
    return float(chdtri(freedom, 1.0 - risk)) / freedom, float(chdtri(freedom, risk)) / freedom


def variance(noise: Matrix, freedom: int) -> Interval:
    """Mean square of all numbers: a wrong scale moves it."""
    p = noise.shape[1]
    return Interval(float((noise**2).sum() / (freedom * p)), *_chi_square(freedom * p))


def variance_ratio(first: Matrix, second: Matrix, freedom: int) -> Interval:
    """Mean squares of both sides: noise must not be larger where the data are others."""
    p = first.shape[1]
    slack = -float(ndtri(RISK / 2.0)) * sqrt(4.0 / (freedom * p))
    squares = [float((side**2).sum()) for side in (first, second)]
    ratio = squares[0] / squares[1] if squares[1] else inf
    return Interval(ratio, exp(-slack), exp(slack))


def extreme_variances(noise: Floats, axis: int) -> tuple[Interval, Interval]:
    """Of the quietest and of the loudest along an axis: one entry, or release, may be out of scale."""
    rest = tuple(other for other in range(noise.ndim) if other != axis)
    squares = (noise**2).mean(axis=rest)
    limits = _chi_square(noise.size // len(squares), 2 * len(squares))
    return Interval(float(squares.min()), *limits), Interval(float(squares.max()), *limits)


def largest_correlation(noise: Matrix) -> Interval:
    """Of any two numbers: of two users, two types, two releases, two entries; shared noise has 1.

    Compared are inverse hyperbolic tangents, which are nearly normal. A number that is always 0 is
    noticed by its variance.
    """
    n, p = noise.shape
    norms = np.sqrt((noise**2).sum(axis=0))
    scaled = noise / np.where(norms > 0.0, norms, 1.0)
    correlations = np.abs(np.triu(scaled.T @ scaled, 1))
    limit = -float(ndtri(RISK / max(1, p * (p - 1)))) / sqrt(n - 4)
    return Interval(float(np.arctanh(min(correlations.max(), 1.0 - 1e-12))), 0.0, limit)


def at_a_distance(noise: Matrix) -> Interval:
    """Of numbers that are equally far from each other in what is sent: neighbours may share a part.

    Over half of all numbers at least, so that a little in each of many pairs is enough.
    """
    n, p = noise.shape
    most = max(1, p // 2)
    found = [
        abs(float((noise[:, :-k] * noise[:, k:]).sum())) / _length(noise[:, :-k], noise[:, k:])
        for k in range(1, most + 1)
    ]
    limit = -float(ndtri(RISK / (2.0 * most))) / sqrt(n * (p - most) - 4)
    return Interval(float(np.arctanh(min(max(found), 1.0 - 1e-12))), 0.0, limit)


def _length(first: Matrix, second: Matrix) -> float:
    return sqrt(float((first**2).sum()) * float((second**2).sum())) or 1.0


def same_bytes(runs: list[bytes]) -> int:
    """Places at which all runs have the same byte: chance does that in none of so many."""
    return sum(len(set(place)) == 1 for place in zip(*runs, strict=False))


def largest_mean(noise: Matrix) -> Interval:
    """Noise is centred at what was to be released."""
    n, p = noise.shape
    value = float(np.abs(noise.mean(axis=0)).max()) * sqrt(n)
    return Interval(value, 0.0, -float(ndtri(RISK / (2.0 * p))))


def eigenvalues(noise: Matrix, freedom: int) -> tuple[Interval, Interval]:
    """Of the covariance: within (1 ± (√(p/n) + t/√n))², t by the risk."""
    p = noise.shape[1]
    found = np.linalg.eigvalsh(noise.T @ noise / freedom)
    slack = sqrt(p / freedom) + sqrt(2.0 * log(2.0 / RISK) / freedom)
    limits = max(0.0, 1.0 - slack) ** 2, (1.0 + slack) ** 2
    return Interval(max(0.0, float(found[0])), *limits), Interval(float(found[-1]), *limits)


def tails(noise: Matrix, deviations: float) -> Interval:
    """The share of numbers beyond so many deviations: noise that is cut off has none."""
    n, share = noise.size, 2.0 * float(ndtr(-deviations))
    found = int(np.count_nonzero(np.abs(noise) > deviations))
    low = float(bdtr(found, n, share)) >= RISK / 2.0
    high = float(bdtrc(found - 1, n, share)) >= RISK / 2.0 if found else True
    value = found / n
    return Interval(value, value if low else share, value if high else share)


def repeats(releases: Matrix) -> Interval:
    """Releases that are equal to another one of any run: the noise of one of them is known."""
    distinct = len(np.unique(releases, axis=0))
    return Interval(float(len(releases) - distinct), 0.0, 0.0)


def masks(vectors: bytes) -> dict[str, Interval]:
    """Masked vectors are uniform: no number near another or near zero, and each bit is fair."""
    numbers = np.frombuffer(vectors, dtype="<u8")
    n = len(numbers)
    near = np.count_nonzero(numbers + np.uint64(2**48) < np.uint64(2**49))
    close = np.count_nonzero(np.diff(np.sort(numbers)) < np.uint64(2**32))
    ones = np.array([np.count_nonzero(numbers >> np.uint64(bit) & np.uint64(1)) for bit in range(64)])
    unfair = float(np.abs(ones - n / 2.0).max()) / sqrt(max(n, 1) / 4.0)
    return {
        "masked numbers near others": Interval(float(close), 0.0, 4.0),
        "masked numbers near zero": Interval(float(near), 0.0, 4.0 + n / 1_000.0),
        "deviations of the least fair bit": Interval(unfair, 0.0, 8.5),
    }


def off_lattice(releases: Matrix) -> Interval:
    """Numbers that are no whole steps: their low bits may tell of the data."""
    return Interval(float(np.count_nonzero(releases != np.rint(releases))), 0.0, 0.0)


def low_bits(first: Matrix, second: Matrix) -> Interval:
    """How far the lowest four bits of both sides differ on average, as a part of their range."""
    shares = [np.mean(np.mod(np.rint(side), 16.0)) / 16.0 for side in (first, second)]
    slack = -float(ndtri(RISK / 2.0)) * sqrt(0.5 / first.size)
    return Interval(float(shares[0] - shares[1]), -slack, slack)


def _proved(first: Floats, second: Floats, mu: float) -> Interval:
    half = len(first) // 2
    train, test = (first[:half], second[:half]), (first[half:], second[half:])
    return Interval(mu_lower_bound(train, test, 1.0 - RISK), 0.0, mu)


def by_likelihood(first: Matrix, second: Matrix, shift: Vector, mu: float) -> Interval:
    """μ that the best test proves if noise and shift are as claimed."""
    return _proved(first @ shift, second @ shift, mu)


def by_discriminant(first: Matrix, second: Matrix, mu: float) -> Interval:
    """The same with means and covariance learned from half of the runs."""
    half = len(first) // 2
    direction = linear_discriminant(first[:half], second[:half])
    return _proved(first @ direction, second @ direction, mu)


def by_squares(first: Matrix, second: Matrix, mu: float) -> Interval:
    """The same with a mean and a variance of each number and side: a quadratic score."""
    half = len(first) // 2

    def fit(side: Matrix) -> tuple[Vector, Vector]:
        return side[:half].mean(axis=0), side[:half].var(axis=0) + 1e-12

    (a, u), (b, v) = fit(first), fit(second)

    def score(side: Matrix) -> Floats:
        terms = (side - a) ** 2 / u - (side - b) ** 2 / v + np.log(u / v)
        return np.asarray(terms.sum(axis=1))

    return _proved(score(first), score(second), mu)
