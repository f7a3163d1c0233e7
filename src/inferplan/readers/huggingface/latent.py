"""Decoders with multi-head latent attention: DeepSeek and its descendants, with and without sparse attention.

Knows the shapes of their modules; DeepSeek-V4 and the layers of hybrid families are in sibling modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inferplan.readers.huggingface.assemble import Layers, label, uniform, zipped
from inferplan.readers.huggingface.compressed import hyper_connections, stream_head
from inferplan.readers.huggingface.dense import depth, heads_of, width
from inferplan.readers.huggingface.experts import EXPERTS, deepseek_experts, mtp_of, number, routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.orders import by_words, owns_indexer, sparse_after
from inferplan.specs.ffns import Dense, Experts
from inferplan.specs.mixers import Indexer, LatentAttention
from inferplan.specs.model import Block, Extra, MultiTokenPrediction

INDEX_KEY_BYTES = 132  # 128 fp8 elements and one fp32 scale, as vLLM stores an index key of 128
STORED_INDEX_DIM = 128


def latent_attention(f: Fields, **more: Any) -> LatentAttention:
    """Latent attention by DeepSeek's field names; `head_dim` in such files means nothing."""
    stated: dict[str, Any] = {
        "heads": heads_of(f), "q_rank": f.stated_or_null("q_lora_rank"),
        "kv_rank": f.count("kv_lora_rank"), "nope": f.count("qk_nope_head_dim"), "rope": f.count("qk_rope_head_dim", least=0),
        "v": f.count("v_head_dim"), "bias": f.flag("attention_bias"),
    }  # fmt: skip
    return LatentAttention(**{**stated, **more})


def indexer_of(f: Fields, **more: Any) -> Indexer:
    """The sparse-attention indexer of DeepSeek-V3.2."""
    dim = f.count("index_head_dim")
    inputs = more.pop("inputs", None) or f.count("q_lora_rank")
    key = INDEX_KEY_BYTES if dim == STORED_INDEX_DIM else None
    return Indexer(heads=f.count("index_n_heads"), head_dim=dim, top_k=f.count("index_topk"), inputs=inputs, key_bytes=key, **more)


def choosing(attention: LatentAttention, index: Indexer, owns: list[bool]) -> list[tuple[str, LatentAttention]]:
    """The attention of each layer: it chooses tokens itself, or follows an earlier layer's choice."""
    return [("own" if o else "follow", attention.model_copy(update={"indexer": index.model_copy(update={"own": o})})) for o in owns]


def latent_ffns(f: Fields, sparse: list[bool], *, correction: bool = True, bias: bool = False) -> list[tuple[str, Dense | Experts | None]]:
    """Each layer's feed-forward part: dense or routed, `bias` on the dense and shared ones."""
    plain = None if all(sparse) else Dense(width=f.count("intermediate_size"), bias=bias)
    moe = deepseek_experts(f, correction=correction) if any(sparse) else None
    if moe and moe.shared and bias:
        moe = moe.model_copy(update={"shared": moe.shared.model_copy(update={"bias": True})})
    return [("moe", moe) if s else ("dense", plain) for s in sparse]


def latent_layers(f: Fields, *, correction: bool = True, sparse: bool = False, first: int = 0, bias: bool = False) -> Layers:
    """Latent attention on every layer, `first` (or stated) dense feed-forward layers, then experts."""
    count, mixer = depth(f), latent_attention(f)
    mixers: list[tuple[str, Any]] = [("mla", mixer)] * count
    if sparse:
        mixers = list(choosing(mixer, indexer_of(f), owns_indexer(f, count)))
    return zipped(mixers, latent_ffns(f, sparse_after(f, count, first), correction=correction, bias=bias))


def with_extras(mixers: Sequence[tuple[str, Any]], ffns: Sequence[tuple[str, Any]], extras: Sequence[tuple[Extra, ...]]) -> Layers:
    """Layers of one mixer, one feed-forward part and some tensors of their own each."""
    return [
        (label(kind, name), Block(mixers=(mixer,), ffns=(ffn,) if ffn else (), extra=extra))
        for (kind, mixer), (name, ffn), extra in zip(mixers, ffns, extras, strict=True)
    ]


def _chooses(mixer: Any) -> bool:
    """Whether a layer picks its tokens itself, as prediction modules do."""
    indexer = getattr(mixer, "indexer", None)
    return indexer is None or bool(indexer.own)


def stored_mtp(f: Fields, layers: Layers, *, copies: bool) -> MultiTokenPrediction | None:
    """Prediction modules with the router correction that checkpoints hold, and copies of embedding and head where they do."""
    choosing = [(label, block) for label, block in layers if all(_chooses(m) for m in block.mixers)]
    return mtp_of(f, choosing or layers, copies=copies, bias=number(f, *EXPERTS) or 0)


def reader(*, first: int = 0, correction: bool = True, sparse: bool = False) -> Callable[[Fields], dict[str, Any]]:
    """A family of this kind without prediction modules."""
    return lambda f: {"hidden": width(f), "layers": latent_layers(f, correction=correction, sparse=sparse, first=first)}


