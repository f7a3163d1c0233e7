"""Recurrent, latent and hybrid decoders from their configurations: order of layers, states and caches worked by hand, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from inferplan.errors import InferplanError, SpecError, Unsupported
from inferplan.readers.huggingface.config import read_config
from inferplan.specs.counts import counts
from inferplan.specs.mixers import Attention, LatentAttention
from inferplan.specs.model import Model

BASE: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip
LATENT: dict[str, Any] = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
MIXTURE: dict[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 1}
INDEX: dict[str, Any] = {"index_n_heads": 2, "index_head_dim": 128, "index_topk": 16}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4,
    "moe_shared_expert_intermediate_size": 40,
}  # fmt: skip
ZAMBA2: dict[str, Any] = {
    "n_mamba_heads": 8, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_ngroups": 1, "adapter_rank": 4,
    "num_mem_blocks": 2,
    "num_key_value_heads": 4,
}  # fmt: skip


def read(model_type: str, *parts: dict[str, Any], **more: Any) -> Model:
    """A model of a small configuration."""
    data: dict[str, Any] = {"model_type": model_type}
    for part in (BASE, *parts, more):
        data |= part
    return read_config({k: v for k, v in data.items() if v != "absent"})


def kept(model: Model, kind: str) -> list[tuple[int, int, int | None]]:
    """Layers, elements per entry and window of each cache entry of a kind."""
    return [(n, e.k_elements + e.v_elements, e.window) for n, e in model.cache() if e.kind == kind]


def states(model: Model) -> dict[str, tuple[int, str | None]]:
    """Elements and dtype of the states of the model's first recurrent layer."""
    entry = next(e for _, e in model.cache() if e.states)
    return {s.name: (s.elements, s.dtype) for s in entry.states}


def test_nemotron_order_states_and_prediction() -> None:
    """Letters name the blocks; a Mamba-2 state is heads x head_dim x state, its convolution also carries B and C of two groups."""
    after = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
    model = read("nemotron_h", NEMOTRON, MIXTURE, after, hybrid_override_pattern="M-M*ME*E")
    assert model.order == ("mamba", "mlp", "mamba", "attention", "mamba", "moe", "attention", "moe")
    assert states(model) == {"conv": ((128 + 2 * 2 * 16) * 3, None), "ssm": (4 * 32 * 16, None)}
    assert kept(model, "full") == [(2, 2 * 2 * 16, None)]
    attention = 64 + 64 * 16 * (4 + 2 + 2) + 64 * 64
    moe = 64 + 64 * 8 + 2 * 64 * 40 + 8 * 2 * 64 * 20
    join = 2 * 64 * 64 + 3 * 64
    assert counts(model).mtp == attention + moe + join
    assert counts(model).mtp_copies == 0


def test_nemotron_words_win_over_letters_and_state_dtype_is_read() -> None:
    """A list of words is the order; the file alone sets the dtype of states."""
    words = ["mamba", "attention", "linear_attention", "mlp"]
    model = read("nemotron_h", NEMOTRON, {"mamba_ssm_cache_dtype": "float32"}, layers_block_type=words, hybrid_override_pattern="MMMM")
    assert model.order == ("mamba", "attention", "mamba", "mlp")
    assert states(model)["ssm"][1] == "fp32"


def test_nemotron_latent_experts() -> None:
    """Experts on a narrower width: a projection down and up for all, experts of that width, biases only outside them."""
    plain = read("nemotron_h", NEMOTRON, MIXTURE, hybrid_override_pattern="ME", moe_latent_size=16)
    biased = read("nemotron_h", NEMOTRON, MIXTURE, hybrid_override_pattern="ME", moe_latent_size=16, mlp_bias=True)
    assert counts(plain).experts == 8 * 2 * 16 * 20
    assert counts(plain).mlp == 2 * 64 * 16
    assert counts(biased).total - counts(plain).total == (16 + 64) + (40 + 64)


