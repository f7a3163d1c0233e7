"""Mixture-of-experts decoders with ordinary attention: which layers hold experts, how wide they are, what is shared.

Families with latent attention or recurrences are in the sibling modules and use the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from inferplan.readers.huggingface.assemble import Layers, uniform, zipped
from inferplan.readers.huggingface.dense import (
    BIASED,
    Traits,
    all_windowed,
    around,
    by_type,
    depth,
    every,
    exaone_windows,
    feed_forward,
    from_layer,
    grouped_attention,
    heads_of,
    heed,
    listed,
    switched,
    width,
    windowed,
    windows_from,
)
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense, Experts, SharedExpert
from inferplan.specs.mixers import Attention, Indexer
from inferplan.specs.model import Block, Extra, MultiTokenPrediction

EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
Correction = Literal["none", "buffer", "parameter"]
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k", "experts_per_token")


def first(value: Any) -> Any:
    """The first of a per-layer list whose values are all equal, or the value itself."""
    return value[0] if isinstance(value, list) and value and all(v == value[0] for v in value) else value


def number(f: Fields, *names: str, default: Any = None) -> int | None:
    """A whole number that some files give as a list with one equal value per layer; None where absent, null or zero."""
    value = first(f.raw(*names, default=default))
    if value is None or value == 0:
        return None
    return f.checked(value, f.stated(*names))


def routed(f: Fields, **more: Any) -> Experts:
    """The mixture a file describes by the common field names."""
    experts, top_k = number(f, *EXPERTS), number(f, *TOP_K)
    if experts is None or top_k is None:
        raise f.refuse("num_experts" if experts is None else "num_experts_per_tok", "is required and missing for a mixture of experts")
    if top_k > experts:
        raise f.refuse(f.stated(*TOP_K), f"must not exceed the {experts} experts", top_k)
    if "width" not in more:
        more["width"] = number(f, "moe_intermediate_size", "expert_ffn_hidden_size") or f.count("intermediate_size")
    return Experts(**{"experts": experts, "top_k": top_k, **more})


def whole_blocks(f: Fields) -> Experts:
    """Experts as wide as `intermediate_size` says."""
    return routed(f, width=f.count("intermediate_size"))


def deepseek_experts(f: Fields, *, correction: Correction | bool = True) -> Experts:
    """Routed experts with shared ones of the same width, as one wide block (DeepSeek and its descendants)."""
    shared = number(f, "n_shared_experts", "num_shared_experts")
    inner = number(f, "moe_intermediate_size") or f.count("intermediate_size")
    return routed(f, shared=SharedExpert(width=shared * inner) if shared else None, correction_bias=_stored(correction))


def _stored(correction: Correction | bool) -> Correction:
    """How the router's correction bias is stored, where True and False stand for a buffer and none."""
    return correction if isinstance(correction, str) else "buffer" if correction else "none"


def sparse_by_name(f: Fields, layers: int) -> list[bool] | None:
    """Which layers hold experts as `mlp_layer_types` names them, None where the file has no such list."""
    names = listed(f, "mlp_layer_types", layers)
    for name in names or ():
        if name not in ("sparse", "dense"):
            raise f.refuse("mlp_layer_types", "is not one of dense, sparse", name)
    return None if names is None else [name == "sparse" for name in names]


def after_dense(f: Fields, layers: int) -> list[bool]:
    """Which layers hold experts: those from `first_k_dense_replace` on, every `moe_layer_freq`-th, or as listed."""
    if (named := sparse_by_name(f, layers)) is not None:
        return named
    freq = f.raw("moe_layer_freq", default=1)
    if isinstance(freq, list):
        return [bool(v) for v in f.per_layer("moe_layer_freq", layers)]
    start, step = f.count("first_k_dense_replace", default=0, least=0), f.checked(freq, "moe_layer_freq")
    return [i >= start and i % step == 0 for i in range(layers)]


def by_layer_list(default: Callable[[Fields, int], list[bool]]) -> Callable[[Fields, int], list[bool]]:
    """Which layers hold experts: as `mlp_layer_types` lists them, else by rule."""

    def where(f: Fields, layers: int) -> list[bool]:
        named = sparse_by_name(f, layers)
        return default(f, layers) if named is None else named

    return where


def leading_dense(*names: str, default: int = 0) -> Callable[[Fields, int], list[bool]]:
    """Experts after so many dense layers."""

    def where(f: Fields, layers: int) -> list[bool]:
        start = f.count(*names, default=default, least=0)
        return [i >= start for i in range(layers)]

    return by_layer_list(where)


