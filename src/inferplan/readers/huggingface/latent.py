"""Decoders with multi-head latent attention: DeepSeek and its descendants, with and without sparse attention; DeepSeek-V4."""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import Layers, uniform, zipped
from inferplan.readers.huggingface.dense import depth, heads_of, width
from inferplan.readers.huggingface.experts import EXPERTS, after_dense, deepseek_experts, mtp_of, number, routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense, Experts
from inferplan.specs.mixers import CompressedAttention, Indexer, LatentAttention
from inferplan.specs.model import Block, Extra

INDEX_KEY_BYTES = 132  # 128 fp8 elements and one fp32 scale, as vLLM stores an index key of 128


def latent_attention(f: Fields, **more: Any) -> LatentAttention:
    """Latent attention by DeepSeek's field names; `head_dim` in such files means nothing."""
    stated: dict[str, Any] = {
        "heads": heads_of(f), "q_rank": f.stated_or_null("q_lora_rank"),
        "kv_rank": f.count("kv_lora_rank"), "nope": f.count("qk_nope_head_dim"), "rope": f.count("qk_rope_head_dim", least=0),
        "v": f.count("v_head_dim"), "bias": f.flag("attention_bias"),
    }  # fmt: skip
    return LatentAttention(**{**stated, **more})


def indexer_of(f: Fields) -> Indexer:
    """The sparse-attention indexer of DeepSeek-V3.2."""
    dim = f.count("index_head_dim")
    return Indexer(
        heads=f.count("index_n_heads"), head_dim=dim, top_k=f.count("index_topk"), inputs=f.count("q_lora_rank"),
        key_bytes=INDEX_KEY_BYTES if dim == 128 else None,
    )  # fmt: skip


def owns_indexer(f: Fields, layers: int) -> list[bool]:
    """Which layers choose tokens themselves; the others follow an earlier layer's choice."""
    if not isinstance(f.raw("indexer_types", default=None), list):
        return [True] * layers
    return [t == "full" for t in f.per_layer("indexer_types", layers)]


def latent_layers(f: Fields, *, correction: bool, sparse: bool) -> Layers:
    """Latent attention on every layer, dense feed-forward first, then experts."""
    count, where = depth(f), after_dense(f, depth(f))
    moe = deepseek_experts(f, correction=correction) if any(where) else None
    plain = Dense(width=f.count("intermediate_size")) if not all(where) else None
    attention = latent_attention(f)
    mixers: list[tuple[str, Any]] = [("mla", attention)] * count
    if sparse:
        index, owns = indexer_of(f), owns_indexer(f, count)
        mixers = [
            ("own" if own else "follow", attention.model_copy(update={"indexer": index.model_copy(update={"own": own})})) for own in owns
        ]
    return zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in where])


def deepseek_v2(f: Fields) -> dict[str, Any]:
    """DeepSeek-V2: latent attention, shared experts, no router correction."""
    return {"hidden": width(f), "layers": latent_layers(f, correction=False, sparse=False)}


def deepseek_v3(f: Fields) -> dict[str, Any]:
    """DeepSeek-V3, R1, Kimi-K2: router correction, multi-token prediction stored with copies of embedding and head."""
    layers = latent_layers(f, correction=True, sparse=False)
    return {"hidden": width(f), "layers": layers, "mtp": mtp_of(f, layers, copies=True, bias=number(f, *EXPERTS) or 0)}


def deepseek_v32(f: Fields) -> dict[str, Any]:
    """DeepSeek-V3.2: V3 with the sparse-attention indexer."""
    layers = latent_layers(f, correction=True, sparse=True)
    return {"hidden": width(f), "layers": layers, "mtp": mtp_of(f, layers, copies=True, bias=number(f, *EXPERTS) or 0)}


def glm_dsa(f: Fields) -> dict[str, Any]:
    """GLM-5: as DeepSeek-V3.2; its checkpoints hold no copies of embedding and head."""
    return {**deepseek_v32(f), "mtp": mtp_of(f, latent_layers(f, correction=True, sparse=True), bias=number(f, *EXPERTS) or 0)}


def minicpm3(f: Fields) -> dict[str, Any]:
    """MiniCPM3: latent attention with a dense feed-forward block."""
    block = Block(mixers=(latent_attention(f),), ffns=(Dense(width=f.count("intermediate_size"), bias=f.flag("mlp_bias")),))
    return {"hidden": width(f), "layers": uniform(block, depth(f))}


