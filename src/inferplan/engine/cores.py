"""What a mixer does beside its weights: scores and values over cached tokens, an indexer, a recurrence. Knows no part and no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.engine.cache_bytes import entry_bytes, kept_entries, state_bytes
from inferplan.engine.op import Op, Pass
from inferplan.engine.segment import Segment
from inferplan.ops import Numeric
from inferplan.ops.attention import attention_flops, causal_pairs, chunk_pairs, indexer_flops, rectangle_pairs, window_pairs
from inferplan.ops.recurrent import delta_rule_flops, linear_attention_flops, selective_scan_flops
from inferplan.specs.cache import CacheEntry
from inferplan.specs.mixers import Attention, CompressedAttention, Indexer, LatentAttention

SCANS = {"gated_delta": delta_rule_flops, "kda": delta_rule_flops, "lightning": linear_attention_flops, "mamba2": linear_attention_flops}


def of_mixer(run: Pass, mixer: Any) -> Iterator[Op]:
    """The operators of one layer's mixer that are not weight tensors."""
    reader = READERS.get(type(mixer))
    if reader is None:
        yield _recurrence(run, mixer)
        return
    for phase, part, there in run.phases():
        for op in reader(part, mixer):
            op = op if np.ndim(there) == 0 else replace(op, count=op.count * there)
            yield replace(op, kind=f"attention_{phase}", stored=run.precision.kv.name) if op.kind == "attention" else op


def pairs_of(run: Pass, window: Numeric, chunk: int | None = None, *, causal: bool = True) -> Numeric:
    """Attended pairs of this rank's sequences under a window, a chunk, or neither (an infinite window); encoders are not causal."""
    limit = float(chunk) if chunk else window
    endless = bool(np.all(np.isinf(np.asarray(window))))

    def pairs(s: Segment) -> Numeric:
        if not (causal and run.convention.causal):
            return s.sequences * rectangle_pairs(s.new, s.past, limit)
        if chunk:
            return s.sequences * chunk_pairs(s.new, s.past, chunk)
        return s.sequences * (causal_pairs(s.new, s.past) if endless else window_pairs(s.new, s.past, window))

    return run.local(pairs) / run.parallel.cp


def traffic(run: Pass, entry: CacheEntry, ways: Numeric = 1.0) -> Numeric:
    """Bytes of cached entries read and of new ones written, one layer; `ways` ranks divide them."""
    each = entry_bytes(entry, run.precision) / ways / run.parallel.cache_ways
    states = 2 * state_bytes(entry, run.precision, run.model.dtype) / run.parallel.tp
    return run.local(lambda s: s.sequences * (each * (kept_entries(entry, s.past) + s.new / entry.every) + states))


def selected(run: Pass, indexer: Indexer | None, window: float) -> float:
    """Keys a query reads at most: the window, or what an indexer selects."""
    return min(window, float(indexer.top_k * indexer.block)) if indexer and run.convention.select else window


def index(run: Pass, i: Indexer, entry: CacheEntry) -> Op:
    """An indexer's scores over all earlier tokens, and its keys."""
    flops = indexer_flops(i.heads, i.head_dim, pairs_of(run, np.inf) / i.every) * 1.0
    return Op("index_scores", "indexer", "indexer", "fp8" if i.key_bytes else "bf16", flops, kv_bytes=traffic(run, entry))


def _attention(run: Pass, m: Attention) -> Iterator[Op]:
    tp = run.parallel.tp
    if m.indexer and m.indexer.own:
        yield index(run, m.indexer, m.cache()[-1])
    if m.memory:
        fixed = m.memory_tokens
        pairs = run.spread(lambda s: s.tokens * (fixed if fixed is not None else s.memory))
        moved = run.local(lambda s: s.sequences * (fixed if fixed is not None else s.memory)) * entry_bytes(m.cache()[0], run.precision)
        moved = moved / np.minimum(tp, m.kv_heads)
    else:
        pairs, moved = pairs_of(run, selected(run, m.indexer, float(m.window or np.inf)), m.chunk, causal=m.causal), _kv_traffic(run, m)
    flops = attention_flops(m.heads, m.head_dim, m.value_dim, pairs) * 1.0 / tp
    act = 2.0 * run.tokens * m.heads * (m.head_dim + m.value_dim) / tp
    yield Op("scores", "attention", m.part, "bf16", flops, kv_bytes=moved, act_bytes=act)


