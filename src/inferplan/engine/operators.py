"""A model and segments to the list of operators of one pass, each with FLOPs and bytes by stream. Knows no part and no clock.

Every matrix product comes from the model's list of weight tensors, so parameters, bytes and FLOPs cannot disagree. Bytes are
those that must cross the memory bus at the least: each weight once per pass, each cached entry read once, each new one written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferplan.engine.cache_bytes import entry_bytes, kept_entries, state_bytes
from inferplan.engine.convention import ALGORITHM, Convention
from inferplan.engine.segment import Segment
from inferplan.ops import Numeric
from inferplan.ops.attention import attention_flops, causal_pairs, chunk_pairs, indexer_flops, rectangle_pairs, window_pairs
from inferplan.ops.gemm import depthwise_flops, gemm_flops
from inferplan.ops.moe import distinct_experts
from inferplan.ops.recurrent import delta_rule_flops, linear_attention_flops, selective_scan_flops
from inferplan.specs.cache import CacheEntry
from inferplan.specs.mixers import Attention, CompressedAttention, Indexer, LatentAttention
from inferplan.specs.model import Block, Model, Tower
from inferplan.specs.precision import Precision, Tensor, tensor_role
from inferplan.specs.weights import Weight


@dataclass(frozen=True, slots=True)
class Op:
    """One operator over all the layers that have it.

    kind
        matmul, attention, indexer, recurrence, conv, lookup, elementwise.
    part
        what it belongs to (attention, mlp, experts ...).
    rate
        dtype its products are computed in where hardware supports it.
    flops, weight_bytes, kv_bytes
        totals over its layers; arrays broadcast like the segments. kv_bytes counts cache read and written, states included.
    """

    name: str
    kind: str
    part: str
    rate: str
    flops: Numeric
    weight_bytes: Numeric = 0.0
    kv_bytes: Numeric = 0.0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Pass:
    """Everything an operator needs to know of a pass."""

    model: Model
    precision: Precision
    segments: tuple[Segment, ...]
    convention: Convention

    def total(self, each: Any) -> Numeric:
        """The sum of a function over segments."""
        found: Numeric = 0.0
        for segment in self.segments:
            found = found + each(segment)
        return found

    @property
    def tokens(self) -> Numeric:
        """New tokens of all segments."""
        return self.total(lambda s: s.tokens)


def operators(model: Model, precision: Precision, segments: Sequence[Segment], convention: Convention = ALGORITHM) -> list[Op]:
    """The operators of one pass over `segments` that share it.

    >>> attention = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16}
    >>> model = Model.from_mapping({"name": "m", "title": "M", "hidden": 64, "vocab": 256, "layers": "a*4",
    ...     "blocks": {"a": {"mixer": attention, "ffn": {"kind": "dense", "width": 160}}}})
    >>> ops = operators(model, Precision.named("bf16"), [Segment(1, 1, 64)])
    >>> sum(op.flops for op in ops if op.part == "mlp")
    245760.0
    """
    run = Pass(model, precision, tuple(segments), convention)
    found = [_lookup(run, w) for w in model.embeddings()]
    for count, name, block in model.groups():
        found += [replace(op, name=f"{name}.{op.name}") for op in _block(run, block, count, model.hidden)]
    found += [op for e in model.extra for op in _weight(run, e.weight(), run.tokens, "other")]
    found += [op for tower in model.towers.values() if tower.counts_as == "encoder" for op in _encoder(run, tower)]
    return [*found, *_head(run)]


def _lookup(run: Pass, w: Weight) -> Op:
    row = run.precision.format_of(w.part).bytes(1, w.cols) * w.copies
    return Op(w.name, "lookup", w.part, "none", 0.0 * run.tokens, row * run.tokens)


def _head(run: Pass) -> list[Op]:
    """The output projection on the positions that need it; a tied head reads the token table."""
    model = run.model
    if model.head == "none":
        return []
    rows = run.tokens if run.convention.head_everywhere else run.total(lambda s: s.sequences * s.logits)
    table = model.heads()[0] if model.head == "own" else replace(model.embeddings()[0], name="head", part="head", use="matmul")
    stored = run.precision.format_of("head" if model.head == "own" else "embedding")
    needed = np.where(np.asarray(rows) > 0, 1.0, 0.0)
    flops = gemm_flops(rows, table.rows, table.cols)
    return [Op("head", "matmul", "head", run.precision.compute_of("head"), flops, needed * stored.bytes(table.rows, table.cols))]


def _block(run: Pass, block: Block, count: int, hidden: int) -> list[Op]:
    """The operators of `count` equal layers."""
    found: list[Op] = []
    for weight in block.weights(hidden):
        found += _weight(run, weight, _positions(run, block, weight), weight.part, block)
    for mixer in block.mixers:
        found += list(_core(run, mixer, hidden))
    return [_times(op, count) for op in found]


def _times(op: Op, count: int) -> Op:
    return replace(op, flops=op.flops * count, weight_bytes=op.weight_bytes * count, kv_bytes=op.kv_bytes * count, count=op.count * count)


def _positions(run: Pass, block: Block, w: Weight) -> Numeric:
    """How many token positions pass through a weight: an encoder's for the keys of cross attention, cached ones for an expanded latent."""
    cross = next((m for m in block.mixers if isinstance(m, Attention) and m.memory), None)
    if cross and w.name.startswith("attention") and w.name.endswith((".k", ".v")) and _is_cross(block, w):
        fixed = cross.memory_tokens
        return run.total(lambda s: s.sequences * s.opens * (fixed if fixed is not None else s.memory))
    if w.name == "mla.kv_b" and run.convention.expand_latent:
        return run.total(lambda s: s.sequences * (s.past + s.new))
    return run.tokens


