"""Older decoder families with field names or layouts of their own. Knows each family's shapes, not where a file stands."""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import uniform, zipped
from inferplan.readers.huggingface.dense import (
    Traits,
    decoder,
    depth,
    feed_forward,
    grouped_attention,
    head_size,
    heads_of,
    width,
    windows_from,
)
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra


def falcon(f: Fields) -> dict[str, Any]:
    """Falcon: grouped in the new decoder architecture, else multi-query or multi-head; two matrices of 4 x hidden."""
    heads, new = heads_of(f), f.flag("new_decoder_architecture")
    kv = (f.maybe("num_kv_heads", "n_head_kv") or heads) if new else 1 if f.flag("multi_query", default=True) else heads
    parallel = f.flag("parallel_attn", default=True)
    norms = f.maybe("num_ln_in_parallel_attn") or (2 if new else 1)
    block = falcon_block(f, kv=kv, norms=norms if parallel else 2, bias=f.flag("bias"), by_branch=parallel)
    return {"hidden": width(f), "layers": uniform(block, depth(f)), "norm_bias": True}


def falcon_block(f: Fields, *, kv: int, norms: int, bias: bool, by_branch: bool) -> Block:
    """A Falcon layer: two matrices of 4 x hidden unless stated, norms with bias.

    The two norms of the grouped architecture are named for the branch each one feeds, and tallies file them with it.
    """
    heads, hidden = heads_of(f), width(f)
    mixer = Attention(heads=heads, kv_heads=kv, head_dim=head_size(f, heads), bias="qkvo" if bias else "")
    ffn = Dense(width=f.maybe("ffn_hidden_size") or 4 * hidden, gated=False, bias=bias)
    if by_branch and norms == 2:  # noqa: PLR2004 - one for each branch
        extra = (
            Extra(name="ln_attn", part="attention", rows=hidden, bias=hidden),
            Extra(name="ln_mlp", part="mlp", rows=hidden, bias=hidden),
        )
        return Block(mixers=(mixer,), ffns=(ffn,), norms=0, norm_bias=True, extra=extra)
    return Block(mixers=(mixer,), ffns=(ffn,), norms=norms, norm_bias=True)


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
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=head_size(f, heads), bias="qkvo" if bias else "")
    ffn = Dense(width=f.count("ffn_dim"), gated=False, bias=bias)
    block = Block(mixers=(mixer,), ffns=(ffn,), norms=2 if affine else 0, norm_bias=affine)
    projections = tuple(
        Extra(name=n, rows=r, cols=c, use="matmul") for n, r, c in (("project_in", hidden, narrow), ("project_out", narrow, hidden))
    )
    final = int(affine and before and not f.flag("_remove_final_layer_norm"))
    return {
        "hidden": hidden, "layers": uniform(block, depth(f)), "norms": final, "norm_bias": True, "embedding_width": narrow,
        "positions": f.count("max_position_embeddings") + 2, "extra": projections if narrow != hidden else (),
    }  # fmt: skip


def bloom(f: Fields) -> dict[str, Any]:
    """BLOOM: ALiBi, biases everywhere, a norm on the embedding."""
    heads, hidden = heads_of(f), width(f)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=head_size(f, heads), bias="qkvo")
    block = Block(mixers=(mixer,), ffns=(Dense(width=4 * hidden, gated=False, bias=True),), norm_bias=True)
    return {"hidden": hidden, "layers": uniform(block, depth(f)), "norms": 2, "norm_bias": True}


def mpt(f: Fields) -> dict[str, Any]:
    """MPT: no biases and norms without one unless `no_bias` is false; grouped or multi-query where attn_config says so."""
    heads, hidden, inner = heads_of(f), width(f), f.sub("attn_config")
    for at, name in ((inner, "qk_ln"), (inner, "qk_gn")):
        if at.flag(name, default=False):
            raise at.refuse(name, "is set, and what it adds to this family is not known here", True)
    ffn_type = f.sub("ffn_config").text("ffn_type", default="mptmlp")
    if ffn_type != "mptmlp":
        raise f.refuse("ffn_config.ffn_type", "is not a block that is known here (mptmlp)", ffn_type)
    kv = inner.maybe("kv_n_heads") or (1 if inner.raw("attn_type", default="") == "multiquery_attention" else heads)
    bias = not f.flag("no_bias", default=True)
    mixer = Attention(heads=heads, kv_heads=kv, head_dim=head_size(f, heads), bias="qkvo" if bias else "")
    ffn = Dense(width=f.count("expansion_ratio", default=4) * hidden, gated=False, bias=bias)
    block = Block(mixers=(mixer,), ffns=(ffn,), norm_bias=bias)
    return {"hidden": hidden, "layers": uniform(block, depth(f)), "norm_bias": bias, "positions": mpt_positions(f, inner)}


def mpt_positions(f: Fields, attention: Fields) -> int:
    """Learned positions, only where neither ALiBi nor rotary positions are in use."""
    other = attention.flag("alibi", default=True) or attention.flag("rope", default=False)
    return 0 if other or not f.flag("learned_pos_emb", default=True) else f.count("max_seq_len")


def gpt_neo(f: Fields) -> dict[str, Any]:
    """GPT-Neo: global and local (256) layers in turn; a bias on the output projection alone; a null width is four times the stream."""
    windows = windows_from(f, gpt_neo_kinds(f, depth(f)), "window_size")
    ffn = Dense(width=f.maybe("intermediate_size") or 4 * width(f), gated=False, bias=True)
    heads = f.count("num_heads", "num_attention_heads")
    mixers = [
        ("local" if w else "global", Attention(heads=heads, kv_heads=heads, head_dim=head_size(f, heads), bias="o", window=w))
        for w in windows
    ]
    layers = zipped(mixers, [("dense", ffn)] * len(mixers), norm_bias=True)
    return {"hidden": width(f), "layers": layers, "norm_bias": True, "positions": f.count("max_position_embeddings")}


def gpt_neo_kinds(f: Fields, layers: int) -> list[str]:
    """The kind of each layer from `attention_types`: cycles of names, each with how often it is repeated."""
    kinds: list[str] = []
    names = {"global": "full_attention", "local": "sliding_attention"}
    for entry in f.items("attention_types"):
        cycle, times = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)  # noqa: PLR2004 - a pair
        if not isinstance(cycle, list) or not isinstance(times, int) or isinstance(times, bool) or not 0 < times <= layers:
            raise f.refuse("attention_types", f"must list pairs of names and a repeat of 1 to {layers}", entry)
        kinds += [names.get(str(k), str(k)) for k in cycle] * times
    if len(kinds) < layers:
        raise f.refuse("attention_types", f"has {len(kinds)} values for {layers} layers")
    return kinds[:layers]


READERS = {"falcon": falcon, "gpt_bigcode": bigcode, "opt": opt, "bloom": bloom, "mpt": mpt, "gpt_neo": gpt_neo}
