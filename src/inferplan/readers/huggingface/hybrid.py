"""Decoders with recurrent mixers, alone or among attention layers: Mamba, gated delta rule, Kimi delta, short convolutions, Griffin.

Also families whose layers differ in ways of their own (Gemma 3n and 4, MiMo, Step).
"""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import Layers, uniform, zipped
from inferplan.readers.huggingface.dense import Traits, by_type, depth, grouped_attention, head_size, heads_of, key_heads, width
from inferplan.readers.huggingface.experts import (
    after_dense,
    deepseek_experts,
    join,
    mtp_of,
    number,
    qwen2_experts,
    qwen_sparse,
    routed,
)
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.latent import latent_attention
from inferplan.specs.ffns import Dense, SharedExpert
from inferplan.specs.mixers import Attention, GatedDelta, GatedRecurrence, KimiDelta, Lightning, Mamba1, Mamba2, ShortConv
from inferplan.specs.model import Block, Extra, MultiTokenPrediction

STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def state_dtype(f: Fields) -> str | None:
    """The dtype a file states for recurrent states, None where they follow the model."""
    stated = f.data.get("mamba_ssm_cache_dtype") or f.data.get("mamba_ssm_dtype")
    return STATE_DTYPES.get(str(stated)) if stated is not None else None


def attention_or(f: Fields, layers: int, names: tuple[str, ...], default: Any) -> list[bool]:
    """Which layers are attention: as listed under any of `names`, else by rule."""
    for name in names:
        if isinstance(f.raw(name, default=None), list):
            return ["attention" in str(t) and "linear" not in str(t) for t in f.per_layer(name, layers)]
    return [default(i) for i in range(layers)]


