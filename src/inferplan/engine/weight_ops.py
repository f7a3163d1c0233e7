"""Operators that weight tensors make: matrix products, convolutions, lookups, norms, routed experts. Knows no part and no clock.

Every matrix product comes from the model's list of tensors, so parameters, bytes and FLOPs cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from inferplan.engine.op import Op, Pass, Wire
from inferplan.engine.split import ROW_PARALLEL, ways
from inferplan.ops import Numeric
from inferplan.ops.gemm import depthwise_flops, gemm_flops
from inferplan.ops.moe import touched_experts
from inferplan.specs.ffns import Experts
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra, Model
from inferplan.specs.precision import Tensor, tensor_role
from inferplan.specs.weights import Weight

SAMPLING_BYTES = 2 + 3 * 4  # per logit
FUSED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "qkv", "q_a": "down", "kv_a": "down", "qkvz": "in", "ba": "in"}


def any_of(positions: Numeric) -> Numeric:
    """1 where there is a position at all, else 0."""
    return np.where(np.asarray(positions) > 0, 1.0, 0.0)


def tensor_of(model: Model, block: Block | None, w: Weight) -> Tensor:
    """What a mix of formats by tensor looks at."""
    attention = next((m for m in block.mixers if isinstance(m, Attention)), None) if block else None
    gqa = attention.heads // attention.kv_heads if attention else 1
    experts = block.experts.experts if block and block.experts else 1
    return Tensor(tensor_role(w.name, w.part), 0, len(model.order), w.cols, gqa=gqa, experts=experts, tied=model.head == "tied")


def stored_bytes(run: Pass, w: Weight, block: Block | None = None) -> Numeric:
    """Bytes of a tensor's copies in the format of its part; biases stay 16 bit."""
    formats = run.precision.formats_of(w.part, tensor_of(run.model, block, w))
    layers = sum(n for _, n in formats)
    each = sum(f.bytes(w.rows, w.cols) * n for f, n in formats) / layers
    return w.copies * (each + 2.0 * w.bias)


def lookup(run: Pass, w: Weight) -> Op:
    """Rows of a table, one per token."""
    row = run.precision.format_of(w.part).bytes(1, w.cols) * w.copies
    return Op(w.name, "lookup", w.part, "none", 0.0 * run.tokens, row * run.tokens, act_bytes=2.0 * w.cols * w.copies * run.tokens)


def head(run: Pass) -> list[Op]:
    """The output projection on the positions that need it; a tied head reads the token table."""
    model, tp = run.model, run.parallel.tp
    if model.head == "none":
        return []
    rows = run.tokens if run.convention.head_everywhere else run.local(lambda s: s.sequences * s.logits)
    table = model.heads()[0] if model.head == "own" else replace(model.embeddings()[0], name="head", part="head", use="matmul")
    stored = run.precision.format_of("head" if model.head == "own" else "embedding")
    rate, flops = run.precision.compute_of("head"), gemm_flops(rows, table.rows, table.cols) / tp
    moved = any_of(rows) * stored.bytes(table.rows, table.cols) / tp
    act = rows * (table.cols * run.width_of(rate) + 2.0 * table.rows / tp)
    gather = Wire("all_gather", rows * table.rows * 2.0 / tp, tp) if not run.parallel.single else None
    return [Op("head", "head", "head", rate, flops, moved, act_bytes=act, wire=gather, stored=stored.name)]


def sampling(run: Pass) -> list[Op]:
    """What follows the logits: widened to 32 bit, a softmax, a choice. Each number is read in 16 bit, written and read twice in 32."""
    if run.model.head == "none":
        return []
    rows = run.local(lambda s: s.sequences * s.logits)
    numbers = rows * (run.model.head_vocab or run.model.vocab)
    return [Op("sampling", "elementwise", "head", "none", 0.0 * rows, act_bytes=SAMPLING_BYTES * numbers)]


def positions_of(run: Pass, block: Block, w: Weight) -> Numeric:
    """How many positions pass through a tensor: an encoder's for keys of cross attention, cached ones for an expanded latent."""
    for i, m in enumerate(block.mixers):
        if isinstance(m, Attention) and m.memory and w.name in (f"attention{i or ''}.k", f"attention{i or ''}.v"):
            fixed = m.memory_tokens
            return run.local(lambda s, fixed=fixed: s.sequences * s.opens * (fixed if fixed is not None else s.memory))  # type: ignore[misc]
    if w.name == "mla.kv_b" and run.convention.expand_latent:
        return run.local(lambda s: s.sequences * (s.past + s.new))
    return run.tokens


