"""One pass on a deployment: its operators, their bytes and FLOPs, and the floor that the part's roofs allow. Knows no engine's memory.

Five faces of one function: prefill, decode, a chunk of a prompt, a mixed batch and a speculative verify differ only in their segments.
All figures are of the busiest rank; pipeline stages run in turn, so a pass crosses all layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from inferplan.engine.convention import ALGORITHM, Convention
from inferplan.engine.op import Op
from inferplan.engine.operators import operators
from inferplan.engine.segment import Segment
from inferplan.ops import Numeric
from inferplan.roofline.bounds import compute_s, intensity, memory_s, roof_s
from inferplan.roofline.comm import comm_s
from inferplan.roofline.efficiency import Efficiency
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
class Setting:
    """How a pass is run: the split over devices, the calibration of times, the engine, and what joins nodes."""

    parallel: Parallel = ONE
    efficiency: Efficiency = field(default_factory=Efficiency.ideal)
    engine: str = "vllm"
    network: str | None = None

    @property
    def ideal(self) -> bool:
        """Whether times are floors."""
        return self.efficiency.is_ideal


@dataclass(frozen=True)
class Step:
    """A pass on a part. Every property broadcasts like the segments and the split it came from."""

    ops: tuple[Op, ...]
    hardware: Accelerator
    setting: Setting
    layers: int = 0
    sequences: Numeric = 1

    @property
    def parallel(self) -> Parallel:
        """The split over devices."""
        return self.setting.parallel

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

    @cached_property
    def floor_s(self) -> Numeric:
        """The physical floor of the pass: the slower of the two roofs, perfectly overlapped, exchanges for nothing."""
        return roof_s(self.memory_s, self.compute_s)

    def op_s(self, op: Op) -> Numeric:
        """Seconds of one operator over all its layers, its collective left out."""
        if op.kind == "collective":
            return 0.0
        return self.setting.efficiency.op_time(op, self.hardware, stored=op.stored or None, engine=self.setting.engine)

    def wire_s(self, op: Op) -> Numeric:
        """Seconds of the collective that ends an operator, over all its layers."""
        if op.wire is None:
            return 0.0
        stride = self.parallel.tp if op.wire.kind == "send" else 1
        s, w = self.setting, op.wire
        return op.count * comm_s(w.kind, w.bytes, w.ranks, self.hardware, s.efficiency, network=s.network, stride=stride)

    @property
    def overhead_s(self) -> Numeric:
        """What engine and host add to the pass."""
        return self.setting.efficiency.step_overhead_s(self.setting.engine, self.layers, self.sequences)

    @cached_property
    def time_s(self) -> Numeric:
        """The estimate: operators in turn, each at its kernel's efficiency, then collectives and overhead. Never below the floor."""
        parts = [*(self.op_s(op) for op in self.ops), *(self.wire_s(op) for op in self.ops), self.overhead_s]
        found: Numeric = np.maximum(total(parts), self.floor_s)
        return found

    @property
    def mfu(self) -> Numeric:
        """Model FLOP utilisation: the time the FLOPs need at the peak over the estimate."""
        return self.compute_s / self.time_s

    @property
    def mbu(self) -> Numeric:
        """Model bandwidth utilisation: the time the bytes need at full bandwidth over the estimate."""
        return self.memory_s / self.time_s

    @property
    def bound(self) -> Numeric:
        """`memory` or `compute`, whichever roof is the slower."""
        return np.where(np.asarray(self.memory_s) >= np.asarray(self.compute_s), "memory", "compute")

    def by(self, field: str) -> dict[str, tuple[Numeric, Numeric]]:
        """FLOPs and bytes summed by `part`, `kind` or `name` of operator."""
        names = dict.fromkeys(getattr(op, field) for op in self.ops)
        chosen = {name: [op for op in self.ops if getattr(op, field) == name] for name in names}
        return {name: (total(o.flops for o in ops), total(o.weight_bytes + o.kv_bytes for o in ops)) for name, ops in chosen.items()}


IDEAL = Setting()


def step(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *segments: Segment,
    setting: Setting = IDEAL,
    convention: Convention = ALGORITHM,
) -> Step:
    """One pass over segments that share it."""
    ops = operators(model, precision, segments, convention, setting.parallel)
    return Step(tuple(ops), hardware, setting, len(model.order), total(s.sequences for s in segments))


def prefill(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    input_tokens: Numeric,
    batch: Numeric = 1,
    cached: Numeric = 0,
    setting: Setting = IDEAL,
) -> Step:
    """The pass over prompts of `input_tokens`, of which `cached` lie in cache already; logits for the last position only."""
    return step(model, hardware, precision, Segment(batch, input_tokens - cached, cached), setting=setting)


def chunked(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    chunk: Numeric,
    cached: Numeric,
    batch: Numeric = 1,
    setting: Setting = IDEAL,
) -> Step:
    """A chunk of a prompt of which `cached` tokens are done; no logits, since more of the prompt follows."""
    return step(model, hardware, precision, Segment(batch, chunk, cached, logits=0), setting=setting)


def decode(
    model: Model, hardware: Accelerator, precision: Precision, *, context: Numeric, batch: Numeric = 1, setting: Setting = IDEAL
) -> Step:
    """One decode step of `batch` sequences that hold `context` tokens, the new one included."""
    return step(model, hardware, precision, Segment(batch, 1, before(context, 1)), setting=setting)


def verify(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    context: Numeric,
    draft: Numeric,
    batch: Numeric = 1,
    setting: Setting = IDEAL,
) -> Step:
    """A speculative verify: the last token and `draft` guesses of each sequence in one pass, logits for all of them."""
    return step(model, hardware, precision, Segment(batch, draft + 1, before(context, 1), logits=draft + 1), setting=setting)


def mixed(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    batch: Numeric,
    context: Numeric,
    chunk: Numeric,
    cached: Numeric = 0,
    setting: Setting = IDEAL,
) -> Step:
    """Decodes of `batch` sequences and a prompt chunk of `chunk` tokens that share one pass."""
    decodes, prompt = Segment(batch, 1, before(context, 1)), Segment(1, chunk, cached, logits=0)
    return step(model, hardware, precision, decodes, prompt, setting=setting)


def before(context: Numeric, new: Numeric) -> Numeric:
    """Cached tokens of a sequence that will hold `context` tokens after `new` more; never negative."""
    past: Numeric = np.maximum(np.asarray(context, dtype=float) - new, 0.0)
    return past
