"""Safetensors checkpoints beside their configuration: bytes by part, and every difference to the model's parameters by reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bad.builders import Shapes, safetensors
from inferplan.errors import SpecError
from inferplan.readers.checkpoint import Checkpoint, open_checkpoint, part_of

H, FF, V, KV = 128, 256, 512, 64
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": H, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": FF,
    "vocab_size": V, "tie_word_embeddings": False,
}  # fmt: skip
LINEARS = {"self_attn.q_proj": (H, H), "self_attn.k_proj": (KV, H), "self_attn.v_proj": (KV, H), "self_attn.o_proj": (H, H)}
LINEARS |= {"mlp.gate_proj": (FF, H), "mlp.up_proj": (FF, H), "mlp.down_proj": (H, FF)}


def plain(*, head: bool = True, layers: int = 2) -> Shapes:
    """A Llama checkpoint in bf16."""
    found: Shapes = {"model.embed_tokens.weight": ("BF16", (V, H)), "model.norm.weight": ("BF16", (H,))}
    found |= {"lm_head.weight": ("BF16", (V, H))} if head else {}
    for i in range(layers):
        found |= {f"model.layers.{i}.{name}.weight": ("BF16", shape) for name, shape in LINEARS.items()}
        found |= {f"model.layers.{i}.{n}_layernorm.weight": ("BF16", (H,)) for n in ("input", "post_attention")}
    return found


def repository(folder: Path, shapes: Shapes, config: dict[str, Any]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    safetensors(folder / "model.safetensors", shapes)
    return open_checkpoint(folder)


def test_a_plain_checkpoint_is_the_model(tmp_path: Path) -> None:
    found = repository(tmp_path, plain(), LLAMA)
    assert (found.values, found.unexplained, found.differences, found.notes) == (found.model.params, 0, (), ())
    assert found.stored_bytes == 2 * found.model.params
    assert found.scale_bytes == 0
    assert found.bytes_by_part == {
        "mlp": 2 * 2 * 3 * H * FF, "attention": 2 * 2 * (2 * H * H + 2 * KV * H), "embedding": 2 * V * H, "head": 2 * V * H,
        "norm": 2 * 5 * H,
    }  # fmt: skip
    assert found.bytes_by_dtype == {"BF16": found.stored_bytes}


def test_a_tied_head_stored_twice_and_old_buffers(tmp_path: Path) -> None:
    shapes = plain() | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": ("F32", (16,)) for i in range(2)}
    found = repository(tmp_path, shapes, {**LLAMA, "tie_word_embeddings": True})
    assert {d.reason: d.values for d in found.differences} == {"the tied head, stored a second time": V * H, "rotary frequencies": 32}
    assert found.unexplained == 0
    assert f"{V * H:,} values are the tied head, stored a second time" in found.notes


def test_prediction_layers_and_router_corrections(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "glm4_moe", "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "n_shared_experts": 1,
              "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "head_dim": 32, "attention_bias": False,
              "use_qk_norm": False}  # fmt: skip
    shapes = {k: v for k, v in plain().items() if ".1.mlp" not in k}
    moe: Shapes = {"model.layers.1.mlp.gate.weight": ("BF16", (4, H)), "model.layers.1.mlp.gate.e_score_correction_bias": ("F32", (4,))}
    for name in ("shared_experts", *(f"experts.{i}" for i in range(4))):
        moe |= {f"model.layers.1.mlp.{name}.{p}_proj.weight": ("BF16", (64, H) if p != "down" else (H, 64)) for p in ("gate", "up", "down")}
    found = repository(tmp_path, shapes | moe | {"model.layers.2.eh_proj.weight": ("BF16", (H, 2 * H))}, config)
    assert {d.reason: d.values for d in found.differences} == {"router corrections": 4, "prediction modules": 2 * H * H}
    assert found.unexplained == 0
    assert found.bytes_by_part["experts"] == 2 * 4 * 3 * 64 * H


def gptq(bits: int = 4, group: int = 128) -> Shapes:
    found = {k: v for k, v in plain().items() if "proj" not in k}
    for i in range(2):
        for name, (rows, cols) in LINEARS.items():
            at = f"model.layers.{i}.{name}"
            found |= {f"{at}.qweight": ("I32", (cols * bits // 32, rows)), f"{at}.scales": ("F16", (cols // group, rows))}
            found |= {f"{at}.qzeros": ("I32", (cols // group, rows * bits // 32)), f"{at}.g_idx": ("I32", (cols,))}
    return found


def test_packed_int4_counts_its_logical_values(tmp_path: Path) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    found = repository(tmp_path, gptq(), config)
    assert (found.values, found.unexplained) == (found.model.params, 0)
    inside = sum(rows * cols for rows, cols in LINEARS.values()) * 2
    groups = sum(rows * cols // 128 for rows, cols in LINEARS.values()) * 2
    assert found.scale_bytes == groups * 2 + groups // 2 + 2 * 4 * sum(cols for _, cols in LINEARS.values())
    assert found.bytes_by_format["gptq-int4"] == inside // 2 + found.scale_bytes


def test_the_bytes_of_a_packed_checkpoint_are_those_of_its_precision(tmp_path: Path) -> None:
    from inferplan.memory.weights import weight_bytes
    from inferplan.specs.precision import Precision

    config = {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    found = repository(tmp_path, gptq(), config)
    order_of_up = 2 * 4 * H  # gate and up are one matrix in a Model, so one int32 order of inputs a layer is not counted
    assert found.stored_bytes - order_of_up == weight_bytes(found.model, Precision.named(found.model.precision or ""))


def test_compressed_tensors_take_their_bits_from_the_configuration(tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
    config = {
        **LLAMA,
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}},
    }
    shapes = {k: v for k, v in plain().items() if "proj" not in k}
    for i in range(2):
        for name, (rows, cols) in LINEARS.items():
            at = f"model.layers.{i}.{name}.weight"
            shapes |= {
                f"{at}_packed": ("I32", (rows, cols // 8)),
                f"{at}_scale": ("BF16", (rows, cols // 128)),
                f"{at}_shape": ("I64", (2,)),
            }
    found = repository(tmp_path, shapes, config)
    assert (found.values, found.unexplained) == (found.model.params, 0)


def test_what_nothing_explains_is_said(tmp_path: Path) -> None:
    found = repository(tmp_path, plain() | {"model.adapter.weight": ("BF16", (3, 5))}, LLAMA)
    assert found.unexplained == 15
    assert found.notes == ("15 values more than the model has, for no reason known here",)
    assert found.bytes_by_part["other"] == 30


def test_missing_shards_are_named_and_nothing_is_concluded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    shapes = plain()
    safetensors(tmp_path / "model-00001-of-00002.safetensors", {k: v for k, v in shapes.items() if ".1." not in k})
    names = {k: f"model-0000{2 if '.1.' in k else 1}-of-00002.safetensors" for k in shapes}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    found = open_checkpoint(tmp_path)
    assert found.missing == ("model-00002-of-00002.safetensors",)
    assert found.notes == ("1 shards are not here: model-00002-of-00002.safetensors",)


def test_a_checkpoint_without_configuration_is_refused(tmp_path: Path) -> None:
    file = safetensors(tmp_path / "model.safetensors", plain())
    with pytest.raises(SpecError, match=r"has no config\.json beside it"):
        open_checkpoint(file)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.0.mlp.gate_proj.weight", "mlp"), ("model.layers.0.mlp.gate.weight", "router"),
        ("model.layers.0.block_sparse_moe.experts.3.w1.weight", "experts"),
        ("model.layers.0.self_attn.q_norm.weight", "norm"), ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("backbone.layers.0.mixer.in_proj.weight", "recurrent"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision"), ("mtp.layers.0.mlp.up_proj.weight", "mtp"), ("transformer.wpe.weight",
        "aux_embedding"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "router"), ("model.language_model.layers.0.linear_attn.conv1d.weight",
        "recurrent"),
    ],
)  # fmt: skip
def test_parts_by_name(name: str, part: str) -> None:
    assert part_of(name, 2) == part