def dt_rank(f: Fields, *names: str) -> int:
    """Rank of the step-size projection; `auto` means one sixteenth of the width, rounded up."""
    value = f.raw(*names, default="auto")
    return -(-width(f) // 16) if value == "auto" else f.checked(value, f.stated(*names))


def mamba1(f: Fields) -> dict[str, Any]:
    """Mamba and FalconMamba: nothing but selective state spaces."""
    stated = "intermediate_size" in f or "d_inner" in f
    inner = f.count("intermediate_size", "d_inner") if stated else f.count("expand", default=2) * width(f)
    mixer = Mamba1(
        inner=inner, state=f.count("state_size"), conv=f.count("conv_kernel"), dt_rank=dt_rank(f, "time_step_rank"), bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias", default=True), state_dtype=state_dtype(f),
    )  # fmt: skip
    return {"hidden": width(f), "layers": uniform(Block(mixers=(mixer,), norms=1), depth(f))}


def mamba2(f: Fields) -> dict[str, Any]:
    """Mamba-2 alone."""
    mixer = Mamba2(
        heads=f.count("num_heads"), head_dim=f.count("head_dim"), groups=f.count("n_groups"), state=f.count("state_size"),
        conv=f.count("conv_kernel"), bias=f.flag("use_bias"), conv_bias=f.flag("use_conv_bias", default=True),
        chunk=f.count("chunk_size", default=256), state_dtype=state_dtype(f),
    )  # fmt: skip
    return {"hidden": width(f), "layers": uniform(Block(mixers=(mixer,), norms=1), depth(f))}


def jamba(f: Fields) -> dict[str, Any]:
    """Jamba: Mamba-1 with inner norms, attention every `attn_layer_period`, experts every `expert_layer_period` layers."""
    count, hidden = depth(f), width(f)
    attends = attention_or(
        f, count, ("layers_block_type",), lambda i: i % f.count("attn_layer_period") == f.count("attn_layer_offset", least=0)
    )
    mamba = Mamba1(
        inner=f.count("mamba_expand") * hidden, state=f.count("mamba_d_state"), conv=f.count("mamba_d_conv"), dt_rank=dt_rank(f, "mamba_dt_rank"),
        bias=f.flag("mamba_proj_bias"), conv_bias=f.flag("mamba_conv_bias", default=True), inner_norms=True, state_dtype=state_dtype(f),
    )  # fmt: skip
    period, offset = f.count("expert_layer_period"), f.count("expert_layer_offset", least=0)
    plain = Dense(width=f.count("intermediate_size"))
    many = f.count("num_experts", default=1)
    moe = routed(f, width=f.count("intermediate_size")) if many > 1 else plain
    attention = grouped_attention(f, Traits())
    mixers = [("attention", attention) if a else ("mamba", mamba) for a in attends]
    ffns = [("moe", moe) if i % period == offset and many > 1 else ("dense", plain) for i in range(count)]
    return {"hidden": hidden, "layers": zipped(mixers, ffns)}


def mamba2_of(f: Fields, **more: Any) -> Mamba2:
    """Mamba-2 by the `mamba_` field names of Bamba, Granite 4, Falcon-H1 and Zamba 2."""
    heads = f.count("mamba_n_heads", "n_mamba_heads")
    inner = f.maybe("mamba_d_ssm") or f.count("mamba_expand", default=2) * width(f)
    dim = f.maybe("mamba_d_head", "mamba_headdim") or inner // heads
    stated = {
        "heads": heads, "head_dim": dim, "groups": f.count("mamba_n_groups", "mamba_ngroups", default=1), "state": f.count("mamba_d_state"),
        "conv": f.count("mamba_d_conv"), "bias": f.flag("mamba_proj_bias", "add_bias_linear"), "conv_bias": f.flag("mamba_conv_bias", "use_conv_bias", default=True),
        "chunk": f.count("mamba_chunk_size", "chunk_size", default=256), "state_dtype": state_dtype(f),
    }  # fmt: skip
    return Mamba2(**{**stated, **more})


def bamba(f: Fields) -> dict[str, Any]:
    """Bamba: Mamba-2 with attention on the listed layers."""
    count = depth(f)
    listed = f.indices("attn_layer_indices", count)
    attends = attention_or(f, count, ("layers_block_type", "layer_types"), lambda i: i in listed)
    ffn = Dense(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    attention, mamba = grouped_attention(f, Traits(bias_flags=(("attention_bias", "qkvo"),))), mamba2_of(f)
    mixers = [("attention", attention) if a else ("mamba", mamba) for a in attends]
    return {"hidden": width(f), "layers": zipped(mixers, [("dense", ffn)] * count)}


def granite_hybrid(f: Fields) -> dict[str, Any]:
    """Granite 4: Mamba-2 and attention layers; experts beside a shared block, or the shared block alone."""
    count = depth(f)
    attends = attention_or(f, count, ("layer_types", "layers_block_type"), lambda _: False)
    shared = f.count("shared_intermediate_size")
    many = f.count("num_local_experts", default=0, least=0)
    if many:
        ffn: Any = routed(f, width=f.count("intermediate_size"), shared=SharedExpert(width=shared))
    else:
        ffn = Dense(width=shared)
    attention, mamba = grouped_attention(f, Traits(bias_flags=(("attention_bias", "qkvo"),))), mamba2_of(f)
    mixers = [("attention", attention) if a else ("mamba", mamba) for a in attends]
    return {"hidden": width(f), "layers": zipped(mixers, [("ffn", ffn)] * count)}


def falcon_h1(f: Fields) -> dict[str, Any]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    heads, dim = f.count("mamba_n_heads"), f.maybe("mamba_d_head")
    inner = f.maybe("mamba_d_ssm")
    mamba = mamba2_of(
        f, bias=f.flag("mamba_proj_bias"), norm=f.flag("mamba_rms_norm"), head_dim=dim or (inner or f.count("mamba_expand") * width(f)) // heads
    )
    attention = grouped_attention(f, Traits(bias_flags=(("attention_bias", "qkvo"),)))
    ffn = Dense(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    return {"hidden": width(f), "layers": uniform(Block(mixers=(attention, mamba), ffns=(ffn,)), depth(f))}


NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEMOTRON_WORDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention", "mlp": "mlp", "moe": "moe"}


def nemotron_kinds(f: Fields, letters: str, words: str) -> list[str]:
    """The kind of each block, from a pattern of letters or a list of words."""
    pattern, listed = f.raw(letters, default=None), f.raw(words, "layer_types", default=None) if words else None
    if isinstance(listed, list):
        kinds = [NEMOTRON_WORDS.get(str(k)) for k in listed]
    elif isinstance(pattern, str):
        kinds = [NEMOTRON.get(c) for c in pattern]
    else:
        raise f.refuse(letters, "is required and missing: without it the order of layers is unknown")
    if None in kinds:
        raise f.refuse(letters, "holds a kind of layer that is not known (M, *, -, E)")
    return [str(k) for k in kinds]


def nemotron_h(f: Fields) -> dict[str, Any]:
    """Nemotron-H and Nemotron-3: each layer is one Mamba-2, attention, dense or mixture block with a single norm."""
    blocks = {kind: Block(**piece, norms=1) for kind, piece in nemotron_pieces(f).items()}
    kinds = nemotron_kinds(f, "hybrid_override_pattern", "layers_block_type")
    layers = [(kind, blocks[kind]) for kind in kinds]
    modules = f.maybe("num_nextn_predict_layers")
    parts: dict[str, Any] = {"hidden": width(f), "layers": layers}
    if modules:
        order = " + ".join(nemotron_kinds(f, "mtp_hybrid_override_pattern", "mtp_layers_block_type"))
        parts["mtp"] = MultiTokenPrediction(modules=modules, layers=order, extra=join(width(f)))
    return parts


def nemotron_pieces(f: Fields) -> dict[str, dict[str, Any]]:
    """The kinds of block that the file describes."""
    bias = f.flag("mlp_bias")
    heads = heads_of(f)
    mamba = Mamba2(
        heads=f.count("mamba_num_heads"), head_dim=f.count("mamba_head_dim"), groups=f.count("n_groups", "mamba_n_groups"),
        state=f.count("ssm_state_size"), conv=f.count("conv_kernel", "mamba_d_conv"), bias=f.flag("use_bias") or f.flag("mamba_proj_bias"),
        conv_bias=f.flag("use_conv_bias", "mamba_conv_bias", default=True), chunk=f.count("chunk_size", default=128), state_dtype=state_dtype(f),
    )  # fmt: skip
    attention = Attention(heads=heads, kv_heads=key_heads(f, heads), head_dim=head_size(f, heads), bias="qkvo" if f.flag("attention_bias") else "")
    pieces: dict[str, dict[str, Any]] = {"mamba": {"mixers": (mamba,)}, "attention": {"mixers": (attention,)}}
    pieces["mlp"] = {"ffns": (Dense(width=f.count("intermediate_size"), gated=False, bias=bias),)}
    if f.maybe("n_routed_experts") and f.maybe("moe_intermediate_size"):
        shared = f.count("moe_shared_expert_intermediate_size") * f.count("n_shared_experts", default=1, least=0)
        moe = routed(
            f, gated=False, bias=bias, latent=f.maybe("moe_latent_size"), correction_bias="buffer",
            shared=SharedExpert(width=shared, gated=False, bias=bias) if shared else None,
        )  # fmt: skip
        pieces["moe"] = {"ffns": (moe,)}
    return pieces


def gated_delta_of(f: Fields) -> GatedDelta:
    """The gated delta rule by Qwen3-Next's field names."""
    return GatedDelta(
        key_heads=f.count("linear_num_key_heads"), value_heads=f.count("linear_num_value_heads"), key_dim=f.count("linear_key_head_dim"),
        value_dim=f.count("linear_value_head_dim"), conv=f.count("linear_conv_kernel_dim"), state_dtype=state_dtype(f),
    )  # fmt: skip


def qwen_next(f: Fields) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5: gated delta layers with gated full attention on every fourth, dense or mixture feed-forward."""
    count = depth(f)
    interval = f.count("full_attention_interval", default=4)
    attends = attention_or(f, count, ("layer_types",), lambda i: (i + 1) % interval == 0)
    gate = "elementwise" if f.flag("attn_output_gate", default=True) else "none"
    attention = grouped_attention(f, Traits(bias_flags=(("attention_bias", "qkvo"),), qk_norm="head"), gate=gate)
    delta = gated_delta_of(f)
    mixers = [("attention", attention) if a else ("delta", delta) for a in attends]
    experts = f.count("num_experts", default=0, least=0)
    sparse = qwen_sparse(f, count) if experts else [False] * count
    moe = qwen2_experts(f) if any(sparse) else None
    plain = Dense(width=f.count("intermediate_size")) if not all(sparse) else None
    layers = zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in sparse])
    return {"hidden": width(f), "layers": layers, "mtp": qwen_mtp(f, layers)}


def qwen_mtp(f: Fields, layers: Layers) -> MultiTokenPrediction | None:
    """Prediction modules like the last attention layer."""
    modules = f.maybe("mtp_num_hidden_layers")
    attention = [(label, block) for label, block in layers if any(isinstance(m, Attention) for m in block.mixers)]
    return mtp_of(f, attention, modules=modules) if modules and attention else None


def olmo_hybrid(f: Fields) -> dict[str, Any]:
    """OLMo-Hybrid: gated delta layers with full attention on every fourth; norms over whole query and key projections."""
    count = depth(f)
    attends = attention_or(f, count, ("layer_types",), lambda i: (i + 1) % 4 == 0)
    attention = grouped_attention(f, Traits(bias_flags=(("attention_bias", "qkvo"),), qk_norm="full"))
    delta = gated_delta_of(f)
    mixers = [("attention", attention) if a else ("delta", delta) for a in attends]
    return {"hidden": width(f), "layers": zipped(mixers, [("dense", Dense(width=f.count("intermediate_size")))] * count)}


def kimi_linear(f: Fields) -> dict[str, Any]:
    """Kimi-Linear and Kimi-K3: Kimi delta layers with latent attention on the listed ones (counted from 1)."""
    count, linear = depth(f), f.sub("linear_attn_config")
    listed = {i - 1 for i in (linear.checked(v, "full_attn_layers") for v in linear.items("full_attn_layers"))}
    dim = linear.count("head_dim")
    full_gate = linear.flag("use_full_rank_gate")
    delta = KimiDelta(
        heads=linear.count("num_heads"), head_dim=dim, conv=linear.count("short_conv_kernel_size"), decay_rank=dim,
        gate_rank=None if full_gate else dim,
    )  # fmt: skip
    attention = latent_attention(f, gate=f.flag("mla_use_output_gate"))
    latent = f.maybe("routed_expert_hidden_size")
    moe = deepseek_experts(f)
    if latent:
        moe = moe.model_copy(update={"latent": latent, "latent_norm": f.flag("latent_moe_use_norm"), "correction_bias": "parameter"})
    where = after_dense(f, count)
    plain = Dense(width=f.count("intermediate_size"))
    mixers = [("attention", attention) if i in listed else ("delta", delta) for i in range(count)]
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in where])}


def lfm2_width(f: Fields) -> int:
    """LFM2's feed-forward width: two thirds of the stated one, scaled and rounded up, where `block_auto_adjust_ff_dim` is set."""
    inner = f.count("block_ff_dim", "intermediate_size")
    if not f.flag("block_auto_adjust_ff_dim", default=True):
        return inner
    scale = f.raw("block_ffn_dim_multiplier", default=1.0)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 100:  # noqa: PLR2004 - an absurd multiplier
        raise f.refuse("block_ffn_dim_multiplier", "must be a number above 0 and below 100", scale)
    multiple = f.count("block_multiple_of", default=256)
    return -(-int(scale * int(2 * inner / 3)) // multiple) * multiple


def lfm2(f: Fields) -> dict[str, Any]:
    """LFM2: short convolutions with attention on the listed layers; the mixture variant has dense layers first."""
    count, hidden = depth(f), width(f)
    listed = f.indices("full_attn_idxs", count)
    attends = attention_or(f, count, ("layer_types",), lambda i: i in listed)
    attention = grouped_attention(f, Traits(qk_norm="head"))
    conv = ShortConv(width=hidden, conv=f.count("conv_L_cache"), bias=f.flag("conv_bias"))
    mixers = [("attention", attention) if a else ("conv", conv) for a in attends]
    if not f.raw("num_experts", default=None):
        return {"hidden": hidden, "layers": zipped(mixers, [("dense", Dense(width=lfm2_width(f)))] * count)}
    first = f.count("num_dense_layers", least=0)
    moe = routed(f, correction_bias="buffer" if f.flag("use_expert_bias", default=True) else "none")
    plain = Dense(width=f.count("intermediate_size"))
    return {"hidden": hidden, "layers": zipped(mixers, [("dense", plain) if i < first else ("moe", moe) for i in range(count)])}


def minimax(f: Fields) -> dict[str, Any]:
    """MiniMax-01: lightning attention with softmax attention on every eighth layer; a mixture everywhere."""
    count = depth(f)
    attends = attention_or(f, count, ("layer_types",), lambda i: (i + 1) % 8 == 0)
    if isinstance(f.raw("attn_type_list", default=None), list):
        attends = [bool(v) for v in f.per_layer("attn_type_list", count)]
    heads = heads_of(f)
    lightning = Lightning(heads=heads, head_dim=head_size(f, heads), block=f.count("block_size", default=256))
    attention = grouped_attention(f, Traits())
    mixers = [("attention", attention) if a else ("lightning", lightning) for a in attends]
    moe = routed(f, width=f.count("intermediate_size"))
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe)] * count)}


