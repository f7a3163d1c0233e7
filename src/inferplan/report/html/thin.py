"""Long series made short enough for a page, their highest and lowest values kept. Knows no quantity."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST = 2000
RULE = "{:,} points: of each of {:,} equal stretches the lowest and the highest are drawn."


def thinned(y: ArrayLike, most: int = MOST) -> NDArray[np.intp]:
    """Places of at most `most` points, in order: all where there are no more, else the lowest and highest of each of `most / 2 - 1`
    stretches of equal length, and both ends.

    >>> thinned([3.0, 1.0, 2.0]).tolist()
    [0, 1, 2]
    >>> y = np.zeros(10_000); y[4321] = 9.0; y[77] = -1.0
    >>> kept = thinned(y); kept.size <= 2000, 4321 in kept, 77 in kept, int(kept[-1])
    (True, True, True, 9999)
    """
    values = np.asarray(y, dtype=float)
    if values.size <= most:
        return np.arange(values.size)
    ends = np.linspace(0, values.size, stretches(most) + 1).astype(int)
    safe = np.where(np.isfinite(values), values, np.nan)
    kept = [0, values.size - 1]
    for low, high in zip(ends[:-1], ends[1:], strict=True):
        piece = safe[low:high]
        if not np.isnan(piece).all():
            kept += [low + int(np.nanargmin(piece)), low + int(np.nanargmax(piece))]
    return np.unique(kept)


def stretches(most: int = MOST) -> int:
    """Stretches that a long series is cut into."""
    return most // 2 - 1


def rule(count: int) -> str:
    """The rule in words, for a series of so many points; '' where all are drawn."""
    return RULE.format(count, stretches()) if count > MOST else ""
