"""One pass on a deployment: its operators, their bytes and FLOPs, and the floor that the part's roofs allow. Knows no engine's memory.

Five faces of one function: prefill, decode, a chunk of a prompt, a mixed batch and a speculative verify differ only in their segments.
All figures are of the busiest rank; pipeline stages run in turn, so a pass crosses all layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inferplan.engine.convention import ALGORITHM, Convention
from inferplan.engine.op import Op
from inferplan.engine.operators import operators
from inferplan.engine.segment import Segment
from inferplan.ops import Numeric
from inferplan.roofline.bounds import compute_s, intensity, memory_s, roof_s
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision


def total(values: Iterable[Numeric]) -> Numeric:
    """A sum that broadcasts; values of equal shape are added first, so that only the last additions are of full size."""
    by_shape: dict[tuple[int, ...], Numeric] = {}
    for value in values:
        shape = np.shape(value)
        by_shape[shape] = by_shape[shape] + value if shape in by_shape else value
    found: Numeric = 0.0
    for shape in sorted(by_shape, key=len):
        found = found + by_shape[shape]
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """A pass on a part. Every property broadcasts like the segments and the split it came from."""

    ops: tuple[Op, ...]
    hardware: Accelerator
    parallel: Parallel = ONE

    @property
    def flops(self) -> Numeric:
        """FLOPs of one rank."""
        return total(op.flops for op in self.ops)

    @property
    def weight_bytes(self) -> Numeric:
        """Bytes of weights one rank reads."""
        return total(op.weight_bytes for op in self.ops)

    @property
    def kv_bytes(self) -> Numeric:
        """Bytes of cache and states one rank reads and writes."""
        return total(op.kv_bytes for op in self.ops)

    @property
    def bytes(self) -> Numeric:
        """Bytes that must cross one rank's memory bus: weights, cache, states. Activations are taken to stay on chip."""
        return self.weight_bytes + self.kv_bytes

    @property
    def wire_bytes(self) -> Numeric:
        """Bytes of the messages one rank holds before its collectives."""
        return total(op.wire.bytes * op.count for op in self.ops if op.wire is not None)

    @property
    def intensity(self) -> Numeric:
        """FLOP per byte of memory traffic."""
        return intensity(self.flops, self.bytes)

    @property
    def memory_s(self) -> Numeric:
        """Seconds at full memory bandwidth."""
        return memory_s(self.bytes, self.hardware.bandwidth_bytes_per_s)

    @property
    def compute_s(self) -> Numeric:
        """Seconds at the dense peak of each operator's number type."""
        rates = {op.rate for op in self.ops if op.rate != "none"}
        return total(
            compute_s(total(op.flops for op in self.ops if op.rate == rate), self.hardware.peak_flops_per_s(rate)) for rate in sorted(rates)
        )

    @property
    def floor_s(self) -> Numeric:
        """The physical floor of the pass: the slower of the two roofs, perfectly overlapped, exchanges for nothing."""
        return roof_s(self.memory_s, self.compute_s)

    @property
    def bound(self) -> Numeric:
        """`memory` or `compute`, whichever roof is the slower."""
        return np.where(np.asarray(self.memory_s) >= np.asarray(self.compute_s), "memory", "compute")

    def by(self, field: str) -> dict[str, tuple[Numeric, Numeric]]:
        """FLOPs and bytes summed by `part`, `kind` or `name` of operator."""
        names = dict.fromkeys(getattr(op, field) for op in self.ops)
        chosen = {name: [op for op in self.ops if getattr(op, field) == name] for name in names}
        return {name: (total(o.flops for o in ops), total(o.weight_bytes + o.kv_bytes for o in ops)) for name, ops in chosen.items()}


def step(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *segments: Segment,
    parallel: Parallel = ONE,
    convention: Convention = ALGORITHM,
) -> Step:
    """One pass over segments that share it."""
    return Step(tuple(operators(model, precision, segments, convention, parallel)), hardware, parallel)


def prefill(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    input_tokens: Numeric,
    batch: Numeric = 1,
    cached: Numeric = 0,
    parallel: Parallel = ONE,
) -> Step:
    """The pass over prompts of `input_tokens`, of which `cached` lie in cache already; logits for the last position only."""
    return step(model, hardware, precision, Segment(batch, input_tokens - cached, cached), parallel=parallel)


def chunked(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    chunk: Numeric,
    cached: Numeric,
    batch: Numeric = 1,
    parallel: Parallel = ONE,
) -> Step:
    """A chunk of a prompt of which `cached` tokens are done; no logits, since more of the prompt follows."""
    return step(model, hardware, precision, Segment(batch, chunk, cached, logits=0), parallel=parallel)


def decode(
    model: Model, hardware: Accelerator, precision: Precision, *, context: Numeric, batch: Numeric = 1, parallel: Parallel = ONE
) -> Step:
    """One decode step of `batch` sequences that hold `context` tokens, the new one included."""
    return step(model, hardware, precision, Segment(batch, 1, before(context, 1)), parallel=parallel)


def verify(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    context: Numeric,
    draft: Numeric,
    batch: Numeric = 1,
    parallel: Parallel = ONE,
) -> Step:
    """A speculative verify: the last token and `draft` guesses of each sequence in one pass, logits for all of them."""
    return step(model, hardware, precision, Segment(batch, draft + 1, before(context, 1), logits=draft + 1), parallel=parallel)


def mixed(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    batch: Numeric,
    context: Numeric,
    chunk: Numeric,
    cached: Numeric = 0,
    parallel: Parallel = ONE,
) -> Step:
    """Decodes of `batch` sequences and a prompt chunk of `chunk` tokens that share one pass."""
    decodes, prompt = Segment(batch, 1, before(context, 1)), Segment(1, chunk, cached, logits=0)
    return step(model, hardware, precision, decodes, prompt, parallel=parallel)


def before(context: Numeric, new: Numeric) -> Numeric:
    """Cached tokens of a sequence that will hold `context` tokens after `new` more; never negative."""
    past: Numeric = np.maximum(np.asarray(context, dtype=float) - new, 0.0)
    return past
