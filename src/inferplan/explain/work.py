"""FLOPs and bytes of each operator of a pass opened down to shapes and tokens. Knows no part and no clock.

Follows the engine's own order of operators, so that each opened one stands beside the operator it explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from inferplan.engine.cores import SCANS, of_mixer, selected
from inferplan.engine.exchanges import heads_of
from inferplan.engine.op import Op, Pass
from inferplan.engine.operators import layer, placements
from inferplan.engine.split import ROW_PARALLEL, kv_heads, ways
from inferplan.engine.towers import towers
from inferplan.engine.weight_ops import SAMPLING_BYTES, of_weight, tensor_of
from inferplan.engine.weight_ops import experts as experts_op
from inferplan.explain.node import Node, by_formula, derived, leaf, product, total, word
from inferplan.explain.shapes import entry_bytes, kept, matrix_bytes, state_bytes, unless_one
from inferplan.explain.sources import counted, given
from inferplan.ops.moe import touched_experts
from inferplan.specs.cache import CacheEntry
from inferplan.specs.ffns import Experts
from inferplan.specs.mixers import Attention, LatentAttention
from inferplan.specs.model import Block
from inferplan.specs.offload import NOTHING, Offload
from inferplan.specs.weights import Weight

STREAMS = {"flops": "FLOP", "weight_bytes": "B", "kv_bytes": "B", "act_bytes": "B"}
Piece = dict[str, Node]


@dataclass(frozen=True, slots=True)
class View:
    """A pass of one segment, with where its counts come from."""

    run: Pass
    sequences: Node
    new: Node
    past: Node

    def option(self, name: str) -> Node | None:
        """A way of splitting, or nothing where it is 1."""
        return unless_one(given(name, getattr(self.run.parallel, name)))

    def count(self, label: str, value: Any, what: str = "shapes") -> Node:
        """Something counted from the model."""
        return counted(label, value, self.run.model, what=what)

    @property
    def local(self) -> Node:
        """Sequences of the busiest attention group."""
        dp = self.option("dp")
        if dp is None:
            return self.sequences
        text = "sequences * minimum(1, maximum(1 / dp, 1 / maximum(sequences, 1)))"
        return derived("sequences_per_group", text, "", self.sequences, dp)

    @property
    def logits(self) -> Node | None:
        """Rows per sequence that need the head, or nothing where that is 1: a chunk of a prompt needs none but the last."""
        logits = self.run.segments[0].logits
        if np.all(np.asarray(logits) == 1):
            return None
        return leaf("logits", logits, "", "counted: the last chunk of a prompt alone needs the head")

    @property
    def rows(self) -> Node:
        """Rows that need the head."""
        return product("head_rows", "", self.local, self.logits)

    @property
    def shared(self) -> Node | None:
        """The part of a prompt's tokens that falls to one context rank, or nothing where they are not shared."""
        cp = self.option("cp")
        return cp and derived("context_share", "ceil(new / cp) / maximum(new, 1)", "", self.new, cp)

    @property
    def tokens(self) -> Node:
        """New tokens of that group."""
        return product("tokens", "tokens", self.local, unless_one(self.new), self.shared)

    @property
    def all_tokens(self) -> Node:
        """New tokens of all groups."""
        return product("tokens", "tokens", self.sequences, unless_one(self.new), self.shared)

    @property
    def cache_ways(self) -> list[Node | None]:
        """The ways in which the tokens of a cache are dealt out."""
        return [self.option("dcp"), self.option("cp")]

    @property
    def group(self) -> Node | None:
        """Devices that share a layer's experts."""
        found = [f for f in (self.option("tp"), self.option("dp")) if f is not None]
        return product("ranks", "", *found) if found else None


def pieces(v: View, offload: Offload = NOTHING) -> Iterator[Piece]:
    """Every operator of the pass but the collectives, in the engine's order; layers in host memory apart."""
    model = v.run.model
    for w in model.embeddings():
        yield lookup(v, w)
    for count, name, block in model.groups():
        yield from _of_group(v, name, block, count, offload)
    for w in model.around():
        yield tensor(v, w, None, 1, v.tokens)
    yield from (plain(v, op, 1) for op in towers(v.run))
    if model.head != "none":
        yield head(v)
        yield sampling(v)


