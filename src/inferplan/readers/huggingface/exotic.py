"""Decoders with a tensor or a layer of their own: learned activations, sub-norms, decay gates, per-expert query heads.

Knows the shapes of each such family, not how a field is checked; ordinary families are rows of the tables in the sibling modules.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from inferplan.readers.huggingface.assemble import uniform, zipped
from inferplan.readers.huggingface.dense import (
    BIASED,
    Traits,
    all_windowed,
    decoder,
    depth,
    every,
    feed_forward,
    grouped_attention,
    head_size,
    heads_of,
    heed,
    key_heads,
    listed,
    switched,
    width,
    windowed,
)
from inferplan.readers.huggingface.experts import leading_dense, number, qwen2_experts, routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense, SharedExpert
from inferplan.specs.mixers import Attention, GatedDelta
from inferplan.specs.model import Block, Extra


def xielu(f: Fields) -> tuple[Extra, ...]:
    """The two learned numbers of the xIELU activation, where it is the one in use."""
    if f.text("hidden_act", default="xielu") != "xielu":
        return ()
    return (Extra(name="xielu", part="mlp", rows=2),)


def apertus(f: Fields) -> dict[str, Any]:
    """Apertus: head norms, an ungated block, a learned activation."""
    if f.maybe("output_vocab_size"):
        raise f.refuse("output_vocab_size", "is set: a head of another size than the token table is not known here")
    return decoder(f, Traits(bias_flags=BIASED, qk_norm="head", gated=False, extra=xielu))


def bitnet(f: Fields) -> dict[str, Any]:
    """BitNet b1.58: norms before the output and the down projection."""
    sub_norm = Extra(name="ffn_sub_norm", part="norm", rows=f.count("intermediate_size"))
    return decoder(f, Traits(bias_flags=BIASED, out_norm=True, extra=lambda _: (sub_norm,)))


def diffllama(f: Fields) -> dict[str, Any]:
    """DiffLlama: four lambda vectors of one head's width in each layer."""
    lambdas = Extra(name="lambdas", part="attention", rows=head_size(f, heads_of(f)), copies=4)
    return decoder(f, Traits(bias_flags=BIASED, extra=lambda _: (lambdas,)))


def helium(f: Fields) -> dict[str, Any]:
    """Helium: a square output projection, so heads must fill the residual stream exactly."""
    heads, hidden = heads_of(f), width(f)
    if heads * head_size(f, heads) != hidden:
        raise f.refuse("head_dim", f"times {heads} heads must equal the width {hidden}: the output projection is square", f.raw("head_dim"))
    return decoder(f, Traits(bias_flags=(("attention_bias", "qkv"),), mlp_bias="mlp_bias"))


def doge_extra(f: Fields) -> tuple[Extra, ...]:
    """Scaled residuals, and the decay gate of each key head with its projection from the values."""
    heads = heads_of(f)
    kv = key_heads(f, heads)
    inputs, bias = kv * head_size(f, heads), f.flag("attention_bias")
    return (
        Extra(name="residual_scales", rows=width(f), copies=2),
        Extra(name="decay", part="attention", rows=kv),
        Extra(name="decay_gate", part="attention", rows=kv, cols=inputs, bias=kv if bias else 0, use="matmul"),
    )


def doge(f: Fields) -> dict[str, Any]:
    """Doge: dynamic-mask attention; the mixture looks up two vectors per expert, chosen by product keys, beside the dense block."""
    traits = Traits(bias_flags=BIASED, mlp_bias="mlp_bias", qk_norm="head", extra=doge_extra, windows=all_windowed)
    parts = decoder(f, traits)
    if f.flag("is_moe"):
        keys = 2 * isqrt(f.count("num_experts"))
        lookup = routed(f, width=1, gated=False, router_outputs=keys)
        parts["layers"] = [(name, block.model_copy(update={"ffns": (*block.ffns, lookup)})) for name, block in parts["layers"]]
    return parts


def gpt_neox_japanese(f: Fields) -> dict[str, Any]:
    """GPT-NeoX Japanese: no biases but one on the output projection of the last layer."""
    heads, count, hidden = heads_of(f), depth(f), width(f)
    ffn = Dense(width=hidden * f.count("intermediate_multiple_size", default=4), gated=False)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=head_size(f, heads))
    plain = Block(mixers=(mixer,), ffns=(ffn,), norm_bias=True)
    last = plain.model_copy(update={"mixers": (mixer.model_copy(update={"bias": "o"}),)})
    return {"hidden": hidden, "layers": [*([("layer", plain)] * (count - 1)), ("last", last)], "norm_bias": True}


