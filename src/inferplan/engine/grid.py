"""Points of a sweep: the product of axes, as arrays that broadcast or in chunks of bounded size. Knows no quantity."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from inferplan.errors import SpecError

CHUNK = 2**18


def grid(**axes: ArrayLike) -> dict[str, np.ndarray]:
    """Each axis along a dimension of its own, in the order given, so that one call evaluates their product.

    >>> {name: axis.shape for name, axis in grid(batch=[1, 2, 4], context=[1024, 2048]).items()}
    {'batch': (3, 1), 'context': (1, 2)}
    """
    flat = _flat(axes)
    count = len(flat)
    return {name: axis.reshape([-1 if i == j else 1 for j in range(count)]) for i, (name, axis) in enumerate(flat.items())}


def chunks(size: int = CHUNK, **axes: ArrayLike) -> Iterator[dict[str, np.ndarray]]:
    """The product of the axes as flat arrays of at most `size` points, the last axis fastest: memory stays constant for any number.

    Raises SpecError for an empty axis or a size below 1.

    >>> [c["context"].tolist() for c in chunks(2, batch=[1, 2, 4], context=[10, 20])]
    [[10.0, 20.0], [10.0, 20.0], [10.0, 20.0]]
    """
    if size < 1:
        raise SpecError("must be 1 or more", field="size", value=size)
    flat = _flat(axes)
    shape = tuple(len(axis) for axis in flat.values())
    for start in range(0, math.prod(shape), size):
        places = np.unravel_index(np.arange(start, min(start + size, math.prod(shape))), shape)
        yield {name: axis[place] for (name, axis), place in zip(flat.items(), places, strict=True)}


def _flat(axes: dict[str, ArrayLike]) -> dict[str, np.ndarray]:
    flat = {name: np.atleast_1d(np.asarray(axis, dtype=float)).ravel() for name, axis in axes.items()}
    for name, axis in flat.items():
        if not len(axis):
            raise SpecError("holds no value", field=name)
    return flat