def _of_group(v: View, name: str, block: Block, count: int, offload: Offload) -> Iterator[Piece]:
    """The operators of all layers of a block, each where its layers lie."""

    @cache
    def over(layers: float) -> list[Piece]:
        return list(fused([*_of_block(v, block, layers), *_of_mixers(v, block, layers)], name))

    if not offload.any:
        yield from over(count)
        return
    where = np.flatnonzero(np.asarray(v.run.model.order) == name)
    for i, op in enumerate(op for op in layer(v.run, block, v.run.model.hidden) if op.kind != "collective"):
        for layers, _ in placements(op, count, where, offload):
            yield over(layers)[i]


def fused(found: Sequence[tuple[Op, Piece]], name: str) -> Iterator[Piece]:
    """Operators that share a kernel joined into one."""
    groups: dict[str, list[tuple[Op, Piece]]] = {}
    for i, (op, piece) in enumerate(found):
        groups.setdefault(op.fuse or f"{i}", []).append((op, piece))
    for members in groups.values():
        yield members[0][1] if len(members) == 1 else joined([(word(op.name), piece) for op, piece in members])


def joined(members: Sequence[tuple[str, Piece]]) -> Piece:
    """The sum of several pieces, stream by stream."""
    found = {}
    for stream, unit in STREAMS.items():
        terms = [piece[stream].named(label) for label, piece in members if stream in piece]
        if terms:
            found[stream] = total(stream, unit, terms)
    return found


def piece_of(**streams: Node | None) -> Piece:
    """Streams that are there, under their names."""
    return {name: node.named(name) for name, node in streams.items() if node is not None and not node.is_zero}


def plain(v: View, op: Op, layers: float) -> Piece:
    """An operator whose work is taken as the engine counts it."""
    source = f"counted: {op.name} over the layers of {v.run.model.title}"
    return piece_of(**{name: leaf(name, getattr(op, name) * layers, unit, source) for name, unit in STREAMS.items()})


def _of_block(v: View, block: Block, layers: float) -> Iterator[tuple[Op, Piece]]:
    for w in block.weights(v.run.model.hidden):
        if w.buffer:
            continue
        if w.use == "expert" and block.experts is not None:
            yield experts_op(v.run, w, block.experts, block), experts(v, w, block.experts, layers, block)
        else:
            positions = _positions(v, block, w)
            yield of_weight(v.run, w, positions.value, block), tensor(v, w, block, layers, positions)


def _positions(v: View, block: Block, w: Weight) -> Node:
    """New tokens, or for keys of cross attention those of the encoder where a sequence begins."""
    for i, m in enumerate(block.mixers):
        if isinstance(m, Attention) and m.memory and w.name in (f"attention{i or ''}.k", f"attention{i or ''}.v"):
            opens = bool(np.any(np.asarray(v.past.value) == 0))
            memory = v.count("memory_tokens", (m.memory_tokens or 0) if opens else 0, "tokens that cross attention looks at")
            return product("positions", "tokens", v.local, memory)
    return v.tokens


def stored(v: View, w: Weight, block: Block | None = None) -> Node:
    """Bytes of one copy of a tensor, its bias included."""
    run = v.run
    formats = run.precision.formats_of(w.part, tensor_of(run.model, block, w))
    each = [matrix_bytes(f, w, run.model, word(f.name)) for f, _ in formats]
    if len(formats) > 1:
        shares = [v.count(word(f"layers_{f.name}"), n, f"layers kept in {f.name}") for f, n in formats]
        terms = [product(word(f"part_{m.label}"), "B", n, m) for n, m in zip(shares, each, strict=True)]
        all_layers = v.count("all_layers", sum(n for _, n in formats))
        matrix = derived("matrix_bytes", f"({' + '.join(t.label for t in terms)}) / all_layers", "B", *terms, all_layers)
    else:
        matrix = each[0].named("matrix_bytes")
    return derived("stored_bytes", "matrix_bytes + 2 * bias", "B", matrix, v.count("bias", w.bias)) if w.bias else matrix


