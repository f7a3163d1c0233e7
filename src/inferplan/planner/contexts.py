"""Mean seconds of decode steps over the contexts that outputs run through, for many lengths at once. Knows no part and no engine.

A decode step is nearly linear in the context, so it is asked for at knots: every whole number at first, then sixteen for each doubling,
and where a window or a selection of the model fills up. Between knots it is a line, whose sum over whole contexts is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferplan.specs.model import Model

Floats = NDArray[np.float64]
PER_DOUBLING = 16
REPEATS = 64  # of a chunked attention's boundary that get knots of their own


def knots(model: Model, most: int) -> Floats:
    """Contexts at which steps are evaluated, from 1 to the first at or above `most`; the same ones whatever `most` is, as far as they go.

    >>> from inferplan.readers.opening import open_model
    >>> knots(open_model("7b").model, 40)[-4:].tolist()
    [35.0, 36.0, 38.0, 40.0]
    """
    doublings = int(np.ceil(np.log2(max(most, 2)))) + 1
    even = np.round(2.0 ** (np.arange(doublings * PER_DOUBLING + 1) / PER_DOUBLING))
    bends = np.array([x for edge in _edges(model, most) for x in (edge - 1, edge, edge + 1)], dtype=float)
    every = np.array(sorted(set(np.append(even, bends[bends >= 1]).tolist())))
    return every[: int(np.searchsorted(every, most)) + 1]


def _edges(model: Model, most: int) -> Iterator[float]:
    """Contexts at which the work of some layer bends or jumps."""
    for block in model.blocks.values():
        for mixer in block.mixers:
            if chunk := getattr(mixer, "chunk", None):
                yield from (float(chunk * i) for i in range(1, min(REPEATS, most // chunk + 1) + 1))
            if window := getattr(mixer, "window", None):
                yield float(window)
            if indexer := getattr(mixer, "indexer", None):
                yield float(indexer.top_k * indexer.block)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of decode steps: from context `first` to `last`, both included, arrays of whole numbers of one shape (p,)."""

    first: Floats
    last: Floats

    @classmethod
    def of(cls, input_tokens: Floats, output_tokens: Floats) -> Runs:
        """The runs of requests of these lengths: one step fewer than output tokens, and at least one."""
        return cls(input_tokens + 1, input_tokens + np.maximum(output_tokens - 1, 1))


def means(runs: Runs, at: Floats, values: dict[str, Floats]) -> dict[str, Floats]:
    """Means over the runs of functions known at the contexts `at`, (k,), with values (b, k): each (b, p).

    >>> ten = np.array([1.0, 2.0, 4.0, 10.0])
    >>> means(Runs.of(np.array([2.0]), np.array([5.0])), ten, {"x": 3 * ten[None, :]})["x"].tolist()  # contexts 3, 4, 5, 6
    [[13.5]]
    """
    starts, back = np.unique(runs.first - 1, return_inverse=True)
    upper, lower = _place(runs.last, at), _place(starts, at)
    share = 1 / (runs.last - runs.first + 1)
    return {name: _means(y, at, upper, lower, back, share) for name, y in values.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where contexts lie among knots: the knot below, and weights of the two values around in the sum from it on."""

    knot: NDArray[np.intp]
    own: Floats
    next: Floats


def _place(context: Floats, at: Floats) -> _Place:
    """Of the sum of f(j + 1) ... f(c) after knot j: with n = c - j on a line to the next knot, weights n - w and w = n (n + 1) / 2 gap."""
    knot = np.clip(np.searchsorted(at, context, side="right") - 1, 0, len(at) - 2) if len(at) > 1 else np.zeros(len(context), dtype=np.intp)
    n = context - at[knot]
    gap = at[np.minimum(knot + 1, len(at) - 1)] - at[knot]
    weight = n * (n + 1) / (2 * np.where(gap > 0, gap, 1.0))
    return _Place(knot, n - weight, weight)


def _means(y: Floats, at: Floats, upper: _Place, lower: _Place, back: NDArray[np.intp], share: Floats) -> Floats:
    """Sums up to the ends less those up to the starts, of which there are few, times `share`; in place, since this is most of a sweep."""
    whole = _whole(y, at)
    found = _sums(y, whole, upper)
    found -= np.take(_sums(y, whole, lower), back, axis=1)
    found *= share
    return found


def _whole(y: Floats, at: Floats) -> Floats:
    """The sum of a function over the whole numbers from 1 up to each knot, (b, k); the first knot is 1."""
    gap = np.diff(at)
    within = y[:, :-1] * (gap - 1) / 2 + y[:, 1:] * (gap + 1) / 2
    return np.cumsum(np.concatenate([y[:, :1], within], axis=1), axis=1)


def _sums(y: Floats, whole: Floats, place: _Place) -> Floats:
    """The same up to each context, (b, p)."""
    found = np.take(whole, place.knot, axis=1)
    for shift, weight in ((0, place.own), (1, place.next)):
        term = np.take(y, np.minimum(place.knot + shift, y.shape[1] - 1), axis=1)
        term *= weight
        found += term
    return found
