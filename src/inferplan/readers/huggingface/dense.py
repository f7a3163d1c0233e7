"""Dense decoder families: which biases, norms and windows each model type has. Knows no expert and no recurrence.

One row of traits per model type, from the modules of its published implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferplan.readers.huggingface.assemble import Layers, zipped
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Extra
from inferplan.specs.order import MAX_LAYERS

Windows = Callable[[Fields, int], list[int | None]]
KINDS = {"full_attention": False, "sliding_attention": True, "sliding_window_attention": True, "full": False, "sliding": True}
SWITCHES = (
    "attention_bias", "qkv_bias", "use_qkv_bias", "attention_out_bias", "mlp_bias", "lm_head_bias", "use_qk_norm", "qk_norm",
    "qk_layernorm", "add_cross_attention",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traits:
    """What sets a Llama-like family apart. A pair (field, letters) turns biases on by a field of the file.

    Where a trait is a function it is asked for the file at hand; `ignored` names switches that the published implementation reads over.
    """

    bias: str = ""
    bias_flags: tuple[tuple[str, str], ...] = ()
    qk_norm: str = "none"
    qk_norm_flag: str | None = None
    qk_norm_bias: bool = False
    gated: bool = True
    mlp_bias: bool | str | tuple[str, ...] = False
    norms: int | Callable[[Fields], int] = 2
    norm_bias: bool = False
    final_norms: int = 1
    head_bias: bool | str = False
    windows: Windows | None = None
    positions: tuple[str, int] | None = None
    sinks: bool = False
    gate: str = "none"
    out_norm: bool = False
    extra: Callable[[Fields], tuple[Extra, ...]] | None = None
    ignored: tuple[str, ...] = ()

    @property
    def flags(self) -> set[str]:
        """The switches of the file that this family reads."""
        named = {field for field, _ in self.bias_flags} | set(self.ignored)
        for trait in (self.mlp_bias, self.head_bias, self.qk_norm_flag):
            named |= {trait} if isinstance(trait, str) else set(trait) if isinstance(trait, tuple) else set()
        return named


def switched(f: Fields, value: bool | str | tuple[str, ...]) -> bool:
    """Whether a trait is on: fixed, or by any of the fields it names."""
    if isinstance(value, bool):
        return value
    return any(f.flag(name) for name in ((value,) if isinstance(value, str) else value))


def heed(f: Fields, traits: Traits) -> None:
    """Refuse a switch that adds tensors and that the family has no part for: it would be counted as if it were off."""
    for name in SWITCHES:
        if f.data.get(name) is True and name not in traits.flags and not (name == "attention_bias" and traits.bias):
            raise f.refuse(name, "is set, and what it adds to this family is not known here", True)
    stated = f.data.get("layer_types")
    for kind in stated if traits.windows is None and isinstance(stated, list) else ():
        if kind not in KINDS:
            raise f.refuse("layer_types", f"is a kind of layer this family does not have ({', '.join(KINDS)})", kind)


def width(f: Fields) -> int:
    """Width of the residual stream."""
    return f.count("hidden_size", "n_embd", "d_model", "n_embed", essential=True)


def depth(f: Fields) -> int:
    """Number of layers."""
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    found = f.count(*names, essential=True)
    if found > MAX_LAYERS:
        raise f.refuse(f.stated(*names), f"must lie between 1 and {MAX_LAYERS:,}", found)
    return found


def head_size(f: Fields, heads: int) -> int:
    """Width of one head: stated, or the residual stream divided by the heads (also where the file says null)."""
    stated = f.stated_or_null("head_dim") if "head_dim" in f.data else f.maybe("head_dim", "kv_channels", "attention_head_dim")
    if stated:
        return stated
    hidden = width(f)
    if hidden % heads:
        raise f.refuse("head_dim", f"is absent, and {heads} heads do not divide the width {hidden}")
    return hidden // heads


def heads_of(f: Fields) -> int:
    """Number of query heads."""
    return f.count("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", essential=True)


def key_heads(f: Fields, heads: int) -> int:
    """Number of key-value heads: those of the queries where no field says otherwise."""
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads")
    null = any(name in f.data for name in names) and not any(name in f for name in names)
    kv = heads if null else f.maybe(*names) or heads
    if heads % kv:
        raise f.refuse(f.stated(*names), f"must divide the {heads} query heads", kv)
    return kv


def letters(f: Fields, traits: Traits) -> str:
    """The projections that carry a bias."""
    on = set(traits.bias)
    for field, which in traits.bias_flags:
        if f.flag(field):
            on |= set(which)
    return "".join(c for c in "qkvo" if c in on)


def grouped_attention(f: Fields, traits: Traits, **more: Any) -> Attention:
    """Attention of a Llama-like family."""
    heads = heads_of(f)
    norm = traits.qk_norm if traits.qk_norm_flag is None or f.flag(traits.qk_norm_flag) else "none"
    stated: dict[str, Any] = {
        "heads": heads, "kv_heads": key_heads(f, heads), "head_dim": head_size(f, heads), "bias": letters(f, traits), "qk_norm": norm,
        "qk_norm_bias": traits.qk_norm_bias, "sinks": traits.sinks, "gate": traits.gate, "out_norm": traits.out_norm,
    }  # fmt: skip
    return Attention(**{**stated, **more})


def feed_forward(f: Fields, traits: Traits) -> Dense:
    """The dense feed-forward block of a Llama-like family; a width that the file leaves open by its own name is four times the stream."""
    if "intermediate_size" in f.data and "intermediate_size" not in f:
        raise f.refuse("intermediate_size", "is null, and no other field gives the width of the feed-forward block")
    inner = f.maybe("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "dff") or 4 * width(f)
    return Dense(width=inner, gated=traits.gated, bias=switched(f, traits.mlp_bias))


def per_head_norms(f: Fields) -> tuple[Extra, ...]:
    """StableLM 2 12B: a norm of its own for each query and key head, filed with attention as its checkpoint names them."""
    if not f.flag("qk_layernorm"):
        return ()
    heads = heads_of(f)
    return (Extra(name="qk_norms", part="attention", rows=head_size(f, heads), copies=heads + key_heads(f, heads)),)


def listed(f: Fields, name: str, layers: int) -> list[Any] | None:
    """A value for each layer where the file (or its class) lists them, None where it does not; anything but a list is refused."""
    return None if f.raw(name, default=None) is None else f.per_layer(name, layers)


def by_type(f: Fields, layers: int, default: Callable[[int], bool]) -> list[str]:
    """Each layer's attention type: as listed, or sliding where `default(i)` says so."""
    if "layer_types" in f:
        return [str(t) for t in f.per_layer("layer_types", layers)]
    return ["sliding_attention" if default(i) else "full_attention" for i in range(layers)]


