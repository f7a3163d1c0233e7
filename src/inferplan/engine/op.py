"""One operator of a pass as a record, and what a pass is asked. Knows no model's layers, no part and no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from inferplan.engine.convention import Convention
from inferplan.engine.segment import Segment
from inferplan.ops import Numeric
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
FEW = 8
ACTIVATION_BYTES = {"fp8": 1.0, "int8": 1.0, "fp4": 0.5, "fp6": 0.75, "fp32": 4.0}


@dataclass(frozen=True, slots=True)
class Wire:
    """A collective that ends an operator: `bytes` is the message each rank holds before it, among `ranks` ranks."""

    kind: Collective
    bytes: Numeric
    ranks: Numeric


@dataclass(frozen=True, slots=True)
class Op:
    """One operator over all the layers that have it, on one rank.

    kind
        matmul, experts, attention_decode, attention_prefill, indexer, recurrence, conv, lookup, elementwise, head, collective.
    part
        what it belongs to (attention, mlp, experts ...).
    rate
        dtype its products are computed in where hardware supports it; `none` where it does none.
    flops, weight_bytes, act_bytes, kv_bytes
        totals over its layers; arrays broadcast like the segments. kv_bytes counts cache read and written, states included.
    count
        how many times it is launched.
    fuse
        operators of a layer with the same word are one kernel.
    stored
        name of the format its weights, for attention its cache, are kept in.
    """

    name: str
    kind: str
    part: str
    rate: str
    flops: Numeric
    weight_bytes: Numeric = 0.0
    kv_bytes: Numeric = 0.0
    act_bytes: Numeric = 0.0
    wire: Wire | None = None
    count: int = 1
    fuse: str = ""
    stored: str = ""

    def times(self, count: int) -> Op:
        """The same in `count` layers."""
        wire = self.wire and replace(self.wire, bytes=self.wire.bytes)
        return replace(
            self,
            flops=self.flops * count,
            weight_bytes=self.weight_bytes * count,
            kv_bytes=self.kv_bytes * count,
            act_bytes=self.act_bytes * count,
            wire=wire,
            count=self.count * count,
        )

    def joined(self, other: Op) -> Op:
        """Two operators as one kernel."""
        return replace(
            self,
            flops=self.flops + other.flops,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            kv_bytes=self.kv_bytes + other.kv_bytes,
            act_bytes=self.act_bytes + other.act_bytes,
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """Everything an operator needs to know of a pass."""

    model: Model
    precision: Precision
    parallel: Parallel
    segments: tuple[Segment, ...]
    convention: Convention

    def total(self, each: Callable[[Segment], Numeric]) -> Numeric:
        """The sum of a function over segments."""
        found: Numeric = 0.0
        for segment in self.segments:
            found = found + each(segment)
        return found

    @property
    def all_tokens(self) -> Numeric:
        """New tokens of all segments, over all attention groups."""
        return self.total(lambda s: s.tokens)

    @property
    def share(self) -> Numeric:
        """The part of the sequences that the busiest attention group holds: at least one sequence."""
        dp = np.asarray(self.parallel.dp)
        if np.all(dp == 1):
            return 1.0
        sequences = self.total(lambda s: s.sequences)
        found: Numeric = np.minimum(1.0, np.maximum(1.0 / dp, 1.0 / np.maximum(np.asarray(sequences), 1.0)))
        return found

    @property
    def tokens(self) -> Numeric:
        """New tokens of the busiest attention group."""
        return self.all_tokens * self.share

    def phases(self) -> Iterator[tuple[str, Pass]]:
        """The pass as attention kernels see it: sequences of few new tokens and prompts apart, where there are any."""
        short = tuple(s for s in self.segments if np.all(np.asarray(s.new) <= FEW))
        long = tuple(s for s in self.segments if s not in short)
        for name, segments in (("decode", short), ("prefill", long)):
            if segments:
                yield name, replace(self, segments=segments)

    def local(self, each: Callable[[Segment], Numeric]) -> Numeric:
        """A sum over segments, as the busiest attention group sees it."""
        return self.total(each) * self.share

    def width_of(self, rate: str) -> float:
        """Bytes of an activation element that goes into a product of this type."""
        return ACTIVATION_BYTES.get(rate, 2.0)