def deepseek_v2(f: Fields) -> dict[str, Any]:
    """DeepSeek-V2: no router correction; biases outside the routed experts by a switch."""
    return {"hidden": width(f), "layers": latent_layers(f, correction=False, bias=f.flag("mlp_bias"))}


def axk1(f: Fields) -> dict[str, Any]:
    """A.X K1: as DeepSeek-V3, with one more norm after each mixture."""
    layers = [(name, block.model_copy(update={"norms": 3 if block.experts else 2})) for name, block in latent_layers(f, first=1)]
    return {"hidden": width(f), "layers": layers}


def deepseek_v3(f: Fields) -> dict[str, Any]:
    """DeepSeek-V3, R1, Kimi-K2: router correction, multi-token prediction stored with copies of embedding and head."""
    layers = latent_layers(f)
    return {"hidden": width(f), "layers": layers, "mtp": stored_mtp(f, layers, copies=True)}


def deepseek_v32(f: Fields) -> dict[str, Any]:
    """DeepSeek-V3.2: V3 with the sparse-attention indexer."""
    layers = latent_layers(f, sparse=True)
    return {"hidden": width(f), "layers": layers, "mtp": stored_mtp(f, layers, copies=True)}


def glm_dsa(f: Fields) -> dict[str, Any]:
    """GLM-5: as DeepSeek-V3.2; its checkpoints hold no copies of embedding and head, and some layers follow another's choice."""
    layers = latent_layers(f, sparse=True)
    return {"hidden": width(f), "layers": layers, "mtp": stored_mtp(f, layers, copies=False)}


def glm4_lite(f: Fields) -> dict[str, Any]:
    """GLM-4.7-Flash: DeepSeek-V3 with one dense layer first."""
    layers = latent_layers(f, first=1)
    return {"hidden": width(f), "layers": layers, "mtp": stored_mtp(f, layers, copies=True)}


def dense_latent(f: Fields) -> dict[str, Any]:
    """MiniCPM3 and Youtu: latent attention with a dense feed-forward block."""
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


def axk2(f: Fields) -> dict[str, Any]:
    """A.X K2: sparse attention, queries and output gate from one projection, norms gated by a low-rank projection of their output."""
    count, hidden, rank = depth(f), width(f), f.count("gated_norm_rank")
    sparse = sparse_after(f, count, 1)
    mixer = latent_attention(f, query_gate=True, q_rank=f.count("q_lora_rank"), indexer=indexer_of(f))

    def gates(copies: int) -> tuple[Extra, ...]:
        down = Extra(name="norm_gate.down", part="mlp", rows=rank, cols=hidden, copies=copies, use="matmul")
        return (down, Extra(name="norm_gate.up", part="mlp", rows=hidden, cols=rank, copies=copies, use="matmul"))

    mixers = [("mla", mixer)] * count
    return {"hidden": hidden, "layers": with_extras(mixers, latent_ffns(f, sparse), [gates(2 if s else 1) for s in sparse])}


def hy_v4(f: Fields) -> dict[str, Any]:
    """Hunyuan 4: sparse attention with sinks and an output gate, every fourth layer choosing tokens; several residual streams."""
    count, hidden, streams = depth(f), width(f), f.count("hc_mult")
    mixer = latent_attention(f, gate=True, sinks=True, q_rank=f.count("q_lora_rank"))
    mixers = choosing(mixer, indexer_of(f), owns_indexer(f, count, rule=lambda i: i == 0 or (i - 1) % 4 == 0))
    ffns = latent_ffns(f, sparse_after(f, count, 1))
    extra = hyper_connections(hidden, streams, 2 * streams, 2)
    return {"hidden": hidden, "layers": zipped(mixers, ffns, extra=extra), "extra": stream_head(hidden, streams)}


