"""Decoders with state spaces, alone or among attention layers: Mamba, Jamba, Bamba, Granite 4, Falcon-H1, Nemotron-H, Zamba.

Knows which layer is which and how wide each is; the sizes of states follow from the mixers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.readers.huggingface.assemble import Layers, uniform, zipped
from inferplan.readers.huggingface.dense import BIASED, Traits, depth, grouped_attention, head_size, heads_of, key_heads, width
from inferplan.readers.huggingface.experts import join, routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.orders import by_words, words
from inferplan.specs.ffns import Dense, SharedExpert
from inferplan.specs.mixers import Attention, Mamba1, Mamba2
from inferplan.specs.model import Block, Extra, MultiTokenPrediction

MOST_WIDTHS = 64  # an inner width beyond so many times the stream is absurd
STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
ATTENDS = {
    "attention": True, "full_attention": True, "hybrid": True, "mamba": False, "mamba2": False, "linear_attention": False,
}  # fmt: skip
LISTS = ("layer_types", "layers_block_type")
ATTENTION = Traits(bias_flags=BIASED)


def state_dtype(f: Fields) -> str | None:
    """The dtype a file states for recurrent states, None where they follow the model."""
    name = next((n for n in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype") if n in f), None)
    if name is None:
        return None
    stated = str(f.data[name]).removeprefix("torch.")
    if stated not in STATE_DTYPES:
        raise f.refuse(name, f"is not one of {', '.join(STATE_DTYPES)}", f.data[name])
    return STATE_DTYPES[stated]


def dt_rank(f: Fields, *names: str) -> int:
    """Rank of the step-size projection; `auto` means one sixteenth of the width, rounded up."""
    value = f.raw(*names, default="auto")
    return -(-width(f) // 16) if value == "auto" else f.checked(value, f.stated(*names))


def multiple(f: Fields, name: str, of: int, default: float = 2) -> int:
    """A multiple of a width, by a number that need not be whole."""
    return int(f.factor(name, most=MOST_WIDTHS, default=default) * of)


def mamba1(f: Fields) -> dict[str, Any]:
    """Mamba and FalconMamba: nothing but selective state spaces."""
    stated = "intermediate_size" in f or "d_inner" in f
    inner = f.count("intermediate_size", "d_inner") if stated else multiple(f, "expand", width(f))
    mixer = Mamba1(
        inner=inner, state=f.count("state_size"), conv=f.count("conv_kernel"), dt_rank=dt_rank(f, "time_step_rank"),
        bias=f.flag("use_bias"), conv_bias=f.flag("use_conv_bias", default=True), state_dtype=state_dtype(f),
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


def inner_mamba1(f: Fields, **more: Any) -> Mamba1:
    """Mamba-1 by the `mamba_` field names of Jamba and Zamba."""
    return Mamba1(
        inner=multiple(f, "mamba_expand", width(f)), state=f.count("mamba_d_state"), conv=f.count("mamba_d_conv"),
        dt_rank=dt_rank(f, "mamba_dt_rank"), bias=f.flag("mamba_proj_bias"), conv_bias=f.flag("mamba_conv_bias", default=True),
        state_dtype=state_dtype(f), **more,
    )  # fmt: skip


def jamba(f: Fields) -> dict[str, Any]:
    """Jamba: Mamba-1 with inner norms, attention every `attn_layer_period`, experts every `expert_layer_period` layers."""
    count = depth(f)
    attends = by_words(f, LISTS, count, ATTENDS, lambda i: i % f.count("attn_layer_period") == f.count("attn_layer_offset", least=0))
    period, offset = f.count("expert_layer_period"), f.count("expert_layer_offset", least=0)
    plain, many = Dense(width=f.count("intermediate_size")), f.count("num_experts", default=1) > 1
    moe = routed(f, width=f.count("intermediate_size")) if many else plain
    mamba, attention = inner_mamba1(f, inner_norms=True), grouped_attention(f, Traits())
    mixers = [("attention", attention) if a else ("mamba", mamba) for a in attends]
    ffns = [("moe", moe) if i % period == offset and many else ("dense", plain) for i in range(count)]
    return {"hidden": width(f), "layers": zipped(mixers, ffns)}


def mamba2_of(f: Fields, **more: Any) -> Mamba2:
    """Mamba-2 by the `mamba_` field names of Bamba, Granite 4, Falcon-H1 and Zamba 2."""
    heads = f.count("mamba_n_heads", "n_mamba_heads")
    inner = f.maybe("mamba_d_ssm") or multiple(f, "mamba_expand", width(f))
    stated: dict[str, Any] = {
        "heads": heads, "head_dim": more.pop("head_dim", None) or f.maybe("mamba_d_head") or inner // heads,
        "groups": f.count("mamba_n_groups", "mamba_ngroups", default=1), "state": f.count("mamba_d_state"),
        "conv": f.count("mamba_d_conv"), "bias": f.flag("mamba_proj_bias", "add_bias_linear"),
        "conv_bias": f.flag("mamba_conv_bias", "use_conv_bias", default=True),
        "chunk": f.count("mamba_chunk_size", "chunk_size", default=256), "state_dtype": state_dtype(f),
    }  # fmt: skip
    return Mamba2(**{**stated, **more})


def among(attends: list[bool], attention: Attention, mamba: Mamba1 | Mamba2, ffns: list[tuple[str, Any]]) -> Layers:
    """Attention layers among state-space layers."""
    return zipped([("attention", attention) if a else ("mamba", mamba) for a in attends], ffns)


def bamba(f: Fields) -> dict[str, Any]:
    """Bamba: Mamba-2 with attention on the listed layers."""
    count = depth(f)
    listed = f.indices("attn_layer_indices", count)
    attends = by_words(f, LISTS, count, ATTENDS, lambda i: i in listed)
    ffn = Dense(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    return {"hidden": width(f), "layers": among(attends, grouped_attention(f, ATTENTION), mamba2_of(f), [("dense", ffn)] * count)}


def granite_hybrid(f: Fields) -> dict[str, Any]:
    """Granite 4: Mamba-2 and attention layers; experts beside a shared block, or the shared block alone."""
    count, shared = depth(f), f.count("shared_intermediate_size")
    attends = by_words(f, LISTS, count, ATTENDS, lambda _: False)
    ffn: Any = Dense(width=shared)
    if f.count("num_local_experts", default=0, least=0):
        ffn = routed(f, width=f.count("intermediate_size"), shared=SharedExpert(width=shared))
    return {"hidden": width(f), "layers": among(attends, grouped_attention(f, ATTENTION), mamba2_of(f), [("ffn", ffn)] * count)}


def falcon_h1(f: Fields) -> dict[str, Any]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    heads, inner = f.count("mamba_n_heads"), f.maybe("mamba_d_ssm")
    dim = f.maybe("mamba_d_head") or (inner or multiple(f, "mamba_expand", width(f))) // heads
    mamba = mamba2_of(f, norm=f.flag("mamba_rms_norm"), head_dim=dim, out_bias=f.flag("projectors_bias"))
    ffn = Dense(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    return {"hidden": width(f), "layers": uniform(Block(mixers=(grouped_attention(f, ATTENTION), mamba), ffns=(ffn,)), depth(f))}


NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEMOTRON_WORDS = {
    "mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip


def nemotron_kinds(f: Fields, letters: str, lists: tuple[str, ...]) -> list[str]:
    """The kind of each block, from a list of words or a pattern of letters."""
    for name in (*lists, letters):
        stated = f.raw(name, default=None)
        if isinstance(stated, (str, list)) and stated:
            known = NEMOTRON_LETTERS if isinstance(stated, str) else NEMOTRON_WORDS
            spelled = Fields({name: list(stated)}, file=f.file, at=f.at)
            return words(spelled, (name,), len(stated), known) or []
    raise f.refuse(letters, "is required and missing: without it the order of layers is unknown")


def nemotron_h(f: Fields) -> dict[str, Any]:
    """Nemotron-H and Nemotron-3: each layer is one Mamba-2, attention, dense or mixture block with a single norm."""
    pieces = nemotron_pieces(f)
    kinds = nemotron_kinds(f, "hybrid_override_pattern", ("layers_block_type", "layer_types"))
    modules = f.maybe("num_nextn_predict_layers")
    after = nemotron_kinds(f, "mtp_hybrid_override_pattern", ("mtp_layers_block_type",)) if modules else []
    blocks = {kind: Block(**pieces[kind](), norms=1) for kind in dict.fromkeys([*kinds, *after])}
    missing = next((k for k in after if k not in kinds), None)
    if missing is not None:
        raise f.refuse("mtp_hybrid_override_pattern", f"holds a {missing} block, which the model itself does not have")
    mtp = MultiTokenPrediction(modules=modules, layers=" + ".join(after), extra=join(width(f))) if modules else None
    return {"hidden": width(f), "layers": [(kind, blocks[kind]) for kind in kinds], "mtp": mtp, "head": "own"}


def nemotron_pieces(f: Fields) -> dict[str, Callable[[], dict[str, Any]]]:
    """What stands in each kind of block; asked for only where the order holds that kind."""
    return {
        "mamba": lambda: {"mixers": (nemotron_mamba(f),)},
        "attention": lambda: {"mixers": (nemotron_attention(f),)},
        "mlp": lambda: {"ffns": (Dense(width=f.count("intermediate_size"), gated=False, bias=f.flag("mlp_bias")),)},
        "moe": lambda: {"ffns": (nemotron_experts(f),)},
    }


def nemotron_mamba(f: Fields) -> Mamba2:
    """The Mamba-2 block: its heads have a size of their own."""
    return Mamba2(
        heads=f.count("mamba_num_heads"), head_dim=f.count("mamba_head_dim"), groups=f.count("n_groups", "mamba_n_groups"),
        state=f.count("ssm_state_size"), conv=f.count("conv_kernel", "mamba_d_conv"), bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias", "mamba_conv_bias", default=True), chunk=f.count("chunk_size", "mamba_chunk_size", default=128),
        state_dtype=state_dtype(f),
    )  # fmt: skip


def nemotron_attention(f: Fields) -> Attention:
    """The attention block; its projections never have a bias."""
    heads = heads_of(f)
    return Attention(heads=heads, kv_heads=key_heads(f, heads), head_dim=head_size(f, heads))


def nemotron_experts(f: Fields) -> Any:
    """The mixture block: two matrices an expert, biases only outside the routed experts, a narrower width for them in Nemotron-3 Super."""
    bias, shared = f.flag("mlp_bias"), f.count("moe_shared_expert_intermediate_size", least=0)
    beside = SharedExpert(width=shared, gated=False, bias=bias) if shared and f.count("n_shared_experts", default=1, least=0) else None
    latent = f.maybe("moe_latent_size")
    return routed(f, gated=False, latent=latent, latent_bias=bias and latent is not None, correction_bias="buffer", shared=beside)


ZAMBA = {"hybrid": True, "mamba": False, "linear_attention": False}


def zamba(f: Fields) -> dict[str, Any]:
    """Zamba: Mamba-1 on every layer; one shared transformer block runs before some, on twice the width."""
    count, hidden = depth(f), width(f)
    period, offset = f.count("attn_layer_period", default=6), f.count("attn_layer_offset", default=4, least=0)
    hybrid = by_words(f, ("layers_block_type", "layer_types"), count, ZAMBA, lambda i: i == 2 or (i > 2 and i % period == offset))  # noqa: PLR2004 - the first shared layer
    attention = shared_attention(f, f.maybe("attention_hidden_size") or 2 * hidden)
    ffn = Dense(width=f.count("intermediate_size"), shared_weights=True, in_norm=True)
    mamba = inner_mamba1(f)
    both = Block(mixers=(attention, mamba), ffns=(ffn,), norms=1, extra=(back(hidden),))
    plain = Block(mixers=(mamba,), norms=1)
    return {"hidden": hidden, "layers": [("hybrid", both) if h else ("mamba", plain) for h in hybrid]}


def back(hidden: int) -> Extra:
    """The projection of each hybrid layer from the shared block's output to the residual stream."""
    return Extra(name="linear", rows=hidden, cols=hidden, use="matmul")