def windows_from(f: Fields, types: list[str], *names: str) -> list[int | None]:
    """The window of each layer, None where attention is full."""
    for t in types:
        if t not in KINDS:
            raise f.refuse("layer_types", f"is a kind of layer this family does not have ({', '.join(KINDS)})", t)
    size = f.stated_or_null("sliding_window") if "sliding_window" in f.data else f.maybe("sliding_window", *names)
    return [size if KINDS[t] else None for t in types]


def all_windowed(f: Fields, layers: int) -> list[int | None]:
    """The same window on every layer, where the file states one."""
    return windows_from(f, by_type(f, layers, lambda _: True))


def every(period_field: str, period: int | None, *, first_full: bool = False) -> Windows:
    """Sliding layers with a full one at the end (or start) of each period."""

    def windows(f: Fields, layers: int) -> list[int | None]:
        n = f.maybe(period_field) or period
        if n is None:
            return windows_from(f, by_type(f, layers, lambda _: False))
        return windows_from(f, by_type(f, layers, lambda i: bool(i % n) if first_full else bool((i + 1) % n)))

    return windows


def qwen2_windows(f: Fields, layers: int) -> list[int | None]:
    """Windows from layer `max_window_layers` on, only when `use_sliding_window` is set."""
    if not f.flag("use_sliding_window", default=False):
        return [None] * layers
    start = f.count("max_window_layers", default=0, least=0)
    return windows_from(f, by_type(f, layers, lambda i: i >= start))


def from_layer(f: Fields, layers: int) -> list[int | None]:
    """Windows from layer `max_window_layers` on, wherever a window is stated."""
    start = f.count("max_window_layers", default=0, least=0)
    return windows_from(f, by_type(f, layers, lambda i: i >= start))


