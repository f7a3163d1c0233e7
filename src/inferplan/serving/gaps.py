"""The longest gap between tokens over stretches of steps, for many stretches in one call. Knows no request and no clock."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

ROWS = 65_536
"""Stretches that are looked at together, so that memory stays small."""


def longest_gaps(gaps: array[float], since: NDArray[np.int32], until: NDArray[np.int32]) -> NDArray[np.float64]:
    """The longest of the gaps from `since` up to before `until`, a row each; 0 where there is none.

    >>> longest_gaps(array("d", [3.0, 1.0, 2.0]), np.array([0, 1, 2, 3]), np.array([3, 3, 2, 3])).tolist()
    [3.0, 2.0, 0.0, 0.0]
    """
    ended = np.frombuffer(gaps + array("d", [0.0]))
    found = np.zeros(since.size)
    for start in range(0, since.size, ROWS):
        begin, end = since[start : start + ROWS], until[start : start + ROWS]
        rows = np.flatnonzero(end > begin)
        if rows.size:
            places = np.column_stack([begin[rows], end[rows]]).ravel()
            found[start + rows] = np.maximum.reduceat(ended, places)[::2]
    return found