@pytest.mark.parametrize(
    ("model_type", "parts", "field"),
    [
        ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "MXM"}, "hybrid_override_pattern"),
        ("nemotron_h", NEMOTRON, "hybrid_override_pattern"),
        (
            "nemotron_h",
            {**NEMOTRON, "hybrid_override_pattern": "MM", "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*"},
            "mtp_hybrid_override_pattern",
        ),
        ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "M", "mamba_ssm_cache_dtype": "int8"}, "mamba_ssm_cache_dtype"),
        ("qwen3_next", {**DELTA, "layer_types": ["linear_attention"] * 7}, "layer_types"),
        ("qwen3_next", {**DELTA, "layer_types": ["delta"] * 8}, "layer_types"),
        ("gemma4_text", {"num_kv_shared_layers": 9}, "num_kv_shared_layers"),
        ("recurrent_gemma", {"block_types": ["recurrent", "rest"]}, "block_types"),
        ("deepseek_v4", {**LATENT, **MIXTURE, **INDEX, "compress_ratios": [0, 4, 16, 0, 0, 0, 0, 0]}, "compress_ratios"),
        ("glm_moe_dsa", {**LATENT, **MIXTURE, **INDEX, "indexer_types": ["full", "none"] * 4}, "indexer_types"),
        ("glm_moe_dsa", {**LATENT, **MIXTURE, **INDEX, "index_topk_pattern": "FFXS"}, "index_topk_pattern"),
        ("mistral_large4_text", {**LATENT, **MIXTURE, **INDEX, "kv_source_layers": [0, 0, 1, 3, 4, 5, 6, 7]}, "kv_source_layers"),
        ("zamba2", {**ZAMBA2, "num_mem_blocks": 10**8}, "num_mem_blocks"),
        ("hrm_text", {"H_cycles": 10**6, "L_cycles": 3}, "L_cycles"),
        ("minimax_text_01", {"num_local_experts": 4, "num_experts_per_tok": 2}, "attn_type_list"),
        ("step3p5", {**MIXTURE, "moe_layers_enum": "3,x"}, "moe_layers_enum"),
        ("xlstm", {"qk_dim_factor": -1}, "qk_dim_factor"),
        ("jamba", {"mamba_expand": "two"}, "mamba_expand"),
    ],
)  # fmt: skip
def test_wrong_orders_are_refused_by_field(model_type: str, parts: dict[str, Any], field: str) -> None:
    """A list that does not fit, an unknown word or letter, an absurd number: one line that names the field."""
    with pytest.raises(SpecError) as caught:
        read(model_type, parts)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_a_drafter_is_not_read_as_its_text_decoder() -> None:
    """Its projections from and to the larger model would be missing."""
    with pytest.raises(Unsupported, match="gemma4_unified_assistant"):
        read_config({"model_type": "gemma4_unified_assistant", "text_config": {**BASE, "model_type": "gemma4_unified_text"}})


def test_jamba_periods() -> None:
    """Attention on every fourth layer from the third, experts on every second from the second."""
    model = read(
        "jamba", attn_layer_period=4, attn_layer_offset=2, expert_layer_period=2, expert_layer_offset=1, num_experts=4,
        num_experts_per_tok=2,
        mamba_expand=2, mamba_d_state=8, mamba_d_conv=4, mamba_dt_rank="auto",
    )  # fmt: skip
    assert [("attention" in n, "moe" in n) for n in model.order] == [(i % 4 == 2, i % 2 == 1) for i in range(8)]
    assert states(model) == {"conv": (128 * 3, None), "ssm": (128 * 8, None)}


def test_qwen3_next_checkpoint_holds_a_module_the_file_does_not_name() -> None:
    """The 80B checkpoint counts 1,650,471,424 parameters beyond the model: one gated attention layer with its mixture, and the join."""
    model = read(
        "qwen3_next", hidden_size=2048, num_hidden_layers=48, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
        vocab_size=151936, num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512,
        shared_expert_intermediate_size=512, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, intermediate_size=5120,
    )  # fmt: skip
    assert model.params == 79_674_391_296
    assert counts(model).mtp == 1_650_471_424
    assert model.counts == {"delta": 36, "attention": 12}
    assert states(model) == {"conv": ((2 * 16 * 128 + 32 * 128) * 3, None), "state": (32 * 128 * 128, None)}