def longcat(f: Fields) -> dict[str, Any]:
    """LongCat-Flash: each layer holds two latent attentions, two dense blocks and one mixture with weightless experts."""
    attention, plain = latent_attention(f), Dense(width=f.count("ffn_hidden_size", "intermediate_size"))
    moe = routed(
        f, width=f.count("expert_ffn_hidden_size"), top_k=f.count("moe_topk", "num_experts_per_tok"),
        null_experts=f.count("zero_expert_num", default=0, least=0), router_bias=f.flag("router_bias"), correction_bias="buffer",
    )  # fmt: skip
    block = Block(mixers=(attention, attention), ffns=(plain, plain, moe), norms=4)
    return {"hidden": width(f), "layers": uniform(block, depth(f))}


def ratios(f: Fields, layers: int) -> list[int]:
    """How many tokens each layer of DeepSeek-V4 folds into one compressed entry; 0 where it keeps the window alone."""
    if isinstance(f.raw("compress_ratios", default=None), list):
        return [f.checked(r, "compress_ratios", 0) for r in f.per_layer("compress_ratios", layers)]
    known = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    kinds = f.per_layer("layer_types", layers)
    unknown = next((k for k in kinds if k not in known), None)
    if unknown is not None:
        raise f.refuse("layer_types", f"is not one of {', '.join(known)}", unknown)
    return [known[k] for k in kinds]


def compressed_attention(f: Fields, ratio: int) -> CompressedAttention:
    """One layer's attention of DeepSeek-V4; ratio 4 overlaps its windows and has an indexer."""
    fine = ratio == 4  # noqa: PLR2004 - the fine-grained kind
    index = Indexer(
        heads=f.count("index_n_heads"), head_dim=f.count("index_head_dim"), top_k=f.count("index_topk"), inputs=f.count("q_lora_rank"),
        every=ratio,
    ) if fine else None  # fmt: skip
    return CompressedAttention(
        heads=heads_of(f), head_dim=f.count("head_dim"), rope=f.count("qk_rope_head_dim", default=0, least=0), q_rank=f.count("q_lora_rank"),
        o_groups=f.count("o_groups"), o_rank=f.count("o_lora_rank"), window=f.count("sliding_window"), every=ratio or None, overlap=fine,
        indexer=index,
    )  # fmt: skip


def hyper_connections(hidden: int, streams: int) -> tuple[Extra, ...]:
    """The mixing of residual streams before attention and before the feed-forward part."""
    rows = (2 + streams) * streams
    shapes = (("mix", rows, streams * hidden, "matmul"), ("base", rows, 1, "vector"), ("scale", 3, 1, "vector"))
    return tuple(
        Extra(name=f"{where}_hc.{n}", part=part, rows=r, cols=c, use=use)
        for where, part in (("attention", "attention"), ("ffn", "mlp"))
        for n, r, c, use in shapes
    )


def deepseek_v4(f: Fields) -> dict[str, Any]:
    """DeepSeek-V4: windowed and compressed attention, hyper-connections, hash routing on the first layers."""
    count, hidden, streams = depth(f), width(f), f.count("hc_mult")
    hashed = f.count("num_hash_layers", default=0, least=0)
    moe = deepseek_experts(f)
    plain: Experts = moe.model_copy(update={"correction_bias": "none"})
    mixers = [(f"every{r}" if r else "window", compressed_attention(f, r)) for r in ratios(f, count)]
    ffns = [("hash", plain) if i < hashed else ("moe", moe) for i in range(count)]
    layers = zipped(mixers, ffns, extra=hyper_connections(hidden, streams))
    head = [("hc_head.mix", streams, streams * hidden), ("hc_head.base", streams, 1), ("hc_head.scale", 1, 1)]
    extra = tuple(Extra(name=n, rows=r, cols=c, use="matmul" if c > 1 else "vector") for n, r, c in head)
    return {"hidden": hidden, "layers": layers, "extra": extra}


READERS = {
    "deepseek_v2": deepseek_v2, "deepseek_v3": deepseek_v3, "deepseek_v32": deepseek_v32, "glm_moe_dsa": glm_dsa, "glm4_moe_lite": deepseek_v3,
    "minicpm3": minicpm3, "longcat_flash": longcat, "deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4,
}  # fmt: skip
