"""Decoders without attention and without state spaces: RWKV-4 and xLSTM. Knows the shapes of these two families alone."""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import uniform
from inferplan.readers.huggingface.dense import depth, width
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.mamba import MOST_WIDTHS, STATE_DTYPES
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import MatrixLstm, Rwkv
from inferplan.specs.model import Block, Extra
from inferplan.specs.order import MAX_LAYERS


def rwkv(f: Fields) -> dict[str, Any]:
    """RWKV-4: time mixing and channel mixing in every layer, one more norm in the first."""
    hidden, count = width(f), depth(f)
    mixer = Rwkv(width=f.maybe("attention_hidden_size") or hidden, hidden=hidden)
    ffn = Dense(width=f.maybe("intermediate_size") or 4 * hidden, gated=False)
    extra = (
        Extra(name="channel.receptance", part="mlp", rows=hidden, cols=hidden, use="matmul"),
        Extra(name="channel.mix", part="mlp", rows=hidden, copies=2),
    )
    block = Block(mixers=(mixer,), ffns=(ffn,), norms=2, norm_bias=True, extra=extra)
    first = block.model_copy(update={"norms": 3})
    return {"hidden": hidden, "layers": [("first", first), *[("layer", block)] * (count - 1)], "norm_bias": True}


def xlstm(f: Fields) -> dict[str, Any]:
    """The xLSTM of 7B: matrix memories with a gated feed-forward block in every layer."""
    hidden, heads = f.count("embedding_dim", "hidden_size", essential=True), f.count("num_heads")
    count = f.count("num_blocks") if "num_blocks" in f else depth(f)
    if count > MAX_LAYERS:
        raise f.refuse("num_blocks", f"must lie between 1 and {MAX_LAYERS:,}", count)
    keys, values = (int(f.factor(name, most=MOST_WIDTHS) * hidden) for name in ("qk_dim_factor", "v_dim_factor"))
    if keys % heads or values % heads:
        raise f.refuse("num_heads", f"must divide the widths {keys} and {values} of keys and values", heads)
    bias = f.flag("use_bias")
    mixer = MatrixLstm(
        heads=heads, key_dim=keys // heads, value_dim=values // heads, bias=bias, chunk=f.count("chunk_size", default=64),
        state_dtype=STATE_DTYPES[f.one_of("inference_state_dtype", STATE_DTYPES, default="float32")],
    )  # fmt: skip
    multiple = f.count("ffn_round_up_to_multiple_of", default=64)
    ffn = Dense(width=-(-int(f.factor("ffn_proj_factor", most=MOST_WIDTHS) * hidden) // multiple) * multiple, bias=bias)
    block = Block(mixers=(mixer,), ffns=(ffn,), norms=2, norm_bias=bias)
    final = int(f.flag("add_out_norm", default=True))
    return {"hidden": hidden, "layers": uniform(block, count), "norms": final, "head": "own"}


READERS = {"rwkv": rwkv, "xlstm": xlstm}