def test_gate_shares_the_bias_of_the_queries() -> None:
    """Qwen's gate comes out of the query projection, bias and all."""
    mixture = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    plain, biased = (read("qwen3_next", DELTA, mixture, attention_bias=on) for on in (False, True))
    assert biased.params - plain.params == 2 * (4 * 16 * 2 + 2 * 2 * 16 + 64)


def test_glm_layers_that_follow_keep_no_index() -> None:
    """Only layers that choose tokens have an indexer, its key at 132 bytes; all keep their latent."""
    kinds = ["full", "shared", "shared", "full"] * 2
    model, every = (
        read("glm_moe_dsa", LATENT, MIXTURE, INDEX, first_k_dense_replace=1, indexer_types=types) for types in (kinds, ["full"] * 8)
    )
    assert sum(n for n, e in model.cache() if e.kind == "index") == 4
    assert {e.bytes_per_token for _, e in model.cache() if e.kind == "index"} == {132}
    assert sum(n for n, _, _ in kept(model, "mla")) == 8
    one = 24 * 2 * 128 + 64 * 128 + 2 * 128 + 64 * 2
    assert every.params - model.params == 4 * one


@pytest.mark.parametrize(
    ("stated", "owners"),
    [({"index_topk_pattern": "FFSSFSSS"}, [0, 1, 4]), ({"index_topk_freq": 3}, [0, 1, 4, 7]), ({}, list(range(8)))],
)
def test_indexers_by_pattern_or_period(stated: dict[str, Any], owners: list[int]) -> None:
    """A pattern of F and S, or a period after two layers of their own; without either every layer chooses."""
    model = read("glm_moe_dsa", LATENT, MIXTURE, INDEX, first_k_dense_replace=0, **stated)
    found = [i for i, n in enumerate(model.order) if any(e.kind == "index" for e in model.blocks[n].cache())]
    assert found == owners


def test_deepseek_modules_repeat_embedding_and_head() -> None:
    """The stored module has its own correction bias of 8 and shares its block's shapes; copies are counted apart."""
    model = read("deepseek_v3", LATENT, MIXTURE, first_k_dense_replace=2, num_nextn_predict_layers=1)
    layer = counts(model).per_layer[-1]
    assert counts(model).mtp == layer + 2 * 64 * 64 + 3 * 64 + 8
    assert counts(model).mtp_copies == 2 * 100 * 64
    assert model.counts == {"dense": 2, "moe": 6}


def test_single_query_projection_where_the_rank_is_null() -> None:
    """A stated null beats the rank that the class assumes."""
    model = read("deepseek_v3", LATENT, MIXTURE, q_lora_rank=None)
    mixer = model.blocks[model.order[0]].mixers[0]
    assert isinstance(mixer, LatentAttention)
    assert mixer.q_rank is None


def test_deepseek_v4_caches() -> None:
    """Keys serve as values: 128 tokens of window everywhere, one entry per 4 or 128 tokens, index keys on the fine layers alone."""
    ratio = [128, 128, 4, 128, 4, 128, 4, 0]
    sizes = {"head_dim": 32, "sliding_window": 128, "o_groups": 2, "o_lora_rank": 8, "hc_mult": 4}
    model = read("deepseek_v4", LATENT, MIXTURE, INDEX, sizes, compress_ratios=ratio)
    assert sum(n for n, _, w in kept(model, "sliding") if w == 128) == 8
    entries = [(n, e.k_elements + e.v_elements, e.every) for n, e in model.cache() if e.kind == "compressed"]
    assert {width for _, width, _ in entries} == {32}
    assert [sum(n for n, _, every in entries if every == ratio) for ratio in (4, 128)] == [3, 4]
    assert [(n, e.k_elements, e.every) for n, e in model.cache() if e.kind == "index"] in ([(3, 128, 4)], [(1, 128, 4), (2, 128, 4)])


