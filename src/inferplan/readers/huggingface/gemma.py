"""Gemma 3n and 4 and RecurrentGemma: layers that differ in head size, share caches, carry embeddings of their own, or recur.

Knows the shapes of these families alone; Gemma 1 to 3 are rows of the dense table.
"""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import zipped
from inferplan.readers.huggingface.dense import BIASED, Traits, depth, grouped_attention, heads_of, key_heads, width
from inferplan.readers.huggingface.experts import routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.orders import SLIDES, by_words
from inferplan.specs.ffns import Dense, Experts
from inferplan.specs.mixers import Attention, GatedRecurrence
from inferplan.specs.model import Block, Extra

TEMPORAL = {"recurrent": False, "linear_attention": False, "attention": True, "sliding_attention": True}


def recurrent_gemma(f: Fields) -> dict[str, Any]:
    """RecurrentGemma: two gated linear recurrences, then local attention, repeated."""
    count, heads, hidden = depth(f), heads_of(f), width(f)
    kinds = f.items("_block_types", "block_types", default=["recurrent", "recurrent", "attention"])
    if not kinds:
        raise f.refuse("block_types", "must name at least one kind of layer")
    period = by_words(Fields({"block_types": kinds}, file=f.file, at=f.at), ("block_types",), len(kinds), TEMPORAL, bool)
    lru = f.maybe("lru_width") or hidden
    if hidden % heads or lru % heads:
        raise f.refuse("num_attention_heads", f"must divide the widths {hidden} and {lru}", heads)
    attention = Attention(
        heads=heads, kv_heads=key_heads(f, heads), head_dim=hidden // heads, bias="qkvo" if f.flag("attention_bias") else "o",
        window=f.maybe("attention_window_size", "sliding_window"),
    )  # fmt: skip
    recurrence = GatedRecurrence(width=lru, blocks=heads, conv=f.count("conv1d_width"))
    mixers = [("attention", attention) if period[i % len(period)] else ("recurrent", recurrence) for i in range(count)]
    ffn = Dense(width=f.count("intermediate_size") // 2, bias=True)
    return {"hidden": hidden, "layers": zipped(mixers, [("dense", ffn)] * count)}


def gemma_types(f: Fields, layers: int, period: int) -> list[bool]:
    """Which layers slide: as listed, else all but the last of each period; the last layer never does."""
    found = by_words(f, ("layer_types",), layers, SLIDES, lambda i: bool((i + 1) % period))
    return [*found[:-1], False]


def sharing(f: Fields, layers: int) -> list[bool]:
    """Which layers read an earlier layer's keys and values: the last `num_kv_shared_layers`."""
    shared = f.count("num_kv_shared_layers", default=0, least=0)
    if shared > layers:
        raise f.refuse("num_kv_shared_layers", f"must not exceed the {layers} layers", shared)
    return [i >= layers - shared for i in range(layers)]


def gemma4(f: Fields) -> dict[str, Any]:
    """Gemma 4: wide global heads, keys that serve as values there, shared caches, per-layer embeddings, experts beside a dense block."""
    hidden, narrow = width(f), f.count("hidden_size_per_layer_input", default=0, least=0)
    moe = routed(f, router_extra=hidden + f.count("num_experts")) if f.flag("enable_moe_block") else None
    layers = gemma4_layers(f, narrow, moe)
    return {"hidden": hidden, "layers": layers, "extra": per_layer_tables(f, hidden, narrow, len(layers)) if narrow else ()}


def gemma4_unified(f: Fields) -> dict[str, Any]:
    """Gemma 4 with one decoder for all inputs: neither per-layer embeddings nor experts, whatever the file says of them."""
    return {"hidden": width(f), "layers": gemma4_layers(f, 0, None)}


def gemma4_layers(f: Fields, narrow: int, moe: Experts | None) -> list[tuple[str, Block]]:
    """The layers of Gemma 4, each with an embedding of its own of width `narrow` (or none) and a mixture (or none)."""
    count, hidden = depth(f), width(f)
    extra = per_layer_block(hidden, narrow) if narrow else ()
    norms = 4 + (1 if narrow else 0) + (3 if moe else 0)
    layers = []
    for i, (slide, share) in enumerate(zip(gemma_types(f, count, 6), sharing(f, count), strict=True)):
        dense = Dense(width=f.count("intermediate_size") * (2 if f.flag("use_double_wide_mlp") and share else 1))
        mixer = gemma4_attention(f, i, slide=slide, share=share)
        layers.append((place(slide, share), Block(mixers=(mixer,), ffns=(dense, moe) if moe else (dense,), norms=norms, extra=extra)))
    return layers


def place(slide: bool, share: bool) -> str:
    """A layer's label by its window and whose cache it reads."""
    return f"{'local' if slide else 'global'}{'_shared' if share else ''}"


def gemma4_attention(f: Fields, layer: int, *, slide: bool, share: bool) -> Attention:
    """One layer's attention of Gemma 4."""
    same = f.flag("attention_k_eq_v") and not slide
    kv, dim = gemma4_heads(f, layer, slide=slide, same=same)
    return Attention(
        heads=heads_of(f), kv_heads=kv, head_dim=dim, window=window_of(f) if slide else None,
        bias="qkvo" if f.flag("attention_bias") else "", qk_norm="head", keys="shared" if share else "as_values" if same else "own",
    )  # fmt: skip


def window_of(f: Fields) -> int | None:
    """The sliding window; it reaches both ways where attention is bidirectional throughout, so half of it looks back."""
    window = f.stated_or_null("sliding_window")
    return window // 2 + 1 if window and f.raw("use_bidirectional_attention", default=None) == "all" else window


def gemma4_heads(f: Fields, layer: int, *, slide: bool, same: bool) -> tuple[int, int]:
    """Key-value heads and head size of a layer: under `per_layer_config`, or global layers by names of their own."""
    kv, dim = f.count("num_key_value_heads"), f.count("head_dim")
    if "per_layer_config" in f:
        stated = f.sub("per_layer_config")
        key = next((k for k in stated.data if k.isdigit() and int(k) == layer), None)
        own = stated.sub(key) if key is not None else Fields({})
        return own.maybe("num_key_value_heads") or kv, own.maybe("head_dim") or dim
    if slide:
        return kv, dim
    return (f.maybe("num_global_key_value_heads") if same else None) or kv, f.count("global_head_dim", default=512)


def per_layer_block(hidden: int, narrow: int) -> tuple[Extra, ...]:
    """Gate and projection of a layer's own embedding."""
    return (
        Extra(name="per_layer.gate", part="mlp_aux", rows=narrow, cols=hidden, use="matmul"),
        Extra(name="per_layer.projection", part="mlp_aux", rows=hidden, cols=narrow, use="matmul"),
    )


def per_layer_tables(f: Fields, hidden: int, narrow: int, layers: int) -> tuple[Extra, ...]:
    """The per-layer embedding table, a lookup, and the projection of the hidden state onto all layers' inputs."""
    rows = f.count("vocab_size_per_layer_input", default=0, least=0) or f.count("vocab_size")
    return (
        Extra(name="per_layer.embedding", part="aux_embedding", rows=rows, cols=layers * narrow, use="lookup"),
        Extra(name="per_layer.model_projection", rows=layers * narrow, cols=hidden, use="matmul"),
        Extra(name="per_layer.norm", part="norm", rows=narrow),
    )


def gemma3n(f: Fields) -> dict[str, Any]:
    """Gemma 3n: four residual streams (AltUp), low-rank residual (LAuReL), per-layer embeddings, shared caches."""
    count, hidden = depth(f), width(f)
    streams, rank, narrow = f.count("altup_num_inputs"), f.count("laurel_rank"), f.count("hidden_size_per_layer_input")
    extra = (*altup(hidden, streams), *per_layer_block(hidden, narrow), *laurel(hidden, rank))
    slides = by_words(f, ("layer_types",), count, SLIDES, lambda i: bool((i + 1) % 5))
    layers = []
    for slide, share, inner in zip(slides, sharing(f, count), layer_widths(f, count), strict=True):
        traits = Traits(bias_flags=BIASED, qk_norm="head")
        attention = grouped_attention(f, traits, window=f.maybe("sliding_window") if slide else None, keys="shared" if share else "own")
        layers.append((place(slide, share), Block(mixers=(attention,), ffns=(Dense(width=inner),), norms=7, extra=extra)))
    unembed = Extra(name="altup.streams", rows=hidden, cols=hidden, copies=2 * (streams - 1), use="matmul")
    return {"hidden": hidden, "layers": layers, "extra": (*per_layer_tables(f, hidden, narrow, count), unembed)}


def layer_widths(f: Fields, layers: int) -> list[int]:
    """The feed-forward width of each layer, from one number or a list."""
    if isinstance(f.raw("intermediate_size"), list):
        return [f.checked(w, "intermediate_size") for w in f.per_layer("intermediate_size", layers)]
    return [f.count("intermediate_size")] * layers


def altup(hidden: int, streams: int) -> tuple[Extra, ...]:
    """The tensors of one layer that predict and correct the residual streams."""
    shapes = (("correct", streams, streams), ("predict", streams**2, streams), ("router", streams, hidden))
    matrices = tuple(Extra(name=f"altup.{n}", rows=r, cols=c, use="matmul") for n, r, c in shapes)
    return (*matrices, Extra(name="altup.scale", rows=hidden))


def laurel(hidden: int, rank: int) -> tuple[Extra, ...]:
    """The low-rank residual of one layer."""
    shapes = (("left", rank, hidden), ("right", hidden, rank))
    return tuple(Extra(name=f"laurel.{n}", rows=r, cols=c, use="matmul") for n, r, c in shapes)


READERS = {"recurrent_gemma": recurrent_gemma, "gemma4_text": gemma4, "gemma4_unified_text": gemma4_unified, "gemma3n_text": gemma3n}