def zamba(f: Fields) -> dict[str, Any]:
    """Zamba: Mamba-1 in two heads on every layer; one shared transformer block runs before some, on twice the width."""
    count, hidden = depth(f), width(f)
    kinds = [str(k) for k in f.per_layer("layers_block_type", count)] if f.raw("layers_block_type", default=None) else None
    period, offset = f.count("attn_layer_period", default=6), f.count("attn_layer_offset", default=4, least=0)
    hybrid = [k == "hybrid" for k in kinds] if kinds else [i == 2 or (i > 2 and i % period == offset) for i in range(count)]  # noqa: PLR2004
    mamba = Mamba1(
        inner=f.count("mamba_expand") * hidden, state=f.count("mamba_d_state"), conv=f.count("mamba_d_conv"), dt_rank=dt_rank(f, "mamba_dt_rank"),
        bias=f.flag("mamba_proj_bias"), conv_bias=f.flag("mamba_conv_bias", default=True),
    )  # fmt: skip
    wide, heads = f.maybe("attention_hidden_size") or 2 * hidden, heads_of(f)
    dim = f.maybe("attention_head_dim") or wide // heads
    attention = Attention(heads=heads, kv_heads=key_heads(f, heads), head_dim=dim, inputs=wide, outputs=hidden, shared_weights=True, in_norm=True, out_norm=False)
    ffn = Dense(width=f.count("intermediate_size"), shared_weights=True, in_norm=True)
    plain = Block(mixers=(mamba,), norms=1)
    both = Block(mixers=(attention, mamba), ffns=(ffn,), norms=1, extra=(Extra(name="linear", rows=hidden, cols=hidden, use="matmul"),))
    return {"hidden": hidden, "layers": [("hybrid", both) if h else ("mamba", plain) for h in hybrid]}