def test_mistral_large4_reuses_latents() -> None:
    """A layer that reads an earlier layer's cache has no down-projection of its own; without rotary positions the whole head is plain."""
    own = read("mistral_large4_text", LATENT, MIXTURE, INDEX)
    reuse = read("mistral_large4_text", LATENT, MIXTURE, INDEX, kv_source_layers=[0, 0, 2, 2, 4, 4, 6, 6])
    assert sum(n for n, _, _ in kept(reuse, "mla")) == 4
    down = [64 * (32 + rope) + 32 for rope in (8, 0, 8, 0)]
    assert own.params - reuse.params == sum(down)


def test_gemma4_windows_shared_caches_and_global_heads() -> None:
    """Five of six layers slide; the last two read earlier caches; global heads are wider and their keys serve as values."""
    model = read(
        "gemma4_text", num_hidden_layers=12, num_kv_shared_layers=2, global_head_dim=32, sliding_window=24, attention_k_eq_v=True,
        num_global_key_value_heads=1, hidden_size_per_layer_input=0,
    )  # fmt: skip
    assert [n.startswith("global") for n in model.order] == [(i + 1) % 6 == 0 for i in range(12)]
    assert [n.endswith("shared") for n in model.order] == [i >= 10 for i in range(12)]
    assert kept(model, "sliding") == [(9, 2 * 2 * 16, 24)]
    assert kept(model, "full") == [(1, 2 * 1 * 32, None)]
    mixer = model.blocks["global"].mixers[0]
    assert isinstance(mixer, Attention)
    assert (mixer.keys, mixer.head_dim) == ("as_values", 32)


def test_gemma4_last_layer_is_never_windowed_and_heads_may_be_listed() -> None:
    """What a listed last layer says is overruled; `per_layer_config` carries widths by layer number."""
    kinds = ["sliding_attention"] * 8
    model = read("gemma4_text", layer_types=kinds, per_layer_config={"07": {"head_dim": 40}}, hidden_size_per_layer_input=0)
    mixer = model.blocks[model.order[-1]].mixers[0]
    assert isinstance(mixer, Attention)
    assert (mixer.window, mixer.head_dim) == (None, 40)
    assert model.order[:7] == ("local",) * 7


