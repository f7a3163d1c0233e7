"""Inkling and Zaya: attention with short convolutions on keys and values, relative positions, and residual mixing of their own.

Knows the shapes of these families alone.
"""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import label
from inferplan.readers.huggingface.dense import BIASED, Traits, depth, grouped_attention, heads_of, width
from inferplan.readers.huggingface.experts import routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.orders import by_words, sparse_after
from inferplan.specs.ffns import Dense, Experts, SharedExpert
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra

LOOP = (
    ("core_start", "loop_layer_index_start"), ("core_end", "loop_layer_index_end"), ("num_passes", "loop_num_passes"),
    ("gate_rank", "loop_gate_rank"),
)  # fmt: skip
MOST_PASSES = 64
SLIDES = {"hybrid_sliding": True, "sliding_attention": True, "hybrid": False, "full_attention": False}


def slides_of(f: Fields, layers: int) -> list[bool]:
    """Which layers slide: as listed by word or number, else all but every sixth."""
    listed = f.indices("local_layer_ids", layers) if "local_layer_ids" in f else {i for i in range(layers) if (i + 1) % 6}
    return by_words(f, ("layer_types",), layers, SLIDES, lambda i: i in listed)


def reach(f: Fields, slide: bool) -> int:
    """Distance that relative positions cover: the window of a sliding layer."""
    return f.count("sliding_window_size", "sliding_window") if slide else f.count("rel_extent")


def convolved_attention(f: Fields, slide: bool, **more: Any) -> Attention:
    """One layer's attention, with what its four short convolutions keep."""
    prefix = "swa_" if slide else ""
    kv, dim, past = f.count(f"{prefix}num_key_value_heads"), f.count(f"{prefix}head_dim"), kernel(f) - 1
    heads = f.count("swa_num_attention_heads") if slide else heads_of(f)
    if heads % kv:
        raise f.refuse(f"{prefix}num_key_value_heads", f"must divide the {heads} query heads", kv)
    kept = 2 * past * (kv * dim + width(f))
    return Attention(heads=heads, kv_heads=kv, head_dim=dim, window=reach(f, True) if slide else None, conv_state=kept, **more)


def kernel(f: Fields) -> int:
    """Length of the short convolutions."""
    return f.count("conv_kernel_size", "sconv_kernel_size")


def relative(f: Fields, heads: int, slide: bool) -> tuple[Extra, ...]:
    """The projection to relative-position features and the table that turns them into scores by distance."""
    rank = f.count("d_rel")
    return (
        Extra(name="relative.features", part="attention", rows=heads * rank, cols=width(f), use="matmul"),
        Extra(name="relative.table", part="attention", rows=reach(f, slide), cols=rank, use="matmul"),
    )


def convolutions(f: Fields, channels: int, *, after: bool = True) -> tuple[Extra, ...]:
    """Short convolutions on keys and values, and on the outputs of both halves of a layer."""
    on_keys = Extra(name="conv.key_value", part="attention", rows=channels, cols=kernel(f), copies=2, use="conv")
    return (on_keys, Extra(name="conv.outputs", rows=width(f), cols=kernel(f), copies=2, use="conv")) if after else (on_keys,)


def inkling(f: Fields) -> dict[str, Any]:
    """Inkling: windowed and full layers of other head counts, shared experts scored by the router, a norm on the embedding."""
    count, hidden = depth(f), width(f)
    shared, inner = f.count("n_shared_experts", default=0, least=0), f.count("moe_intermediate_size")
    sparse = sparse_after(f, count, f.count("dense_mlp_idx", default=0, least=0))
    wide = f.maybe("dense_intermediate_size")
    routed_width = f.count("intermediate_size") if wide else inner
    beside = SharedExpert(width=shared * routed_width) if shared else None
    moe = routed(f, width=routed_width, shared=beside, correction_bias="buffer", router_extra=shared * hidden + 1)
    plain, scale = Dense(width=wide or f.count("intermediate_size")), Extra(name="ffn.scale", part="mlp", rows=1)
    layers = []
    for slide, s in zip(slides_of(f, count), sparse, strict=True):
        mixer = convolved_attention(f, slide, qk_norm="head")
        extra = (*relative(f, mixer.heads, slide), *convolutions(f, mixer.kv_heads * mixer.head_dim), *(() if s else (scale,)))
        name = label("local" if slide else "global", "moe" if s else "dense")
        layers.append((name, Block(mixers=(mixer,), ffns=(moe if s else plain,), extra=extra)))
    return {"hidden": hidden, "layers": layers, "norms": 2, "head_vocab": f.maybe("unpadded_vocab_size")}