def where_unrotated(f: Fields, layers: int) -> list[int | None]:
    """Windows on the layers without rotary positions (every fourth), only when `use_sliding_window` is set."""
    if "layer_types" not in f and not f.flag("use_sliding_window", default=False):
        return [None] * layers
    step = f.count("no_rope_layer_interval", default=4)
    rotated = listed(f, "no_rope_layers", layers) or [(i + 1) % step for i in range(layers)]
    return windows_from(f, by_type(f, layers, lambda i: not rotated[i]))


def exaone_windows(f: Fields, layers: int) -> list[int | None]:
    """A pattern of letters (L local, G global) repeated, the last layer always global."""
    pattern = f.raw("sliding_window_pattern", default=None)
    if isinstance(pattern, str) and pattern:
        return windows_from(f, by_type(f, layers, lambda i: pattern[i % len(pattern)] == "L" and i != layers - 1))
    return every("sliding_window_pattern", 4)(f, layers)


BIASED = (("attention_bias", "qkvo"),)
_LLAMA = Traits(bias_flags=BIASED, mlp_bias="mlp_bias")
_GPT = Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True)

TRAITS: dict[str, Traits] = {
    "llama": _LLAMA,
    "baichuan": Traits(),
    "internlm2": Traits(bias_flags=(("bias", "qkvo"),)),
    "internlm3": Traits(bias_flags=(*BIASED, ("qkv_bias", "qkv"), ("bias", "o")), mlp_bias=("mlp_bias", "bias")),
    "orion": Traits(bias_flags=BIASED, norm_bias=True),
    "exaone": _LLAMA,
    "iquestcoder": _LLAMA,
    "cwm": Traits(mlp_bias="mlp_bias", windows=every("", 4, first_full=True)),
    "granite_swa": Traits(bias_flags=BIASED, mlp_bias="mlp_bias", sinks=True, windows=every("", 4, first_full=True)),
    "hyperclovax": Traits(
        bias_flags=BIASED, mlp_bias="mlp_bias", norms=lambda f: 4 if f.flag("use_post_norm") else 2, ignored=("use_post_norm",)
    ),
    "hunyuan_v1_dense": Traits(bias_flags=BIASED, qk_norm="head", ignored=("use_qk_norm",)),
    "jais2": Traits(bias_flags=BIASED, gated=False, mlp_bias="mlp_bias", norm_bias=True),
    "nanochat": Traits(bias_flags=BIASED, gated=False, norms=0, final_norms=0),
    "vaultgemma": Traits(bias_flags=BIASED, windows=every("", 2)),
    "muse_glimmer_text": Traits(bias_flags=BIASED, norms=4, gate="elementwise", windows=every("", 4)),
    "glm4v_text": Traits(bias="qkv", norms=4),
    "cosmos3_edge_text": Traits(bias_flags=BIASED, gated=False, mlp_bias="mlp_bias"),
    "smollm3": Traits(bias_flags=BIASED, mlp_bias="mlp_bias", windows=where_unrotated),
    "mistral": Traits(windows=all_windowed),
    "ministral": Traits(windows=all_windowed),
    "ministral3": Traits(windows=all_windowed),
    "qwen2": Traits(bias="qkv", windows=qwen2_windows),
    "qwen3": Traits(bias_flags=BIASED, qk_norm="head", windows=qwen2_windows),
    "qwen3_vl_text": Traits(bias_flags=BIASED, qk_norm="head"),
    "qwen2_5_vl_text": Traits(bias="qkv", windows=qwen2_windows),
    "qwen2_vl_text": Traits(bias="qkv", windows=qwen2_windows),
    "phi3": Traits(windows=all_windowed),
    "phi": Traits(
        bias="qkvo",
        qk_norm="head",
        qk_norm_flag="qk_layernorm",
        qk_norm_bias=True,
        gated=False,
        mlp_bias=True,
        norms=1,
        norm_bias=True,
        head_bias=True,
    ),
    "gemma": Traits(bias_flags=BIASED),
    "gemma2": Traits(bias_flags=BIASED, norms=4, windows=every("sliding_window_pattern", 2)),
    "gemma3_text": Traits(bias_flags=BIASED, norms=4, qk_norm="head", windows=every("sliding_window_pattern", 6)),
    "cohere": Traits(bias_flags=BIASED, norms=1, qk_norm="full", qk_norm_flag="use_qk_norm"),
    "cohere2": Traits(bias_flags=BIASED, norms=1, windows=every("sliding_window_pattern", 4)),
    "olmo": Traits(bias_flags=BIASED, norms=0, final_norms=0),
    "olmo2": Traits(bias_flags=BIASED, qk_norm="full"),
    "olmo3": Traits(bias_flags=BIASED, qk_norm="full", windows=every("sliding_window_pattern", 4)),
    "granite": _LLAMA,
    "glm": Traits(bias_flags=(("attention_bias", "qkv"),)),
    "glm4": Traits(bias_flags=(("attention_bias", "qkv"),), norms=4),
    "stablelm": Traits(
        bias_flags=(("use_qkv_bias", "qkv"),),
        norms=lambda f: 1 if f.flag("use_parallel_residual") else 2,
        norm_bias=True,
        extra=lambda f: per_head_norms(f),
        ignored=("qk_layernorm",),
    ),
    "starcoder2": Traits(bias_flags=(("use_bias", "qkvo"),), gated=False, mlp_bias="use_bias", norm_bias=True, windows=all_windowed),
    "gpt2": Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True, positions=("n_positions", 0)),
    "gptj": Traits(gated=False, mlp_bias=True, norms=1, norm_bias=True, head_bias=True),
    "codegen": Traits(gated=False, mlp_bias=True, norms=1, norm_bias=True, head_bias=True),
    "gpt_neox": Traits(bias_flags=BIASED, gated=False, mlp_bias=True, norm_bias=True),
    "openai-gpt": Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True, final_norms=0, positions=("n_positions", 0)),
    "ctrl": Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True, head_bias=True),
    "xglm": Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True),
    "biogpt": Traits(bias="qkvo", gated=False, mlp_bias=True, norm_bias=True, positions=("max_position_embeddings", 2)),
    "persimmon": Traits(
        bias="qkvo",
        qk_norm="head",
        qk_norm_flag="qk_layernorm",
        qk_norm_bias=True,
        gated=False,
        mlp_bias=True,
        norm_bias=True,
    ),
    "exaone4": Traits(qk_norm="head", windows=exaone_windows),
    "seed_oss": Traits(bias_flags=(("attention_bias", "qkv"), ("attention_out_bias", "o")), mlp_bias="mlp_bias"),
    "ernie4_5": Traits(bias_flags=(("use_bias", "qkvo"),), mlp_bias="use_bias"),
    "nemotron": Traits(bias_flags=BIASED, gated=False, mlp_bias="mlp_bias", norm_bias=True),
    "arcee": Traits(bias_flags=BIASED, gated=False, mlp_bias="mlp_bias"),
}