def test_kimi_linear_states_are_fp32() -> None:
    """A state of heads x head_dim^2 in fp32 and three convolutions; layers are numbered from 1."""
    linear = {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
    model = read("kimi_linear", LATENT, MIXTURE, linear_attn_config=linear, q_lora_rank=None, first_k_dense_replace=1)
    assert ["attention" in n for n in model.order] == [i in (3, 7) for i in range(8)]
    assert states(model) == {"conv": (3 * 64 * 3, None), "state": (4 * 16 * 16, "fp32")}
    assert kept(model, "mla") == [(2, 40, None)]


def test_ling_gates_each_head() -> None:
    """One number per head and attention layer beyond plain latent attention, on the last layer of each group of four."""
    model = read(
        "bailing_hybrid", LATENT, layer_group_size=4, num_experts=8, num_experts_per_token=2, moe_intermediate_size=20,
        num_shared_experts=1,
        linear_num_heads=4, linear_head_dim=16, linear_conv_kernel_dim=4, first_k_dense_replace=1,
    )  # fmt: skip
    assert ["attention" in n for n in model.order] == [i % 4 == 3 for i in range(8)]
    assert [w.params for w in model.blocks["attention_moe"].weights(64) if w.name.endswith("head_gate")] == [64 * 4]


def test_mimo_keys_wider_than_values() -> None:
    """Windowed layers keep more heads; keys and values differ in width, sinks stand on windowed layers alone."""
    model = read(
        "mimo_v2_flash", MIXTURE, head_dim=24, v_head_dim=16, num_key_value_heads=2, swa_num_key_value_heads=4, sliding_window=32,
        hybrid_layer_pattern=[0, 1, 1, 1, 1, 0, 1, 0], n_shared_experts=None,
    )  # fmt: skip
    entries = {(n, e.k_elements, e.v_elements, e.window) for n, e in model.cache()}
    assert (5, 4 * 24, 4 * 16, 32) in entries
    assert sum(n for n, k, v, w in entries if (k, v, w) == (48, 32, None)) == 3


def test_lfm2_keeps_kernel_less_one_inputs() -> None:
    """A short convolution of three keeps two inputs of the residual width; listed layers attend."""
    model = read("lfm2", full_attn_idxs=[2, 5], conv_L_cache=3, block_auto_adjust_ff_dim=False)
    assert model.order == ("conv", "conv", "global", "conv", "conv", "global", "conv", "conv")
    assert states(model) == {"conv": (64 * 2, None)}


def test_minimax_lightning_state() -> None:
    """Lightning layers hold heads x head_dim^2 in fp32; a list of ones and zeros says which attend."""
    model = read("minimax_text_01", attn_type_list=[0, 0, 0, 1] * 2, num_local_experts=4, num_experts_per_tok=2)
    assert model.counts == {"lightning": 6, "attention": 2}
    assert states(model) == {"state": (4 * 16 * 16, "fp32")}


def test_zamba2_counts_each_shared_block_once() -> None:
    """Two shared blocks take turns over four hybrid layers: their tensors twice, adapters and caches four times."""
    kinds = ["mamba", "hybrid"] * 4
    two = read("zamba2", ZAMBA2, layers_block_type=kinds)
    one = read("zamba2", ZAMBA2, layers_block_type=kinds, num_mem_blocks=1)
    attention, ffn, norms = 3 * 128 * 128 + 128 * 64, 3 * 64 * 96, 128 + 64
    assert two.params - one.params == attention + ffn + norms
    assert two.params == sum(counts(two).per_layer) + 2 * 100 * 64 + 64
    assert sum(n for n, _, _ in kept(two, "full")) == 4


def test_hrm_runs_stacks_again_with_caches_of_their_own() -> None:
    """Two stacks of three layers run (3 + 1) x 2 times: 24 layers run and keep a cache, six hold weights."""
    model = read("hrm_text", num_hidden_layers=3, H_cycles=2, L_cycles=3)
    assert len(model.order) == 24
    assert sum(n for n, _, _ in kept(model, "full")) == 24
    layer = 5 * 64 * 64 + 3 * 64 * 96
    assert model.params == 6 * layer + 2 * 100 * 64 + 64
    assert sum(counts(model).per_layer) == 6 * layer


def test_rwkv_by_hand() -> None:
    """Time mixing 4 h^2 + 5 h, channel mixing h^2 + 2 h f + 2 h, two norms, one more in the first layer; five numbers a channel kept."""
    model = read("rwkv", num_hidden_layers=2, num_key_value_heads="absent", head_dim="absent")
    h, f = 64, 96
    layer = 4 * h * h + 5 * h + h * h + 2 * h * f + 2 * h + 4 * h
    assert model.params == 2 * layer + 2 * h + 2 * 100 * h + 2 * h
    assert states(model) == {"conv": (2 * h, None), "state": (3 * h, "fp32")}


def test_xlstm_by_hand() -> None:
    """Half-width keys, a matrix memory per head with normaliser and maximum, a feed-forward width rounded up to 64."""
    model = read("xlstm", num_hidden_layers=2, num_heads=4, num_key_value_heads="absent")
    memory = 2 * 64 * 32 + 2 * 64 * 64 + 2 * (64 * 4 + 4) + 64 + 64 * 64
    assert model.params == 2 * (memory + 3 * 64 * 192 + 2 * 64) + 2 * 100 * 64 + 64
    assert states(model) == {"state": (4 * (8 * 16 + 8 + 1), "fp32")}


def test_falcon_h1_biases_of_its_projections_are_two_switches() -> None:
    """`mamba_proj_bias` is the bias into, `projectors_bias` the bias out of the state space."""
    sizes = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_conv": 4}
    switches = ((False, False), (True, False), (False, True))
    plain, into, out = (read("falcon_h1", sizes, mamba_proj_bias=a, projectors_bias=b).params for a, b in switches)
    assert into - plain == 8 * (2 * 64 + 2 * 8 + 4)
    assert out - plain == 8 * 64


def test_recurrent_gemma_cycle() -> None:
    """Two recurrences, then attention, over and over; a recurrence keeps its convolution's past and one number per channel."""
    cycle = ["recurrent", "recurrent", "attention"]
    model = read("recurrent_gemma", lru_width=80, conv1d_width=4, attention_window_size=32, block_types=cycle)
    assert [n == "attention" for n in model.order] == [i % 3 == 2 for i in range(8)]
    assert states(model) == {"conv": (80 * 3, None), "state": (80, "fp32")}
    assert kept(model, "sliding") == [(2, 2 * 2 * 16, 32)]


def test_inkling_convolutions_keep_their_past() -> None:
    """Each attention layer keeps kernel - 1 inputs on keys, values and both outputs beside its cache."""
    model = read(
        "inkling_text", MIXTURE, swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=16, sliding_window_size=32,
        rel_extent=64, d_rel=4, conv_kernel_size=4,
    )  # fmt: skip
    assert kept(model, "sliding") == [(7, 64, 32)]
    assert kept(model, "full") == [(1, 64, None)]
    assert [(n, e.states[0].elements) for n, e in model.cache() if e.states] == [(7, 3 * 2 * (32 + 64)), (1, 3 * 2 * (32 + 64))]


def test_step_windows_and_gates() -> None:
    """Windowed layers have more query heads; each head has a gate; experts where the list of numbers says."""
    model = read(
        "step3p5", MIXTURE, num_attention_groups=2, num_sliding_attention_heads=6, sliding_window=32, share_expert_dim=12,
        layer_types=["full_attention", "sliding_attention"] * 4, moe_layers_enum="3,4,5,6,7",
    )  # fmt: skip
    assert [n.split("_")[0] for n in model.order] == ["global", "local"] * 4
    assert [bool(model.blocks[n].experts) for n in model.order] == [i > 2 for i in range(8)]
    mixer = next(model.blocks[n].mixers[0] for n in model.order if n.startswith("local"))
    assert isinstance(mixer, Attention)
    assert (mixer.heads, mixer.window, mixer.gate) == (6, 32, "headwise")


@pytest.mark.parametrize(("dtype", "expected"), [("float32", "fp32"), ("torch.bfloat16", "bf16"), (None, None)])
def test_mamba_state_dtype(dtype: str | None, expected: str | None) -> None:
    """States follow the model unless the file says otherwise."""
    model = read("mamba2", num_heads=8, head_dim=16, n_groups=1, state_size=16, conv_kernel=4, mamba_ssm_dtype=dtype)
    assert states(model)["ssm"] == (8 * 16 * 16, expected)


def outcome(data: dict[str, Any]) -> str:
    """The message of a refusal, or the parameters of what was read."""
    try:
        return str(read_config(data).params)
    except InferplanError as e:
        return str(e)


def test_absurd_values_never_escape_as_other_errors() -> None:
    """Whatever a field holds, the answer is a model or one line."""
    data = {"model_type": "qwen3_next", **BASE, **DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    for field in [*data, "layer_types", "linear_attn_config", "full_attention_interval", "attn_output_gate"]:
        values: tuple[Any, ...] = (None, 0, -3, 10**9, 1.5, "x", [], [None], {}, True)
        for value in values:
            assert "\n" not in outcome({**data, field: value})