def inkling2_block(f: Fields, layer: int, slide: bool, moe: Experts) -> Block:
    """One layer of Inkling 2: gated attention with projected sinks; three inputs of its own on full layers."""
    hidden = width(f)
    mixer = convolved_attention(f, slide, gate="elementwise")
    inputs = (1 if slide else 3) if layer else 0
    extra = [
        Extra(name="sink", part="attention", rows=mixer.heads, cols=hidden, use="matmul"),
        Extra(name="query_norm", part="norm", rows=mixer.heads * mixer.head_dim),
        Extra(name="relative.norm", part="norm", rows=mixer.heads * f.count("d_rel")),
        Extra(name="residual.queries", rows=hidden, copies=1 + inputs),
        *relative(f, mixer.heads, slide), *convolutions(f, mixer.kv_heads * mixer.head_dim),
    ]  # fmt: skip
    if not slide:
        extra += [Extra(name="conv.weights", part="attention", rows=mixer.kv_heads * kernel(f), cols=hidden, copies=2, use="matmul")]
    return Block(mixers=(mixer,), ffns=(moe,), norms=2 if slide else 4, extra=tuple(extra))


def inkling2(f: Fields) -> dict[str, Any]:
    """Inkling 2: a mixture everywhere, each layer reading earlier blocks' outputs by learned queries."""
    count, moe = depth(f), routed(f, width=f.count("moe_intermediate_size", "intermediate_size"), correction_bias="buffer")
    layers = [("local" if s else "global", inkling2_block(f, i, s, moe)) for i, s in enumerate(slides_of(f, count))]
    final = (Extra(name="residual.final", rows=width(f)),)
    return {"hidden": width(f), "layers": layers, "norms": 2, "extra": final, "head_vocab": f.maybe("unpadded_vocab_size")}


def inkling2_loop(f: Fields) -> dict[str, Any]:
    """Inkling 2 with a loop: the middle layers run several times, with gates on what passes from one run to the next."""
    parts, hidden, loop = inkling2(f), width(f), f.sub("loop_config")
    start, end, passes, rank = (loop.count(n) if n in loop else f.count(o) for n, o in LOOP)
    if not 0 < start < end:
        raise f.refuse("loop_config", "must end after its first layer", f"{start} to {end}")
    if passes > MOST_PASSES:
        raise f.refuse("loop_config", f"must run at most {MOST_PASSES} times", passes)
    gates = message_gates(hidden, rank)
    core = [(f"{name}_loop{i}", looped(block, i, gates)) for i, (name, block) in enumerate(parts["layers"][start:end], start)]
    layers = [*parts["layers"][:start], *core * passes, *parts["layers"][end:]]
    message = Extra(name="residual.message", rows=4 * hidden, copies=end - start)
    return {**parts, "layers": layers, "extra": (*parts["extra"], message)}


def looped(block: Block, group: int, extra: tuple[Extra, ...]) -> Block:
    """A layer that later runs repeat with the same tensors."""
    return block.model_copy(update={"extra": (*block.extra, *extra), "repeated": True, "share_group": group})


def message_gates(hidden: int, rank: int) -> tuple[Extra, ...]:
    """Low-rank gates on queries, keys, values and feed-forward input of a looped layer."""
    return (
        Extra(name="message.down", rows=rank, cols=2 * hidden, copies=4, use="matmul"),
        Extra(name="message.gates", rows=hidden, cols=rank, copies=8, use="matmul"),
    )


def zaya(f: Fields) -> dict[str, Any]:
    """Zaya: convolutions over queries and keys, half of each value one token late, a mixture behind a small network, scaled residuals."""
    count, hidden, first, second = depth(f), width(f), f.count("cca_time0"), f.count("cca_time1")
    slides = by_words(f, ("layer_types",), count, SLIDES, lambda _: False)
    whole = grouped_attention(f, Traits(bias_flags=BIASED))
    channels, keys = (whole.heads + whole.kv_heads) * whole.head_dim, whole.kv_heads * whole.head_dim
    whole = whole.model_copy(update={"conv_state": channels * (first + second - 2) + keys // 2})
    inner = f.count("router_hidden_size")
    moe = routed(f, width=f.count("moe_intermediate_size"), null_experts=1, router_width=inner)
    later = moe.model_copy(update={"router_extra": inner})
    extra = (
        Extra(name="conv.channel", part="attention", rows=channels, cols=first, bias=channels, use="conv"),
        Extra(name="conv.head", part="attention", rows=channels, cols=whole.head_dim * second, bias=channels, use="matmul"),
        Extra(name="key_scale", part="attention", rows=whole.kv_heads), Extra(name="residual.scale", rows=hidden, copies=8),
    )  # fmt: skip
    windows = [f.count("sliding_window") if s else None for s in slides]
    layers = [
        ("local" if w else "global", Block(mixers=(whole.model_copy(update={"window": w}),), ffns=(later if i else moe,), extra=extra))
        for i, w in enumerate(windows)
    ]
    inputs = (Extra(name="input_scale", rows=hidden, copies=2),)
    return {"hidden": hidden, "layers": layers, "extra": inputs, "head_bias": f.flag("lm_head_bias")}


READERS = {"inkling_text": inkling, "inkling2_text": inkling2, "inkling2_loop_text": inkling2_loop, "zaya": zaya}
