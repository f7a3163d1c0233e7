"""Decoders published with code of their own rather than in a library: their field names, biases and defaults.

Knows the shapes that their published code builds; where such a file leaves out `tie_word_embeddings`, the base configuration ties.
"""

from __future__ import annotations

from typing import Any

from inferplan.errors import Unsupported
from inferplan.readers.huggingface.assemble import uniform
from inferplan.readers.huggingface.dense import (
    BIASED,
    TRAITS,
    Traits,
    decoder,
    depth,
    feed_forward,
    grouped_attention,
    head_size,
    heads_of,
    key_heads,
    width,
)
from inferplan.readers.huggingface.experts import Mixture, after_dense, mtp_of, number, routed, whole_blocks
from inferplan.readers.huggingface.experts import decoder as mixture_decoder
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.legacy import falcon_block
from inferplan.specs.ffns import Dense, SharedExpert
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra


def head(f: Fields, *, tied: bool) -> str:
    """The head: as the file says, else as the published code does."""
    return "tied" if f.flag("tie_word_embeddings", default=tied) else "own"


def internlm(f: Fields) -> dict[str, Any]:
    """InternLM 1: Llama with a bias on all four projections unless `bias` is false."""
    return decoder(f, Traits(bias="qkvo" if f.flag("bias", default=True) else ""))


def codeshell(f: Fields) -> dict[str, Any]:
    """CodeShell: StarCoder's block with grouped keys and rotary positions."""
    heads = heads_of(f)
    kv = f.count("num_query_groups") if f.flag("group_query_attention", default=True) else heads
    learned = f.text("position_embedding_type", default="rope") != "rope"
    traits = Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True, positions=("n_positions", 0) if learned else None)
    parts = decoder(f, traits)
    block = Block(mixers=(grouped_attention(f, traits, kv_heads=kv),), ffns=(feed_forward(f, traits),), norm_bias=True)
    return {**parts, "layers": uniform(block, depth(f)), "head": head(f, tied=True)}


def telechat(f: Fields) -> dict[str, Any]:
    """TeleChat: biases on the output and down projections alone."""
    heads = heads_of(f)
    mixer = Attention(heads=heads, kv_heads=key_heads(f, heads), head_dim=head_size(f, heads), bias="o")
    down = Extra(name="down_bias", part="mlp", rows=width(f))
    block = Block(mixers=(mixer,), ffns=(Dense(width=f.count("ffn_hidden_size", "intermediate_size", essential=True)),), extra=(down,))
    return {"hidden": width(f), "layers": uniform(block, depth(f)), "head": head(f, tied=True)}


def minicpm(f: Fields) -> dict[str, Any]:
    """MiniCPM: Llama with scaled residuals, tied unless stated; the 8x2B has a mixture of whole blocks."""
    if not number(f, "num_experts"):
        return {**decoder(f, TRAITS["llama"]), "head": head(f, tied=True)}
    mixture = Mixture(TRAITS["llama"], whole_blocks)
    return {**mixture_decoder(f, mixture), "head": head(f, tied=True)}


def refined_web(f: Fields) -> dict[str, Any]:
    """Falcon as first published: `RefinedWeb` is the grouped architecture of 40B, `RefinedWebModel` that of 1B and 7B."""
    heads, new = heads_of(f), f.data.get("model_type") == "RefinedWeb"
    kv = f.maybe("n_head_kv", "num_kv_heads") or heads if new else 1 if f.flag("multi_query", default=False) else heads
    norms = 2 if new or not f.flag("parallel_attn", default=False) else 1
    block = falcon_block(f, kv=kv, norms=norms, bias=f.flag("bias", default=False), by_branch=new)
    return {"hidden": width(f), "layers": uniform(block, depth(f)), "norm_bias": True, "head": head(f, tied=True)}


def mixformer(f: Fields) -> dict[str, Any]:
    """Phi-1 and 1.5 as first published: parallel blocks with one norm."""
    blocks = f.sub("architecture").raw("block_cls", default="parallel")
    if blocks != "parallel":
        raise f.refuse("architecture.block_cls", "is not a block that is known here (parallel)", blocks)
    return phi_msft(f)


def phi_msft(f: Fields) -> dict[str, Any]:
    """Phi with its first field names."""
    return {**decoder(f, TRAITS["phi"]), "head": "own"}


def jais(f: Fields) -> dict[str, Any]:
    """Jais: GPT-2 with ALiBi and a gated block where the activation is `swiglu`."""
    learned = f.text("position_embedding_type", default="learned") != "alibi"
    gated = f.text("activation_function", default="gelu") == "swiglu"
    traits = Traits(bias="qkvo", gated=gated, mlp_bias=True, norm_bias=True, positions=("n_positions", 0) if learned else None)
    return {**decoder(f, traits), "head": head(f, tied=True)}


def gpt_sw3(f: Fields) -> dict[str, Any]:
    """GPT-SW3: GPT-2 under a name of its own."""
    return {**decoder(f, TRAITS["gpt2"]), "head": head(f, tied=True)}


def grok(f: Fields) -> dict[str, Any]:
    """Grok-1: four norms per layer, eight gated experts, two used."""
    mixture = Mixture(Traits(norms=4), whole_blocks)
    return {**mixture_decoder(f, mixture), "head": head(f, tied=True)}