def _kv_traffic(run: Pass, m: Attention) -> Numeric:
    """Cache traffic of a layer; one that reads an earlier layer's keys reads them without writing; a sparse one reads what it selects."""
    ways = np.minimum(run.parallel.tp, m.kv_heads)
    if not m.cached:
        return 0.0 * run.tokens
    own = m if m.keys != "shared" else m.model_copy(update={"keys": "own"})
    entry = own.cache()[0]
    if m.indexer and run.convention.select:
        limit = float(m.indexer.top_k * m.indexer.block)
        each = entry_bytes(entry, run.precision) / ways / run.parallel.cache_ways
        return run.local(lambda s: s.sequences * each * (np.minimum(s.past, limit * s.new) + s.new))
    if m.keys == "shared":
        each = entry_bytes(entry, run.precision) / ways / run.parallel.cache_ways
        return run.local(lambda s: s.sequences * kept_entries(entry, s.past)) * each
    return traffic(run, entry, ways)


def _latent(run: Pass, m: LatentAttention) -> Iterator[Op]:
    """Scores in the expanded heads, or in the latent itself where absorbing the up-projection costs less; the latent is on every rank."""
    tp = run.parallel.tp
    pairs = pairs_of(run, selected(run, m.indexer, float(m.window or np.inf)))
    flops = attention_flops(m.heads, m.nope + m.rope, m.v, pairs)
    if not run.convention.expand_latent:
        again = run.local(lambda s: s.sequences * s.past) / run.parallel.cp * 2 * m.kv_rank * m.heads * (m.nope + m.v)
        flops = np.minimum(flops + again, attention_flops(m.heads, m.kv_rank + m.rope, m.kv_rank, pairs))
    if m.indexer and m.indexer.own and m.cached:
        yield index(run, m.indexer, m.cache()[-1])
    act = 2.0 * run.tokens * m.heads * (m.kv_rank + m.rope + m.v) / tp
    yield Op("scores", "attention", "attention", "bf16", flops * 1.0 / tp, kv_bytes=_latent_traffic(run, m), act_bytes=act)


def _latent_traffic(run: Pass, m: LatentAttention) -> Numeric:
    """Latents read and written; a layer that reads an earlier layer's writes none; a sparse one reads what it selects."""
    if not m.cached:
        return 0.0 * run.tokens
    entry = m.model_copy(update={"keys": "own"}).cache()[0]
    if m.keys == "own" and not (m.indexer and run.convention.select):
        return traffic(run, entry)
    each = entry_bytes(entry, run.precision) / run.parallel.cache_ways
    limit = float(m.indexer.top_k) if m.indexer and run.convention.select else np.inf
    written = 1.0 if m.keys == "own" else 0.0
    return run.local(lambda s: s.sequences * each * (np.minimum(kept_entries(entry, s.past), limit * s.new) + written * s.new))


def _compressed(run: Pass, m: CompressedAttention) -> Iterator[Op]:
    """Scores over the window and over compressed entries, those an indexer selects where there is one."""
    tp, entries = run.parallel.tp, m.cache()
    pairs, moved = pairs_of(run, float(m.window)), traffic(run, entries[0])
    if m.every:
        chosen = selected(run, m.indexer, np.inf)
        pairs = pairs + pairs_of(run, chosen * m.every) / m.every
        moved = moved + _compressed_traffic(run, m, entries[1], chosen)
    if m.indexer:
        yield index(run, m.indexer, entries[-1])
    flops = attention_flops(m.heads, m.head_dim, m.head_dim, pairs) * 1.0 / tp
    yield Op("scores", "attention", "attention", "bf16", flops, kv_bytes=moved, act_bytes=4.0 * run.tokens * m.heads * m.head_dim / tp)


def _compressed_traffic(run: Pass, m: CompressedAttention, entry: CacheEntry, chosen: float) -> Numeric:
    """Bytes of compressed entries read, at most those selected, and written."""
    each, every = entry_bytes(entry, run.precision) / run.parallel.cache_ways, float(m.every or 1)
    return run.local(lambda s: s.sequences * each * (np.minimum(s.past // every, chosen * s.new) + s.new / every))


def _recurrence(run: Pass, mixer: Any) -> Op:
    """A recurrence's state update; short convolutions have none beside their weights."""
    entries = mixer.cache()
    moved: Numeric = 0.0 * run.tokens
    for entry in entries:
        moved = moved + traffic(run, entry)
    states = [s.elements for entry in entries for s in entry.states if s.name != "conv"]
    if not states or not run.convention.scans:
        return Op("state", "recurrence", "recurrent", "fp32", 0.0 * run.tokens, kv_bytes=moved)
    flops = SCANS.get(mixer.kind, selective_scan_flops)(run.tokens, sum(states)) / run.parallel.tp
    return Op("state", "recurrence", "recurrent", "fp32", flops * 1.0, kv_bytes=moved)


READERS: dict[type, Callable[[Pass, Any], Iterator[Op]]] = {
    Attention: _attention,
    LatentAttention: _latent,
    CompressedAttention: _compressed,
}
