"""Rows of hashed n-gram tables: each head takes the next prime after a base, so that heads collide on different n-grams."""

from __future__ import annotations

from math import isqrt

from inferplan.errors import SpecError

MOST_HEADS = 1024


def prime(n: int) -> bool:
    """Whether a whole number is prime."""
    return n > 1 and all(n % d for d in range(2, isqrt(n) + 1))


def primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes at or above `start`.

    >>> primes_from(20, 3)
    [23, 29, 31]
    """
    found: list[int] = []
    while len(found) < count:
        if prime(start):
            found.append(start)
        start += 1
    return found


def ngram_rows(base: int, heads: int, index: int, multiple: int) -> int:
    """Rows of the table of the `index`-th layer that has one, all heads together, rounded up to a multiple.

    >>> ngram_rows(20, 2, 1, 8)
    72
    """
    if heads * (index + 1) > MOST_HEADS:
        raise SpecError(f"times the layers with tables must not exceed {MOST_HEADS}", field="heads_per_ngram", value=heads)
    sizes = primes_from(base, heads * (index + 1))[heads * index :]
    return -(-sum(sizes) // multiple) * multiple
