"""What a forward pass is asked to do: how many sequences, how many new tokens each, how many already in cache. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.ops import Numeric


@dataclass(frozen=True, slots=True)
class Segment:
    """`sequences` sequences of `new` tokens each after `past` cached ones; arrays broadcast.

    logits
        rows per sequence that need the output head: 1 for the next token, `new` for every position, 0 within a prompt.
    memory
        tokens of an encoder's output that cross attention looks at, where the model does not fix it.
    images, patches
        images that a sequence brings with this pass, and positions of each in the vision tower.
    """

    sequences: Numeric
    new: Numeric
    past: Numeric = 0
    logits: Numeric = 1
    memory: Numeric = 0
    images: Numeric = 0
    patches: Numeric = 0

    @property
    def tokens(self) -> Numeric:
        """New tokens in all."""
        return self.sequences * self.new

    @property
    def opens(self) -> Numeric:
        """1 where the sequences start with this pass, so that an encoder runs and its keys are projected; else 0."""
        return np.where(np.asarray(self.past) == 0, 1.0, 0.0)
