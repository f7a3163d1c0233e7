"""Decoders with delta-rule recurrences among attention layers: Qwen3-Next to 4, OLMo-Hybrid, Kimi-Linear, Ling, GLM-5 Next.

Knows which layer is which and how wide each is; the sizes of states follow from the mixers.
"""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import Layers, label, zipped
from inferplan.readers.huggingface.compressed import hyper_connections
from inferplan.readers.huggingface.dense import BIASED, Traits, depth, grouped_attention, heads_of, width
from inferplan.readers.huggingface.experts import deepseek_experts, mtp_of, qwen2_experts, qwen_sparse
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.latent import choosing, indexer_of, latent_attention, latent_ffns, with_extras
from inferplan.readers.huggingface.mamba import state_dtype
from inferplan.readers.huggingface.ngrams import ngram_rows
from inferplan.readers.huggingface.orders import by_words, owns_indexer, sparse_after, words
from inferplan.specs.ffns import Dense, Experts
from inferplan.specs.mixers import Attention, GatedDelta, Indexer, KimiDelta
from inferplan.specs.model import Block, Extra, MultiTokenPrediction

ATTENDS = {"full_attention": True, "attention": True, "indexed_attention": True, "linear_attention": False}


def gated_delta_of(f: Fields) -> GatedDelta:
    """The gated delta rule by Qwen3-Next's field names."""
    return GatedDelta(
        key_heads=f.count("linear_num_key_heads"), value_heads=f.count("linear_num_value_heads"), key_dim=f.count("linear_key_head_dim"),
        value_dim=f.count("linear_value_head_dim"), conv=f.count("linear_conv_kernel_dim"), state_dtype=state_dtype(f),
    )  # fmt: skip


def gated_attention(f: Fields, **more: Any) -> Attention:
    """Qwen3-Next's attention: head norms, and an output gate projected together with the queries."""
    gated = f.flag("attn_output_gate", default=True)
    gate: dict[str, Any] = {"gate": "elementwise", "gate_bias": f.flag("attention_bias")} if gated else {}
    return grouped_attention(f, Traits(bias_flags=BIASED, qk_norm="head"), **gate, **more)


def qwen_attends(f: Fields, layers: int) -> list[bool]:
    """Which layers attend: as listed, else the last of each `full_attention_interval`."""
    interval = f.count("full_attention_interval", default=4)
    return by_words(f, ("layer_types",), layers, ATTENDS, lambda i: (i + 1) % interval == 0)


def qwen_next(f: Fields, modules: int | None = None) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5: gated delta layers with gated full attention on every fourth, dense or mixture feed-forward."""
    count, attention, delta = depth(f), gated_attention(f), gated_delta_of(f)
    mixers = [("attention", attention) if a else ("delta", delta) for a in qwen_attends(f, count)]
    sparse = qwen_sparse(f, count) if f.count("num_experts", default=0, least=0) else [False] * count
    moe = qwen2_experts(f) if any(sparse) else None
    plain = Dense(width=f.count("intermediate_size")) if not all(sparse) else None
    layers = zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in sparse])
    return {"hidden": width(f), "layers": layers, "mtp": qwen_mtp(f, layers, modules)}


def qwen3_next(f: Fields) -> dict[str, Any]:
    """Qwen3-Next: its checkpoints hold one prediction module that the file does not mention."""
    return qwen_next(f, 1)


def qwen_mtp(f: Fields, layers: Layers, modules: int | None = None) -> MultiTokenPrediction | None:
    """Prediction modules like the last attention layer."""
    modules = f.maybe("mtp_num_hidden_layers", "num_nextn_predict_layers") or modules
    attention = [(name, block) for name, block in layers if any(isinstance(m, Attention) for m in block.mixers)]
    return mtp_of(f, attention, modules=modules) if modules and attention else None


def qwen4(f: Fields) -> dict[str, Any]:
    """Qwen4: as Qwen3.5 with sparse attention, low-rank mixing of residual streams, and n-gram embeddings on some layers."""
    count, hidden, streams = depth(f), width(f), f.count("hc_count")
    index = Indexer(
        heads=f.count("indexer_n_heads"), head_dim=f.count("indexer_head_dim"), inputs=hidden, form="plain",
        top_k=f.count("indexer_budget") // f.count("indexer_compress_ratio"), block=f.count("indexer_compress_ratio"),
    )  # fmt: skip
    attention, delta, moe = gated_attention(f, indexer=index), gated_delta_of(f), qwen2_experts(f)
    placed = [f.checked(i, "ple_layer_ids") for i in f.items("ple_layer_ids", default=[])]
    layers = []
    for i, attends in enumerate(qwen_attends(f, count)):
        extra = low_rank_streams(f, hidden, streams)
        extra += ngram_layer(f, hidden, streams, sorted(set(placed)).index(i + 1)) if i + 1 in placed else ()
        mixer: Any = attention if attends else delta
        name = label("attention" if attends else "delta", "ngram" if i + 1 in placed else None)
        layers.append((name, Block(mixers=(mixer,), ffns=(moe,), norms=0, extra=extra)))
    return {"hidden": hidden, "layers": layers, "extra": stream_mixer(f, hidden, streams, "head", inject=False), "norms": 0}


def low_rank_streams(f: Fields, hidden: int, streams: int) -> tuple[Extra, ...]:
    """The mixing of residual streams around both halves of a layer."""
    return stream_mixer(f, hidden, streams, "attention") + stream_mixer(f, hidden, streams, "ffn")


def stream_mixer(f: Fields, hidden: int, streams: int, where: str, *, inject: bool = True) -> tuple[Extra, ...]:
    """One mixing of residual streams: down and up projections of all streams, their norms, and the weights of the result's return."""
    rank, wide = f.count("hc_lowrank"), streams * hidden
    part: Any = {"attention": "attention", "ffn": "mlp"}.get(where, "other")
    found = (
        Extra(name=f"{where}_hc.down", part=part, rows=rank, cols=wide, use="matmul"),
        Extra(name=f"{where}_hc.up", part=part, rows=wide, cols=rank, use="matmul"),
        Extra(name=f"{where}_hc.norm", part="norm", rows=wide),
    )
    return (*found, Extra(name=f"{where}_hc.inject", part=part, rows=streams, cols=wide, use="matmul")) if inject else found


