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
FEW = 8  # new tokens of a sequence that a decode kernel still takes, so that a verify of a few drafts runs as a decode step does
ACTIVATION_BYTES = {"fp8": 1.0, "int8": 1.0, "fp4": 0.5, "fp6": 0.75, "fp32": 4.0}


@dataclass(frozen=True, slots=True)
class Wire:
    """A collective that ends an operator: `bytes` is the message each rank holds before it, among `ranks` ranks `stride` devices apart."""

    kind: Collective
    bytes: Numeric
    ranks: Numeric
    stride: Numeric = 1


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
        how many times it is launched; in a sweep 0 where a point has no such operator.
    fuse
        operators of a layer with the same word are one kernel.
    stored
        name of the format its weights, for attention its cache, are kept in.
    hosted
        whether its weights lie in host memory.
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
    count: Numeric = 1
    fuse: str = ""
    stored: str = ""
    hosted: bool = False

    def times(self, count: float) -> Op:
        """The same in `count` layers."""
        return replace(
            self,
            flops=self.flops * count,
            weight_bytes=self.weight_bytes * count,
            kv_bytes=self.kv_bytes * count,
            act_bytes=self.act_bytes * count,
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
    skew: float = 0.0

    def total(self, each: Callable[[Segment], Numeric]) -> Numeric:
        """The sum of a function over segments."""
        found: Numeric = 0.0
        for segment in self.segments:
            found = found + each(segment)
        return found

    @property
    def all_tokens(self) -> Numeric:
        """New tokens of all segments, over all attention groups, that one context rank works on."""
        return self.total(lambda s: s.tokens * self.of_context(s))

    def of_context(self, s: Segment) -> Numeric:
        """The part of a segment's new tokens on one context rank: prompts are shared out, a single token is on every rank."""
        cp = np.asarray(self.parallel.cp)
        if np.all(cp == 1):
            return 1.0
        new = np.asarray(s.new, dtype=float)
        found: Numeric = np.ceil(new / cp) / np.maximum(new, 1.0)
        return found

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

    def phases(self) -> Iterator[tuple[str, Pass, Numeric]]:
        """The pass as attention kernels see it: sequences of few new tokens and prompts apart, where there are any.

        With each part comes where it is launched: 1, or 0 at the points of a sweep that have no such segment.
        """
        few = [np.asarray(s.new) <= FEW for s in self.segments]
        for name, kinds in (("decode", few), ("prefill", [~f for f in few])):
            found = [(_where(s, kind), kind) for s, kind in zip(self.segments, kinds, strict=True) if np.any(kind)]
            if found:
                everywhere = any(np.all(kind) for _, kind in found)
                there = 1.0 if everywhere else 1.0 * np.any(np.broadcast_arrays(*(kind for _, kind in found)), axis=0)
                yield name, replace(self, segments=tuple(s for s, _ in found)), there

    def local(self, each: Callable[[Segment], Numeric]) -> Numeric:
        """A sum over segments, as the busiest attention group sees it."""
        return self.total(each) * self.share

    def spread(self, each: Callable[[Segment], Numeric]) -> Numeric:
        """The same for what goes with new tokens, which context ranks share."""
        return self.total(lambda s: each(s) * self.of_context(s)) * self.share

    def width_of(self, rate: str) -> float:
        """Bytes of an activation element that goes into a product of this type."""
        return ACTIVATION_BYTES.get(rate, 2.0)


def _where(s: Segment, kind: np.ndarray) -> Segment:
    """A segment at the points of a sweep where it is of a kind, and empty elsewhere."""
    return s if np.all(kind) else replace(s, sequences=np.where(kind, s.sequences, 0.0))
