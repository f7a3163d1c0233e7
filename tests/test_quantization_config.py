"""Quantisation configs to precisions: methods, name lists, what is refused, and the bytes that follow."""

from __future__ import annotations

import contextlib
import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan.errors import InferplanError, SpecError, Unsupported
from inferplan.memory.weights import weight_bytes
from inferplan.readers.huggingface.config import load_config, read_config
from inferplan.readers.huggingface.module_names import Patterns, expression
from inferplan.readers.huggingface.quantization import precision_of, reading_of
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3_moe", "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "decoder_sparse_step": 1,
}  # fmt: skip
OSS: dict[str, Any] = {
    **MIXTURE,
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "intermediate_size": 256,
    "sliding_window": 128,
    "attention_bias": True,
}
INT8 = {"num_bits": 8, "type": "int"}
FLOAT8 = {"num_bits": 8, "type": "float"}


def text(quantised: dict[str, Any], config: dict[str, Any] = LLAMA, **more: Any) -> str | None:
    """The precision that a configuration with this quantisation states."""
    return precision_of({**config, "quantization_config": quantised, **more}, read_config(config))


def group(**weights: Any) -> dict[str, Any]:
    acts = weights.pop("acts", None)
    return {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, "input_activations": acts}


def compressed(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group(**weights)}, "ignore": ["lm_head"]}


METHODS = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, "fp8-block"),
    ({"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}, "fp8"),
    ({"activation_scheme": "dynamic", "weight_block_size": [128, 128]}, "fp8-block"),
    ({"quant_method": "fbgemm_fp8"}, "fp8-channel"),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, "awq-int4-g64"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}, "gptq-int4-g128"),
    ({"quant_method": "gptq", "bits": 3, "group_size": -1}, "gptq-int3-channel"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, "body=gptq-int4-g128,head=gptq-int4-g128"),
    ({"bits": 8, "group_size": 32, "desc_act": False}, "gptq-int8-g32"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, "nf4"),
    ({"quant_method": "bitsandbytes", "_load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "nf4-single"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "llm-int8"),
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "hqq-int4-g64"),
    ({"quant_method": "eetq"}, "int8-weight-only"),
    ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8-weight-only"),
    (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}}},
        "tinygemm-int4-g64",
    ),
    ({"quant_method": "exl2", "bits": 4.65}, "body=exl2-4.65,head=exl2-6.0"),
    ({"bits": 4, "group_size": 64, "mode": "affine"}, "mlx-q4-g64"),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_awq"}, "awq-int4-g128"),
    ({"quant_method": "intel/auto-round", "bits": 2, "group_size": 64, "sym": True}, "gptq-int2-g64"),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}}, "fp8"),
    ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FLOAT8, "ignore": ["lm_head"]}, "body=nvfp4,kv=fp8"),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "W4A16_AWQ", "group_size": 128}}, "w4a16"),
    (compressed(num_bits=8, type="float", strategy="channel", acts=FLOAT8), "fp8-channel"),
    (compressed(num_bits=8, type="float", strategy="tensor", acts=FLOAT8), "fp8"),
    (compressed(num_bits=8, type="float", strategy="channel"), "fp8-weight-only"),
    (compressed(num_bits=8, type="float", strategy="block", block_structure=[128, 128], acts=FLOAT8), "fp8-block"),
    (compressed(num_bits=8, type="int", strategy="channel", acts=INT8), "int8"),
    (compressed(num_bits=8, type="int", strategy="channel"), "int8-weight-only"),
    (compressed(num_bits=4, type="int", strategy="group", group_size=64), "int4-g64"),
    (compressed(num_bits=4, type="int", strategy="group", group_size=128, symmetric=False), "awq-int4-g128"),
    (compressed(num_bits=4, type="float", strategy="group", group_size=32), "body=mxfp4"),
    (compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16, acts={"num_bits": 4, "type": "float"}), "nvfp4"),
    (compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16), "nvfp4-weight-only"),
]


@pytest.mark.parametrize(("quantised", "expected"), METHODS, ids=lambda v: v if isinstance(v, str) else "")
def test_each_method(quantised: dict[str, Any], expected: str) -> None:
    found = text(quantised)
    wanted = Precision.named(expected)
    assert found is not None
    named = Precision.named(found)
    for part in ("embedding", "head", "attention", "mlp", "norm"):
        assert named.format_of(part).name == wanted.format_of(part).name, part
    assert named.kv.name == wanted.kv.name


def test_an_unquantised_file_states_none() -> None:
    assert precision_of(LLAMA, read_config(LLAMA)) is None
    assert read_config(LLAMA).precision is None


