"""Older and remote-code decoder families whose files use field names or layouts of their own."""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import uniform, zipped
from inferplan.readers.huggingface.dense import TRAITS, Traits, decoder, depth, feed_forward, grouped_attention, heads_of, width, windows_from
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra


def qwen1(f: Fields) -> dict[str, Any]:
    """Qwen 1: multi-head with a bias on q, k, v; `intermediate_size` counts both halves of the gated block."""
    parts = decoder(f, TRAITS["llama"])
    heads = heads_of(f)
    head_dim = f.maybe("kv_channels") or width(f) // heads
    ffn = Dense(width=f.count("intermediate_size", essential=True) // 2)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=head_dim, bias="qkv")
    return {**parts, "layers": uniform(Block(mixers=(mixer,), ffns=(ffn,)), depth(f))}


def chatglm(f: Fields) -> dict[str, Any]:
    """ChatGLM 2 to 4: multi-query groups, a bias on q, k, v alone, padded vocabulary."""
    heads = heads_of(f)
    groups = f.count("multi_query_group_num") if f.flag("multi_query_attention") else heads
    bias = "qkvo" if f.flag("add_bias_linear") else "qkv" if f.flag("add_qkv_bias") else ""
    mixer = Attention(heads=heads, kv_heads=groups, head_dim=f.maybe("kv_channels") or width(f) // heads, bias=bias)
    ffn = Dense(width=f.count("ffn_hidden_size", essential=True), bias=f.flag("add_bias_linear"))
    final = 1 if f.flag("post_layer_norm", default=True) else 0
    return {"hidden": width(f), "layers": uniform(Block(mixers=(mixer,), ffns=(ffn,)), depth(f)), "norms": final}


def falcon(f: Fields) -> dict[str, Any]:
    """Falcon: grouped in the new decoder architecture, else multi-query or multi-head; two matrices of 4 x hidden."""
    heads, new = heads_of(f), f.flag("new_decoder_architecture")
    kv = (f.maybe("num_kv_heads", "n_head_kv") or heads) if new else 1 if f.flag("multi_query", default=True) else heads
    bias = f.flag("bias")
    norms = (f.maybe("num_ln_in_parallel_attn") or 2) if new else 1 if f.flag("parallel_attn", default=True) else 2
    mixer = Attention(heads=heads, kv_heads=kv, head_dim=width(f) // heads, bias="qkvo" if bias else "")
    ffn = Dense(width=f.maybe("ffn_hidden_size") or 4 * width(f), gated=False, bias=bias)
    block = Block(mixers=(mixer,), ffns=(ffn,), norms=norms, norm_bias=True)
    return {"hidden": width(f), "layers": uniform(block, depth(f)), "norm_bias": True}


def bigcode(f: Fields) -> dict[str, Any]:
    """GPT-BigCode (StarCoder): GPT-2 with one key-value head."""
    traits = Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True, positions=("n_positions", 0))
    heads = heads_of(f)
    parts = decoder(f, traits)
    mixer = grouped_attention(f, traits, kv_heads=1 if f.flag("multi_query", default=True) else heads)
    block = Block(mixers=(mixer,), ffns=(feed_forward(f, traits),), norm_bias=True)
    return {**parts, "layers": uniform(block, depth(f))}


def opt(f: Fields) -> dict[str, Any]:
    """OPT: learned positions with two spare rows; a narrower token table has projections in and out (350M)."""
    bias = f.flag("enable_bias", default=True)
    affine = f.flag("layer_norm_elementwise_affine", default=True)
    before = f.flag("do_layer_norm_before", default=True)
    hidden, narrow = width(f), f.maybe("word_embed_proj_dim") or width(f)
    heads = heads_of(f)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, bias="qkvo" if bias else "")
    ffn = Dense(width=f.count("ffn_dim"), gated=False, bias=bias)
    block = Block(mixers=(mixer,), ffns=(ffn,), norms=2 if affine else 0, norm_bias=affine)
    projections = tuple(Extra(name=n, rows=r, cols=c, use="matmul") for n, r, c in (("project_in", hidden, narrow), ("project_out", narrow, hidden)))
    final = int(affine and before and not f.flag("_remove_final_layer_norm"))
    return {
        "hidden": hidden, "layers": uniform(block, depth(f)), "norms": final, "norm_bias": True, "embedding_width": narrow,
        "positions": f.count("max_position_embeddings") + 2, "extra": projections if narrow != hidden else (),
    }  # fmt: skip


def bloom(f: Fields) -> dict[str, Any]:
    """BLOOM: ALiBi, biases everywhere, a norm on the embedding."""
    heads, hidden = heads_of(f), width(f)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, bias="qkvo")
    block = Block(mixers=(mixer,), ffns=(Dense(width=4 * hidden, gated=False, bias=True),), norm_bias=True)
    return {"hidden": hidden, "layers": uniform(block, depth(f)), "norms": 2, "norm_bias": True}


def mpt(f: Fields) -> dict[str, Any]:
    """MPT: no biases, norms without bias; grouped or multi-query where attn_config says so."""
    heads, hidden = heads_of(f), width(f)
    inner = f.sub("attn_config")
    kv = inner.maybe("kv_n_heads") or (1 if inner.raw("attn_type", default="") == "multiquery_attention" else heads)
    bias = not f.flag("no_bias", default=True)
    mixer = Attention(heads=heads, kv_heads=kv, head_dim=hidden // heads, bias="qkvo" if bias else "")
    ffn = Dense(width=f.count("expansion_ratio", default=4) * hidden, gated=False, bias=bias)
    return {"hidden": hidden, "layers": uniform(Block(mixers=(mixer,), ffns=(ffn,), norm_bias=bias), depth(f)), "norm_bias": bias, "head": "tied"}


def gpt_neo(f: Fields) -> dict[str, Any]:
    """GPT-Neo: global and local (256) layers in turn; a bias on the output projection alone."""
    kinds = [kind for cycle, times in f.items("attention_types") for kind in list(cycle) * times]
    types = {"global": "full_attention", "local": "sliding_attention"}
    windows = windows_from(f, [types.get(str(k), str(k)) for k in kinds][: depth(f)], "window_size")
    traits = Traits(bias="o", gated=False, mlp_bias=True, norm_bias=True)
    ffn = feed_forward(f, traits)
    heads = f.count("num_heads", "num_attention_heads")
    mixers = [
        ("local" if w else "global", Attention(heads=heads, kv_heads=heads, head_dim=width(f) // heads, bias="o", window=w)) for w in windows
    ]
    layers = zipped(mixers, [("dense", ffn)] * len(mixers), norm_bias=True)
    return {"hidden": width(f), "layers": layers, "norm_bias": True, "positions": f.count("max_position_embeddings")}


READERS = {
    "qwen": qwen1, "chatglm": chatglm, "falcon": falcon, "gpt_bigcode": bigcode, "opt": opt, "bloom": bloom, "mpt": mpt, "gpt_neo": gpt_neo,
}  # fmt: skip