def recurrent_gemma(f: Fields) -> dict[str, Any]:
    """RecurrentGemma: two gated linear recurrences, then local attention, repeated."""
    count = depth(f)
    kinds = f.items("_block_types", "block_types", default=["recurrent", "recurrent", "attention"])
    heads = heads_of(f)
    lru = f.maybe("lru_width") or width(f)
    recurrence = GatedRecurrence(width=lru, blocks=heads, conv=f.count("conv1d_width"))
    window = f.maybe("attention_window_size")
    attention = grouped_attention(f, Traits(bias="o"), window=window)
    mixers = [("attention", attention) if kinds[i % len(kinds)] == "attention" else ("recurrent", recurrence) for i in range(count)]
    ffn = Dense(width=f.count("intermediate_size") // 2, bias=True)
    return {"hidden": width(f), "layers": zipped(mixers, [("dense", ffn)] * count)}


def gemma_types(f: Fields, layers: int, period: int) -> list[bool]:
    """Which layers slide: as listed, else all but the last of each period (and the last layer)."""
    return [t == "sliding_attention" for t in by_type(f, layers, lambda i: bool((i + 1) % period) and i != layers - 1)]


def sharing(f: Fields, layers: int) -> list[bool]:
    """Which layers read an earlier layer's keys and values: the last `num_kv_shared_layers`."""
    shared = f.count("num_kv_shared_layers", default=0, least=0)
    return [0 < layers - shared <= i for i in range(layers)]


def gemma4(f: Fields) -> dict[str, Any]:
    """Gemma 4: wide global heads, keys that serve as values on global layers, shared caches, per-layer embeddings, experts beside a dense block."""
    count, hidden = depth(f), width(f)
    slides, shares = gemma_types(f, count, 6), sharing(f, count)
    per_layer = f.count("hidden_size_per_layer_input", default=0, least=0)
    moe = f.flag("enable_moe_block")
    norms = 4 + (1 if per_layer else 0) + (3 if moe else 0)
    extra = per_layer_block(hidden, per_layer) if per_layer else ()
    layers = []
    for slide, share in zip(slides, shares, strict=True):
        inner = f.count("intermediate_size") * (2 if f.flag("use_double_wide_mlp") and share else 1)
        ffns: list[Any] = [Dense(width=inner)]
        if moe:
            ffns.append(routed(f, router_extra=hidden + f.count("num_experts")))
        label = f"{'local' if slide else 'global'}{'_shared' if share else ''}"
        layers.append((label, Block(mixers=(gemma4_attention(f, slide, share),), ffns=tuple(ffns), norms=norms, extra=extra)))
    parts: dict[str, Any] = {"hidden": hidden, "layers": layers}
    return {**parts, "extra": per_layer_tables(f, hidden, per_layer, count)} if per_layer else parts


def gemma4_attention(f: Fields, slide: bool, share: bool) -> Attention:
    """One layer's attention of Gemma 4."""
    heads, same = heads_of(f), f.flag("attention_k_eq_v") and not slide
    kv = f.count("num_key_value_heads")
    if not slide:
        kv = (f.maybe("num_global_key_value_heads") if same else None) or kv
    return Attention(
        heads=heads, kv_heads=kv, head_dim=f.count("head_dim") if slide else f.count("global_head_dim", default=512),
        window=f.maybe("sliding_window") if slide else None, bias="qkvo" if f.flag("attention_bias") else "", qk_norm="head",
        keys="shared" if share else "as_values" if same else "own",
    )  # fmt: skip


def per_layer_block(hidden: int, narrow: int) -> tuple[Extra, ...]:
    """Gate and projection of a layer's own embedding."""
    return (
        Extra(name="per_layer.gate", part="mlp_aux", rows=narrow, cols=hidden, use="matmul"),
        Extra(name="per_layer.projection", part="mlp_aux", rows=hidden, cols=narrow, use="matmul"),
    )


def per_layer_tables(f: Fields, hidden: int, narrow: int, layers: int) -> tuple[Extra, ...]:
    """The per-layer embedding table, a lookup, and the projection of the hidden state onto all layers' inputs."""
    rows = f.count("vocab_size_per_layer_input", default=0, least=0) or f.count("vocab_size")
    return (
        Extra(name="per_layer.embedding", part="aux_embedding", rows=rows, cols=layers * narrow, use="lookup"),
        Extra(name="per_layer.model_projection", rows=layers * narrow, cols=hidden, use="matmul"),
        Extra(name="per_layer.norm", part="norm", rows=narrow),
    )


def gemma3n(f: Fields) -> dict[str, Any]:
    """Gemma 3n: four residual streams (AltUp), low-rank residual (LAuReL), per-layer embeddings, shared caches."""
    count, hidden = depth(f), width(f)
    streams, rank, narrow = f.count("altup_num_inputs"), f.count("laurel_rank"), f.count("hidden_size_per_layer_input")
    slides, shares = gemma_types(f, count, 5), sharing(f, count)
    widths = f.raw("intermediate_size")
    inner = [f.checked(w, "intermediate_size") for w in f.per_layer("intermediate_size", count)] if isinstance(widths, list) else [f.count("intermediate_size")] * count
    altup = [("correct", streams, streams), ("predict", streams**2, streams), ("router", streams, hidden)]
    extra = [Extra(name=f"altup.{n}", part="mlp_aux", rows=r, cols=c, use="matmul") for n, r, c in altup]
    extra += [Extra(name="altup.scale", part="mlp_aux", rows=hidden), *per_layer_block(hidden, narrow)]
    extra += [Extra(name="laurel.left", part="mlp_aux", rows=rank, cols=hidden, use="matmul"), Extra(name="laurel.right", part="mlp_aux", rows=hidden, cols=rank, use="matmul")]
    layers = []
    for slide, share, size in zip(slides, shares, inner, strict=True):
        attention = grouped_attention(
            f, Traits(bias_flags=(("attention_bias", "qkvo"),), qk_norm="head"), window=f.maybe("sliding_window") if slide else None, keys="shared" if share else "own"
        )
        block = Block(mixers=(attention,), ffns=(Dense(width=size),), norms=7, extra=tuple(extra))
        layers.append((f"{'local' if slide else 'global'}{'_shared' if share else ''}", block))
    unembed = Extra(name="altup.streams", rows=hidden, cols=hidden, copies=2 * (streams - 1), use="matmul")
    return {"hidden": hidden, "layers": layers, "extra": (*per_layer_tables(f, hidden, narrow, count), unembed)}


def mimo_v2(f: Fields) -> dict[str, Any]:
    """MiMo-V2: narrower values than keys; windowed layers with more key-value heads and sinks; experts after the first layer."""
    count, heads = depth(f), heads_of(f)
    pattern = f.raw("hybrid_layer_pattern", default=None)
    if isinstance(pattern, list):
        slides = [bool(v) for v in f.per_layer("hybrid_layer_pattern", count)]
    else:
        slides = [t == "sliding_attention" for t in by_type(f, count, lambda i: bool((i + 1) % 6) and i != 0)]
    bias = "qkv" if f.flag("attention_bias") else ""
    kv = f.count("num_key_value_heads")
    common = {"heads": heads, "head_dim": f.count("head_dim"), "v_head_dim": f.count("v_head_dim"), "bias": bias}
    whole = Attention(kv_heads=kv, sinks=f.flag("add_full_attention_sink_bias"), **common)
    local = Attention(
        kv_heads=f.maybe("swa_num_key_value_heads") or 2 * kv, window=f.count("sliding_window", "sliding_window_size"),
        sinks=f.flag("add_swa_attention_sink_bias", default=True), **common,
    )  # fmt: skip
    sparse = after_dense(f, count)
    moe, plain = deepseek_experts(f), Dense(width=f.count("intermediate_size"))
    mixers = [("local", local) if s else ("global", whole) for s in slides]
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in sparse])}