def test_where_the_mapping_stands() -> None:
    model, inner = read_config(LLAMA), {"quant_method": "fp8"}
    assert precision_of({"text_config": {**LLAMA, "quantization_config": inner}}, model) == "fp8"
    assert precision_of({**LLAMA, "compression_config": compressed(num_bits=8, type="int", strategy="channel", acts=INT8)}, model) == "int8"
    assert precision_of(LLAMA, model, beside={"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}) == "body=fp8,kv=fp8"
    both = precision_of(
        {**LLAMA, "quantization_config": inner}, model, beside={"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}}
    )
    assert both == "body=fp8,kv=int8"


def test_gpt_oss_keeps_all_but_experts() -> None:
    listed = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    assert text({"quant_method": "mxfp4", "modules_to_not_convert": listed}, OSS) == "mxfp4"


@pytest.mark.parametrize(
    "ignore",
    [
        [f"model.layers.{i}.self_attn*" for i in range(4)],
        [f"model.layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "qkvo"],
        ["re:.*self_attn.*"],
        ["*.self_attn.*"],
        ["self_attn"],
        [f"model.language_model.layers.{i}.self_attn" for i in range(4)],
    ],
    ids=["glob", "names", "expression", "star", "word", "prefix"],
)
def test_lists_that_leave_attention_alone(ignore: list[str]) -> None:
    found = reading_of(
        {**MIXTURE, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *ignore]}},
        read_config(MIXTURE),
    )
    assert found.notes == ()
    precision = Precision.named(found.precision or "")
    assert (precision.format_of("attention").name, precision.format_of("experts").name) == ("bf16", "nvfp4")
    assert found.precision == "nvfp4-moe"


def test_a_router_named_gate_is_not_the_gate_projection() -> None:
    assert text({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["gate"]}, MIXTURE) == "awq-int4-g128"


def test_a_list_that_covers_some_layers_is_remarked() -> None:
    for skipped, kept in ((1, "fp8"), (3, "bf16")):
        ignore = [f"model.layers.{i}.mlp" for i in range(skipped)]
        found = reading_of({**LLAMA, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ignore}}, read_config(LLAMA))
        assert Precision.named(found.precision or "").format_of("mlp").name == kept
        assert found.notes == (
            f"mlp: 25.0% of its parameters are kept in {'bf16' if kept == 'fp8' else 'fp8'}, taken as {kept} like the rest",
        )


def test_layer_1_is_not_layer_10() -> None:
    patterns = Patterns.of(["model.layers.1.*", "model.layers.20*"], 30)
    assert patterns.covers(["model.layers.1.mlp.up_proj"], 1)
    assert patterns.covers(["model.layers.20.mlp.up_proj"], 20)
    assert not patterns.covers(["model.layers.10.mlp.up_proj"], 10)
    assert not patterns.covers(["model.layers.2.mlp.up_proj"], 2)


def test_mixed_precision_by_module() -> None:
    layers = {f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"} for i in range(4) for p in "qkvo"}
    layers |= {
        f"model.layers.{i}.mlp.{p}_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16} for i in range(4) for p in ("gate", "up", "down")
    }
    layers["lm_head"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    found = text({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_scheme": FLOAT8})
    assert found == "body=nvfp4-weight-only,attention=fp8,head=nvfp4-weight-only,kv=fp8"


def test_experts_requantised_after_fp8_keep_the_rest_in_fp8() -> None:
    layers = {f"layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(4)}
    config = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "moe_quant_algo": "NVFP4",
        "quantized_layers": layers,
        "ignore": ["*.self_attn.*"],
    }
    precision = Precision.named(text(config, MIXTURE) or "")
    assert (precision.format_of("experts").name, precision.format_of("attention").name) == ("nvfp4", "fp8-block")


def test_expert_dtype_beside_the_config() -> None:
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert text(config, MIXTURE, expert_dtype="fp4") == "body=mxfp4-a8,attention=fp8-block"
    with pytest.raises(Unsupported, match="expert_dtype 'fp3'"):
        text(config, MIXTURE, expert_dtype="fp3")


def test_gptq_exceptions_by_expression() -> None:
    config = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "dynamic": {r"-:.*self_attn.*": {}, r"+:.*mlp\.down_proj.*": {"bits": 8}},
    }
    found = reading_of({**LLAMA, "quantization_config": config}, read_config(LLAMA))
    assert found.precision == "body=gptq-int4-g128,attention=bf16"
    assert found.notes == ("mlp: 33.3% of its parameters are kept in gptq-int8-g128, taken as gptq-int4-g128 like the rest",)


REFUSED = [
    ({"quant_method": "aqlm"}, Unsupported, "method 'aqlm' has no format here"),
    ({"quant_method": "bitnet"}, Unsupported, "method 'bitnet'"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, Unsupported, "blocks of"),
    ({"quant_method": "awq", "bits": 5, "group_size": 128}, Unsupported, "AWQ at 5 bits"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 48}, Unsupported, "groups of 48"),
    ({"quant_method": "gptq", "group_size": 128}, SpecError, "quantization_config.bits: missing: must be a number"),
    ({"quant_method": "gptq", "bits": "four"}, SpecError, "quantization_config.bits"),
    ({"quant_method": 4}, SpecError, "quant_method"),
    ({}, None, ""),
    ({"unknown": 1}, SpecError, "without it the method is unknown"),
    ({"quant_method": "bitsandbytes"}, SpecError, "neither load_in_4bit nor load_in_8bit"),
    ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, SpecError, "must be a list of names"),
    ({"quant_method": "fp8", "modules_to_not_convert": [1]}, SpecError, "must be a list of names"),
    ({"quant_method": "fp8", "kv_cache_scheme": "FP3"}, Unsupported, "kv_cache_scheme 'fp3'"),
    ({"quant_method": "modelopt", "quant_algo": "FP2"}, Unsupported, "algorithm 'FP2'"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, SpecError, "quantized_layers"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, SpecError, "no group that quantises weights"),
    (compressed(num_bits=4, type="int", strategy="channel", acts=INT8), Unsupported, "int4 weights by channel with int8 inputs"),
    (
        {**compressed(num_bits=8, type="int", strategy="channel"), "sparsity_config": {"format": "sparse-24-bitmask"}},
        Unsupported,
        "sparsity",
    ),
    ({"quant_method": "fp8", "ignore": ["re:(a+)+b"]}, Unsupported, "more involved"),
    ({"quant_method": "fp8", "ignore": ["re:("]}, SpecError, "not a regular expression"),
]


@pytest.mark.parametrize(("quantised", "error", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_refused_says_why(quantised: dict[str, Any], error: type[InferplanError] | None, message: str) -> None:
    if error is None:
        assert text(quantised) is None
        return
    with pytest.raises(error, match=message):
        text(quantised)


@given(st.text(alphabet="ab.*+?()[]{}|\\^$", max_size=30))
def test_no_expression_takes_long_or_fails_untyped(pattern: str) -> None:
    with contextlib.suppress(InferplanError):
        expression(pattern).match("model.layers.10.mlp.experts.0.gate_up_proj")


def test_the_reader_of_configurations_sets_it(tmp_path: Path) -> None:
    import json

    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.self_attn.*"]}})
    )
    assert load_config(folder / "config.json").precision == "nvfp4-moe"


# ------------------------------------------------------------------------------------------------------------- bytes

SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {**LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256},
    "llama-70b": {**LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "intermediate_size": 28672, "vocab_size": 128256},
    "qwen-7b": {
        **LLAMA, "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "intermediate_size": 18944, "vocab_size": 152064,
    },
    "gpt-oss-120b": {
        **OSS, "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 128, "num_experts": 128, "num_experts_per_tok": 4,
        "moe_intermediate_size": 2880,
    },
}  # fmt: skip
SHAPES["gpt-oss-20b"] = {**SHAPES["gpt-oss-120b"], "num_hidden_layers": 24, "num_local_experts": 32, "num_experts": 32}
KINDS = {
    "w8a8": compressed(num_bits=8, type="int", strategy="channel", acts=INT8),
    "fp8-dynamic": compressed(num_bits=8, type="float", strategy="channel", acts=FLOAT8),
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
}
ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "quantised_weights_gib.csv").read_text().splitlines()))


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["name"])
def test_weight_bytes_of_quantised_checkpoints(row: dict[str, str]) -> None:
    model: Model = read_config({**SHAPES[row["shapes"]], "quantization_config": KINDS[row["method"]]})
    gib = weight_bytes(model, Precision.named(model.precision or "")) / 2**30
    assert gib == pytest.approx(float(row["gib"]), rel=float(row["tolerance"]))
    assert gib < float(row["gib"]) * 1.002


def test_fp8_scales_of_deepseek_v3() -> None:
    """The published total of DeepSeek-V3 counts 41,540,496 scales, prediction module included."""
    config = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128, "vocab_size": 129280, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    }  # fmt: skip
    model = read_config(config)
    precision = Precision.named(model.precision or "")
    scales = 0
    for w in (*model.weights(), *model.mtp_weights()):
        if w.use in ("matmul", "expert") and precision.format_of(w.part).name == "fp8-block":
            scales += w.copies * -(-w.rows // 128) * -(-w.cols // 128)
    assert scales == 41_540_496