def qwen_sparse(f: Fields, layers: int) -> list[bool]:
    """Which layers hold experts: every `decoder_sparse_step`-th except those listed as dense."""
    step, dense = f.count("decoder_sparse_step", default=1), f.indices("mlp_only_layers", layers)
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def if_used(f: Fields, layers: int) -> list[int | None]:
    """The same window on every layer, only when `use_sliding_window` is set (Qwen3-MoE)."""
    return all_windowed(f, layers) if f.flag("use_sliding_window", default=False) else [None] * layers


def alternate_before(f: Fields, layers: int) -> list[int | None]:
    """Windows on every other layer before `max_window_layers`, only when `use_sliding_window` is set (Qwen2-MoE)."""
    if not f.flag("use_sliding_window", default=False):
        return [None] * layers
    end = f.count("max_window_layers", default=layers, least=0)
    return windows_from(f, by_type(f, layers, lambda i: i < end and i % 2 == 0))


def everywhere(f: Fields, layers: int) -> list[bool]:
    """Experts on every layer."""
    return [True] * layers


def ernie_sparse(f: Fields, layers: int) -> list[bool]:
    """Experts between a first and a last layer, every so many."""
    step = f.count("moe_layer_interval", default=1)
    stated = f.raw("moe_layer_start_index", default=1), f.raw("moe_layer_end_index", default=-1)
    start, end = (v[0] if isinstance(v, list) and v else v for v in stated)
    last = layers - 1 if end in (-1, None) else f.checked(end, "moe_layer_end_index", 0)
    return [(i + 1) % step == 0 and f.checked(start, "moe_layer_start_index", 0) <= i <= last for i in range(layers)]


@dataclass(frozen=True, slots=True)
class Mixture:
    """A family: its attention traits, its experts, and the layers that hold them."""

    traits: Traits
    experts: Callable[[Fields], Experts]
    where: Callable[[Fields, int], list[bool]] = everywhere
    dense_width: tuple[str, ...] = ("intermediate_size",)


def feed_forwards(f: Fields, mixture: Mixture, layers: int) -> list[tuple[str, Any]]:
    """The feed-forward part of each layer."""
    sparse = mixture.where(f, layers)
    moe = mixture.experts(f) if any(sparse) else None
    plain = feed_forward(f, mixture.traits) if not all(sparse) else None
    if plain is not None and mixture.dense_width != ("intermediate_size",):
        plain = plain.model_copy(update={"width": f.count(*mixture.dense_width)})
    return [("moe", moe) if s else ("dense", plain) for s in sparse]


def decoder(f: Fields, mixture: Mixture) -> dict[str, Any]:
    """The stack of a family in this module."""
    traits, count = mixture.traits, depth(f)
    heed(f, traits)
    layers = zipped(windowed(f, traits, count), feed_forwards(f, mixture, count), **around(f, traits))
    return {
        "hidden": width(f), "layers": layers, "norms": traits.final_norms, "norm_bias": traits.norm_bias,
        "head_bias": switched(f, traits.head_bias),
    }  # fmt: skip