def around(f: Fields, traits: Traits) -> dict[str, Any]:
    """What every layer of a family has beside its mixer and feed-forward part."""
    norms = traits.norms if isinstance(traits.norms, int) else traits.norms(f)
    return {"norms": norms, "norm_bias": traits.norm_bias, "extra": traits.extra(f) if traits.extra else ()}


def windowed(f: Fields, traits: Traits, layers: int) -> list[tuple[str, Any]]:
    """The attention of each layer, named by whether it has a window."""
    windows = traits.windows(f, layers) if traits.windows else [None] * layers
    by_window = {w: grouped_attention(f, traits, window=w) for w in set(windows)}
    return [("local" if w else "global", by_window[w]) for w in windows]


def layers_of(f: Fields, traits: Traits) -> Layers:
    """The layers of a Llama-like decoder."""
    count = depth(f)
    return zipped(windowed(f, traits, count), [("dense", feed_forward(f, traits))] * count, **around(f, traits))


def decoder(f: Fields, traits: Traits) -> dict[str, Any]:
    """The stack, norms, positions and head of a Llama-like decoder."""
    heed(f, traits)
    positions = f.count(traits.positions[0], "max_position_embeddings") + traits.positions[1] if traits.positions else 0
    return {
        "hidden": width(f), "layers": layers_of(f, traits), "norms": traits.final_norms, "norm_bias": traits.norm_bias,
        "head_bias": switched(f, traits.head_bias), "positions": positions,
    }  # fmt: skip
