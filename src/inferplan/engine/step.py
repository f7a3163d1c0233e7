"""One pass on a deployment: its operators, their bytes and FLOPs, and the floor that the part's roofs allow. Knows no engine's memory.

Five faces of one function: prefill, decode, a chunk of a prompt, a mixed batch and a speculative verify differ only in their segments.
All figures are of the busiest rank; pipeline stages run in turn, so a pass crosses all layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from inferplan.engine.convention import ALGORITHM, Convention
from inferplan.engine.op import Op
from inferplan.engine.operators import operators
from inferplan.engine.segment import Segment
from inferplan.errors import SpecError
from inferplan.ops import Numeric
from inferplan.roofline.bounds import compute_s, intensity, memory_s, roof_s
from inferplan.roofline.comm import comm_s, host_link
from inferplan.roofline.efficiency import Efficiency
from inferplan.roofline.optime import Basis, Kernel, host_wait_s
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.offload import NOTHING, Offload
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
    """How a pass is run: the split over devices, the calibration of times, the engine, and what joins nodes.

    offload, host
        layers in host memory, and the host's own processors and memory where they matter.
    overlap
        the share of collectives' time that runs beside operators, from 0 to 1.
    skew
        exponent by which the popularity of routed experts falls; 0 where all are alike.
    imbalance
        how much more than the mean the busiest expert rank has to do; counts in estimates, not in floors.
    """

    parallel: Parallel = ONE
    efficiency: Efficiency = field(default_factory=Efficiency.ideal)
    engine: str = "vllm"
    network: str | None = None
    offload: Offload = NOTHING
    host: Accelerator | None = None
    overlap: float = 0.0
    skew: float = 0.0
    imbalance: float = 1.0

    def checked(self) -> Setting:
        """The same, once its shares are sensible; raises SpecError."""
        for name, low, high in (("overlap", 0.0, 1.0), ("skew", 0.0, 4.0), ("imbalance", 1.0, 1e3)):
            if not low <= getattr(self, name) <= high:
                raise SpecError(f"must lie between {low:g} and {high:g}", field=name, value=getattr(self, name))
        return self

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
    tokens: Numeric = 1

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
        alone = [(op, np.asarray(op.wire.ranks) > 1) for op in self.ops if op.wire is not None]
        return total(np.where(told, op.wire.bytes, 0.0) * op.count for op, told in alone if op.wire is not None)

    @property
    def intensity(self) -> Numeric:
        """FLOP per byte of memory traffic."""
        return intensity(self.flops, self.bytes)

    @property
    def streamed(self) -> Numeric:
        """1 where the device computes with weights in host memory and reads them over the link, 0 where the host computes."""
        offload = self.setting.offload
        return np.where(np.asarray(self.tokens) >= offload.stream_from, 1.0, 0.0) if offload.computed else 1.0

    def _hosted(self, hosted: bool) -> list[Op]:
        return [op for op in self.ops if op.hosted is hosted]

    @property
    def memory_s(self) -> Numeric:
        """Seconds at full bandwidth of the device's memory: its weights, caches and states."""
        moved = total(op.weight_bytes + op.kv_bytes for op in self._hosted(False))
        return memory_s(moved, self.hardware.bandwidth_bytes_per_s)

    @property
    def compute_s(self) -> Numeric:
        """Seconds at the device's dense peak of each operator's number type: its own, and those with streamed weights."""
        own = _compute_s(self._hosted(False), self.hardware)
        away = [op for op in self._hosted(True) if np.any(op.weight_bytes)]
        return own + self.streamed * _compute_s(away, self.hardware) if away else own

    @property
    def link_s(self) -> Numeric:
        """Seconds in which weights in host memory cross the link to the device at its full bandwidth."""
        away = self._hosted(True)
        if not away or not np.any(self.streamed):
            return 0.0
        return self.streamed * memory_s(total(op.weight_bytes for op in away), self._link_bytes_per_s)

    @property
    def _link_bytes_per_s(self) -> float:
        return host_link(self.hardware, self.setting.host, devices=int(np.max(self.parallel.gpus)))[1]

    @property
    def host_s(self) -> Numeric:
        """Seconds in which the host's memory gives up what lies in it, whoever computes: weights, and caches of hosted layers."""
        away, host = self._hosted(True), self.setting.host
        if not away or host is None:
            return 0.0
        return memory_s(total(op.weight_bytes + op.kv_bytes for op in away), host.bandwidth_bytes_per_s)

    @cached_property
    def floor_s(self) -> Numeric:
        """The physical floor of the pass: the slowest roof, perfectly overlapped, exchanges for nothing.

        Where the host may compute, neither the link nor the sum of both sides binds: they can share the work or alternate.
        """
        own = roof_s(self.memory_s, _compute_s(self._hosted(False), self.hardware) if self.setting.offload.computed else self.compute_s)
        if not self._hosted(True):
            return own
        return roof_s(own, self.host_s if self.setting.offload.computed else self.link_s)

    def op_s(self, op: Op) -> Numeric:
        """Seconds of one operator over all its layers, its collective left out."""
        if op.kind == "collective":
            return 0.0
        if op.kind == "experts" and self.setting.imbalance != 1:
            op = replace(op, flops=op.flops * self.setting.imbalance, act_bytes=op.act_bytes * self.setting.imbalance)
        if not op.hosted:
            return self._on(op, self.hardware)
        return self._hosted_s(op)

    def _on(self, op: Op, part: Accelerator) -> Numeric:
        return self.setting.efficiency.op_time(op, part, stored=op.stored or None, engine=self.setting.engine)

    def _hosted_s(self, op: Op) -> Numeric:
        """Seconds of an operator that lies in host memory: its weights read over the link as the device computes, or all of it there.

        What has no weights, such as attention over a hosted cache, stays with the host.
        """
        host = self.setting.host
        there = self._on(op, host) if self.setting.offload.computed and host is not None else None
        if there is not None and not (np.any(op.weight_bytes) and np.any(self.streamed)):
            return there
        name, bandwidth = host_link(self.hardware, host, devices=int(np.max(self.parallel.gpus)))
        share = self.setting.efficiency.copy_rate(name).eff
        rest = self._on(replace(op, weight_bytes=0.0 * op.weight_bytes), self.hardware)
        streamed: Numeric = np.maximum(rest, op.weight_bytes / (bandwidth * share))
        return streamed if there is None else np.where(np.asarray(self.streamed) > 0, streamed, there)

    def wire_s(self, op: Op) -> Numeric:
        """Seconds of the collective that ends an operator, over all its layers."""
        if op.wire is None:
            return 0.0
        s, w = self.setting, op.wire
        waits = s.efficiency.overhead(s.engine, self.hardware.architecture).collectives
        return op.count * waits * comm_s(w.kind, w.bytes, w.ranks, self.hardware, s.efficiency, network=s.network, stride=w.stride)

    @cached_property
    def device_s(self) -> Numeric:
        """Operators in turn, each at its kernel's efficiency, and the collectives that nothing hides."""
        ops, wires = total(self.op_s(op) for op in self.ops), total(self.wire_s(op) for op in self.ops)
        if self.setting.overlap:
            wires = wires - np.minimum(self.setting.overlap * wires, ops)
        return total([ops, wires])

    @property
    def overhead_s(self) -> Numeric:
        """What engine and host add to the pass, and what devices wait for a host that is slower than they are."""
        return self.added_s(self.sequences) + self.waited_s(self.device_s)

    def waited_s(self, device_s: Numeric) -> Numeric:
        """What devices that are busy for so long wait for the host, which works beside them."""
        s = self.setting
        return host_wait_s(device_s, s.efficiency.host_s(s.engine, self.layers, self.hardware.architecture))

    def added_s(self, sequences: Numeric) -> Numeric:
        """The same for another number of sequences."""
        return self.setting.efficiency.step_overhead_s(
            self.setting.engine, self.layers, sequences, expert_layers=self.layers_of("experts"),
            recurrent_layers=self.layers_of("recurrence"), architecture=self.hardware.architecture,
        )  # fmt: skip

    def layers_of(self, kind: str) -> Numeric:
        """Layers that have an operator of a kind."""
        return total(op.count for op in self.ops if op.kind == kind)

    @cached_property
    def time_s(self) -> Numeric:
        """The estimate: operators in turn, each at its kernel's efficiency, then collectives and overhead. Never below the floor."""
        found: Numeric = np.maximum(total([self.device_s, self.overhead_s]), self.floor_s)
        return found

    @cached_property
    def basis(self) -> Basis:
        """How well the estimate is known: `measured` where half of its kernels' time and its engine's overhead are, `ideal` for floors."""
        if self.setting.ideal:
            return "ideal"
        if self.setting.efficiency.overhead(self.setting.engine, self.hardware.architecture).basis != "measured":
            return "inherited"
        spent = [(float(np.mean(self.op_s(op))), self.kernel(op).basis) for op in self.ops if op.kind != "collective"]
        known = sum(seconds for seconds, basis in spent if basis == "measured")
        return "measured" if known >= sum(seconds for seconds, _ in spent) / 2 else "inherited"

    def kernel(self, op: Op) -> Kernel:
        """What the kernel of an operator reaches on the device, one that lies in host memory included."""
        return self.setting.efficiency.kernel_of(op, self.hardware, stored=op.stored or None, engine=self.setting.engine)

    @property
    def mfu(self) -> Numeric:
        """Model FLOP utilisation: the time the FLOPs need at the peak over the estimate."""
        return self.compute_s / self.time_s

    @property
    def mbu(self) -> Numeric:
        """Model bandwidth utilisation: the time the bytes need at full bandwidth over the estimate."""
        return self.memory_s / self.time_s

    @property
    def roofs(self) -> dict[str, Numeric]:
        """Seconds under each roof: of the device's memory and its products, of the link to the host and of the host where they matter."""
        found = {"memory": self.memory_s, "compute": self.compute_s}
        return found | ({"link": self.link_s, "host": (1 - self.streamed) * self.host_s} if self._hosted(True) else {})

    @property
    def bound(self) -> Numeric:
        """`memory`, `compute`, `link` or `host`: whichever roof is the slowest."""
        roofs = self.roofs
        slowest = np.argmax(np.broadcast_arrays(*roofs.values()), axis=0)
        found: Numeric = np.asarray(list(roofs))[slowest]
        return found

    def by(self, field: str) -> dict[str, tuple[Numeric, Numeric]]:
        """FLOPs and bytes summed by `part`, `kind` or `name` of operator."""
        names = dict.fromkeys(getattr(op, field) for op in self.ops)
        chosen = {name: [op for op in self.ops if getattr(op, field) == name] for name in names}
        return {name: (total(o.flops for o in ops), total(o.weight_bytes + o.kv_bytes for o in ops)) for name, ops in chosen.items()}


def _compute_s(ops: Sequence[Op], part: Accelerator) -> Numeric:
    """Seconds of products at a part's dense peak of each number type."""
    rates = sorted({op.rate for op in ops if op.rate != "none"})
    return total(compute_s(total(op.flops for op in ops if op.rate == rate), part.peak_flops_per_s(rate)) for rate in rates)


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
    ops = operators(model, precision, segments, convention, setting.parallel, offload=setting.offload, skew=setting.skew)
    new = total(s.tokens for s in segments)
    return Step(tuple(ops), hardware, setting, len(model.order), total(s.sequences for s in segments), new)


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