def mistral_large4(f: Fields) -> dict[str, Any]:
    """Mistral Large 4: sparse attention from unfactored queries, some layers without rotary positions, caches that later layers reuse."""
    count, rope = depth(f), f.count("qk_rope_head_dim")
    owns, sources, turned = owns_indexer(f, count), _sources(f, count), _rotary(f, count)
    kinds = [large4_attention(f, owns[i], sources[i] == i, turned[i]) for i in range(count)]
    ffns = latent_ffns(f, sparse_after(f, count, 1), correction=False)
    layers = with_extras([(kind, mixer) for kind, mixer, _ in kinds], ffns, [extra for _, _, extra in kinds])
    return {"hidden": width(f), "layers": layers, "extra": (Extra(name="rope_scale", rows=rope // 2),)}


def large4_attention(f: Fields, own: bool, keeps: bool, turn: bool) -> tuple[str, LatentAttention, tuple[Extra, ...]]:
    """One layer's attention of Mistral Large 4 with its name and its scale vectors."""
    rope, hidden = f.count("qk_rope_head_dim"), width(f)
    index = indexer_of(f, inputs=hidden, own=own)
    mixer = latent_attention(
        f, q_rank=None, rope=rope if turn else 0, nope=f.count("qk_nope_head_dim") + (0 if turn else rope),
        keys="own" if keeps else "shared", indexer=index,
    )  # fmt: skip
    scales = [Extra(name="softmax_scale", part="attention", rows=mixer.heads, copies=2)]
    if own:
        scales += [Extra(name="index_scale", part="indexer", rows=index.heads, copies=2)]
        scales += [Extra(name="index_norm", part="norm", rows=hidden, copies=2)]
    return label("rope" if turn else "nope", None if own else "follow", None if keeps else "reuse"), mixer, tuple(scales)


def _sources(f: Fields, layers: int) -> list[int]:
    """The layer whose latent cache each layer reads: its own, or an earlier one."""
    if not isinstance(f.raw("kv_source_layers", default=None), list):
        return list(range(layers))
    found = [f.checked(v, "kv_source_layers", 0) for v in f.per_layer("kv_source_layers", layers)]
    wrong = next((s for i, s in enumerate(found) if s > i or found[s] != s), None)
    if wrong is not None:
        raise f.refuse("kv_source_layers", "must name an earlier layer that keeps a cache", wrong)
    return found


def _rotary(f: Fields, layers: int) -> list[bool]:
    """Which layers use rotary positions: as listed, else all but every fourth."""
    if isinstance(f.raw("no_rope_layers", default=None), list):
        return [bool(v) for v in f.per_layer("no_rope_layers", layers)]
    step = f.count("no_rope_layer_interval", default=4)
    return [(i + 1) % step != 0 for i in range(layers)]


DOTS = {"indexed_attention": True, "full_attention": True, "sliding_attention": False}
DOTS_SLIDING = {
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "qk_nope_head_dim": 192,
    "v_head_dim": 128, "head_dim": 256,
}  # fmt: skip


def dots3_note(f: Fields) -> dict[str, Any]:
    """Dots 3 Note: sparse latent attention on every fourth layer, windowed latent attention of other widths between, gates per head."""
    count, windows = depth(f), f.flag("use_sliding_window", default=True)
    wide = by_words(f, ("layer_types",), count, DOTS, lambda i: not windows or i < 2 or i % 4 == 1)  # noqa: PLR2004 - the first two layers
    mixers = [("sparse", dots3_sparse(f, i)) if w else ("local", dots3_local(f, i)) for i, w in enumerate(wide)]
    ffns = [(name, dots3_shared(f, ffn)) for name, ffn in latent_ffns(f, sparse_after(f, count, 1))]
    norms = [(Extra(name="k_rope_norm", part="norm", rows=mixer.rope),) for _, mixer in mixers]
    return {"hidden": width(f), "layers": with_extras(mixers, ffns, norms)}


def dots3_shared(f: Fields, ffn: Dense | Experts | None) -> Dense | Experts | None:
    """The mixture with shared experts of their own width."""
    if not isinstance(ffn, Experts) or not ffn.shared:
        return ffn
    inner = f.count("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size")
    shared = number(f, "n_shared_experts", default=1) or 1
    return ffn.model_copy(update={"shared": ffn.shared.model_copy(update={"width": inner * shared})})


def dots3_sparse(f: Fields, layer: int) -> LatentAttention:
    """A full layer: with an indexer unless the file turns sparse attention off."""
    kinds = f.raw("layer_types", default=None)
    stated = kinds[layer] if isinstance(kinds, list) else "indexed_attention"
    use = f.raw("use_dsa", default=None)
    sparse = f.flag("use_dsa") if use is not None else stated == "indexed_attention"
    return latent_attention(f, head_gate=True, indexer=indexer_of(f) if sparse else None)


def dots3_local(f: Fields, layer: int) -> LatentAttention:
    """A windowed layer, its widths under `per_layer_config` or `swa_` names."""
    per_layer = f.sub("per_layer_config")
    key = next((k for k in per_layer.data if k.isdigit() and int(k) == layer), None)
    if key is not None:
        own = per_layer.sub(key)
        defaults = {**f.defaults, **{k: v for k, v in f.data.items() if k in DOTS_SLIDING or k == "qk_rope_head_dim"}}
        other = Fields(own.data, file=f.file, at=own.at, defaults=defaults)
        other.nested = True
    else:
        stated = {k: f.count(f"swa_{k}", default=v) for k, v in DOTS_SLIDING.items()}
        rope = f.count("swa_qk_rope_head_dim", default=stated["head_dim"] - stated["qk_nope_head_dim"], least=0)
        other = Fields({**stated, "qk_rope_head_dim": rope}, file=f.file, at=f"{f.at}swa_")
    window = f.count("sliding_window", "sliding_window_size", default=512)
    return latent_attention(other, head_gate=True, window=window, bias=f.flag("attention_bias"))


READERS = {
    "deepseek_v2": deepseek_v2, "deepseek_v3": deepseek_v3, "deepseek_v32": deepseek_v32, "glm_moe_dsa": glm_dsa,
    "glm4_moe_lite": glm4_lite, "minicpm3": dense_latent, "youtu": dense_latent, "longcat_flash": longcat, "axk1": axk1,
    "axk2": axk2, "sarvam_mla": reader(first=1), "mistral4": reader(correction=False), "hy_v4": hy_v4,
    "mistral_large4_text": mistral_large4, "dots3_note_text": dots3_note,
}  # fmt: skip
