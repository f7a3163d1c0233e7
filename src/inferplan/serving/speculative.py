"""Speculative decoding as the simulator sees it: how many steps a request takes when guesses are accepted by chance. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Each of `draft` guesses is accepted with probability `accept`, up to the first that is not; then one more token is certain.

    The tokens of a step follow the truncated geometric law of Leviathan et al. (2023), with mean (1 - a^(k+1)) / (1 - a).

    >>> round(Acceptance(4, 0.8).tokens_per_step, 4), Acceptance(0, 0.5).tokens_per_step
    (3.3616, 1.0)
    """

    draft: int
    accept: float

    def __post_init__(self) -> None:
        if not 0 <= self.draft <= 64:
            raise SpecError("must be from 0 to 64", field="draft tokens", value=self.draft)
        if not 0 <= self.accept <= 1:
            raise SpecError("must be a probability", field="accept", value=self.accept)

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a step."""
        return float(sum(self.accept**j for j in range(self.draft + 1)))

    def rounds(self, tokens: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Steps until each request has made so many tokens, drawn token by token; the last step's surplus is dropped."""
        left, steps = tokens.copy(), np.zeros(tokens.shape, dtype=np.int64)
        active = np.flatnonzero(left > 0)
        while active.size:
            run = rng.random((active.size, self.draft)) < self.accept
            accepted = np.cumprod(run, axis=1).sum(axis=1) if self.draft else np.zeros(active.size, dtype=np.int64)
            left[active] -= 1 + accepted
            steps[active] += 1
            active = active[left[active] > 0]
        return steps
