"""Releases in units of their own noise."""

from fclub.core.types import Matrix, Vector
from fclub.privacy.sensitivity import Domain, noised_entries, released_std


def whiten(gram: Matrix, moment: Vector, domain: Domain, std: float = 1.0) -> Vector:
    """The noised entries of one (or many: leading axes) pair divided by their noise's deviation.

    The Euclidean distance between two whitened releases is what an observer can tell them apart by.
    """
    deviations = released_std(domain, moment.shape[-1], std)
    white: Vector = noised_entries(gram, moment, domain) / deviations[deviations > 0.0]
    return white