def _is_cross(block: Block, w: Weight) -> bool:
    """Whether a weight belongs to the cross attention among a block's mixers."""
    index = next(i for i, m in enumerate(block.mixers) if isinstance(m, Attention) and m.memory)
    return w.name.split(".")[0] == (f"attention{index}" if index else "attention")


def _weight(run: Pass, w: Weight, positions: Numeric, part: str, block: Block | None = None) -> list[Op]:
    """The operator that one weight tensor of a layer makes."""
    if w.buffer:
        return []
    if w.use == "expert" and block is not None:
        return [_experts(run, w, block)]
    stored = _stored(run, w)
    once = stored * np.where(np.asarray(positions) > 0, 1.0, 0.0)
    rate = run.precision.compute_of(w.part)
    if w.use == "matmul":
        flops = gemm_flops(positions, w.rows, w.cols) * w.copies * 1.0
        return [Op(w.name, "matmul", part, rate, flops, once)]
    if w.use == "conv":
        extra = run.total(lambda s: s.sequences) * (w.cols - 1) if run.convention.conv_padding else 0
        return [Op(w.name, "conv", part, rate, depthwise_flops(positions + extra, w.rows, w.cols) * w.copies * 1.0, once)]
    return [Op(w.name, "lookup" if w.use == "lookup" else "elementwise", part, "none", 0.0 * positions, once)]


def _stored(run: Pass, w: Weight) -> Numeric:
    """Bytes of a weight's copies in the format of its part; biases stay 16 bit."""
    role = Tensor(tensor_role(w.name, w.part), 0, len(run.model.order), w.cols)
    formats = run.precision.formats_of(w.part, role)
    layers = sum(n for _, n in formats)
    each = sum(f.bytes(w.rows, w.cols) * n for f, n in formats) / layers
    return w.copies * (each + 2.0 * w.bias)


def _experts(run: Pass, w: Weight, block: Block) -> Op:
    """Routed experts: each token passes top_k of them; a pass reads the distinct ones."""
    moe = block.experts
    assert moe is not None
    tokens = run.tokens
    touched = distinct_experts(moe.experts, moe.top_k / (1 + moe.null_experts / moe.experts), tokens)
    used = moe.experts if run.convention.every_expert else moe.top_k
    flops = gemm_flops(tokens * used, w.rows, w.cols) * 1.0
    return Op(w.name, "matmul", w.part, run.precision.compute_of(w.part), flops, _stored(run, w) / w.copies * touched)