def lookup(v: View, w: Weight) -> Piece:
    """Rows of a table, one per token."""
    row = matrix_bytes(v.run.precision.format_of(w.part), replace(w, rows=1), v.run.model, "row_bytes")
    copies, cols = unless_one(v.count("copies", w.copies)), v.count("cols", w.cols)
    return piece_of(
        weight_bytes=product("weight_bytes", "B", row, copies, v.tokens), act_bytes=product("act_bytes", "B", "2", cols, copies, v.tokens)
    )


def ranks(v: View, w: Weight, block: Block | None) -> Node | None:
    """Over how many ranks a tensor is divided, None where every rank holds it whole."""
    if np.all(np.asarray(ways(w, block, v.run.parallel)) == 1):
        return None
    tp = v.option("tp")
    if w.part == "experts":
        return v.group
    if w.name.rsplit(".", 1)[-1] in ("k", "v") and w.part == "attention" and block is not None and tp is not None:
        return derived("ranks", "minimum(tp, kv_heads)", "", tp, v.count("kv_heads", kv_heads(block, w)))
    return tp


def tensor(v: View, w: Weight, block: Block | None, layers: float, positions: Node) -> Piece:
    """What one tensor makes a pass do, over all its layers."""
    if w.use == "lookup":
        return {name: product(name, "B", v.count("layers", layers), node.named("each")) for name, node in lookup(v, w).items()}
    if positions.is_zero:
        return {}
    over, n, copies = ranks(v, w, block), unless_one(v.count("layers", layers)), unless_one(v.count("copies", w.copies))
    once = product("weight_bytes", "B", n, copies, stored(v, w, block), over=[over])
    rows, cols = v.count("rows", w.rows), v.count("cols", w.cols)
    if w.use not in ("matmul", "conv"):
        own = w.part == "norm"
        act = product("act_bytes", "B", "4", n, positions, rows, copies, over=[over]) if own else None
        return piece_of(weight_bytes=once, act_bytes=act)
    rate = unless_one(v.count("rate", w.rate, "positions per token")) if w.use == "matmul" else None
    flops = product("flops", "FLOP", "2", n, positions, rate, rows, cols, copies, over=[over])
    return piece_of(flops=flops, weight_bytes=once, act_bytes=_activations(v, w, n, positions, copies, over))


def width(v: View, part: str) -> Node:
    """Bytes of an activation that goes into a product."""
    rate = v.run.precision.compute_of(part)
    return leaf("width_bytes", v.run.width_of(rate), "B", f"counted: an activation multiplied in {rate}")


def _activations(v: View, w: Weight, n: Node | None, positions: Node, copies: Node | None, over: Node | None) -> Node:
    last, rows = w.name.rsplit(".", 1)[-1], v.count("rows", w.rows)
    divided = [over] if last in ROW_PARALLEL else []
    if last in ("k", "v"):
        return product("act_bytes", "B", "2", n, positions, copies, rows, over=divided)
    each = derived("bytes_per_token", "cols * width_bytes + 2 * rows", "B", v.count("cols", w.cols), width(v, w.part), rows)
    return product("act_bytes", "B", n, positions, copies, each, over=divided)


def experts(v: View, w: Weight, moe: Experts, layers: float, block: Block | None = None) -> Piece:
    """Routed experts: products of every token's choice, bytes of the distinct ones a batch touches."""
    n, group, tokens = unless_one(v.count("layers", layers)), v.group, v.all_tokens
    used, rows, cols = v.count("top_k", moe.top_k), v.count("rows", w.rows), v.count("cols", w.cols)
    touched = _touched(v, moe, tokens)
    each = derived("bytes_per_token", "cols * width_bytes + 2 * rows", "B", cols, width(v, w.part), rows)
    return piece_of(
        flops=product("flops", "FLOP", "2", n, tokens, used, rows, cols, over=[group]),
        weight_bytes=product("weight_bytes", "B", n, stored(v, w, block), touched, over=[group]),
        act_bytes=product("act_bytes", "B", n, tokens, used, each, over=[group]),
    )


