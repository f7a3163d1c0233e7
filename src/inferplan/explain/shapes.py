"""Parameters, stored bytes and cache bytes opened down to shapes and bits. Knows no part, no engine and no clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferplan.engine.cache_bytes import GROWING, WINDOWED, scale_bytes
from inferplan.engine.weight_ops import tensor_of
from inferplan.explain.node import Node, derived, leaf, product, total, word
from inferplan.explain.sources import counted, format_number
from inferplan.memory.weights import BIAS_BYTES, BUFFER_BYTES, placed_bytes
from inferplan.specs.cache import CacheEntry
from inferplan.specs.model import Model
from inferplan.specs.precision import Format, Layout, Pack, Precision, Table, named_format
from inferplan.specs.weights import Weight


def unless_one(node: Node) -> Node | None:
    """A factor, or nothing where it is 1."""
    return None if np.all(np.asarray(node.value) == 1) else node


def tensor_params(model: Model, w: Weight, label: str, layers: int = 1) -> Node:
    """Parameters of a tensor: rows x columns and bias, in all its copies."""
    rows, cols = counted("rows", w.rows, model), counted("cols", w.cols, model)
    factors = [unless_one(counted("layers", layers, model)), unless_one(counted("copies", w.copies, model))]
    return _biased(label, factors, rows, cols, w, model) if w.bias else product(label, "", *factors, rows, cols)


def _biased(label: str, factors: Sequence[Node | None], rows: Node, cols: Node, w: Weight, model: Model) -> Node:
    kept = [f for f in factors if f is not None]
    text = " * ".join([*(f.label for f in kept), "(rows * cols + bias)"])
    return derived(label, text, "", *kept, rows, cols, counted("bias", w.bias, model))


def params(model: Model) -> Node:
    """All parameters, by part."""
    by_part: dict[str, list[Node]] = {}
    for w in model.weights():
        if not w.buffer:
            by_part.setdefault(w.part, []).append(tensor_params(model, w, word(w.name)))
    return total("params", "", [total(word(part), "", terms) for part, terms in by_part.items()])


def active_params(model: Model) -> Node:
    """Text parameters less the experts that a token does not use."""
    everything = params(model)
    routed = [_used(model, name, count, weights) for count, name, weights in model.layer_weights() if model.blocks[name].experts]
    vision = total("vision", "", [tensor_params(model, w, word(w.name)) for w in model.weights() if w.part == "vision" and not w.buffer])
    if not routed and vision.is_zero:
        return derived("active_params", "params", "", everything)
    experts = total("experts", "", [tensor_params(model, w, word(w.name)) for w in model.weights() if w.part == "experts"])
    terms = [everything, *([] if vision.is_zero else [vision]), *([] if experts.is_zero else [experts])]
    used = total("active_experts", "", routed)
    text = " - ".join(t.label for t in terms) + (" + active_experts" if routed else "")
    return derived("active_params", text, "", *terms, *([used] if routed else []))


def _used(model: Model, name: str, count: int, weights: list[Weight]) -> Node:
    moe = model.blocks[name].experts
    assert moe is not None
    each = total("expert_params_per_layer", "", [tensor_params(model, w, word(w.name)) for w in weights if w.part == "experts"])
    layers, top_k, experts = counted("layers", count, model), counted("top_k", moe.top_k, model), counted("experts", moe.experts, model)
    text = "floor(layers * expert_params_per_layer * top_k / experts)"
    return derived(word(name), text, "", layers, each, top_k, experts)


def codes_bits(label: str, layout: Layout, pack: Pack | None, bits: float, rows: Node, cols: Node) -> Node:
    """Bits of a matrix of codes in whole words."""
    width = format_number("bits", bits, "bit", layout)
    if pack is None:
        return product(label, "bit", rows, cols, width)
    values = format_number("values_per_word", pack.values, "", layout)
    word_bits = format_number("word_bits", bits * pack.values if pack.bits is None else pack.bits, "bit", layout)
    text = {
        "in": f"{rows.label} * ceil({cols.label} / values_per_word) * word_bits",
        "out": f"{cols.label} * ceil({rows.label} / values_per_word) * word_bits",
        "all": f"ceil({rows.label} * {cols.label} / values_per_word) * word_bits",
    }[pack.along]
    return derived(label, text, "bit", rows, cols, values, word_bits)


def table_bits(layout: Layout, table: Table, rows: Node, cols: Node) -> Node:
    """Bits of scales, zeros or indices beside a matrix."""
    label, bits = word(f"{table.what}_bits"), format_number("scale_bits", table.bits, "bit", layout)
    if isinstance(table.per, int):
        return derived(label, "ceil(rows * cols / per) * scale_bits", "bit", rows, cols, format_number("per", table.per, "", layout), bits)
    down, across = _groups("down", rows, table.per[0], layout), _groups("across", cols, int(table.per[1]), layout)
    if table.pack:
        return codes_bits(label, layout, table.pack, table.bits, down, across)
    return product(label, "bit", down, across, bits)


def _groups(label: str, length: Node, size: int, layout: Layout) -> Node:
    if not size:
        return format_number(label, 1, "", layout)
    return derived(label, f"ceil({length.label} / group)", "", length, format_number("group", size, "", layout))


def matrix_bytes(layout: Layout, w: Weight, model: Model, label: str = "matrix_bytes") -> Node:
    """Bytes of one matrix in a format, with what lies beside its values."""
    rows, cols = counted("rows", w.rows, model), counted("cols", w.cols, model)
    codes = codes_bits("codes_bits", layout, layout.pack, layout.bits, rows, cols)
    if not layout.tables and not layout.pack:
        return derived(label, "rows * cols * bits / 8", "B", rows, cols, format_number("bits", layout.bits, "bit", layout))
    tables = [table_bits(layout, t, rows, cols) for t in layout.tables]
    whole = total("stored_bits", "bit", [codes, *tables])
    return derived(label, "stored_bits / 8", "B", whole)


def tensor_bytes(model: Model, precision: Precision, block: str, layers: tuple[int, ...], w: Weight) -> Node:
    """Bytes of a tensor over all the layers that hold it."""
    label, count = word(f"{block}.{w.name}"), counted("layers", max(1, len(layers)), model)
    if not layers or w.use in ("vector", "scan", "conv") or precision.mix is None:
        return _plain_bytes(model, precision, w, label, unless_one(count))
    chosen = precision.formats_of(w.part, tensor_of(model, model.blocks[block], w), layers)
    parts = [_mixed(model, w, f, n) for f, n in chosen]
    if w.bias:
        parts.append(_bias(model, w, count, BUFFER_BYTES))
    return total(label, "B", parts)


def _mixed(model: Model, w: Weight, fmt: Format, layers: int) -> Node:
    count = counted("layers", layers, model, what=f"layers kept in {fmt.name}")
    return product(word(fmt.name), "B", count, unless_one(counted("copies", w.copies, model)), matrix_bytes(fmt, w, model))


def _bias(model: Model, w: Weight, layers: Node | None, width: float) -> Node:
    each = leaf("bias_bytes", width, "B", "counted: biases are kept wide whatever the format")
    return product("biases", "B", layers, counted("copies", w.copies, model), counted("bias", w.bias, model), each)


def _plain_bytes(model: Model, precision: Precision, w: Weight, label: str, layers: Node | None) -> Node:
    elements = counted("elements", w.params, model)
    if w.buffer:
        return product(label, "B", layers, elements, leaf("width_bytes", BUFFER_BYTES, "B", "counted: router buffers are 32 bit"))
    small = w.use in ("vector", "scan", "conv")
    fmt = precision.format_of("norm" if small and precision.format_of(w.part).quantised else w.part)
    if small:
        eight = f"{'layers * ' if layers else ''}elements * bits / 8"
        return derived(label, eight, "B", *([layers] if layers else []), elements, format_number("bits", fmt.bits, "bit", fmt))
    matrix = product(label, "B", layers, unless_one(counted("copies", w.copies, model)), matrix_bytes(fmt, w, model))
    return total(label, "B", [matrix.named("matrices"), _bias(model, w, layers, BIAS_BYTES)]) if w.bias else matrix


def weights(model: Model, precision: Precision) -> Node:
    """Stored bytes of the whole model, by part."""
    by_part: dict[str, list[Node]] = {}
    for name, layers, w, _ in placed_bytes(model, precision):
        by_part.setdefault(w.part, []).append(tensor_bytes(model, precision, name, layers, w))
    return total("weight_bytes", "B", [total(word(part), "B", terms) for part, terms in by_part.items()])


def is_simple(entry: CacheEntry, kv: Format) -> bool:
    """Whether the article's 2 x KV heads x head size x bytes is all there is to a cached token."""
    plain = not kv.tables and not kv.pack and kv.value is None and entry.bytes_per_token is None
    return (
        plain and bool(entry.head_dim) and entry.k_elements == entry.v_elements and not entry.rope_elements and entry.kind != "compressed"
    )