def modernbert_decoder(f: Fields) -> dict[str, Any]:
    """ModernBERT decoder: norms after the embedding and in the head, a dense step before the head, no first norm in layer 0."""
    bias, half = f.flag("norm_bias"), f.maybe("sliding_window") if "sliding_window" in f else f.count("local_attention") // 2
    traits = Traits(
        bias_flags=BIASED, mlp_bias="mlp_bias", head_bias="decoder_bias", windows=every("global_attn_every_n_layers", 3, first_full=True)
    )
    mixers = [(k, m.model_copy(update={"window": m.window and half})) for k, m in windowed(f, traits, depth(f))]
    layers = list(zipped(mixers, [("dense", feed_forward(f, traits))] * depth(f), norms=2, norm_bias=bias))
    layers[0] = ("first", layers[0][1].model_copy(update={"norms": 1}))
    hidden = width(f)
    dense = Extra(name="head.dense", rows=hidden, cols=hidden, bias=hidden if f.flag("classifier_bias") else 0, use="matmul")
    return {
        "hidden": hidden,
        "layers": layers,
        "norms": 3,
        "norm_bias": bias,
        "extra": (dense,),
        "head_bias": switched(f, traits.head_bias),
    }


def jetmoe(f: Fields) -> dict[str, Any]:
    """JetMoE: each token's query heads come from the experts it picks, all sharing one set of key-value heads."""
    experts, kv, hidden = routed(f, width=f.count("intermediate_size")), f.count("num_key_value_heads"), width(f)
    attention = Attention(heads=kv * experts.top_k, kv_heads=kv, head_dim=f.count("kv_channels"), query_experts=experts.experts)
    router = Extra(name="query_router", part="router", rows=experts.experts, cols=hidden, use="matmul")
    biases = (Extra(name="mlp_bias", part="mlp", rows=hidden), Extra(name="attention_bias", part="attention", rows=hidden))
    block = Block(mixers=(attention,), ffns=(experts,), extra=(router, *biases))
    return {"hidden": hidden, "layers": uniform(block, depth(f))}


def laguna(f: Fields) -> dict[str, Any]:
    """Laguna: query heads counted per layer, a gate per head or per element, dense layers first, windows where listed."""
    count, gate = depth(f), f.raw("gating", default=True)
    gates = {True: "headwise", "per-head": "headwise", "per-element": "elementwise", "elementwise": "elementwise"}
    if not isinstance(gate, (bool, str)) or gate not in gates:
        raise f.refuse("gating", "is not a gate that is known here (true, per-head, per-element)", gate)
    traits = Traits(bias_flags=BIASED, qk_norm="head", gate=gates[gate], windows=every("", None))
    heed(f, traits)
    heads = [
        f.checked(h, "num_attention_heads_per_layer") for h in listed(f, "num_attention_heads_per_layer", count) or [heads_of(f)] * count
    ]
    mixers = [(k, m.model_copy(update={"heads": h})) for (k, m), h in zip(windowed(f, traits, count), heads, strict=True)]
    shared = number(f, "shared_expert_intermediate_size")
    moe = routed(f, shared=SharedExpert(width=shared) if shared else None, correction_bias="parameter")
    sparse = leading_dense("first_k_dense_replace", default=1)(f, count)
    ffns = [("moe", moe) if s else ("dense", feed_forward(f, traits)) for s in sparse]
    return {"hidden": width(f), "layers": zipped(mixers, ffns)}


def lara_mini(f: Fields) -> dict[str, Any]:
    """Lara Mini: gated delta, windowed and full attention in a period of five, a mixture with one shared expert on every layer."""
    count = depth(f)
    period = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
    kinds = listed(f, "layer_types", count) or [period[i % 5] for i in range(count)]
    delta = GatedDelta(
        key_heads=f.count("linear_num_key_heads"), value_heads=f.count("linear_num_value_heads"), key_dim=f.count("linear_key_head_dim"),
        value_dim=f.count("linear_value_head_dim"), conv=f.count("linear_conv_kernel_dim"),
    )  # fmt: skip
    traits = Traits(bias_flags=BIASED, qk_norm="head", windows=all_windowed)
    heed(f, traits)
    full, shared = grouped_attention(f, traits), number(f, "shared_expert_intermediate_size")
    mixers: dict[str, Any] = {"linear_attention": delta, "full_attention": full}
    mixers["sliding_attention"] = full.model_copy(update={"window": f.maybe("sliding_window")})
    ffn = qwen2_experts(f).model_copy(update={"shared": SharedExpert(width=shared) if shared else None})
    for kind in kinds:
        if kind not in mixers:
            raise f.refuse("layer_types", f"is a kind of layer this family does not have ({', '.join(mixers)})", kind)
    return {"hidden": width(f), "layers": zipped([(k.split("_")[0], mixers[k]) for k in kinds], [("moe", ffn)] * count)}


READERS = {
    "apertus": apertus, "apertus1p5_text": apertus, "bitnet": bitnet, "diffllama": diffllama, "helium": helium, "doge": doge,
    "gpt_neox_japanese": gpt_neox_japanese, "modernbert-decoder": modernbert_decoder, "jetmoe": jetmoe, "laguna": laguna,
    "lara_mini": lara_mini,
}  # fmt: skip