def _touched(v: View, moe: Experts, tokens: Node) -> Node:
    """Distinct experts of a batch: all alike, or with a popularity that falls as a power law."""
    top_k = _real(v, moe)
    if not v.run.skew:
        return by_formula("distinct_experts", "distinct_experts", experts=v.count("experts", moe.experts), top_k=top_k, tokens=tokens)
    found = touched_experts(moe.experts, top_k.mean, tokens.value, v.run.skew)
    source = f"given: --expert-skew {v.run.skew:g}, over {moe.experts} experts of which a token uses {top_k.mean:g}"
    return leaf("distinct_experts", found, "experts", source)


def _real(v: View, moe: Experts) -> Node:
    """Experts with weights that a token uses."""
    top_k = v.count("top_k", moe.top_k)
    if not moe.null_experts:
        return top_k
    nodes = top_k, v.count("experts", moe.experts), v.count("null_experts", moe.null_experts)
    return derived("top_k_real", "top_k * experts / (experts + null_experts)", "", *nodes)


def head(v: View) -> Piece:
    """The output projection on the last position of each sequence."""
    model, tp, rows = v.run.model, v.option("tp"), v.rows
    table = model.heads()[0] if model.head == "own" else model.embeddings()[0]
    fmt = v.run.precision.format_of("head" if model.head == "own" else "embedding")
    outputs, inputs = v.count("rows", table.rows), v.count("cols", table.cols)
    per_rank = product("logit_bytes", "B", "2", outputs, over=[tp])
    each = derived("bytes_per_row", "cols * width_bytes + logit_bytes", "B", inputs, width(v, "head"), per_rank)
    return piece_of(
        flops=product("flops", "FLOP", "2", rows, outputs, inputs, over=[tp]),
        weight_bytes=product("weight_bytes", "B", matrix_bytes(fmt, table, model), v.logits, over=[tp]),
        act_bytes=product("act_bytes", "B", rows, each),
    )


def sampling(v: View) -> Piece:
    """What follows the logits: each is read and written so many times."""
    model = v.run.model
    each = leaf("logit_bytes", SAMPLING_BYTES, "B", "counted: a logit read in 16 bit, then written once and read twice in 32")
    return piece_of(act_bytes=product("act_bytes", "B", each, v.rows, v.count("vocab", model.head_vocab or model.vocab)))


def _of_mixers(v: View, block: Block, layers: float) -> Iterator[tuple[Op, Piece]]:
    for mixer in block.mixers:
        for op in of_mixer(v.run, mixer):
            opener = OPENERS.get((mixer.kind, op.name)) or (_recurrence if op.name == "state" else None)
            yield op, opener(v, mixer, layers) if opener else plain(v, op, layers)


def pairs(v: View, window: float, chunk: int | None = None, *, causal: bool = True) -> Node:
    """Attended pairs of this rank's sequences."""
    inputs = {"new": v.new, "past": v.past}
    if not causal:
        each = by_formula("pairs_per_sequence", "rectangle_pairs", **inputs, window=v.count("window", window, "attended tokens"))
    elif chunk:
        each = by_formula("pairs_per_sequence", "chunk_pairs", **inputs, chunk=v.count("chunk", chunk))
    elif np.isinf(window):
        each = by_formula("pairs_per_sequence", "causal_pairs", **inputs)
    else:
        each = by_formula("pairs_per_sequence", "window_pairs", **inputs, window=v.count("window", window, "attended tokens"))
    return product("pairs", "pairs", v.local, each, over=[v.option("cp")])


def _times(v: View, layers: float, each: Node, *over: Node | None) -> Node:
    """One layer's figure over all layers and divided over ranks."""
    return product(each.label, each.unit, unless_one(v.count("layers", layers)), each.named("per_layer"), over=over)


def _kv_ranks(v: View, m: Attention) -> Node | None:
    tp = v.option("tp")
    return tp and derived("ranks", "minimum(tp, kv_heads)", "", tp, v.count("kv_heads", m.kv_heads))