def simple_factors(entry: CacheEntry, model: Model, kv: Format) -> tuple[Node, Node, Node]:
    """KV heads, head size and bytes of one cached number."""
    heads = counted("kv_heads", entry.k_elements / entry.head_dim, model)
    return heads, counted("head_dim", entry.head_dim, model), format_number("bytes_per_element", kv.bits / 8, "B", kv)


def entry_bytes(entry: CacheEntry, model: Model, kv: Format) -> Node:
    """Bytes of one cached entry of one layer."""
    if entry.bytes_per_token is not None:
        return counted("entry_bytes", entry.bytes_per_token, model, "B", what=f"fixed layout of {entry.kind} entries")
    if is_simple(entry, kv) and entry.kind != "mla":
        return product("entry_bytes", "B", "2", *simple_factors(entry, model, kv))
    if entry.rope_elements or entry.kind in ("mla", "compressed"):
        return _latent_bytes(entry, model, kv)
    return _keys_and_values(entry, model, kv)


def _latent_bytes(entry: CacheEntry, model: Model, kv: Format) -> Node:
    rope = counted("rope", entry.rope_elements, model, what="rotary part of a latent")
    latent = counted("latent", entry.k_elements - entry.rope_elements, model, what="latent of keys and values")
    one = leaf("heads", 1, "", "counted: a latent is one for all heads")
    if kv.rope is None:
        both = derived("elements", "latent + rope", "", latent, rope) if entry.rope_elements else latent.named("elements")
        return derived("entry_bytes", "entry_bits / 8", "B", token_bits("entry_bits", kv, kv, both, one))
    parts = (
        token_bits("latent_bits", kv, kv, latent.named("elements"), one),
        token_bits("rope_bits", kv.rope, kv, rope.named("elements"), one),
    )
    return derived("entry_bytes", "(latent_bits + rope_bits) / 8", "B", *parts)