def step3(f: Fields) -> dict[str, Any]:
    """Step-3.5 and 3.7: windowed and full layers with head-wise output gates; experts after three dense layers."""
    count, heads = depth(f), heads_of(f)
    other = f.sub("attention_other_setting")
    local_heads = f.maybe("num_sliding_attention_heads") or other.maybe("num_attention_heads") or heads
    slides = [t == "sliding_attention" for t in by_type(f, count, lambda i: bool(i % 4))]
    kv = f.count("num_attention_groups", "num_key_value_heads")
    common = {"kv_heads": kv, "head_dim": head_size(f, heads), "qk_norm": "head", "gate": "headwise"}
    whole = Attention(heads=heads, **common)
    local = Attention(heads=local_heads, window=f.count("sliding_window"), **common)
    shared = number(f, "share_expert_dim", "share_expert_dims")
    moe = routed(f, shared=SharedExpert(width=shared) if shared else None, correction_bias="buffer")
    plain, sparse = Dense(width=f.count("intermediate_size")), step_sparse(f, count)
    mixers = [("local", local) if s else ("global", whole) for s in slides]
    return {"hidden": width(f), "layers": zipped(mixers, [("moe", moe) if s else ("dense", plain) for s in sparse])}


def step_sparse(f: Fields, layers: int) -> list[bool]:
    """Which layers hold experts: as listed in words or numbers, else from `first_k_dense_replace` (3) on."""
    listed = f.raw("moe_layers_enum", default=None)
    if isinstance(listed, str):
        chosen = {int(n) for n in listed.split(",") if n.strip().isdigit()}
        return [i in chosen for i in range(layers)]
    if isinstance(listed, list):
        return [i in f.indices("moe_layers_enum", layers) for i in range(layers)]
    if isinstance(f.raw("mlp_layer_types", default=None), list):
        return [t == "sparse" for t in f.per_layer("mlp_layer_types", layers)]
    start = f.count("first_k_dense_replace", default=3, least=0)
    return [i >= start for i in range(layers)]


