"""GGUF metadata and tensor shapes to the field names of published configurations, architecture by architecture.

Knows how GGUF files spell things; the shapes themselves are the configuration readers'. Biases, tied heads and which layers
hold experts are read off the tensor table, because the metadata does not state them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from inferplan.errors import SpecError, Unsupported
from inferplan.readers.gguf import Gguf, architecture_config
from inferplan.readers.huggingface.fields import LARGEST

MAX_LAYERS = 10_000
Config = dict[str, Any]
_MISSING: Any = object()


class Header:
    """Checked access to what a GGUF file says of its model: hyperparameters by plain name, tensors by role."""

    def __init__(self, gguf: Gguf) -> None:
        self.gguf, self.file = gguf, gguf.path
        self.keys = architecture_config(gguf)
        self.arch = str(self.keys["architecture"])
        self.roles = {t.name.split(".", 2)[2] if t.name.startswith("blk.") and t.name.count(".") > 1 else t.name for t in gguf.tensors}
        self.shapes = {t.name: t.shape for t in gguf.tensors}

    def refuse(self, key: str, rule: str, value: Any = None) -> SpecError:
        """The error for a key of this architecture."""
        shown = value if isinstance(value, (str, int, float)) or value is None else type(value).__name__
        return SpecError(rule, file=self.file, field=f"{self.arch}.{key}", value=shown)

    def number(self, key: str, default: Any = _MISSING, *, least: int = 1) -> Any:
        """A whole number; of a per-layer list of one value (zeros aside), that value."""
        value = self.keys.get(key)
        if isinstance(value, list):
            kinds = {v for v in value if v}
            if len(kinds) > 1:
                raise self.refuse(key, "differs between layers, which is not understood for this architecture")
            value = next(iter(kinds), 0)
        if value is None or (value == 0 and default is not _MISSING):
            if default is _MISSING:
                raise self.refuse(key, "is required and missing")
            return default
        return self.checked(key, value, least)

    def checked(self, key: str, value: Any, least: int = 1) -> int:
        """The value, once it is a whole number in bounds."""
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self.refuse(key, f"must be a whole number between {least} and {LARGEST:,}", value)
        return value

    def per_layer(self, key: str) -> list[int]:
        """One whole number for each layer, the same for all where the file gives one."""
        value = self.keys.get(key)
        if isinstance(value, list):
            if len(value) < self.layers:
                raise self.refuse(key, f"has {len(value)} values for {self.layers} layers")
            return [self.checked(key, int(v) if isinstance(v, bool) else v, 0) for v in value[: self.layers]]
        return [self.number(key, least=0)] * self.layers

    @cached_property
    def nextn(self) -> int:
        """Prediction layers, which stand after the others among the blocks."""
        return int(self.number("nextn_predict_layers", 0))

    @cached_property
    def layers(self) -> int:
        """Layers of the model, prediction layers left out."""
        count = int(self.number("block_count"))
        if count > MAX_LAYERS or count <= self.nextn:
            raise self.refuse("block_count", f"must be above the {self.nextn} prediction layers and at most {MAX_LAYERS:,}", count)
        return count - self.nextn

    def has(self, role: str) -> bool:
        """Whether any layer (or the file) has a tensor of this role."""
        return role in self.roles

    def where(self, role: str) -> list[bool]:
        """Which layers have a tensor of this role."""
        return [f"blk.{i}.{role}" in self.shapes for i in range(self.layers)]

    def rows(self, *roles: str) -> int | None:
        """Outputs of the first tensor of any of these roles."""
        for role in roles:
            for name in (role, *(f"blk.{i}.{role}" for i in range(self.layers))):
                if name in self.shapes:
                    return self.shapes[name][-2] if len(self.shapes[name]) > 1 else self.shapes[name][0]
        return None

    @property
    def vocabulary(self) -> int:
        """Rows of the token table, else the stated size, else the tokens of the tokenizer."""
        return self.rows("token_embd.weight") or int(self.number("vocab_size"))

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return int(self.number("embedding_length"))

    @property
    def heads(self) -> int:
        """Query heads."""
        return int(self.number("attention.head_count"))

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return int(self.number("attention.key_length", 0)) or self.hidden // self.heads

    @property
    def shared_width(self) -> int | None:
        """Width of the shared expert: stated, or that of its tensors; None where there is none."""
        return self.number("expert_shared_feed_forward_length", None) or self.rows("ffn_up_shexp.weight")

    @property
    def biased(self) -> bool:
        """Whether the query projection has a bias."""
        return self.has("attn_q.bias") or self.has("attn_qkv.bias")

    def windows(self, period: int | None, *, sliding: str = "sliding_attention") -> list[str]:
        """Each layer's attention type: as the file lists, else all but the last of each `period` sliding (None: all)."""
        pattern = self.keys.get("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            local = [bool(v) for v in self.per_layer("attention.sliding_window_pattern")]
        else:
            every = self.checked("attention.sliding_window_pattern", pattern, 0) if pattern is not None else period
            local = [every in (None, 0) or (i + 1) % int(every or 1) != 0 for i in range(self.layers)]
        local = local if self.number("attention.sliding_window", 0) else [False] * self.layers
        return [sliding if s else "full_attention" for s in local]


def common(h: Header, *, varied: bool = False) -> Config:
    """The fields that nearly every family shares; with `varied` the family itself says how many heads each layer has."""
    found = {
        "hidden_size": h.hidden, "num_hidden_layers": h.layers, "vocab_size": h.vocabulary,
        "tie_word_embeddings": not h.has("output.weight"),
        "max_position_embeddings": h.number("context_length", None), "sliding_window": h.number("attention.sliding_window", None),
    }  # fmt: skip
    if not varied and "attention.head_count" in h.keys and any(h.per_layer("attention.head_count")):
        found |= {
            "num_attention_heads": h.heads,
            "head_dim": h.head_dim,
            "num_key_value_heads": h.number("attention.head_count_kv", h.heads),
        }
    if not isinstance(h.keys.get("feed_forward_length"), list):
        found["intermediate_size"] = h.number("feed_forward_length", None)
    return found


def moe(h: Header, *, apart: bool = False) -> Config:
    """The fields of a mixture of experts; `apart` where a shared expert has a width of its own and is not counted in routed ones."""
    inner = h.number("expert_feed_forward_length", None) or h.rows("ffn_up_exps.weight")
    first = next((i for i, sparse in enumerate(h.where("ffn_gate_inp.weight")) if sparse), 0)
    return {
        "num_experts": h.number("expert_count"), "num_experts_per_tok": h.number("expert_used_count"), "moe_intermediate_size": inner,
        "n_shared_experts": None if apart else _shared(h, inner), "first_k_dense_replace": h.number("leading_dense_block_count", first),
        "moe_layer_freq": 1,
        "n_routed_experts": h.number("expert_count"),
    }  # fmt: skip


def _shared(h: Header, inner: int | None) -> int:
    """Shared experts, as so many of the routed width: the table says where the metadata does not."""
    rows = h.rows("ffn_up_shexp.weight")
    if rows is None or not inner:
        return 0
    if rows % inner:
        raise h.refuse("expert_shared_count", f"does not follow: a shared expert of {rows} is not a multiple of the experts' {inner}")
    return rows // inner


Translator = Callable[[Header], Config]


def plain(model_type: str, period: int | None = 1, **flags: Any) -> Translator:
    """A family whose fields are the common ones; a flag that is a text is on where a tensor of that role exists."""

    def translate(h: Header) -> Config:
        on = {name: h.has(value) if isinstance(value, str) else value for name, value in flags.items()}
        return {"model_type": model_type, **common(h), "layer_types": h.windows(period), **on}

    return translate


def mixture(model_type: str, period: int | None = 1, **flags: Any) -> Translator:
    """A family of experts whose fields are the common ones."""
    base = plain(model_type, period, **flags)
    return lambda h: {**base(h), **moe(h)}


def llama(h: Header) -> Config:
    """Llama and what is stored as Llama: Mistral, Yi, Mixtral, and models with biases on q, k and v alone."""
    found = {**common(h), "mlp_bias": h.has("ffn_down.bias"), "sliding_window": None}
    if h.number("expert_count", 0):
        inner = h.number("expert_feed_forward_length", None) or found["intermediate_size"]
        return {**found, **moe(h), "model_type": "mixtral", "intermediate_size": inner}
    if h.biased and not h.has("attn_output.bias"):
        return {**found, "model_type": "qwen2", "use_sliding_window": False}
    return {**found, "model_type": "llama", "attention_bias": h.biased}


def qwen2_moe(h: Header) -> Config:
    """Qwen 2 MoE: a gated shared expert of its own width."""
    shared = h.shared_width
    more: Config = {
        "shared_expert_intermediate_size": shared,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "qkv_bias": h.biased,
        "use_sliding_window": False,
    }
    return {**common(h), **moe(h, apart=True), **more, "model_type": "qwen2_moe"}


def qwen3_moe(h: Header) -> Config:
    """Qwen 3 MoE: experts on the layers that have a router."""
    dense = [i for i, sparse in enumerate(h.where("ffn_gate_inp.weight")) if not sparse]
    more = {"decoder_sparse_step": 1, "mlp_only_layers": dense, "attention_bias": h.biased, "use_sliding_window": False}
    return {**common(h), **moe(h), **more, "model_type": "qwen3_moe"}


def qwen_next(model_type: str) -> Translator:
    """Qwen3-Next and Qwen 3.5: gated delta layers where there is a convolution."""

    def translate(h: Header) -> Config:
        heads, inner = h.number("ssm.time_step_rank"), h.number("ssm.inner_size")
        kinds = ["linear_attention" if c else "full_attention" for c in h.where("ssm_conv1d.weight")]
        delta = {
            "linear_num_key_heads": h.number("ssm.group_count"), "linear_num_value_heads": heads,
            "linear_key_head_dim": h.number("ssm.state_size"),
            "linear_value_head_dim": inner // heads, "linear_conv_kernel_dim": h.number("ssm.conv_kernel"), "layer_types": kinds,
            "attn_output_gate": True, "attention_bias": h.biased, "mtp_num_hidden_layers": h.nextn,
        }  # fmt: skip
        if not h.number("expert_count", 0):
            return {**common(h), **delta, "model_type": model_type, "num_experts": 0}
        shared = h.shared_width
        more: Config = {"shared_expert_intermediate_size": shared, "decoder_sparse_step": 1, "mlp_only_layers": []}
        return {**common(h), **moe(h, apart=True), **delta, **more, "model_type": model_type}

    return translate


def gemma3n(h: Header) -> Config:
    """Gemma 3n: per-layer embeddings, several residual streams, caches shared by the last layers."""
    widths = h.per_layer("feed_forward_length")
    return {
        **common(h), "model_type": "gemma3n_text", "intermediate_size": widths, "layer_types": h.windows(5), "attention_bias": h.biased,
        "altup_num_inputs": h.number("altup.num_inputs"), "laurel_rank": h.rows("laurel_l.weight"),
        "vocab_size_per_layer_input": h.rows("per_layer_token_embd.weight"),
        "hidden_size_per_layer_input": h.number("embedding_length_per_layer_input"),
        "num_kv_shared_layers": h.number("attention.shared_kv_layers", 0),
    }  # fmt: skip


def gemma4(h: Header) -> Config:
    """Gemma 4: wide global heads, shared caches, and experts beside a dense block where there is a router."""
    kinds, kv = h.windows(6), h.per_layer("attention.head_count_kv")
    shared = h.number("attention.shared_kv_layers", 0)
    local, whole = ([n for n, t in zip(kv, kinds, strict=True) if (t == "full_attention") == full] for full in (False, True))
    widths = h.per_layer("feed_forward_length")
    same = [i for i, t in enumerate(kinds) if t == "full_attention" and i < h.layers - shared and f"blk.{i}.attn_v.weight" not in h.shapes]
    experts = moe(h) if h.number("expert_count", 0) else {}
    return {
        **common(h, varied=True), "model_type": "gemma4_text", "num_attention_heads": h.heads, "layer_types": kinds,
        "attention_bias": h.biased,
        "head_dim": h.number("attention.key_length_swa", h.head_dim),
        "num_key_value_heads": local[0] if local else whole[0], "num_global_key_value_heads": whole[0] if whole else None,
        "attention_k_eq_v": bool(same),
        "global_head_dim": h.head_dim, "num_kv_shared_layers": shared, "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": h.number("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": h.rows("per_layer_token_embd.weight"),
        "enable_moe_block": bool(experts), **experts,
    }  # fmt: skip


def latent(h: Header) -> Config:
    """The fields of latent attention; files made for absorbed kernels give the expanded head widths under `_mla`."""
    rope = h.number("rope.dimension_count")
    q, v = (h.number(f"attention.{k}_length_mla", None) or h.number(f"attention.{k}_length") for k in ("key", "value"))
    heads = {"num_attention_heads": h.heads, "num_key_value_heads": h.heads, "head_dim": None}
    rank = h.number("attention.q_lora_rank", None) if h.has("attn_q_a.weight") else None
    return {
        **heads,
        "q_lora_rank": rank,
        "kv_lora_rank": h.number("attention.kv_lora_rank"),
        "qk_nope_head_dim": q - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": v,
    }


def deepseek2(h: Header) -> Config:
    """DeepSeek-V2, V3 and Kimi-K2; V3 and its descendants have a correction of the router."""
    kind = "deepseek_v3" if h.has("exp_probs_b.bias") else "deepseek_v2"
    experts = moe(h) if h.number("expert_count", 0) else {"first_k_dense_replace": h.layers, "n_routed_experts": None}
    return {**common(h), **latent(h), **experts, "model_type": kind, "attention_bias": False, "num_nextn_predict_layers": h.nextn}


def glm_dsa(h: Header) -> Config:
    """GLM-5: latent attention with an indexer."""
    index = {"index_n_heads": "head_count", "index_head_dim": "key_length", "index_topk": "top_k"}
    found = {field: h.number(f"attention.indexer.{key}") for field, key in index.items()}
    return {**deepseek2(h), **found, "model_type": "glm_moe_dsa"}


def kimi_linear(h: Header) -> Config:
    """Kimi-Linear: delta layers with latent attention where there is a latent."""
    dim, attends = h.number("kda.head_dim"), h.where("attn_kv_a_mqa.weight")
    linear = {
        "num_heads": h.heads, "head_dim": dim, "short_conv_kernel_size": h.number("ssm.conv_kernel"),
        "full_attn_layers": [i + 1 for i, a in enumerate(attends) if a],
    }  # fmt: skip
    return {**common(h), **latent(h), **moe(h), "linear_attn_config": linear, "model_type": "kimi_linear"}


def minicpm3(h: Header) -> Config:
    """MiniCPM3: dense latent attention."""
    return {**common(h), **latent(h), "model_type": "minicpm3", "attention_bias": False, "mlp_bias": False}


def chatglm(h: Header) -> Config:
    """ChatGLM: grouped keys, one fused projection."""
    kv = h.number("attention.head_count_kv", h.heads)
    return {
        "model_type": "chatglm", "hidden_size": h.hidden, "num_layers": h.layers, "num_attention_heads": h.heads,
        "kv_channels": h.head_dim,
        "multi_query_attention": True, "multi_query_group_num": kv, "ffn_hidden_size": h.number("feed_forward_length"),
        "add_qkv_bias": h.biased,
        "add_bias_linear": h.has("ffn_down.bias"), "padded_vocab_size": h.vocabulary, "seq_length": h.number("context_length", None),
        "post_layer_norm": True, "tie_word_embeddings": not h.has("output.weight"),
    }  # fmt: skip


def glm4_moe(h: Header) -> Config:
    """GLM-4.5: head norms where there are any."""
    more = {"attention_bias": h.biased, "use_qk_norm": h.has("attn_q_norm.weight"), "num_nextn_predict_layers": h.nextn}
    return {**common(h), **moe(h), **more, "model_type": "glm4_moe"}


def gpt_oss(h: Header) -> Config:
    """gpt-oss: windows on every other layer."""
    found = {**common(h), **moe(h), "model_type": "gpt_oss", "attention_bias": h.biased, "layer_types": h.windows(2)}
    return {**found, "intermediate_size": found["moe_intermediate_size"], "num_local_experts": found["num_experts"]}


def llama4(h: Header) -> Config:
    """Llama 4: chunks except on every fourth layer; the dense layers' width is the file's, the experts' its own."""
    sparse = [i for i, s in enumerate(h.where("ffn_gate_inp.weight")) if s]
    inner = h.number("expert_feed_forward_length")
    return {
        **common(h), **moe(h, apart=True), "model_type": "llama4_text", "intermediate_size": inner,
        "intermediate_size_mlp": h.number("feed_forward_length", inner),
        "moe_layers": sparse, "attention_chunk_size": h.number("attention.chunk_size", h.number("attention.sliding_window", 8192)),
        "no_rope_layers": [], "no_rope_layer_interval": 4, "attention_bias": h.biased,
    }  # fmt: skip


def granite_moe(h: Header) -> Config:
    """Granite 3 MoE, with a shared block where there is one."""
    shared = h.shared_width
    kind = "granitemoeshared" if shared else "granitemoe"
    found = {**common(h), **moe(h, apart=True), "attention_bias": h.biased, "shared_intermediate_size": shared, "model_type": kind}
    return {**found, "intermediate_size": found["moe_intermediate_size"]}


def mamba2_fields(h: Header) -> Config:
    """Mamba-2 by the `mamba_` field names."""
    heads, inner = h.number("ssm.time_step_rank"), h.number("ssm.inner_size")
    return {
        "mamba_n_heads": heads, "mamba_d_ssm": inner, "mamba_d_head": inner // heads, "mamba_n_groups": h.number("ssm.group_count"),
        "mamba_d_state": h.number("ssm.state_size"), "mamba_d_conv": h.number("ssm.conv_kernel"), "mamba_proj_bias": h.has("ssm_in.bias"),
        "mamba_conv_bias": h.has("ssm_conv1d.bias"), "mamba_rms_norm": h.has("ssm_norm.weight"),
    }  # fmt: skip


def kinds(h: Header, recurrent: str = "ssm_in.weight") -> list[str]:
    """Each layer's kind by whether it has a recurrent projection."""
    return ["mamba" if m else "attention" for m in h.where(recurrent)]


def granite_hybrid(h: Header) -> Config:
    """Granite 4: the shared block alone where there are no experts."""
    count = h.number("expert_count", 0)
    shared = h.number("expert_shared_feed_forward_length", None) or h.rows("ffn_up_shexp.weight", "ffn_up.weight")
    if not shared:
        raise h.refuse("expert_shared_feed_forward_length", "is required and missing, and no tensor tells it")
    experts = moe(h, apart=True) if count else {}
    inner = experts.get("moe_intermediate_size")
    more = {
        "num_local_experts": count,
        "shared_intermediate_size": shared,
        "layer_types": kinds(h),
        "attention_bias": h.biased,
        "intermediate_size": inner,
    }
    return {**common(h), **experts, **mamba2_fields(h), **more, "model_type": "granitemoehybrid"}


def falcon_h1(h: Header) -> Config:
    """Falcon-H1: attention and Mamba-2 side by side."""
    return {**common(h), **mamba2_fields(h), "model_type": "falcon_h1", "attention_bias": h.biased, "mlp_bias": h.has("ffn_down.bias")}


def nemotron_h(h: Header) -> Config:
    """Nemotron-H and Nemotron 3: one block a layer, told apart by its tensors."""
    parts = [("M", h.where("ssm_in.weight")), ("*", h.where("attn_q.weight")), ("E", h.where("ffn_gate_inp.weight"))]
    letters = ["".join(c for c, at in parts if at[i]) or "-" for i in range(h.layers)]
    heads = h.number("ssm.time_step_rank")
    found = {
        **common(h), "model_type": "nemotron_h", "hybrid_override_pattern": "".join(letters), "mamba_num_heads": heads,
        "mamba_head_dim": h.number("ssm.inner_size") // heads, "n_groups": h.number("ssm.group_count"),
        "ssm_state_size": h.number("ssm.state_size"),
        "conv_kernel": h.number("ssm.conv_kernel"), "use_bias": h.has("ssm_in.bias"), "use_conv_bias": h.has("ssm_conv1d.bias"),
        "attention_bias": h.biased, "mlp_bias": h.has("ffn_up.bias"),
        "intermediate_size": h.rows("ffn_up.weight") or h.rows("ffn_up_exps.weight"),
    }  # fmt: skip
    if not h.number("expert_count", 0):
        return found
    shared = h.shared_width or 0
    sizes = {
        "n_routed_experts": h.number("expert_count"),
        "num_experts_per_tok": h.number("expert_used_count"),
        "n_shared_experts": int(shared > 0),
    }
    inner, narrow = h.rows("ffn_up_exps.weight"), h.number("moe_latent_size", None)
    return {**found, **sizes, "moe_intermediate_size": inner, "moe_shared_expert_intermediate_size": shared or 1, "moe_latent_size": narrow}


def mamba(h: Header) -> Config:
    """Mamba and FalconMamba."""
    kind = "falcon_mamba" if h.keys.get("ssm.dt_b_c_rms") else "mamba"
    return {
        **common(h), "model_type": kind, "intermediate_size": h.number("ssm.inner_size"), "state_size": h.number("ssm.state_size"),
        "conv_kernel": h.number("ssm.conv_kernel"), "time_step_rank": h.number("ssm.time_step_rank"), "use_bias": h.has("ssm_in.bias"),
        "use_conv_bias": h.has("ssm_conv1d.bias"),
    }  # fmt: skip


def mamba2(h: Header) -> Config:
    """Mamba-2 alone."""
    heads = h.number("ssm.time_step_rank")
    return {
        **common(h), "model_type": "mamba2", "num_heads": heads, "head_dim": h.number("ssm.inner_size") // heads,
        "n_groups": h.number("ssm.group_count"),
        "state_size": h.number("ssm.state_size"), "conv_kernel": h.number("ssm.conv_kernel"), "use_bias": h.has("ssm_in.bias"),
        "use_conv_bias": h.has("ssm_conv1d.bias"),
    }  # fmt: skip


def _period(h: Header, role: str, what: str) -> tuple[int, int]:
    """(period, offset) of the layers that have a tensor of this role."""
    at = [i for i, found in enumerate(h.where(role)) if found]
    if not at:
        return h.layers, h.layers
    step = at[1] - at[0] if len(at) > 1 else h.layers
    if at != list(range(at[0], h.layers, step)):
        raise h.refuse(what, "stands on layers at uneven distances, which is not understood for this architecture")
    return step, at[0]


def jamba(h: Header) -> Config:
    """Jamba: Mamba-1 with inner norms; attention and experts by their tensors."""
    period, offset = _period(h, "ffn_gate_inp.weight", "expert_count")
    experts = moe(h) if h.number("expert_count", 0) else {"num_experts": 1}
    return {
        **common(h), **experts, "model_type": "jamba", "layers_block_type": kinds(h), "expert_layer_period": period,
        "expert_layer_offset": offset,
        "attn_layer_period": h.layers, "attn_layer_offset": 0, "mamba_expand": h.number("ssm.inner_size") // h.hidden,
        "mamba_d_state": h.number("ssm.state_size"), "mamba_d_conv": h.number("ssm.conv_kernel"),
        "mamba_dt_rank": h.number("ssm.time_step_rank"),
        "mamba_proj_bias": h.has("ssm_in.bias"), "mamba_conv_bias": h.has("ssm_conv1d.bias"),
    }  # fmt: skip


def lfm2(h: Header) -> Config:
    """LFM2: short convolutions; the mixture variant has dense layers first."""
    types = ["full_attention" if a else "conv" for a in h.where("attn_q.weight")]
    found = {
        **common(h),
        "model_type": "lfm2",
        "conv_L_cache": h.number("shortconv.l_cache"),
        "conv_bias": h.has("shortconv.conv.bias"),
        "layer_types": types,
    }
    found |= {"block_auto_adjust_ff_dim": False, "block_ff_dim": h.rows("ffn_up.weight")}
    if not h.number("expert_count", 0):
        return found
    dense = h.number("leading_dense_block_count", 0)
    bias = h.has("exp_probs_b.bias")
    return {
        **found,
        **moe(h),
        "model_type": "lfm2_moe",
        "num_dense_layers": dense,
        "use_expert_bias": bias,
        "intermediate_size": h.rows("ffn_up.weight") or 1,
    }


def minimax_m2(h: Header) -> Config:
    """MiniMax-M2: experts everywhere, whole-projection norms."""
    inner = h.number("expert_feed_forward_length", None) or h.number("feed_forward_length")
    more = {"use_qk_norm": h.has("attn_q_norm.weight"), "use_routing_bias": h.has("exp_probs_b.bias"), "intermediate_size": inner}
    return {**common(h), **moe(h), **more, "model_type": "minimax_m2"}


def hunyuan_moe(h: Header) -> Config:
    """Hunyuan MoE: the shared expert as wide as the stated block."""
    shared = h.shared_width
    return {
        **common(h),
        **moe(h, apart=True),
        "model_type": "hunyuan_v1_moe",
        "intermediate_size": shared,
        "num_shared_expert": 1,
        "attention_bias": h.biased,
    }


def ernie_moe(h: Header) -> Config:
    """ERNIE 4.5: experts on the layers that have a router, shared ones as one block."""
    experts, sparse = moe(h), [i for i, s in enumerate(h.where("ffn_gate_inp.weight")) if s]
    step = sparse[1] - sparse[0] if len(sparse) > 1 else 1
    return {
        **common(h), **experts, "model_type": "ernie4_5_moe", "moe_num_experts": experts["num_experts"],
        "moe_k": experts["num_experts_per_tok"],
        "moe_num_shared_experts": experts["n_shared_experts"], "moe_layer_interval": step,
        "moe_layer_start_index": sparse[0] if sparse else 0,
        "moe_layer_end_index": sparse[-1] if sparse else 0, "use_bias": h.biased,
    }  # fmt: skip


def stablelm(h: Header) -> Config:
    """StableLM: one norm a layer where it runs in parallel."""
    more = {"use_qkv_bias": h.biased, "use_parallel_residual": not h.has("ffn_norm.weight"), "qk_layernorm": h.has("attn_q_norm.weight")}
    return {**common(h), **more, "model_type": "stablelm"}


def falcon(h: Header) -> Config:
    """Falcon: two norms before parallel branches mark the grouped architecture of 40B and 180B."""
    kv = h.number("attention.head_count_kv", h.heads)
    new = h.has("attn_norm_2.weight")
    more = {
        "new_decoder_architecture": new,
        "num_kv_heads": kv,
        "multi_query": kv == 1,
        "parallel_attn": True,
        "bias": h.biased,
        "num_ln_in_parallel_attn": 2 if new else None,
    }
    return {**common(h), **more, "model_type": "falcon", "ffn_hidden_size": h.number("feed_forward_length", 4 * h.hidden)}


def mpt(h: Header) -> Config:
    """MPT: no biases, ALiBi."""
    kv = h.number("attention.head_count_kv", h.heads)
    inner = h.number("feed_forward_length", 4 * h.hidden)
    attention = {"kv_n_heads": kv, "alibi": not h.has("position_embd.weight"), "rope": False}
    more = {
        "d_model": h.hidden,
        "n_layers": h.layers,
        "n_heads": h.heads,
        "expansion_ratio": inner // h.hidden,
        "attn_config": attention,
        "no_bias": not h.biased,
    }
    return {**common(h), **more, "model_type": "mpt", "max_seq_len": h.number("context_length")}


def bloom(h: Header) -> Config:
    """BLOOM: biases everywhere and a norm on the embedding."""
    return {**common(h), "model_type": "bloom", "n_layer": h.layers, "n_head": h.heads}


def learned(model_type: str, **more: Any) -> Translator:
    """GPT-2 and its kin: learned positions."""

    def translate(h: Header) -> Config:
        positions = h.rows("position_embd.weight") or h.number("context_length")
        sizes = {
            "n_embd": h.hidden,
            "n_layer": h.layers,
            "n_head": h.heads,
            "n_positions": positions,
            "n_inner": h.number("feed_forward_length", 4 * h.hidden),
        }
        return {**common(h), **sizes, **more, "model_type": model_type, "multi_query": h.number("attention.head_count_kv", h.heads) == 1}

    return translate


def olmo2(h: Header) -> Config:
    """OLMo 2, and OLMo 3 where there is a window."""
    kind = "olmo3" if h.number("attention.sliding_window", 0) else "olmo2"
    return {**common(h), "model_type": kind, "attention_bias": h.biased, "layer_types": h.windows(4)}


def dbrx(h: Header) -> Config:
    """DBRX: nested settings."""
    inner = {
        "ffn_hidden_size": h.number("feed_forward_length"),
        "moe_num_experts": h.number("expert_count"),
        "moe_top_k": h.number("expert_used_count"),
    }
    attention = {"kv_n_heads": h.number("attention.head_count_kv")}
    return {
        **common(h),
        "model_type": "dbrx",
        "d_model": h.hidden,
        "n_layers": h.layers,
        "n_heads": h.heads,
        "ffn_config": inner,
        "attn_config": attention,
    }


def bailing(model_type: str) -> Translator:
    """Ling: shared experts as so many of the routed width."""

    def translate(h: Header) -> Config:
        experts = moe(h)
        more = {
            "use_qkv_bias": h.biased, "use_bias": False, "use_qk_norm": h.has("attn_q_norm.weight"), "num_nextn_predict_layers": h.nextn,
            "moe_router_enable_expert_bias": h.has("exp_probs_b.bias"), "num_shared_experts": experts["n_shared_experts"],
        }  # fmt: skip
        return {**common(h), **experts, **more, "model_type": model_type}

    return translate


def afmoe(h: Header) -> Config:
    """AFMoE: output gates, four norms, dense layers first."""
    experts = moe(h)
    more = {
        "num_shared_experts": experts["n_shared_experts"],
        "num_dense_layers": experts["first_k_dense_replace"],
        "attention_bias": h.biased,
    }
    return {**common(h), **experts, **more, "model_type": "afmoe", "layer_types": h.windows(4)}


def deci(h: Header) -> Config:
    """Nemotron-NAS: the attention groups and feed-forward width of each layer."""
    heads, kv, widths = (h.per_layer(k) for k in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"))
    most, blocks = max(heads), []
    for n, groups, inner in zip(heads, kv, widths, strict=True):
        linear = n > 0 and groups == 0
        attention: Config = {"no_op": n == 0, "replace_with_linear": linear, "n_heads_in_group": most // groups if groups else None}
        ffn: Config = {"no_op": inner == 0, "ffn_mult": 3 * (inner - 0.5) / (2 * h.hidden) if inner else None}
        blocks.append({"attention": attention, "ffn": ffn})
    return {
        **common(h, varied=True),
        "model_type": "deci",
        "num_attention_heads": most,
        "head_dim": h.number("attention.key_length", None),
        "block_configs": blocks,
    }


def mimo2(h: Header) -> Config:
    """MiMo-V2: windowed layers with key-value heads of their own, values narrower than keys."""
    types, kv = h.windows(6), h.per_layer("attention.head_count_kv")
    local, whole = ([n for n, t in zip(kv, types, strict=True) if (t == "full_attention") == full] for full in (False, True))
    sinks = h.where("attn_sinks.weight")
    on = {full: any(s for s, t in zip(sinks, types, strict=True) if (t == "full_attention") == full) for full in (False, True)}
    return {
        **common(h, varied=True), **moe(h), "model_type": "mimo_v2_flash", "num_attention_heads": h.heads, "head_dim": h.head_dim,
        "num_key_value_heads": whole[0],
        "swa_num_key_value_heads": local[0] if local else whole[0],
        "v_head_dim": h.number("attention.value_length"), "hybrid_layer_pattern": [int(t != "full_attention") for t in types],
        "add_full_attention_sink_bias": on[True], "add_swa_attention_sink_bias": on[False], "attention_bias": h.biased,
        "moe_layer_freq": [int(s) for s in h.where("ffn_gate_inp.weight")],
    }  # fmt: skip


_BIAS: Config = {"attention_bias": "attn_q.bias"}
_NO_WINDOW: Config = {"use_sliding_window": False}
TRANSLATORS: dict[str, Translator] = {
    "llama": llama, "mistral3": llama, "mistral": llama, "deci": deci,
    "baichuan": plain("baichuan"), "xverse": plain("llama"), "orion": plain("orion", **_BIAS),
    "minicpm": plain("minicpm", num_experts=None),
    "internlm2": plain("internlm2", bias="attn_q.bias"), "exaone": plain("exaone", **_BIAS), "arcee": plain("arcee", **_BIAS),
    "apertus": plain("apertus", **_BIAS), "smollm3": plain("smollm3", **_BIAS, **_NO_WINDOW), "granite": plain("granite", **_BIAS),
    "hunyuan-dense": plain("hunyuan_v1_dense", **_BIAS), "ernie4_5": plain("ernie4_5", use_bias="attn_q.bias"),
    "seed_oss": plain("seed_oss", **_BIAS, attention_out_bias="attn_output.bias"),
    "nemotron": plain("nemotron", **_BIAS, mlp_bias="ffn_up.bias"),
    "jais2": plain("jais2", **_BIAS, mlp_bias="ffn_up.bias"),
    "qwen": plain("qwen"), "qwen2": plain("qwen2", **_NO_WINDOW), "qwen2vl": plain("qwen2_vl_text", **_NO_WINDOW),
    "qwen3": plain("qwen3", **_BIAS, **_NO_WINDOW), "qwen3vl": plain("qwen3_vl_text", **_BIAS),
    "qwen2moe": qwen2_moe, "qwen3moe": qwen3_moe, "qwen3vlmoe": qwen3_moe,
    "qwen3next": qwen_next("qwen3_next"), "qwen35": qwen_next("qwen3_5_text"), "qwen35moe": qwen_next("qwen3_5_moe_text"),
    "gemma": plain("gemma", **_BIAS), "gemma2": plain("gemma2", 2, **_BIAS), "gemma3": plain("gemma3_text", 6, **_BIAS),
    "gemma3n": gemma3n, "gemma4": gemma4,
    "phi2": plain("phi", qk_layernorm="attn_q_norm.weight"), "phi3": plain("phi3", None),
    "phimoe": lambda h: {**mixture("phimoe", None, attention_bias="attn_q.bias", lm_head_bias="output.bias")(h),
    "num_local_experts": h.number("expert_count")},
    "starcoder2": plain("starcoder2", None, use_bias="attn_q.bias"), "starcoder": learned("gpt_bigcode"), "gpt2": learned("gpt2"),
    "gptneox": plain("gpt_neox", attention_bias="attn_qkv.bias"), "gptj": plain("gptj"),
    "falcon": falcon, "mpt": mpt, "bloom": bloom, "stablelm": stablelm, "dbrx": dbrx,
    "command-r": plain("cohere", **_BIAS, use_qk_norm="attn_q_norm.weight"), "cohere2": plain("cohere2", 4, **_BIAS),
    "olmo": plain("olmo", **_BIAS), "olmo2": olmo2, "olmoe": lambda h: {**mixture("olmoe", **_BIAS)(h),
    "intermediate_size": h.rows("ffn_up_exps.weight")},
    "deepseek": mixture("deepseek", **_BIAS), "deepseek2": deepseek2, "mistral4": deepseek2, "glm-dsa": glm_dsa,
    "kimi-linear": kimi_linear,
    "minicpm3": minicpm3, "chatglm": chatglm, "glm4": plain("glm4", attention_bias="attn_q.bias"), "glm4moe": glm4_moe,
    "gpt-oss": gpt_oss, "llama4": llama4, "granitemoe": granite_moe, "granitehybrid": granite_hybrid, "falcon-h1": falcon_h1,
    "jamba": jamba, "mamba": mamba, "mamba2": mamba2, "nemotron_h": nemotron_h, "nemotron_h_moe": nemotron_h, "lfm2": lfm2,
    "lfm2moe": lfm2,
    "minimax-m2": minimax_m2, "hunyuan-moe": hunyuan_moe, "ernie4_5-moe": ernie_moe,
    "exaone4": plain("exaone4", 4), "exaone-moe": lambda h: {**mixture("exaone_moe", 4)(h),
    "num_shared_experts": moe(h)["n_shared_experts"]},
    "dots1": mixture("dots1", **_BIAS), "bailingmoe": bailing("bailing_moe"), "bailingmoe2": bailing("bailing_moe_v2"), "afmoe": afmoe,
    "mimo2": mimo2,
}  # fmt: skip


def published(h: Header) -> Config:
    """The configuration that a file's metadata and shapes amount to; Unsupported by name where its architecture is not known."""
    if h.arch in TRANSLATORS:
        return {name: value for name, value in TRANSLATORS[h.arch](h).items() if value is not None or name in ("q_lora_rank", "head_dim")}
    near = difflib.get_close_matches(h.arch, TRANSLATORS, n=3)
    hint = f"; known ones near it: {', '.join(near)}" if near else ""
    raise Unsupported(f"{h.file}: GGUF architecture '{h.arch[:60]}' is not understood: its layers have no reader here{hint}")
