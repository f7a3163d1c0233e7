"""Does it fit one device: weights and caches against the memory the driver offers. Knows no engine's reserve: a lower bound of need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.engine.cache_bytes import sequence_bytes
from inferplan.memory.weights import weight_bytes
from inferplan.ops import Numeric
from inferplan.shown import Shown
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision


@dataclass(frozen=True, slots=True)
class Fit(Shown):
    """Memory of one device: what is offered, what weights and caches take at the least, what is left."""

    usable_bytes: float
    weight_bytes: float
    sequence_bytes: Numeric
    batch: Numeric

    @property
    def needed_bytes(self) -> Numeric:
        """Weights and the caches of all sequences."""
        return self.weight_bytes + self.batch * self.sequence_bytes

    @property
    def left_bytes(self) -> Numeric:
        """Bytes left; negative where it does not fit."""
        return self.usable_bytes - self.needed_bytes

    @property
    def fits(self) -> Numeric:
        """Whether it fits, point by point."""
        return np.asarray(self.left_bytes) >= 0

    @property
    def sequences(self) -> Numeric:
        """How many such sequences fit beside the weights, at the ideal size of their caches; infinite where one keeps nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.floor((self.usable_bytes - self.weight_bytes) / np.asarray(self.sequence_bytes, dtype=float))
        return np.maximum(
            np.where(np.asarray(self.sequence_bytes) > 0, room, np.inf if self.usable_bytes >= self.weight_bytes else 0.0), 0.0
        )


def fit(model: Model, hardware: Accelerator, precision: Precision, *, tokens: Numeric, batch: Numeric = 1) -> Fit:
    """The memory of `batch` sequences of `tokens` tokens each beside the weights."""
    return Fit(hardware.usable_bytes, weight_bytes(model, precision), sequence_bytes(model, precision, tokens), batch)
