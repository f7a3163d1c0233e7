"""The longest gap between tokens since any step: kept so that finding it touches few steps. Knows no request and no clock."""

from __future__ import annotations

from bisect import bisect_right


class Gaps:
    """Gaps by the step at which they end; only those that no later one reaches are kept, which is all that `longest` asks for.

    >>> gaps = Gaps()
    >>> for step, gap in ((5, 3.0), (6, 1.0), (9, 2.0)): gaps.add(step, gap)
    >>> [gaps.longest(step) for step in (0, 5, 6, 9)], gaps.sizes
    ([3.0, 2.0, 2.0, 0.0], [3.0, 2.0])
    """

    __slots__ = ("sizes", "steps")

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.sizes: list[float] = []

    def add(self, step: int, gap: float) -> None:
        """A gap that ends with a later step than those before."""
        steps, sizes = self.steps, self.sizes
        while sizes and sizes[-1] <= gap:
            sizes.pop()
            steps.pop()
        steps.append(step)
        sizes.append(gap)

    def longest(self, since: int) -> float:
        """The longest that ends after a step; 0 where there is none."""
        at = bisect_right(self.steps, since)
        return self.sizes[at] if at < len(self.sizes) else 0.0
