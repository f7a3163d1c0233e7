"""A model, a split and segments to the list of operators of one pass, each with FLOPs and bytes by stream. Knows no part and no clock.

Bytes are those that must cross the memory bus at the least: each weight once per pass, each cached entry read once, each new one
written; activations are listed apart. All figures are of one rank: the busiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inferplan.engine.convention import ALGORITHM, Convention
from inferplan.engine.cores import of_mixer
from inferplan.engine.exchanges import exchanges, stages
from inferplan.engine.op import Op, Pass, Wire
from inferplan.engine.segment import Segment
from inferplan.engine.towers import towers
from inferplan.engine.weight_ops import head, lookup, of_block, of_weight, sampling
from inferplan.specs.model import Block, Model
from inferplan.specs.offload import NOTHING, Offload
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision

__all__ = ["Op", "operators"]


def operators(
    model: Model, precision: Precision, segments: Sequence[Segment], convention: Convention = ALGORITHM, parallel: Parallel = ONE, *,
    offload: Offload = NOTHING, skew: float = 0.0,
) -> list[Op]:  # fmt: skip
    """The operators of one pass over `segments` that share it, on the busiest rank.

    `offload` says which layers lie in host memory: their operators stand apart, marked `hosted`. `skew` is the exponent by which
    the popularity of routed experts falls.

    >>> attention = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16}
    >>> model = Model.from_mapping({"name": "m", "title": "M", "hidden": 64, "vocab": 256, "layers": "a*4",
    ...     "blocks": {"a": {"mixer": attention, "ffn": {"kind": "dense", "width": 160}}}})
    >>> ops = operators(model, Precision.named("bf16"), [Segment(1, 1, 64)])
    >>> sum(op.flops for op in ops if op.part == "mlp")
    245760.0
    """
    run = Pass(model, precision, parallel, tuple(segments), convention, skew)
    found = [lookup(run, w) for w in model.embeddings()]
    if not parallel.single:
        found[0] = replace(found[0], wire=Wire("all_reduce", 2.0 * model.hidden * run.tokens, parallel.tp))
    for count, name, block in model.groups():
        ops = [replace(op, name=f"{name}.{op.name}") for op in layer(run, block, model.hidden)]
        found += [placed for op in ops for placed in places(op, count, _indexes(model, name), offload)]
    found += [of_weight(run, w, run.tokens) for w in model.around()]
    found += towers(run)
    last = [replace(op, hosted=offload.head) for op in head(run)]
    return [*found, *last, *sampling(run), *stages(run)]


def _indexes(model: Model, name: str) -> np.ndarray:
    """Where in the stack the layers of a block stand."""
    return np.flatnonzero(np.asarray(model.order) == name)


def places(op: Op, count: int, indexes: np.ndarray, offload: Offload) -> list[Op]:
    """One layer's operator over all `count` layers, those that lie in host memory apart."""
    return [
        replace(op, name=f"{op.name}@host", hosted=True).times(layers) if hosted else op.times(layers)
        for layers, hosted in placements(op, count, indexes, offload)
    ]


def placements(op: Op, count: int, indexes: np.ndarray, offload: Offload) -> list[tuple[float, bool]]:
    """In how many layers an operator lies on the device and in how many on the host (True); only the one or the other where none is left.

    What has no weights stays on the device unless the host computes.
    """
    if not offload.any or op.kind == "collective" or not (offload.computed or np.any(op.weight_bytes)):
        return [(count, False)]
    whole, routed = offload.of_layers(indexes)
    away = whole + (routed if op.kind == "experts" else 0.0)
    return [(_whole(n), hosted) for n, hosted in ((count - away, False), (away, True)) if n > 0]


def _whole(count: float) -> float:
    """A count as an integer where it is one."""
    return int(count) if count == int(count) else count


def layer(run: Pass, block: Block, hidden: int) -> list[Op]:
    """The operators of one layer, kernels fused as engines fuse them."""
    found = [*of_block(run, block, hidden), *(op for mixer in block.mixers for op in of_mixer(run, mixer))]
    return [*fused(found), *exchanges(run, block)]


def fused(ops: Sequence[Op]) -> list[Op]:
    """Operators that share a kernel joined into one."""
    found: dict[str, Op] = {}
    for i, op in enumerate(ops):
        key = op.fuse or f"{i}"
        found[key] = found[key].joined(op) if key in found else replace(op, name=op.fuse or op.name)
    return list(found.values())
