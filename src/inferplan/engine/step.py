"""One pass on one device: its operators, their bytes and FLOPs, and the time the part's roofs allow. Knows no engine's overhead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferplan.engine.convention import ALGORITHM, Convention
from inferplan.engine.operators import Op, operators
from inferplan.engine.segment import Segment
from inferplan.ops import Numeric
from inferplan.roofline.bounds import compute_s, intensity, memory_s, roof_s
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision


@dataclass(frozen=True, slots=True)
class Step:
    """A pass on a part. Every property broadcasts like the segments it came from."""

    ops: tuple[Op, ...]
    hardware: Accelerator

    @property
    def flops(self) -> Numeric:
        """FLOPs of the pass."""
        return _sum(op.flops for op in self.ops)

    @property
    def weight_bytes(self) -> Numeric:
        """Bytes of weights read."""
        return _sum(op.weight_bytes for op in self.ops)

    @property
    def kv_bytes(self) -> Numeric:
        """Bytes of cache and states read and written."""
        return _sum(op.kv_bytes for op in self.ops)

    @property
    def bytes(self) -> Numeric:
        """Bytes that must cross the memory bus: weights, cache, states. Activations are taken to stay on chip."""
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> Numeric:
        """FLOP per byte."""
        return intensity(self.flops, self.bytes)

    @property
    def memory_s(self) -> Numeric:
        """Seconds at full memory bandwidth."""
        return memory_s(self.bytes, self.hardware.bandwidth_bytes_per_s)

    @property
    def compute_s(self) -> Numeric:
        """Seconds at the dense peak of each operator's number type."""
        return _sum(compute_s(op.flops, self.hardware.peak_flops_per_s(op.rate)) for op in self.ops if op.rate != "none")

    @property
    def floor_s(self) -> Numeric:
        """The physical floor of the pass: the slower of the two roofs, perfectly overlapped."""
        return roof_s(self.memory_s, self.compute_s)

    @property
    def bound(self) -> Numeric:
        """`memory` or `compute`, whichever roof is the slower."""
        return np.where(np.asarray(self.memory_s) >= np.asarray(self.compute_s), "memory", "compute")

    def by(self, field: str) -> dict[str, tuple[Numeric, Numeric]]:
        """FLOPs and bytes summed by `part` or `kind` of operator."""
        found: dict[str, tuple[Numeric, Numeric]] = {}
        for op in self.ops:
            flops, moved = found.get(getattr(op, field), (0.0, 0.0))
            found[getattr(op, field)] = (flops + op.flops, moved + op.weight_bytes + op.kv_bytes)
        return found


def _sum(values: object) -> Numeric:
    total: Numeric = 0.0
    for value in values:  # type: ignore[attr-defined]
        total = total + value
    return total


def step(model: Model, hardware: Accelerator, precision: Precision, *segments: Segment, convention: Convention = ALGORITHM) -> Step:
    """One pass over segments that share it: prefill, decode, or both at once."""
    return Step(tuple(operators(model, precision, segments, convention)), hardware)


def prefill(
    model: Model, hardware: Accelerator, precision: Precision, *, input_tokens: Numeric, batch: Numeric = 1, cached: Numeric = 0
) -> Step:
    """The pass over a prompt of `input_tokens`, of which `cached` lie in cache already; logits for the last position only."""
    return step(model, hardware, precision, Segment(batch, input_tokens - cached, cached))


def decode(model: Model, hardware: Accelerator, precision: Precision, *, context: Numeric, batch: Numeric = 1) -> Step:
    """One decode step of `batch` sequences that hold `context` tokens, the new one included."""
    return step(model, hardware, precision, Segment(batch, 1, np.maximum(np.asarray(context) - 1, 0)))


def as_float(value: Numeric | Sequence[float]) -> float:
    """A zero-dimensional result as a float."""
    return float(np.asarray(value))