def ngram_layer(f: Fields, hidden: int, streams: int, index: int) -> tuple[Extra, ...]:
    """The n-gram table of one layer with its key and value projections, norms and convolution."""
    wide, inner = streams * hidden, f.maybe("ple_embed_dim") or hidden
    heads = (f.count("ngram_size", least=2) - 1) * f.count("heads_per_ngram")
    if inner % heads:
        raise f.refuse("ple_embed_dim", f"must be a multiple of the {heads} n-gram heads", inner)
    rows = ngram_rows(f.count("ngram_vocab_size_base"), heads, index, f.count("make_ngram_vocab_size_divisible_by", default=1))
    return (
        Extra(name="ngram.table", part="aux_embedding", rows=rows, cols=inner // heads, use="lookup"),
        Extra(name="ngram.key", part="mlp_aux", rows=wide, cols=inner, use="matmul"),
        Extra(name="ngram.value", part="mlp_aux", rows=hidden, cols=inner, use="matmul"),
        Extra(name="ngram.conv", part="mlp_aux", rows=wide, cols=f.count("ple_conv_kernel_size"), use="conv"),
        Extra(name="ngram.norms", part="norm", rows=wide, copies=3),
    )


def olmo_hybrid(f: Fields) -> dict[str, Any]:
    """OLMo-Hybrid: gated delta layers with full attention on every fourth; norms over whole query and key projections."""
    count, delta = depth(f), gated_delta_of(f)
    attention = grouped_attention(f, Traits(bias_flags=BIASED, qk_norm="full"))
    attends = by_words(f, ("layer_types",), count, ATTENDS, lambda i: (i + 1) % 4 == 0)
    mixers = [("attention", attention) if a else ("delta", delta) for a in attends]
    return {"hidden": width(f), "layers": zipped(mixers, [("dense", Dense(width=f.count("intermediate_size")))] * count)}


def kimi_attends(f: Fields, linear: Fields, layers: int) -> list[bool]:
    """Which layers attend: as listed by word, or by number from 1, else every fourth after the first."""
    listed = words(f, ("layer_types",), layers, ATTENDS)
    if listed is not None:
        return listed
    if "full_attn_layers" not in linear:
        return [i > 0 and i % 4 == 0 for i in range(layers)]
    full = {linear.checked(v, "full_attn_layers") for v in linear.items("full_attn_layers")}
    return [i + 1 in full for i in range(layers)]


def kimi_delta(f: Fields, linear: Fields) -> KimiDelta:
    """Kimi delta attention, its sizes under `linear_attn_config` or `linear_` names."""

    def size(nested: str, flat: str) -> int:
        return linear.count(nested) if nested in linear else f.count(flat)

    dim = size("head_dim", "linear_head_dim")
    return KimiDelta(
        heads=size("num_heads", "linear_num_heads"), head_dim=dim, conv=size("short_conv_kernel_size", "linear_conv_kernel_dim"),
        decay_rank=dim, gate_rank=None if linear.flag("use_full_rank_gate") else dim,
    )  # fmt: skip


def kimi_experts(f: Fields) -> Experts:
    """Kimi's mixture, on a narrower width in Kimi-K3, whose router correction is a parameter."""
    moe, latent = deepseek_experts(f), f.maybe("routed_expert_hidden_size")
    if not latent:
        return moe
    return moe.model_copy(update={"latent": latent, "latent_norm": f.flag("latent_moe_use_norm"), "correction_bias": "parameter"})


def kimi_linear(f: Fields) -> dict[str, Any]:
    """Kimi-Linear and Kimi-K3: Kimi delta layers with latent attention on every fourth or the listed ones."""
    count, linear = depth(f), f.sub("linear_attn_config")
    attention, delta = latent_attention(f, gate=f.flag("mla_use_output_gate")), kimi_delta(f, linear)
    mixers = [("attention", attention) if a else ("delta", delta) for a in kimi_attends(f, linear, count)]
    sparse = sparse_after(f, count, 1)
    moe, plain = kimi_experts(f) if any(sparse) else None, Dense(width=f.count("intermediate_size"))
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in sparse]), "head": "own"}


