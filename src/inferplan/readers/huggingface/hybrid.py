"""Decoders whose layers differ in ways of their own: LFM2 and 3, MiniMax, MiMo, Step, Nemotron-NAS, and looped stacks.

State spaces, delta rules, latent attention and Gemma stand in the sibling modules; `READERS` gathers them.
"""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface import compressed, delta, gemma, inkling, mamba, recurrent
from inferplan.readers.huggingface.assemble import zipped
from inferplan.readers.huggingface.dense import BIASED, Traits, depth, grouped_attention, head_size, heads_of, width
from inferplan.readers.huggingface.experts import deepseek_experts, number, routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.orders import SLIDES, by_words, sparse_after, words
from inferplan.specs.ffns import Dense, SharedExpert
from inferplan.specs.mixers import Attention, Lightning, ShortConv
from inferplan.specs.model import Block, Extra
from inferplan.specs.order import MAX_LAYERS

LFM = {"conv": "conv", "full_attention": "global", "attention": "global", "sliding_attention": "local"}


def lfm2_width(f: Fields) -> int:
    """LFM2's feed-forward width: two thirds of the stated one, scaled and rounded up, where `block_auto_adjust_ff_dim` is set."""
    inner = f.count("block_ff_dim", "intermediate_size")
    if not f.flag("block_auto_adjust_ff_dim", default=True):
        return inner
    scale = _multiplier(f, "block_ffn_dim_multiplier", f.raw("block_ffn_dim_multiplier", default=1.0))
    multiple = f.count("block_multiple_of", default=256)
    return -(-int(scale * int(2 * inner / 3)) // multiple) * multiple


def short_conv(f: Fields) -> ShortConv:
    """The gated short convolution of LFM2 and LFM3."""
    return ShortConv(width=width(f), conv=f.count("conv_L_cache"), bias=f.flag("conv_bias"))


def lfm2(f: Fields) -> dict[str, Any]:
    """LFM2: short convolutions with attention on the listed layers; the mixture variant has dense layers first."""
    count, hidden = depth(f), width(f)
    listed = f.indices("full_attn_idxs", count)
    kinds = by_words(f, ("layer_types",), count, LFM, lambda i: "global" if i in listed else "conv")
    pieces: dict[str, Any] = {"global": grouped_attention(f, Traits(qk_norm="head")), "conv": short_conv(f)}
    mixers = [(kind, pieces[kind]) for kind in kinds]
    if not f.raw("num_experts", default=None):
        return {"hidden": hidden, "layers": zipped(mixers, [("dense", Dense(width=lfm2_width(f)))] * count)}
    first = f.count("num_dense_layers", least=0)
    moe = routed(f, correction_bias="buffer" if f.flag("use_expert_bias", default=True) else "none")
    plain = Dense(width=f.count("intermediate_size"))
    return {"hidden": hidden, "layers": zipped(mixers, [("dense", plain) if i < first else ("moe", moe) for i in range(count)])}


def lfm3(f: Fields) -> dict[str, Any]:
    """LFM3: short convolutions, windowed and full attention in turn, gates per head, norms after both halves."""
    count = depth(f)
    kinds = by_words(f, ("layer_types",), count, LFM, lambda i: "global" if i % 4 == 2 else "local" if i and i % 4 == 0 else "conv")  # noqa: PLR2004 - of four
    gate = "headwise" if f.flag("use_attention_gate", default=True) else "none"
    whole = grouped_attention(f, Traits(bias_flags=BIASED, qk_norm="head"), gate=gate)
    pieces: dict[str, Any] = {"global": whole, "conv": short_conv(f)}
    if "local" in kinds:
        pieces["local"] = whole.model_copy(update={"window": f.count("sliding_window")})
    ffn, norms = Dense(width=f.count("intermediate_size")), 4 if f.flag("use_sandwich_norm", default=True) else 2
    return {"hidden": width(f), "layers": zipped([(k, pieces[k]) for k in kinds], [("dense", ffn)] * count, norms=norms)}


def minimax(f: Fields) -> dict[str, Any]:
    """MiniMax-01: lightning attention among softmax attention, as listed or in turn; a mixture everywhere."""
    count, heads = depth(f), heads_of(f)
    attends = by_words(f, ("layer_types",), count, delta.ATTENDS, lambda i: i % 2 == 0)
    if isinstance(f.raw("attn_type_list", default=None), list):
        attends = [bool(f.checked(v, "attn_type_list", 0)) for v in f.per_layer("attn_type_list", count)]
    shared = f.maybe("shared_intermediate_size")
    if shared:
        raise f.refuse("shared_intermediate_size", "is set, and how this family shares an expert is not known here", shared)
    lightning = Lightning(heads=heads, head_dim=head_size(f, heads), block=f.count("block_size", default=256))
    attention, moe = grouped_attention(f, Traits()), routed(f, width=f.count("intermediate_size"))
    mixers = [("attention", attention) if a else ("lightning", lightning) for a in attends]
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe)] * count)}