def arctic(f: Fields) -> dict[str, Any]:
    """Snowflake Arctic: a square dense block beside the mixture, each after a norm of its own."""
    count, step = depth(f), f.count("moe_layer_frequency", default=2)
    traits = Traits(bias_flags=BIASED)
    attention, hidden = grouped_attention(f, traits), width(f)
    moe, plain = whole_blocks(f), feed_forward(f, traits)
    beside = (Dense(width=hidden),) if f.flag("parallel_attn_mlp_res", default=False) else ()
    sparse = Block(mixers=(attention,), ffns=(*beside, moe), norms=3 if beside else 2)
    dense = Block(mixers=(attention,), ffns=(plain,))
    layers = [("moe", sparse) if (i + 1) % step == 0 else ("dense", dense) for i in range(count)]
    return {"hidden": hidden, "layers": layers, "head": head(f, tied=False)}


def bailing(f: Fields) -> dict[str, Any]:
    """Ling: dense layers first, shared experts of the routed width; version 2 adds head norms and a learned router correction."""
    second = f.data.get("model_type") == "bailing_moe_v2"
    if second and f.flag("use_bias", default=False):
        raise f.refuse("use_bias", "is set, and what it adds to this family is not known here", True)
    normed = f.flag("use_qk_norm", default=second)
    corrected = f.flag("moe_router_enable_expert_bias", default=second)
    traits = Traits(
        bias_flags=(("use_qkv_bias", "qkv"), ("use_bias", "o")), mlp_bias="use_bias", qk_norm="head" if normed else "none",
        ignored=("use_qk_norm",),
    )  # fmt: skip
    parts = mixture_decoder(f, Mixture(traits, lambda g: _bailing_experts(g, corrected), after_dense))
    return {**parts, "mtp": mtp_of(f, parts["layers"]), "head": head(f, tied=False)}


def _bailing_experts(f: Fields, corrected: bool) -> Any:
    shared, inner = number(f, "num_shared_experts"), f.count("moe_intermediate_size")
    wide = number(f, "moe_shared_expert_intermediate_size") or inner
    block = SharedExpert(width=shared * wide) if shared else None
    return routed(f, width=inner, shared=block, correction_bias="parameter" if corrected else "none")


def decilm(f: Fields) -> dict[str, Any]:
    """DeciLM 6B and 7B: Llama with a number of key-value heads for each layer."""
    heads = heads_of(f)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=head_size(f, heads))
    ffn = feed_forward(f, Traits())
    layers = []
    for kv in (f.checked(v, "num_key_value_heads_per_layer") for v in f.per_layer("num_key_value_heads_per_layer", depth(f))):
        if heads % kv:
            raise f.refuse("num_key_value_heads_per_layer", f"must divide the {heads} query heads", kv)
        layers.append((f"kv{kv}", Block(mixers=(attention.model_copy(update={"kv_heads": kv}),), ffns=(ffn,))))
    return {"hidden": width(f), "layers": layers}


def qwen1(f: Fields) -> dict[str, Any]:
    """Qwen 1: multi-head with a bias on q, k, v; `intermediate_size` counts both halves of the gated block."""
    heads, more = heads_of(f), not f.flag("no_bias", default=True)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=f.maybe("kv_channels") or head_size(f, heads), bias="qkvo" if more else "qkv")
    both = f.count("intermediate_size", essential=True)
    if both % 2:
        raise f.refuse("intermediate_size", "must be even: it counts both halves of the gated block", both)
    ffn = Dense(width=both // 2, bias=more)
    return {"hidden": width(f), "layers": uniform(Block(mixers=(mixer,), ffns=(ffn,)), depth(f))}


def chatglm(f: Fields) -> dict[str, Any]:
    """ChatGLM 2 to 4: multi-query groups, a bias on q, k, v alone, padded vocabulary."""
    if "inner_hidden_size" in f or "position_encoding_2d" in f:
        raise Unsupported("model type 'chatglm' of the first version is not understood: only ChatGLM2 to GLM-4 are")
    if f.maybe("pre_seq_len"):
        raise f.refuse("pre_seq_len", "is set: a prefix encoder is not known here")
    heads = heads_of(f)
    groups = f.count("multi_query_group_num") if f.flag("multi_query_attention") else heads
    bias = "qkvo" if f.flag("add_bias_linear") else "qkv" if f.flag("add_qkv_bias") else ""
    mixer = Attention(heads=heads, kv_heads=groups, head_dim=f.maybe("kv_channels") or head_size(f, heads), bias=bias)
    ffn = Dense(width=f.count("ffn_hidden_size", essential=True), bias=f.flag("add_bias_linear"))
    layer_norm = not f.flag("rmsnorm", default=True)
    final = int(f.flag("post_layer_norm", default=True))
    block = Block(mixers=(mixer,), ffns=(ffn,), norm_bias=layer_norm)
    return {"hidden": width(f), "layers": uniform(block, depth(f)), "norms": final, "norm_bias": layer_norm}


READERS = {
    "internlm": internlm, "codeshell": codeshell, "telechat": telechat, "minicpm": minicpm, "RefinedWeb": refined_web,
    "RefinedWebModel": refined_web, "mixformer-sequential": mixformer, "phi-msft": phi_msft, "jais": jais, "gpt-sw3": gpt_sw3,
    "grok-1": grok, "arctic": arctic, "bailing_moe": bailing, "bailing_moe_v2": bailing, "qwen": qwen1, "chatglm": chatglm,
}  # fmt: skip