def shared_attention(f: Fields, wide: int) -> Attention:
    """The attention that hybrid layers share: it reads hidden state and embedding side by side."""
    heads = heads_of(f)
    return Attention(
        heads=heads, kv_heads=key_heads(f, heads), head_dim=f.maybe("attention_head_dim") or wide // heads, inputs=wide, outputs=width(f),
        shared_weights=True, in_norm=True,
    )  # fmt: skip


def zamba2_default(i: int) -> bool:
    """Which layers of Zamba 2 are hybrid where the file does not say: those of the 2.7B model."""
    return i in (6, 12, 18, 24, 30, 36, 42, 47, 51)


def zamba2(f: Fields) -> dict[str, Any]:
    """Zamba 2: Mamba-2 on every layer; `num_mem_blocks` shared blocks take turns, each use with low-rank adapters of its own."""
    count, hidden, blocks = depth(f), width(f), f.count("num_mem_blocks", default=1)
    if blocks > count:
        raise f.refuse("num_mem_blocks", f"must not exceed the {count} layers", blocks)
    hybrid = by_words(f, ("layers_block_type", "layer_types"), count, ZAMBA, zamba2_default)
    wide, inner = 2 * hidden, f.maybe("intermediate_size") or 4 * hidden
    heads = f.count("n_mamba_heads")
    mamba = mamba2_of(f, head_dim=multiple(f, "mamba_expand", hidden) // heads, conv_bias=True, bias=f.flag("add_bias_linear"))
    attention = shared_attention(f, wide).model_copy(update={"head_dim": wide // heads_of(f)})
    ffn = Dense(width=inner, bias=f.flag("add_bias_linear"), shared_weights=True, in_norm=True)
    both = Block(mixers=(attention, mamba), ffns=(ffn,), norms=1, extra=(back(hidden), *adapters(f, wide, inner)))
    plain = Block(mixers=(mamba,), norms=1)
    turns = [("hybrid", both.model_copy(update={"share_group": group})) for group in range(blocks)]
    return {"hidden": hidden, "layers": [turns[sum(hybrid[:i]) % blocks] if h else ("mamba", plain) for i, h in enumerate(hybrid)]}


def adapters(f: Fields, wide: int, inner: int) -> tuple[Extra, ...]:
    """The low-rank corrections that one hybrid layer adds to the shared block."""
    rank, hidden = f.count("adapter_rank", default=128), width(f)
    found = (
        Extra(name="adapter.gate_up_a", part="mlp", rows=rank, cols=hidden, use="matmul"),
        Extra(name="adapter.gate_up_b", part="mlp", rows=2 * inner, cols=rank, use="matmul"),
    )
    if not f.flag("use_shared_attention_adapter"):
        return found
    return (
        *found,
        Extra(name="adapter.qkv_a", part="attention", rows=rank, cols=wide, copies=3, use="matmul"),
        Extra(name="adapter.qkv_b", part="attention", rows=wide, cols=rank, copies=3, use="matmul"),
    )


READERS = {
    "mamba": mamba1, "falcon_mamba": mamba1, "mamba2": mamba2, "jamba": jamba, "bamba": bamba, "granitemoehybrid": granite_hybrid,
    "falcon_h1": falcon_h1, "nemotron_h": nemotron_h, "zamba": zamba, "zamba2": zamba2,
}  # fmt: skip