def minimax_text(f: Fields) -> dict[str, Any]:
    """MiniMax-Text-01 in its own field names: `attn_type_list` says which layers attend."""
    if "attn_type_list" not in f and "layer_types" not in f:
        raise f.refuse("attn_type_list", "is required and missing: without it the order of layers is unknown")
    return minimax(f)


def mimo_slides(f: Fields, layers: int) -> list[bool]:
    """Which layers slide: by a list of words or of ones and zeros, else all but the first and every sixth."""
    listed = words(f, ("layer_types",), layers, SLIDES)
    if listed is None and isinstance(f.raw("hybrid_layer_pattern", default=None), list):
        return [bool(f.checked(v, "hybrid_layer_pattern", 0)) for v in f.per_layer("hybrid_layer_pattern", layers)]
    return [bool(i and (i + 1) % 6) for i in range(layers)] if listed is None else listed


def mimo_v2(f: Fields) -> dict[str, Any]:
    """MiMo-V2: narrower values than keys; windowed layers with more key-value heads and sinks; experts after the first layer."""
    count, heads, kv = depth(f), heads_of(f), f.count("num_key_value_heads")
    bias = "qkv" if f.flag("attention_bias") else ""
    common: dict[str, Any] = {"head_dim": f.count("head_dim"), "v_head_dim": f.count("v_head_dim"), "bias": bias}
    whole = Attention(heads=heads, kv_heads=kv, sinks=f.flag("add_full_attention_sink_bias"), **common)
    local = Attention(**{
        **common, "heads": f.maybe("swa_num_attention_heads") or heads, "kv_heads": f.maybe("swa_num_key_value_heads") or 2 * kv,
        "head_dim": f.maybe("swa_head_dim") or common["head_dim"], "v_head_dim": f.maybe("swa_v_head_dim") or common["v_head_dim"],
        "window": f.count("sliding_window", "sliding_window_size"), "sinks": f.flag("add_swa_attention_sink_bias", default=True),
    })  # fmt: skip
    moe, plain = deepseek_experts(f), Dense(width=f.count("intermediate_size"))
    mixers = [("local", local) if s else ("global", whole) for s in mimo_slides(f, count)]
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in sparse_after(f, count, 1)])}


def step3(f: Fields) -> dict[str, Any]:
    """Step-3.5 and 3.7: windowed and full layers with output gates; experts after three dense layers."""
    count, heads, bias = depth(f), heads_of(f), f.flag("mlp_bias")
    slides = by_words(f, ("layer_types",), count, SLIDES, lambda _: False)
    stated = f.sub("attention_other_setting").maybe("num_attention_heads")
    gate = {True: "headwise", "per-head": "headwise", "per-element": "elementwise", False: "elementwise"}.get(f.raw("gating", default=True))
    if gate is None:
        raise f.refuse("gating", "is not one of true, per-head, per-element", f.data.get("gating"))
    kv = f.count("num_attention_groups", "num_key_value_heads")
    whole = grouped_attention(f, Traits(bias_flags=BIASED, qk_norm="head"), gate=gate, kv_heads=kv)
    local_heads = f.maybe("num_sliding_attention_heads") or stated or heads
    windows = [f.count("sliding_window") if s else None for s in slides]
    mixers = [("local", whole.model_copy(update={"heads": local_heads, "window": w})) if w else ("global", whole) for w in windows]
    shared = number(f, "share_expert_dim", "share_expert_dims")
    moe = routed(f, shared=SharedExpert(width=shared, bias=bias) if shared else None, correction_bias="buffer")
    plain = Dense(width=f.count("intermediate_size"), bias=bias)
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in step_sparse(f, count)])}