def _attention(v: View, m: Attention, layers: float) -> Piece:
    tp, n = v.option("tp"), unless_one(v.count("layers", layers))
    heads, qk, value = v.count("heads", m.heads), v.count("qk_dim", m.head_dim), v.count("v_dim", m.value_dim)
    found = _crossed(v, m) if m.memory else pairs(v, selected(v.run, m.indexer, float(m.window or np.inf)), m.chunk, causal=m.causal)
    flops = by_formula("flops", "attention_flops", heads=heads, qk_dim=qk, v_dim=value, pairs=found)
    width = derived("qk_and_v", "qk_dim + v_dim", "", qk, value)
    act = product("act_bytes", "B", "2", n, v.tokens, heads, width, over=[tp])
    return piece_of(flops=_times(v, layers, flops, tp), kv_bytes=_kv_traffic(v, m, layers), act_bytes=act)


def _crossed(v: View, m: Attention) -> Node:
    return product("pairs", "pairs", v.tokens, v.count("memory_tokens", m.memory_tokens or 0, "tokens that cross attention looks at"))


def _kv_traffic(v: View, m: Attention, layers: float) -> Node | None:
    over = _kv_ranks(v, m)
    if m.memory:
        memory = v.count("memory_tokens", m.memory_tokens or 0, "tokens that cross attention looks at")
        each = entry_bytes(m.cache()[0], v.run.model, v.run.precision.kv)
        return product("kv_bytes", "B", unless_one(v.count("layers", layers)), v.local, memory, each, over=[over])
    if not m.cached:
        return None
    entry = m.model_copy(update={"keys": "own"}).cache()[0] if m.keys == "shared" else m.cache()[0]
    if m.indexer:
        limit = float(m.indexer.top_k * m.indexer.block)
        return _sparse(v, entry, layers, v.past, limit, written=True, over=over)
    if m.keys == "shared":
        return _moved(v, entry, layers, kept(entry, v.past, v.run.model), over, written=False)
    return traffic(v, entry, layers, over)


def _sparse(v: View, entry: CacheEntry, layers: float, held: Node, limit: float, *, written: bool, over: Node | None = None) -> Node:
    """Cache traffic where each query reads what an indexer selects."""
    read: Node = held
    if np.isfinite(limit):
        top_k = v.count("top_k", limit, "tokens that an indexer selects")
        read = derived("kept", f"minimum({held.label}, top_k * new)", "tokens", held, top_k, v.new)
    return _moved(v, entry, layers, read, over, written=written)


def _moved(v: View, entry: CacheEntry, layers: float, read: Node, over: Node | None, *, written: bool) -> Node:
    """Entries read and written, over all layers."""
    n, each = unless_one(v.count("layers", layers)), entry_bytes(entry, v.run.model, v.run.precision.kv)
    every = unless_one(v.count("every", entry.every, "tokens per entry"))
    entries = read
    if written:
        text = f"{read.label} + new" + (" / every" if every else "")
        entries = derived("entries", text, "tokens", read, v.new, *([every] if every else []))
    return product("kv_bytes", "B", n, v.local, entries, each, over=[over, *v.cache_ways])


def traffic(v: View, entry: CacheEntry, layers: float, over: Node | None = None) -> Node:
    """Bytes of cached entries read and new ones written, and of states read and written."""
    found = []
    if entry.k_elements or entry.bytes_per_token is not None:
        found.append(_moved(v, entry, layers, kept(entry, v.past, v.run.model), over, written=True).named("entries"))
    if entry.states:
        each, n = state_bytes(entry, v.run.model, v.run.precision), unless_one(v.count("layers", layers))
        found.append(product("states", "B", "2", n, v.local, each, over=[v.option("tp")]))
    return found[0].named("kv_bytes") if len(found) == 1 else total("kv_bytes", "B", found)