def _keys_and_values(entry: CacheEntry, model: Model, kv: Format) -> Node:
    heads = counted("heads", entry.k_elements / entry.head_dim, model, what="KV heads")
    k = token_bits("key_bits", kv, kv, counted("elements", entry.k_elements, model), heads)
    if not entry.v_elements:
        return derived("entry_bytes", "key_bits / 8", "B", k)
    v = token_bits("value_bits", kv.value or kv, kv, counted("elements", entry.v_elements, model), heads)
    return derived("entry_bytes", "(key_bits + value_bits) / 8", "B", k, v)


def token_bits(label: str, layout: Layout, kv: Format, elements: Node, heads: Node) -> Node:
    """Bits of one cached token, with its share of scales."""
    one = leaf("tokens", 1, "", "counted: one token")
    if not layout.pack and not layout.tables:
        return product(label, "bit", elements, format_number("bits", layout.bits, "bit", kv))
    codes = codes_bits("codes_bits", kv, layout.pack, layout.bits, one, elements)
    return total(label, "bit", [codes, *(_scale_bits(t, kv, elements, heads) for t in layout.tables)])


def _scale_bits(table: Table, kv: Format, elements: Node, heads: Node) -> Node:
    label, bits = word(f"{table.what}_bits"), format_number("scale_bits", table.bits, "bit", kv)
    if isinstance(table.per, int):
        return derived(label, "elements / per * scale_bits", "bit", elements, format_number("per", table.per, "", kv), bits)
    tokens, inner = table.per
    if tokens == 0:
        return format_number(label, 0.0, "bit", kv)
    groups = heads if inner == "head" else _groups("groups", elements, int(inner), kv)
    return product(label, "bit", groups, bits, over=[unless_one(format_number("tokens_per_scale", tokens, "", kv))])


