"""Bytes of weights of each pipeline stage with what engines hold beside them: copies, and the allocator's rounding. Knows no cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferplan.formula import formula
from inferplan.memory.shards import PLAIN, Holding, Shard, shards
from inferplan.memory.weights import weight_bytes_by_part
from inferplan.ops import Numeric
from inferplan.specs.mixers import LatentAttention
from inferplan.specs.model import Model
from inferplan.specs.offload import NOTHING, Offload
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision
from inferplan.specs.weights import Weight
from inferplan.units import MIB

_FUSED = ("q", "k", "v")


def stage_weight_bytes(
    model: Model, precision: Precision, parallel: Parallel, holding: Holding = PLAIN, *, offload: Offload = NOTHING, mtp: bool = False
) -> list[Numeric]:
    """Bytes of weights on one rank of each pipeline stage; token tables and towers lie on the first stage, the head on the last.

    A tied table lies on both. Broadcasts over tp, dp and ep; pp is one number. What `offload` keeps in host memory is left out, and
    where the host computes the stages share the layers that stay; `mtp` adds the model's prediction modules to the last stage.

    >>> from inferplan.specs.model import Model
    >>> model = Model.from_mapping({"name": "m", "title": "M", "hidden": 64, "vocab": 100, "layers": "a*2",
    ...     "blocks": {"a": {"ffn": {"kind": "dense", "width": 128}}}})
    >>> float(sum(stage_weight_bytes(model, Precision.named("bf16"), Parallel(pp=2)))) == 2 * model.params
    True
    """
    held = shards(model, precision, parallel, holding, offload)
    found = _by_stage(held, [h.bytes for h in held], parallel)
    if holding.latent_copies:
        found = _added(found, _latent_copies(model, held, parallel))
    if holding.rounded:
        found = _added(found, _rounding(precision, held, parallel))
    if mtp and model.mtp:
        found[-1] = found[-1] + weight_bytes_by_part(model, precision, mtp=True)["mtp"] / parallel.tp
    return found


def _by_stage(held: Sequence[Shard], sizes: Sequence[Numeric], parallel: Parallel) -> list[Numeric]:
    """Sizes that go with tensors, summed over those of each stage."""
    found: list[Numeric] = [0.0] * int(np.asarray(parallel.pp))
    for h, size in zip(held, sizes, strict=True):
        found = [total + size * part for total, part in zip(found, h.inside, strict=True)]
    return found


def _added(one: Sequence[Numeric], other: Sequence[Numeric]) -> list[Numeric]:
    return [a + b for a, b in zip(one, other, strict=True)]


@formula("2 * kv_rank * heads * (nope + v)", unit="B", ref="vLLM 0.19 and 0.8 start-up logs: DeepSeek-V2-Lite, DeepSeek-R1 AWQ over 16")
def absorbed_bytes(kv_rank: Numeric, heads: Numeric, nope: Numeric, v: Numeric) -> Numeric:
    """The two factors of one layer's latent up-projection, kept in 16 bit beside it for decoding without expanding the latent.

    >>> absorbed_bytes(512, 128 / 16, 128, 128) / 2**20
    2.0
    """
    return 2 * kv_rank * heads * (nope + v)


def latent_copy_bytes(model: Model, precision: Precision, parallel: Parallel, *, offload: Offload = NOTHING) -> list[Numeric]:
    """Bytes on one rank of each stage of the copies that engines keep of latent up-projections; 0 without latent attention.

    >>> from inferplan.readers.opening import open_model
    >>> round(sum(latent_copy_bytes(open_model("deepseek-v3").model, Precision.named("awq"), Parallel(tp=16))) / 2**20, 1)
    122.0
    """
    return _latent_copies(model, shards(model, precision, parallel, offload=offload), parallel)


def _latent_copies(model: Model, held: Sequence[Shard], parallel: Parallel) -> list[Numeric]:
    return _by_stage(held, [_copied(model, h, parallel) for h in held], parallel)


def _copied(model: Model, h: Shard, parallel: Parallel) -> Numeric:
    """The copies of one tensor's factors over its layers; 0 for what is no latent up-projection."""
    mixers = model.blocks[h.block].mixers if h.block and h.weight.name.endswith("kv_b") else ()
    sizes = [absorbed_bytes(m.kv_rank, m.heads / parallel.tp, m.nope, m.v) for m in mixers if isinstance(m, LatentAttention)]
    return sizes[0] * len(h.layers) if sizes else 0.0


@formula(
    "where((size >= 10485760) & (ceil(size / 2097152) * 2097152 - size <= 1048576), ceil(size / 2097152) * 2097152 - size, 0)",
    unit="B",
    ref="PyTorch CUDACachingAllocator: segments of whole 2 MiB; a rest of at most 1 MiB stays with its tensor. Exact on 12 start-up logs",
)
def rounding_of(size: Numeric) -> Numeric:
    """What PyTorch's allocator adds to a tensor of `size` bytes: large ones take whole 2 MiB unless more than 1 MiB is left over.

    >>> [float(rounding_of(mib * 2**20)) / 2**20 for mib in (259.0, 31.5, 24.5, 4.5)]
    [1.0, 0.5, 0.0, 0.0]
    """
    rest = np.ceil(np.asarray(size) / (2 * MIB)) * (2 * MIB) - size
    return np.where((np.asarray(size) >= 10 * MIB) & (rest <= MIB), rest, 0.0)


def rounding_bytes(
    model: Model, precision: Precision, parallel: Parallel, holding: Holding = PLAIN, *, offload: Offload = NOTHING
) -> list[Numeric]:
    """What the allocator's rounding adds to the weights of one rank of each stage, tensor by tensor as engines fuse them.

    Queries, keys and values are one tensor, gate and up are one, and all experts of a layer are one. Tensors of 1 to 10 MiB share
    segments of 20 MiB, whose rests are not counted: a limit for models of a few hundred MB.

    >>> from inferplan.readers.opening import open_model
    >>> qwen = rounding_bytes(open_model("qwen2.5-7b").model, Precision.named("bf16"), Parallel())
    >>> round(float(qwen[0]) / 2**20, 1)  # 14.25 GiB were loaded for 14.193 of weights
    56.8
    """
    return _rounding(precision, shards(model, precision, parallel, holding, offload), parallel)


def _rounding(precision: Precision, held: Sequence[Shard], parallel: Parallel) -> list[Numeric]:
    """Codes alone are counted: scales are tensors of their own, and mostly small."""
    fused: dict[object, tuple[Shard, Numeric]] = {}
    for i, h in enumerate(held):
        stem, _, last = h.weight.name.rpartition(".")
        key = (h.block, h.layers, stem) if last in _FUSED and h.layers else i
        one = h.bytes * _codes(precision, h.weight) / (max(1, len(h.layers)) * _apart(h.weight))
        fused[key] = (h, one + fused[key][1] if key in fused else one)
    whole = [rounding_of(size) * max(1, len(h.layers)) * _apart(h.weight) for h, size in fused.values()]
    return _by_stage([h for h, _ in fused.values()], whole, parallel)


def _codes(precision: Precision, w: Weight) -> float:
    """The share of a tensor's bytes that are its codes, without scales."""
    kept = precision.format_of(w.part)
    if w.use not in ("matmul", "expert", "lookup") or not kept.quantised or precision.mix is not None:
        return 1.0
    return float(kept.payload_bits(w.rows, w.cols) / kept.matrix_bits(w.rows, w.cols))


def _apart(w: Weight) -> int:
    """Tensors that a record of equal copies stands for: the experts of a layer are stacked into one."""
    return 1 if w.use == "expert" else w.copies
