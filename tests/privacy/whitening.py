"""Releases in units of their own noise."""

from math import sqrt

import numpy as np

from fclub.core.types import Matrix, Vector
from fclub.privacy.sensitivity import Domain, entry_std, released_entries


def whiten(gram: Matrix, moment: Vector, domain: Domain, std: float = 1.0) -> Vector:
    """The released entries of one (or many: leading axes) pair divided by their noise's deviation.

    The Euclidean distance between two whitened releases is what an observer can tell them apart by.
    """
    dim = moment.shape[-1]
    scale = entry_std(domain, dim, std)
    rows, columns = released_entries(domain, dim)
    both = np.zeros((*moment.shape[:-1], dim + 1, dim + 1))
    both[..., :dim, :dim] = gram
    both[..., :dim, dim] = moment
    diagonal = np.where(rows == columns, sqrt(2.0), 1.0)
    white: Vector = both[..., rows, columns] / (scale[rows, columns] * diagonal)
    return white