def bailing_hybrid(f: Fields) -> dict[str, Any]:
    """Ling and Ring with Kimi delta layers: latent attention, gated per head, on the last layer of each group."""
    count, group = depth(f), f.count("layer_group_size", default=6)
    attends = by_words(f, ("layer_types",), count, ATTENDS, lambda i: (i + 1) % group == 0)
    flat = "linear_head_dim" in f
    delta = KimiDelta(
        heads=f.count("linear_num_heads") if flat else heads_of(f), head_dim=f.count("linear_head_dim") if flat else f.count("head_dim"),
        conv=f.count("linear_conv_kernel_dim") if flat else f.count("short_conv_kernel_size"),
    )  # fmt: skip
    attention = latent_attention(f, head_gate=True)
    mixers = [("attention", attention) if a else ("delta", delta) for a in attends]
    return {"hidden": width(f), "layers": zipped(mixers, latent_ffns(f, sparse_after(f, count, 2))), "head": "own"}


def glm5_next(f: Fields) -> dict[str, Any]:
    """GLM-5 Next: Kimi delta layers with sparse latent attention on every fourth, pooled index keys, several residual streams."""
    count, hidden, streams, pool = depth(f), width(f), f.count("hc_mult"), f.count("index_kpool")
    attends = by_words(f, ("layer_types",), count, ATTENDS, lambda i: i % 4 == 3)  # noqa: PLR2004 - the last of four
    owns, delta = owns_indexer(f, count), kimi_delta(f, f.sub("linear_attn_config"))
    chosen = choosing(latent_attention(f, q_rank=f.count("q_lora_rank")), indexer_of(f, every=pool), owns)
    mixers: list[tuple[str, Any]] = [chosen[i] if a else ("delta", delta) for i, a in enumerate(attends)]
    ffns, streamed = latent_ffns(f, sparse_after(f, count, 3)), hyper_connections(hidden, streams, (2 + streams) * streams)
    pooled = pooling(f, hidden, pool)
    extras = [streamed + (pooled if a and own else ()) for a, own in zip(attends, owns, strict=True)]
    return {"hidden": hidden, "layers": with_extras(mixers, ffns, extras)}


def pooling(f: Fields, hidden: int, pool: int) -> tuple[Extra, ...]:
    """The tensors that fold `index_kpool` index keys into one."""
    dim = f.count("index_head_dim")
    return (
        Extra(name="index_pool.position", part="indexer", rows=dim, cols=pool),
        Extra(name="index_pool.gate", part="indexer", rows=dim, cols=hidden, use="matmul"),
    )


READERS = {
    "qwen3_next": qwen3_next, "qwen3_5_text": qwen_next, "qwen3_5_moe_text": qwen_next, "qwen4_exp_text": qwen4, "olmo_hybrid": olmo_hybrid,
    "kimi_linear": kimi_linear, "bailing_hybrid": bailing_hybrid, "glm5_next_text": glm5_next,
}  # fmt: skip