def _encoder(run: Pass, tower: Tower) -> Iterator[Op]:
    """An encoder's pass over its own tokens, on segments that open a sequence."""
    positions = run.total(lambda s: s.sequences * s.opens * (s.memory if tower.tokens is None else tower.tokens))
    pairs = run.total(lambda s: s.sequences * s.opens * (s.memory if tower.tokens is None else tower.tokens) ** 2)
    for count, name, block in tower.groups():
        for w in block.weights(tower.hidden):
            for op in _weight(run, w, positions, w.part, block):
                yield _times(replace(op, name=f"{name}.{op.name}"), count)
        for m in block.mixers:
            if isinstance(m, Attention):
                flops = attention_flops(m.heads, m.head_dim, m.value_dim, pairs) * 1.0
                yield _times(Op(f"{name}.scores", "attention", "attention", "bf16", flops), count)
    for e in tower.extra:
        yield _stem(run, e.weight(), positions)


def _stem(run: Pass, w: Weight, positions: Numeric) -> Op:
    """What stands before an encoder's layers: strided convolutions as matrix products, tables, norms."""
    once = _stored(run, w) * np.where(np.asarray(positions) > 0, 1.0, 0.0)
    if w.use not in ("conv", "matmul"):
        return Op(w.name, "lookup", "conv_frontend", "none", 0.0 * positions, once)
    flops = gemm_flops(positions * w.rate, w.rows, w.cols) * w.copies * 1.0
    return Op(w.name, "matmul", "conv_frontend", run.precision.compute_of(w.part), flops, once)


def pairs_of(run: Pass, window: Numeric, chunk: int | None = None) -> Numeric:
    """Attended pairs of all segments under a window, a chunk, or neither (an infinite window)."""
    limit = float(chunk) if chunk else window

    def pairs(s: Segment) -> Numeric:
        if not run.convention.causal:
            return s.sequences * rectangle_pairs(s.new, s.past, limit)
        if chunk:
            return s.sequences * chunk_pairs(s.new, s.past, chunk)
        return s.sequences * (causal_pairs(s.new, s.past) if np.isinf(window) else window_pairs(s.new, s.past, window))

    return run.total(pairs)


def _cache_traffic(run: Pass, entries: list[CacheEntry]) -> Numeric:
    """Bytes of cached entries read and of new ones written, one layer."""
    total: Numeric = 0.0
    for entry in entries:
        each = entry_bytes(entry, run.precision)
        states = 2 * state_bytes(entry, run.precision, run.model.dtype)
        total = total + run.total(lambda s, e=entry, b=each, x=states: s.sequences * (b * (kept_entries(e, s.past) + s.new / e.every) + x))
    return total


def _core(run: Pass, mixer: Any, hidden: int) -> Iterator[Op]:
    """What a mixer does beside its weights: scores and values, an indexer, a recurrence."""
    traffic = _cache_traffic(run, mixer.cache())
    if isinstance(mixer, Attention):
        yield from _attention(run, mixer, traffic)
    elif isinstance(mixer, LatentAttention):
        yield from _latent(run, mixer, traffic)
    elif isinstance(mixer, CompressedAttention):
        yield from _compressed(run, mixer, traffic)
    else:
        yield _recurrence(run, mixer, traffic)


def _attention(run: Pass, m: Attention, traffic: Numeric) -> Iterator[Op]:
    if m.memory:
        fixed = m.memory_tokens
        pairs = run.total(lambda s: s.tokens * (fixed if fixed is not None else s.memory))
        traffic = run.total(lambda s: s.sequences * (fixed if fixed is not None else s.memory)) * entry_bytes(m.cache()[0], run.precision)
    else:
        pairs = pairs_of(run, _selected(run, m.indexer, float(m.window or np.inf)), m.chunk)
    if m.indexer and m.indexer.own:
        yield _index(run, m.indexer, m.cache()[-1])
    yield Op(
        "scores",
        "attention",
        m.part,
        "bf16",
        attention_flops(m.heads, m.head_dim, m.value_dim, pairs) * 1.0,
        0.0,
        _borrowed(run, m, traffic),
    )