def deci(f: Fields) -> dict[str, Any]:
    """Nemotron-NAS: each layer states its own attention groups and feed-forward multiplier; either may be left out."""
    hidden, heads = width(f), heads_of(f)
    layers = []
    for i, raw in enumerate(f.per_layer("block_configs", depth(f))):
        if not isinstance(raw, dict):
            raise f.refuse(f"block_configs[{i}]", "must be a mapping", raw)
        b = Fields(raw, file=f.file, at=f"{f.at}block_configs[{i}].")
        attention, ffn = b.sub("attention"), b.sub("ffn")
        mixers, ffns = (), ()
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
    scale = ffn.raw("ffn_mult")
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 100:  # noqa: PLR2004 - an absurd multiplier
        raise ffn.refuse("ffn_mult", "must be a number above 0 and below 100", scale)
    return -(-int(2 * scale * hidden / 3) // 256) * 256


READERS = {
    "mamba": mamba1, "falcon_mamba": mamba1, "mamba2": mamba2, "jamba": jamba, "bamba": bamba, "granitemoehybrid": granite_hybrid,
    "falcon_h1": falcon_h1, "nemotron_h": nemotron_h, "qwen3_next": qwen_next, "qwen3_5_text": qwen_next, "qwen3_5_moe_text": qwen_next,
    "olmo_hybrid": olmo_hybrid, "kimi_linear": kimi_linear, "lfm2": lfm2, "lfm2_moe": lfm2, "minimax": minimax, "minimax_text_01": minimax,
    "zamba": zamba, "recurrent_gemma": recurrent_gemma, "gemma4_text": gemma4, "gemma3n_text": gemma3n, "mimo_v2_flash": mimo_v2,
    "step3p5": step3, "step3p7": step3, "step3p7_text": step3, "deci": deci, "nemotron-nas": deci,
}  # fmt: skip