def _latent(v: View, m: LatentAttention, layers: float) -> Piece:
    tp, n = v.option("tp"), unless_one(v.count("layers", layers))
    heads, rank, value = v.count("heads", m.heads), v.count("kv_rank", m.kv_rank), v.count("v", m.v)
    nope, rope, cp = v.count("nope", m.nope), v.count("rope", m.rope), v.option("cp")
    found = pairs(v, selected(v.run, m.indexer, float(m.window or np.inf)))
    wide = derived("qk_dim", "nope + rope", "", nope, rope)
    narrow = derived("qk_dim", "kv_rank + rope", "", rank, rope)
    scores = by_formula("in_expanded_heads", "attention_flops", heads=heads, qk_dim=wide, v_dim=value, pairs=found)
    inside = by_formula("in_the_latent", "attention_flops", heads=heads, qk_dim=narrow, v_dim=rank, pairs=found)
    again = derived(
        "expansion", f"2 * {v.local.label} * past{' / cp' if cp else ''} * kv_rank * heads * (nope + v)", "FLOP",
        *(n for n in (v.local, v.past, rank, heads, nope, value, cp) if n is not None),
    )  # fmt: skip
    flops = derived("flops", "minimum(in_expanded_heads + expansion, in_the_latent)", "FLOP", scores, again, inside)
    each = derived("each", "kv_rank + rope + v", "", rank, rope, value)
    act = product("act_bytes", "B", "2", n, v.tokens, heads, each, over=[tp])
    return piece_of(flops=_times(v, layers, flops, tp), kv_bytes=_latent_traffic(v, m, layers), act_bytes=act)


def context_message(v: View, op: Op) -> Node:
    """Bytes that a context rank holds before it tells the others: its keys and values, its queries, or its results."""
    name, last = op.name.split(".", 1)[0], op.name.rsplit(".", 1)[-1]
    m = next(m for m in v.run.model.blocks[name].mixers if isinstance(m, (Attention, LatentAttention)) and m.cached)
    tp, cp, dcp = v.option("tp"), v.option("cp"), v.option("dcp")
    if last == "gather":
        each = entry_bytes(m.model_copy(update={"keys": "own"}).cache()[0], v.run.model, v.run.precision.kv)
        held = derived("held", "past + new", "tokens", v.past, v.new)
        return product("message_bytes", "B", v.local, held, each, over=[_kv_ranks(v, m) if isinstance(m, Attention) else None, cp])
    query, result = heads_of(m)
    numbers = v.count("numbers", query if last == "query" else result, "queries or results of all heads")
    return product("message_bytes", "B", "2", v.tokens, numbers, dcp if last == "scatter" else None, over=[tp])


def _latent_traffic(v: View, m: LatentAttention, layers: float) -> Node | None:
    if not m.cached:
        return None
    entry = m.model_copy(update={"keys": "own"}).cache()[0]
    if m.keys == "own" and not m.indexer:
        return traffic(v, entry, layers)
    limit = float(m.indexer.top_k) if m.indexer else np.inf
    return _sparse(v, entry, layers, kept(entry, v.past, v.run.model), limit, written=m.keys == "own")


def _index(v: View, m: Attention | LatentAttention, layers: float) -> Piece:
    """An indexer's scores over all earlier tokens, and its keys."""
    i = m.indexer
    assert i is not None
    every = v.count("every", i.every, "tokens per entry")
    found = pairs(v, np.inf)
    scored = found if i.every == 1 else derived("pairs", "all_pairs / every", "pairs", found.named("all_pairs"), every)
    flops = by_formula("flops", "indexer_flops", heads=v.count("heads", i.heads), head_dim=v.count("head_dim", i.head_dim), pairs=scored)
    return piece_of(flops=_times(v, layers, flops), kv_bytes=traffic(v, m.cache()[-1], layers))


def _recurrence(v: View, mixer: Any, layers: float) -> Piece:
    """A recurrence's update of its states."""
    entries = mixer.cache()
    moved = total("kv_bytes", "B", [traffic(v, e, layers).named(word(e.kind)) for e in entries if e.states or e.k_elements])
    elements = sum(s.elements for e in entries for s in e.states if s.name != "conv")
    if not elements:
        return piece_of(kv_bytes=moved)
    name = SCANS[mixer.kind].__name__ if mixer.kind in SCANS else "selective_scan_flops"
    flops = by_formula("flops", name, tokens=v.tokens, state=v.count("state", elements, "state elements of one layer"))
    return piece_of(flops=_times(v, layers, flops, v.option("tp")), kv_bytes=moved)


OPENERS: dict[tuple[str, str], Callable[[View, Any, float], Piece]] = {
    ("attention", "scores"): _attention,
    ("mla", "scores"): _latent,
    ("attention", "index_scores"): _index,
    ("mla", "index_scores"): _index,
}