def mtp_of(f: Fields, layers: Layers, *, modules: int | None = None, copies: bool = False, bias: int = 0) -> MultiTokenPrediction | None:
    """Multi-token-prediction modules like the last layer, with the join of hidden state and embedding and three norms.

    `bias` is the router correction stored with each module, where the family's checkpoints count it.
    """
    count = modules if modules is not None else f.maybe("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    if not count:
        return None
    return MultiTokenPrediction(modules=count, layers=layers[-1][0], extra=join(width(f), bias), stored_copies=copies)


def join(hidden: int, bias: int = 0) -> tuple[Extra, ...]:
    """The tensors that feed a prediction module: one projection of twice the width, norms of both inputs and of the output."""
    extra = [Extra(name="join", rows=hidden, cols=2 * hidden, use="matmul"), Extra(name="norms", part="norm", rows=hidden, copies=3)]
    return (*extra, Extra(name="correction", part="router", rows=bias)) if bias else tuple(extra)


def glm4_moe(f: Fields) -> dict[str, Any]:
    """GLM-4.5 to 4.7: query, key and value biases by field, optional head norms, dense layers first, multi-token prediction."""
    traits = Traits(bias_flags=(("attention_bias", "qkv"),), qk_norm="head", qk_norm_flag="use_qk_norm")
    parts = decoder(f, Mixture(traits, deepseek_experts, after_dense))
    return {**parts, "mtp": mtp_of(f, parts["layers"], copies=True, bias=number(f, *EXPERTS) or 0)}


def llama4(f: Fields) -> dict[str, Any]:
    """Llama 4: a shared expert beside top-1 routing, dense layers of another width, chunked attention except on every fourth layer."""
    count = depth(f)
    step, stated = f.count("interleave_moe_layer_step", default=1), f.raw("moe_layers", default=None)
    sparse = set(range(step - 1, count, step)) if stated is None else f.indices("moe_layers", count)
    inner = f.count("intermediate_size")
    moe = routed(f, width=inner, shared=SharedExpert(width=inner))
    plain = Dense(width=f.count("intermediate_size_mlp"))
    chunk = f.maybe("attention_chunk_size")
    attention = grouped_attention(f, Traits(bias_flags=BIASED))
    mixers = [("local" if c else "global", attention.model_copy(update={"chunk": c})) for c in llama4_chunks(f, count, chunk)]
    ffns = [("moe", moe) if i in sparse else ("dense", plain) for i in range(count)]
    return {"hidden": width(f), "layers": zipped(mixers, ffns), "head": "tied" if f.flag("tie_word_embeddings") else "own"}


def llama4_chunks(f: Fields, layers: int, chunk: int | None) -> list[int | None]:
    """The chunk of each layer: layers without rotary positions attend in full."""
    kinds = listed(f, "layer_types", layers)
    if kinds is not None:
        return [chunk if t == "chunked_attention" else None for t in kinds]
    step = f.count("no_rope_layer_interval", default=4)
    rope = listed(f, "no_rope_layers", layers) if f.raw("no_rope_layers", default=None) else [(i + 1) % step for i in range(layers)]
    return [chunk if r else None for r in rope or ()]


def dbrx(f: Fields) -> dict[str, Any]:
    """DBRX: nested attention and feed-forward settings, norms without bias."""
    ffn, heads = f.sub("ffn_config"), heads_of(f)
    moe = routed(ffn, width=ffn.count("ffn_hidden_size"))
    kv = f.sub("attn_config").count("kv_n_heads")
    mixer = Attention(heads=heads, kv_heads=kv, head_dim=width(f) // heads)
    return {"hidden": width(f), "layers": uniform(Block(mixers=(mixer,), ffns=(moe,)), depth(f))}


def granite_experts(f: Fields) -> Experts:
    """Granite's mixture, with a shared block where `shared_intermediate_size` is set."""
    shared = f.maybe("shared_intermediate_size")
    return routed(f, width=f.count("intermediate_size"), shared=SharedExpert(width=shared) if shared else None)


def qwen2_experts(f: Fields) -> Experts:
    """Qwen2-MoE and Qwen3-Next: one gated shared expert of its own width."""
    shared = number(f, "shared_expert_intermediate_size")
    return routed(f, shared=SharedExpert(width=shared, gate=True) if shared else None)


def ernie_experts(f: Fields) -> Experts:
    """ERNIE 4.5: the correction bias is a parameter; shared experts form one block."""
    shared, inner = number(f, "moe_num_shared_experts"), f.count("moe_intermediate_size")
    bias = f.flag("use_bias")
    block = SharedExpert(width=shared * inner, bias=bias) if shared else None
    return routed(f, width=inner, shared=block, correction_bias="parameter")


def aria_experts(f: Fields) -> Experts:
    """Aria: shared experts as one block of so many widths, whose biases follow `mlp_bias`."""
    shared, inner = number(f, "moe_num_shared_experts"), f.count("intermediate_size")
    return routed(f, width=inner, shared=SharedExpert(width=shared * inner, bias=f.flag("mlp_bias")) if shared else None)


def hy_experts(f: Fields) -> Experts:
    """HY 3: shared experts as one block, whose biases follow `mlp_bias`."""
    shared, inner = number(f, "num_shared_experts"), f.count("moe_intermediate_size")
    block = SharedExpert(width=shared * inner, bias=f.flag("mlp_bias")) if shared else None
    return routed(f, width=inner, shared=block, correction_bias="buffer")


def flint_experts(f: Fields, *, correction: Correction = "none") -> Experts:
    """One shared expert of its own width, without a gate."""
    shared = number(f, "shared_expert_intermediate_size")
    return routed(f, shared=SharedExpert(width=shared) if shared else None, correction_bias=correction)


def flint_sparse(f: Fields, layers: int) -> list[bool]:
    """Experts everywhere but on the listed layers: the first two where no list is given."""
    dense = {0, 1} if f.raw("mlp_only_layers", default=None) is None else f.indices("mlp_only_layers", layers)
    step = f.count("decoder_sparse_step", default=1)
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def flint_windows(f: Fields, layers: int) -> list[int | None]:
    """Windows except on the first two layers, every fourth and the last."""
    return windows_from(f, by_type(f, layers, lambda i: not (i < 2 or i % 4 == 1 or i == layers - 1)))  # noqa: PLR2004 - the period


def cohere2_moe(f: Fields) -> dict[str, Any]:
    """Command A MoE: one norm for both branches, leading dense layers with a width and window pattern of their own."""
    count = depth(f)
    leading = f.count("first_k_dense_replace", default=0, least=0)
    first_period, period = f.count("prefix_dense_sliding_window_pattern", default=1), f.count("sliding_window_pattern", default=4)

    def windows(g: Fields, layers: int) -> list[int | None]:
        return windows_from(g, by_type(g, layers, lambda i: bool((i + 1) % first_period if i < leading else (i - leading + 1) % period)))

    shared, inner = number(f, "num_shared_experts"), f.count("intermediate_size")
    moe = routed(f, width=inner, shared=SharedExpert(width=shared * inner) if shared else None)
    traits = Traits(bias_flags=BIASED, norms=1, windows=windows)
    sparse = leading_dense("first_k_dense_replace")(f, count)
    plain = Dense(width=f.maybe("prefix_dense_intermediate_size") or inner)
    heed(f, traits)
    layers = zipped(windowed(f, traits, count), [("moe", moe) if s else ("dense", plain) for s in sparse], norms=1)
    return {"hidden": width(f), "layers": layers}


def mellum(f: Fields) -> dict[str, Any]:
    """Mellum: head norms, windows and experts where listed, one prediction module."""
    traits = Traits(bias_flags=BIASED, qk_norm="head", windows=every("", None))
    parts = decoder(f, Mixture(traits, routed, leading_dense("first_k_dense_replace")))
    return {**parts, "mtp": mtp_of(f, parts["layers"])}


def hunyuan_experts(f: Fields) -> Experts:
    """Hunyuan: one shared expert as wide as the dense block; the expert width may be a list."""
    shared = number(f, "num_shared_expert", default=1) or 1
    inner = number(f, "moe_intermediate_size") or f.count("intermediate_size")
    return routed(f, width=inner, shared=SharedExpert(width=f.count("intermediate_size") * shared))


def minimax_m2(f: Fields) -> dict[str, Any]:
    """MiniMax-M2: query and key norms over the whole projection; multi-token prediction is not in its checkpoint's count."""
    flag = f.flag("use_qk_norm", default=True)
    traits = Traits(qk_norm="full" if flag else "none", ignored=("use_qk_norm",))
    correction = "buffer" if f.flag("use_routing_bias", default=True) else "none"
    return decoder(f, Mixture(traits, lambda g: routed(g, width=g.count("intermediate_size"), correction_bias=correction)))


def minimax_m3(f: Fields) -> dict[str, Any]:
    """MiniMax-M3: block-sparse attention chosen by an indexer and experts where listed, with head norms."""
    count, inner = depth(f), f.maybe("moe_intermediate_size") or f.count("intermediate_size")
    shared = f.maybe("shared_intermediate_size")
    moe = routed(f, width=inner, shared=SharedExpert(width=shared) if shared else None, correction_bias="buffer")
    plain = Dense(width=f.count("dense_intermediate_size", "intermediate_size"))
    attention = grouped_attention(f, Traits(qk_norm="head"))
    on = minimax_m3_sparse(f, count)
    indexer = minimax_m3_indexer(f) if any(on) else None
    mixers = [("sparse", attention.model_copy(update={"indexer": indexer})) if s else ("full", attention) for s in on]
    ffns = [("moe", moe) if s else ("dense", plain) for s in after_dense(f, count)]
    return {"hidden": width(f), "layers": zipped(mixers, ffns)}


def minimax_m3_sparse(f: Fields, layers: int) -> list[bool]:
    """Which layers attend sparsely: as either of two lists says, else none."""
    kinds = listed(f, "layer_types", layers)
    if kinds is not None:
        return [t == "minimax_m3_sparse" for t in kinds]
    config = f.sub("sparse_attention_config")
    return [bool(v) for v in config.per_layer("sparse_attention_freq", layers)] if "sparse_attention_freq" in config else [False] * layers


def minimax_m3_indexer(f: Fields) -> Indexer:
    """The scorer of its sparse layers, by nested or flat field names."""
    c = f.sub("sparse_attention_config")
    nested = ("sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks", "sparse_block_size")
    flat = ("index_n_heads", "index_head_dim", "index_topk_blocks", "index_block_size")
    heads, dim, top_k, block = (c.count(a) if a in c else f.count(b) for a, b in zip(nested, flat, strict=True))
    return Indexer(heads=heads, head_dim=dim, top_k=top_k, inputs=width(f), block=block, form="plain")


_BIAS = Traits(bias_flags=BIASED)
_QWEN3 = Traits(bias_flags=BIASED, qk_norm="head", windows=if_used)
_GPT_OSS = Traits(bias_flags=BIASED, sinks=True, windows=lambda f, n: windows_from(f, by_type(f, n, lambda i: i % 2 == 0)))
_PHI = Traits(bias_flags=BIASED, norm_bias=True, head_bias="lm_head_bias", windows=all_windowed)

_AFMOE = Traits(bias_flags=BIASED, qk_norm="head", norms=4, gate="elementwise", windows=every("global_attn_every_n_layers", 4))
_FLINT = Traits(bias_flags=BIASED, qk_norm="head", sinks=True, windows=flint_windows)
_SARVAM = Traits(bias_flags=(("attention_bias", "qkv"), ("use_qkv_bias", "qkv")), qk_norm="head", qk_norm_flag="use_qk_norm")

MIXTURES: dict[str, Mixture] = {
    "phimoe": Mixture(_PHI, whole_blocks),
    "mixtral": Mixture(Traits(windows=all_windowed), whole_blocks),
    "qwen2_moe": Mixture(Traits(bias_flags=(("qkv_bias", "qkv"),), windows=alternate_before), qwen2_experts, qwen_sparse),
    "qwen3_moe": Mixture(_QWEN3, routed, qwen_sparse),
    "qwen3_vl_moe_text": Mixture(Traits(bias_flags=BIASED, qk_norm="head"), routed, qwen_sparse),
    "qwen3_omni_moe_text": Mixture(_QWEN3, routed, qwen_sparse),
    "olmoe": Mixture(Traits(bias_flags=BIASED, qk_norm="full"), whole_blocks),
    "flex_olmo": Mixture(Traits(bias_flags=BIASED, qk_norm="full"), whole_blocks),
    "gpt_oss": Mixture(_GPT_OSS, lambda f: routed(f, width=f.count("intermediate_size"), bias=True, router_bias=True)),
    "granitemoe": Mixture(_BIAS, whole_blocks),
    "granitemoeshared": Mixture(_BIAS, granite_experts),
    "ernie4_5_moe": Mixture(
        Traits(bias_flags=(("use_bias", "qkvo"),), mlp_bias="use_bias", head_bias="use_bias"), ernie_experts, ernie_sparse
    ),
    "hunyuan_v1_moe": Mixture(Traits(bias_flags=BIASED, qk_norm="head"), hunyuan_experts),
    "dots1": Mixture(Traits(bias_flags=BIASED, qk_norm="head", windows=from_layer), deepseek_experts, after_dense),
    "deepseek": Mixture(_BIAS, lambda f: deepseek_experts(f, correction=False), after_dense),
    "solar_open": Mixture(Traits(bias_flags=(("attention_bias", "qkv"),)), deepseek_experts, everywhere),
    "exaone_moe": Mixture(Traits(qk_norm="head", windows=exaone_windows), deepseek_experts, after_dense),
    "afmoe": Mixture(_AFMOE, lambda f: deepseek_experts(f, correction="parameter"), leading_dense("num_dense_layers")),
    "aria_text": Mixture(Traits(bias_flags=BIASED, mlp_bias="mlp_bias"), aria_experts),
    "flint": Mixture(_FLINT, flint_experts, flint_sparse),
    "granitemoe_swa": Mixture(Traits(bias_flags=BIASED, sinks=True, windows=every("", 4, first_full=True)), granite_experts),
    "hy_v3": Mixture(
        Traits(bias_flags=BIASED, qk_norm="head", mlp_bias="mlp_bias"), hy_experts, leading_dense("first_k_dense_replace", default=1)
    ),
    "kolibri1": Mixture(Traits(qk_norm="head", norms=4, windows=every("", 5)), lambda f: flint_experts(f, correction="buffer")),
    "sarvam_moe": Mixture(_SARVAM, deepseek_experts, leading_dense("first_k_dense_replace", default=0)),
}


def _reader(name: str) -> Callable[[Fields], dict[str, Any]]:
    return lambda f: decoder(f, MIXTURES[name])


READERS = {
    **{name: _reader(name) for name in MIXTURES},
    "glm4_moe": glm4_moe, "glm4v_moe_text": glm4_moe, "llama4_text": llama4, "dbrx": dbrx, "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3, "minimax_m3_vl_text": minimax_m3, "cohere2_moe": cohere2_moe, "mellum": mellum,
}  # fmt: skip