def step_sparse(f: Fields, layers: int) -> list[bool]:
    """Which layers hold experts: as listed in words or numbers, else from the fourth on."""
    listed = f.raw("moe_layers_enum", default=None)
    if listed is None or words(f, ("mlp_layer_types",), layers, {"sparse": True, "dense": False}) is not None:
        return sparse_after(f, layers, 3)
    items = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(items, list) or not all(str(i).strip().isdigit() for i in items if str(i).strip()):
        raise f.refuse("moe_layers_enum", "must list layer numbers", listed)
    chosen = {int(i) for i in items if str(i).strip()}
    return [i in chosen for i in range(layers)]


def hrm(f: Fields) -> dict[str, Any]:
    """HRM: two stacks that run in turns, the low one several times for each run of the high one; norms without weights."""
    stated = f.maybe("num_layers_per_stack")
    each, heads, fast, slow = stated or depth(f), heads_of(f), f.count("L_cycles"), f.count("H_cycles")
    if each * (fast + 1) * slow > MAX_LAYERS:
        raise f.refuse("L_cycles", f"and H_cycles make {each} layers a stack run more than {MAX_LAYERS:,} times in all", fast)
    gated: dict[str, Any] = {"gate": "elementwise", "gate_bias": f.flag("attention_bias")}
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=head_size(f, heads), bias="qkvo" if f.flag("attention_bias") else "", **gated)
    block = Block(mixers=(mixer,), ffns=(Dense(width=f.count("intermediate_size"), bias=f.flag("mlp_bias")),), norms=0, repeated=True)
    stack = [(f"layer{i + 1}", block.model_copy(update={"share_group": i})) for i in range(2 * each)]
    low, high = stack[:each], stack[each:]
    start = (Extra(name="start", rows=width(f)),)
    return {"hidden": width(f), "layers": [*low * fast, *high] * slow, "norms": 0, "extra": start}


def deci(f: Fields) -> dict[str, Any]:
    """Nemotron-NAS: each layer states its own attention groups and feed-forward multiplier; either may be left out."""
    hidden, heads = width(f), heads_of(f)
    layers = []
    for i, raw in enumerate(f.per_layer("block_configs", depth(f))):
        if not isinstance(raw, dict):
            raise f.refuse(f"block_configs[{i}]", "must be a mapping", raw)
        b = Fields(raw, file=f.file, at=f"{f.at}block_configs[{i}].")
        attention, ffn = b.sub("attention"), b.sub("ffn")
        mixers: tuple[Any, ...] = ()
        ffns: tuple[Any, ...] = ()
        extra = []
        if not attention.flag("no_op"):
            if attention.flag("replace_with_linear"):
                extra.append(Extra(name="attention.linear", part="attention", rows=hidden, cols=hidden, use="matmul"))
            else:
                kv = heads // attention.count("n_heads_in_group")
                mixers = (Attention(heads=heads, kv_heads=kv, head_dim=head_size(f, heads)),)
        if not ffn.flag("no_op"):
            if ffn.flag("replace_with_linear"):
                extra.append(Extra(name="ffn.linear", part="mlp", rows=hidden, cols=hidden, use="matmul"))
            else:
                ffns = (Dense(width=deci_width(ffn, hidden)),)
        norms = int(not attention.flag("no_op")) + int(not ffn.flag("no_op"))
        layers.append(("layer", Block(mixers=mixers, ffns=ffns, norms=norms, extra=tuple(extra))))
    return {"hidden": hidden, "layers": layers}


def deci_width(ffn: Fields, hidden: int) -> int:
    """Feed-forward width: twice the multiplier times the width, over three, rounded up to 256."""
    scale = _multiplier(ffn, "ffn_mult", ffn.raw("ffn_mult"))
    return -(-int(2 * scale * hidden / 3) // 256) * 256


def _multiplier(f: Fields, name: str, scale: Any) -> float:
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 100:  # noqa: PLR2004 - an absurd multiplier
        raise f.refuse(name, "must be a number above 0 and below 100", scale)
    return scale


READERS = {
    **compressed.READERS, **delta.READERS, **gemma.READERS, **inkling.READERS, **mamba.READERS, **recurrent.READERS,
    "lfm2": lfm2, "lfm2_moe": lfm2, "lfm3": lfm3, "minimax": minimax, "minimax_text_01": minimax_text, "mimo_v2_flash": mimo_v2,
    "step3p5": step3, "step3p7": step3, "step3p7_text": step3, "deci": deci, "nemotron-nas": deci, "hrm_text": hrm,
}  # fmt: skip