def _borrowed(run: Pass, m: Attention, traffic: Numeric) -> Numeric:
    """Cache traffic of a layer; one that reads an earlier layer's keys reads them without writing."""
    if m.keys != "shared":
        return traffic
    own = m.model_copy(update={"keys": "own"}).cache()
    return run.total(lambda s: s.sequences * kept_entries(own[0], s.past)) * entry_bytes(own[0], run.precision)


def _selected(run: Pass, indexer: Indexer | None, window: float) -> float:
    """Keys a query reads at most: the window, or what an indexer selects."""
    return min(window, float(indexer.top_k * indexer.block)) if indexer and run.convention.select else window


def _index(run: Pass, i: Indexer, entry: CacheEntry) -> Op:
    """An indexer's scores over all earlier tokens, and its keys."""
    flops = indexer_flops(i.heads, i.head_dim, pairs_of(run, np.inf) / i.every) * 1.0
    return Op("index_scores", "indexer", "indexer", "fp8" if i.key_bytes else "bf16", flops, 0.0, _cache_traffic(run, [entry]))


def _latent(run: Pass, m: LatentAttention, traffic: Numeric) -> Iterator[Op]:
    """Scores in the expanded heads, or in the latent itself where absorbing the up-projection costs less."""
    pairs = pairs_of(run, _selected(run, m.indexer, float(m.window or np.inf)))
    expanded = attention_flops(m.heads, m.nope + m.rope, m.v, pairs)
    if not run.convention.expand_latent:
        again = run.total(lambda s: s.sequences * s.past) * 2 * m.kv_rank * m.heads * (m.nope + m.v)
        absorbed = attention_flops(m.heads, m.kv_rank + m.rope, m.kv_rank, pairs)
        expanded = np.minimum(expanded + again, absorbed)
    if m.indexer and m.indexer.own:
        yield _index(run, m.indexer, m.cache()[-1])
        traffic = _cache_traffic(run, m.cache()[:1])
    yield Op("scores", "attention", "attention", "bf16", expanded * 1.0, 0.0, traffic)


def _compressed(run: Pass, m: CompressedAttention, traffic: Numeric) -> Iterator[Op]:
    """Scores over the window and over compressed entries, those an indexer selects where there is one."""
    pairs = pairs_of(run, float(m.window))
    entries = m.cache()
    if m.every:
        chosen = _selected(run, m.indexer, np.inf)
        pairs = pairs + pairs_of(run, chosen * m.every) / m.every
    if m.indexer:
        yield _index(run, m.indexer, entries[-1])
        traffic = _cache_traffic(run, entries[:-1])
    yield Op("scores", "attention", "attention", "bf16", attention_flops(m.heads, m.head_dim, m.head_dim, pairs) * 1.0, 0.0, traffic)


_SCANS = {"gated_delta": delta_rule_flops, "kda": delta_rule_flops, "lightning": linear_attention_flops, "mamba2": linear_attention_flops}


def _recurrence(run: Pass, mixer: Any, traffic: Numeric) -> Op:
    """A recurrence's state update; short convolutions have none beside their weights."""
    states = [s.elements for entry in mixer.cache() for s in entry.states if s.name != "conv"]
    if not states or not run.convention.scans:
        return Op("state", "recurrence", "recurrent", "fp32", 0.0 * run.tokens, 0.0, traffic)
    flops = _SCANS.get(mixer.kind, selective_scan_flops)(run.tokens, sum(states))
    return Op("state", "recurrence", "recurrent", "fp32", flops * 1.0, 0.0, traffic)