def kv_per_token(model: Model, precision: Precision) -> Node:
    """Bytes that one more token adds over all layers, windows not yet full."""
    wanted = (*GROWING, *WINDOWED)
    found = [
        _per_token(word(entry.kind), count, entry, model, precision.kv)
        for count, entry in model.cache()
        if entry.kind in wanted and entry.fixed_tokens is None and entry.k_elements | (entry.bytes_per_token or 0)
    ]
    return found[0].named("kv_bytes_per_token") if len(found) == 1 else total("kv_bytes_per_token", "B", found, empty="no growing cache")


def _per_token(label: str, count: int, entry: CacheEntry, model: Model, kv: Format) -> Node:
    layers, every = counted("layers", count, model), unless_one(counted("tokens_per_entry", entry.every, model))
    if is_simple(entry, kv) and entry.kind != "mla":
        return product(label, "B", "2", layers, *simple_factors(entry, model, kv), over=[every])
    return product(label, "B", layers, entry_bytes(entry, model, kv), over=[every])


def kept(entry: CacheEntry, length: Node, model: Model) -> Node:
    """Entries that a sequence holds in one layer."""
    if entry.fixed_tokens is not None:
        return counted("kept", entry.fixed_tokens, model, "tokens", what="fixed length")
    every, window = counted("every", entry.every, model, "tokens"), counted("window", entry.window or 0, model, "tokens")
    whole = f"floor({length.label} / every)" if entry.every != 1 else length.label
    nodes = [length, *([every] if entry.every != 1 else []), *([window] if entry.window is not None else [])]
    return derived("kept", f"minimum({whole}, window)" if entry.window is not None else whole, "tokens", *nodes)


def cache_bytes(label: str, model: Model, precision: Precision, length: Node, batch: Node | None = None) -> Node:
    """Bytes that a sequence of `length` tokens keeps at the least, times a batch of them where one is given."""
    found = [_entry(word(e.kind), n, e, model, precision, length, batch) for n, e in model.cache() if e.k_elements or e.bytes_per_token]
    found += [_scales(n, e, model, precision, batch) for n, e in model.cache() if scale_bytes(e, precision)]
    found += [states(n, e, model, precision, batch) for n, e in model.cache() if e.states]
    found = [f for f in found if not f.is_zero]
    return found[0].named(label) if len(found) == 1 else total(label, "B", found, empty="no cache")


def _entry(label: str, count: int, entry: CacheEntry, model: Model, precision: Precision, length: Node, batch: Node | None) -> Node:
    layers = counted("layers", count, model)
    held = length if entry.fixed_tokens is None and entry.window is None and entry.every == 1 else kept(entry, length, model)
    if is_simple(entry, precision.kv) and entry.kind != "mla":
        return product(label, "B", "2", batch, held, layers, *simple_factors(entry, model, precision.kv))
    return product(label, "B", batch, held, layers, entry_bytes(entry, model, precision.kv))


def _scales(count: int, entry: CacheEntry, model: Model, precision: Precision, batch: Node | None) -> Node:
    each = format_number("scale_bytes", float(scale_bytes(entry, precision)), "B", precision.kv)
    return product(word(f"{entry.kind}_scales"), "B", batch, counted("layers", count, model), each)


def states(count: int, entry: CacheEntry, model: Model, precision: Precision, batch: Node | None = None) -> Node:
    """Bytes of constant states of a sequence in `count` layers."""
    each = state_bytes(entry, model, precision)
    return product(word(f"{entry.kind}_states"), "B", batch, counted("layers", count, model), each)


def state_bytes(entry: CacheEntry, model: Model, precision: Precision) -> Node:
    """Bytes of one layer's states of a sequence."""
    wanted = precision.state.name if precision.state else "bf16" if model.dtype == "fp32" else model.dtype
    found = []
    for s in entry.states:
        fmt = named_format(s.dtype or wanted)
        elements = counted("elements", s.elements, model, what=f"{s.name} of one layer")
        found.append(derived(word(s.name), "elements * bits / 8", "B", elements, format_number("bits", fmt.bits, "bit", fmt)))
    return total("state_bytes", "B", found)