def of_block(run: Pass, block: Block, hidden: int) -> Iterator[Op]:
    """The operators that one layer's tensors make."""
    for w in block.weights(hidden):
        if w.buffer:
            continue
        if w.use == "expert" and block.experts is not None:
            yield experts(run, w, block.experts, block)
        else:
            yield of_weight(run, w, positions_of(run, block, w), block)


def of_weight(run: Pass, w: Weight, positions: Numeric, block: Block | None = None) -> Op:
    """The operator of one tensor."""
    split = ways(w, block, run.parallel)
    once = stored_bytes(run, w, block) * any_of(positions) / split
    rate, last = run.precision.compute_of(w.part), w.name.rsplit(".", 1)[-1]
    if w.use in ("matmul", "conv"):
        flops = _flops(run, w, positions) / split
        inputs = 0.0 if last in ("k", "v") else w.cols * run.width_of(rate)
        act = positions * w.copies * (inputs + 2.0 * w.rows) / (split if last in ROW_PARALLEL else 1)
        fuse = f"{w.name.rsplit('.', 1)[0]}.{FUSED[last]}" if last in FUSED and w.part != "shared_expert" else ""
        return Op(
            w.name,
            "matmul" if w.use == "matmul" else "conv",
            w.part,
            rate,
            flops,
            once,
            act_bytes=act,
            fuse=fuse,
            stored=run.precision.format_of(w.part).name,
        )
    if w.use == "lookup":
        return lookup(run, w)
    return small(run, w, positions, once, split)


def small(run: Pass, w: Weight, positions: Numeric, once: Numeric, split: Numeric) -> Op:
    """A vector: a norm is a kernel of its own, anything else rides in the kernel beside it."""
    own = w.part == "norm"
    act = 4.0 * positions * w.rows * w.copies / split if own else 0.0 * positions
    return Op(w.name, "elementwise", w.part, "none", 0.0 * positions, once, act_bytes=act, count=int(own))


def _flops(run: Pass, w: Weight, positions: Numeric) -> Numeric:
    if w.use == "matmul":
        return gemm_flops(positions * w.rate, w.rows, w.cols) * w.copies * 1.0
    padding = run.local(lambda s: s.sequences) * (w.cols - 1) if run.convention.conv_padding else 0
    return depthwise_flops(positions + padding, w.rows, w.cols) * w.copies * 1.0


def experts(run: Pass, w: Weight, moe: Experts, block: Block | None = None) -> Op:
    """Routed experts: each token passes top_k of them; a pass reads the distinct ones that fall to this rank."""
    tokens, group = run.all_tokens, run.parallel.group
    used = moe.experts if run.convention.every_expert else moe.top_k
    real = moe.top_k * moe.experts / (moe.experts + moe.null_experts)
    touched = touched_experts(moe.experts, real, tokens, run.skew)
    flops = gemm_flops(tokens * used, w.rows, w.cols) * 1.0 / group
    rate = run.precision.compute_of(w.part)
    act = tokens * used * (w.cols * run.width_of(rate) + 2.0 * w.rows) / group
    return Op(
        w.name,
        "experts",
        w.part,
        rate,
        flops,
        stored_bytes(run, w, block) / w.copies * touched / group,
        act_bytes=act,
        fuse="experts.grouped",
        stored=run.precision.format_of(w.part).name,
    )


def stem(run: Pass, e: Extra, positions: Numeric) -> Op:
    """What stands before an encoder's layers: strided convolutions as matrix products, tables, norms."""
    w = e.weight()
    once = stored_bytes(run, w) * any_of(positions)
    if w.use not in ("conv", "matmul"):
        return Op(w.name, "lookup", "conv_frontend", "none", 0.0 * positions, once)
    flops = gemm_flops(positions * w.rate, w.rows, w.cols) * w.copies * 1.0
    return Op(w.name, "matmul", "conv_frontend", run.precision.compute_of(w.part), flops, once)
