"""GGUF files to models: one small file per kind of architecture, its tensors as converters name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bad.builders import BOOL, TEXT, U32, Writer, gguf
from inferplan.errors import SpecError, Unsupported
from inferplan.readers.gguf import read_gguf
from inferplan.readers.gguf_model import model_of_gguf, part_of, stored_bytes
from inferplan.specs.mixers import Attention, GatedDelta, LatentAttention, Mamba1, Mamba2
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

W = Writer()
H, FF, VOCAB = 256, 512, 1024
Tensors = list[tuple[str, str, tuple[int, ...]]]


def keys(arch: str, **values: Any) -> list[bytes]:
    """Metadata of an architecture; `general_` names are the file's own."""
    found = [W.key("general.architecture", TEXT, arch)]
    for name, value in {"block_count": 2, "embedding_length": H, "context_length": 4096, **values}.items():
        full = name.replace("general_", "general.") if name.startswith("general_") else f"{arch}.{name}"
        if isinstance(value, list):
            found.append(W.array(full, BOOL if isinstance(value[0], bool) else U32, value))
        elif value is not None:
            found.append(W.key(full, TEXT if isinstance(value, str) else U32, value))
    return found


def attention(layer: int, heads: int, kv: int, dim: int, kind: str = "Q4_K", *, bias: bool = False, norms: bool = False) -> Tensors:
    """Projections of one layer, outputs by inputs (the file has them innermost first)."""
    at = f"blk.{layer}.attn_"
    rows = {"q": heads * dim, "k": kv * dim, "v": kv * dim}
    found: Tensors = [(f"{at}norm.weight", "F32", (H,)), (f"{at}output.weight", kind, (heads * dim, H))]
    found += [(f"{at}{n}.weight", kind, (H, r)) for n, r in rows.items()]
    found += [(f"{at}{n}.bias", "F32", (r,)) for n, r in rows.items()] if bias else []
    return found + ([(f"{at}{n}_norm.weight", "F32", (dim,)) for n in "qk"] if norms else [])


def dense(layer: int, width: int = FF, kind: str = "Q4_K") -> Tensors:
    return [(f"blk.{layer}.ffn_norm.weight", "F32", (H,))] + [
        (f"blk.{layer}.ffn_{n}.weight", kind, (H, width) if n != "down" else (width, H)) for n in ("gate", "up", "down")
    ]


def experts(layer: int, count: int, width: int, kind: str = "Q4_K", *, shared: int = 0, norm: str = "ffn_norm") -> Tensors:
    found: Tensors = [(f"blk.{layer}.{norm}.weight", "F32", (H,)), (f"blk.{layer}.ffn_gate_inp.weight", "F32", (H, count))]
    for n in ("gate", "up", "down"):
        found.append((f"blk.{layer}.ffn_{n}_exps.weight", kind, (H, width, count) if n != "down" else (width, H, count)))
        if shared:
            found.append((f"blk.{layer}.ffn_{n}_shexp.weight", kind, (H, shared) if n != "down" else (shared, H)))
    return found


def ends(*, tied: bool = False, kind: str = "Q4_K", head: str = "Q6_K") -> Tensors:
    return [("token_embd.weight", kind, (H, VOCAB)), ("output_norm.weight", "F32", (H,))] + (
        [] if tied else [("output.weight", head, (H, VOCAB))]
    )


def model(tmp_path: Path, metadata: list[bytes], tensors: Tensors) -> tuple[Model, str | None]:
    return model_of_gguf(read_gguf(gguf(tmp_path / "small.gguf", metadata, tensors)))


HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": FF}
ATTENTION = H * (4 + 2 + 2) * 64 + 4 * 64 * H
DENSE = 3 * H * FF


def test_llama_with_a_head_of_its_own(tmp_path: Path) -> None:
    found, precision = model(
        tmp_path,
        keys("llama", **HEADS, general_file_type=7),
        [*ends(kind="Q8_0", head="Q8_0"), ("rope_freqs.weight", "F32", (32,))]
        + [t for i in range(2) for t in attention(i, 4, 2, 64, "Q8_0") + dense(i, kind="Q8_0")],
    )
    assert found.params == 2 * VOCAB * H + 2 * (ATTENTION + DENSE + 2 * H) + H
    assert (found.head, found.context, found.vocab, found.note, precision) == ("own", 4096, VOCAB, None, "q8_0")
    assert found.precision == "q8_0"


def test_a_tied_head_and_biases_on_q_k_v_alone(tmp_path: Path) -> None:
    tensors = [t for i in range(2) for t in attention(i, 4, 2, 64, bias=True) + dense(i)]
    found, _ = model(tmp_path, keys("qwen2", **HEADS), ends(tied=True) + tensors)
    assert found.head == "tied"
    assert found.params == VOCAB * H + 2 * (ATTENTION + (4 + 2 + 2) * 64 + DENSE + 2 * H) + H
    as_llama, _ = model(tmp_path, keys("llama", **HEADS), ends(tied=True) + tensors)
    assert as_llama.params == found.params


def test_mixtral_is_stored_as_llama_with_experts(tmp_path: Path) -> None:
    tensors = ends() + [t for i in range(2) for t in attention(i, 4, 2, 64) + experts(i, 8, FF)]
    found, _ = model(tmp_path, keys("llama", **HEADS, expert_count=8, expert_used_count=2), tensors)
    assert found.blocks["layer"].experts is not None
    assert (found.blocks["layer"].experts.top_k, found.blocks["layer"].experts.width) == (2, FF)
    assert found.params == 2 * VOCAB * H + 2 * (ATTENTION + 8 * DENSE + 8 * H + 2 * H) + H


def test_qwen3_moe_with_head_norms(tmp_path: Path) -> None:
    sizes = {**HEADS, "attention.key_length": 128, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
    tensors = ends() + [t for i in range(2) for t in attention(i, 4, 2, 128, norms=True) + experts(i, 8, 256)]
    found, _ = model(tmp_path, keys("qwen3moe", **sizes), tensors)
    mixer = found.blocks["layer"].mixers[0]
    assert isinstance(mixer, Attention)
    assert (mixer.head_dim, mixer.qk_norm) == (128, "head")
    assert found.params == sum_of(tensors)


def sum_of(tensors: Tensors, *leaving: str) -> int:
    total = 0
    for name, _, sizes in tensors:
        if not any(part in name for part in leaving):
            product = 1
            for size in sizes:
                product *= size
            total += product
    return total


def test_deepseek_latent_attention_with_a_dense_layer_first(tmp_path: Path) -> None:
    heads, q_rank, kv_rank, nope, rope, v = 4, 256, 256, 64, 32, 64
    tensors = ends()
    for i in range(2):
        at = f"blk.{i}.attn_"
        tensors += [
            (f"{at}norm.weight", "F32", (H,)), (f"{at}q_a.weight", "Q8_0", (H, q_rank)), (f"{at}q_a_norm.weight", "F32", (q_rank,)),
            (f"{at}q_b.weight", "Q8_0", (q_rank, heads * (nope + rope))), (f"{at}kv_a_mqa.weight", "Q8_0", (H, kv_rank + rope)),
            (f"{at}kv_a_norm.weight", "F32", (kv_rank,)), (f"{at}k_b.weight", "Q8_0", (nope, kv_rank, heads)),
            (f"{at}v_b.weight", "Q8_0", (kv_rank, v, heads)), (f"{at}output.weight", "Q8_0", (heads * v, H)),
        ]  # fmt: skip
    tensors += [*dense(0), *experts(1, 8, 256, shared=256), ("blk.1.exp_probs_b.bias", "F32", (8,))]
    sizes = {
        "attention.head_count": heads, "attention.head_count_kv": 1, "attention.key_length": kv_rank + rope,
        "attention.value_length": kv_rank,
        "attention.key_length_mla": nope + rope, "attention.value_length_mla": v, "attention.q_lora_rank": q_rank,
        "attention.kv_lora_rank": kv_rank, "rope.dimension_count": rope, "feed_forward_length": FF, "leading_dense_block_count": 1,
        "expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 256,
    }  # fmt: skip
    found, precision = model(tmp_path, keys("deepseek2", **sizes), tensors)
    mixer = found.blocks[found.order[0]].mixers[0]
    assert isinstance(mixer, LatentAttention)
    assert (mixer.nope, mixer.rope, mixer.v, mixer.q_rank) == (nope, rope, v, q_rank)
    assert [found.blocks[name].experts is not None for name in found.order] == [False, True]
    assert found.params == sum_of(tensors, "exp_probs_b")
    assert found.note is None
    text = Precision.named(precision or "")
    assert (text.format_of("attention").name, text.format_of("experts").name, text.format_of("head").name) == ("q8_0", "q4_k", "q6_k")


def test_gemma_3_windows_and_four_norms(tmp_path: Path) -> None:
    tensors = ends(tied=True)
    for i in range(12):
        tensors += [*attention(i, 4, 2, 64, norms=True), *dense(i)]
        tensors += [(f"blk.{i}.post_{n}_norm.weight", "F32", (H,)) for n in ("attention", "ffw")]
    sizes = {**HEADS, "attention.key_length": 64, "attention.sliding_window": 128, "block_count": 12}
    found, _ = model(tmp_path, keys("gemma3", **sizes), tensors)
    mixers = [found.blocks[name].mixers[0] for name in found.order]
    assert [m.window for m in mixers if isinstance(m, Attention)] == [128] * 5 + [None] + [128] * 5 + [None]
    assert found.params == sum_of(tensors)


def test_a_listed_window_pattern(tmp_path: Path) -> None:
    tensors = ends() + [t for i in range(2) for t in [*attention(i, 4, 2, 64), *experts(i, 8, 256, norm="post_attention_norm")]]
    for i in range(2):
        tensors += [(f"blk.{i}.attn_sinks.weight", "F32", (4,)), (f"blk.{i}.ffn_gate_inp.bias", "F32", (8,))]
        tensors += [(f"blk.{i}.attn_{n}.bias", "F32", (r,)) for n, r in (("q", 256), ("k", 128), ("v", 128), ("output", H))]
        tensors += [(f"blk.{i}.ffn_{n}_exps.bias", "F32", (w, 8)) for n, w in (("gate", 256), ("up", 256), ("down", H))]
    sizes = {**HEADS, "attention.key_length": 64, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
    sizes |= {"attention.sliding_window": 128, "attention.sliding_window_pattern": [False, True]}
    found, _ = model(tmp_path, keys("gpt-oss", **sizes), tensors)
    assert [found.blocks[n].mixers[0].window for n in found.order if isinstance(found.blocks[n].mixers[0], Attention)] == [None, 128]
    assert found.params == sum_of(tensors)


def ssm2(layer: int, heads: int = 8, dim: int = 64, groups: int = 1, state: int = 16) -> Tensors:
    inner, wide = heads * dim, heads * dim + 2 * groups * state
    return [
        (f"blk.{layer}.ssm_{n}", kind, sizes)
        for n, kind, sizes in (
            ("in.weight", "Q4_K", (H, inner + wide + heads)), ("conv1d.weight", "F32", (4, wide)), ("conv1d.bias", "F32", (wide,)),
            ("dt.bias", "F32", (heads,)), ("a", "F32", (1, heads)), ("d", "F32", (1, heads)), ("norm.weight", "F32",
            (inner // groups, groups)),
            ("out.weight", "Q4_K", (inner, H)),
        )
    ]  # fmt: skip


SSM = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1, "ssm.inner_size": 512, "ssm.time_step_rank": 8}


def test_per_layer_arrays_of_nemotron_h(tmp_path: Path) -> None:
    tensors = [
        *ends(),
        *ssm2(0),
        *attention(1, 4, 2, 64),
        *ssm2(3),
        ("blk.2.ffn_up.weight", "Q4_K", (H, FF)),
        ("blk.2.ffn_down.weight", "Q4_K", (FF, H)),
    ]
    tensors += [(f"blk.{i}.attn_norm.weight", "F32", (H,)) for i in (0, 2, 3)]
    sizes = {
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 2, 0, 0],
        "feed_forward_length": [0, 0, FF, 0],
        "block_count": 4,
        **SSM,
    }
    found, _ = model(tmp_path, keys("nemotron_h", **sizes, **{"attention.key_length": 64}), tensors)
    assert found.order == ("mamba", "attention", "mlp", "mamba")
    assert isinstance(found.blocks["mamba"].mixers[0], Mamba2)
    assert found.params == sum_of(tensors)


def test_granite_hybrid_with_a_shared_block(tmp_path: Path) -> None:
    tensors = ends(tied=True)
    for i, kind in enumerate("mma"):
        tensors += ssm2(i) if kind == "m" else attention(i, 4, 2, 64)
        tensors += experts(i, 8, 256, shared=FF) + ([(f"blk.{i}.attn_norm.weight", "F32", (H,))] if kind == "m" else [])
    sizes = {"attention.head_count": 4, "attention.head_count_kv": [0, 0, 2], "block_count": 3, **SSM}
    sizes |= {"feed_forward_length": 256, "expert_count": 8, "expert_used_count": 2, "expert_shared_feed_forward_length": FF}
    found, _ = model(tmp_path, keys("granitehybrid", **sizes), tensors)
    assert [type(found.blocks[n].mixers[0]) for n in found.order] == [Mamba2, Mamba2, Attention]
    assert found.params == sum_of(tensors)


def test_gated_delta_layers_of_qwen3_next(tmp_path: Path) -> None:
    tensors, keys_, values = ends(), 2 * 64, 4 * 64
    for i in range(4):
        tensors += experts(i, 8, 256, shared=256, norm="post_attention_norm") + [(f"blk.{i}.ffn_gate_inp_shexp.weight", "F32", (H,))]
        if i == 3:
            tensors += [t for t in attention(i, 4, 2, 64, norms=True) if "attn_q.weight" not in t[0]] + [
                ("blk.3.attn_q.weight", "Q4_K", (H, 512))
            ]
            continue
        tensors += [
            (f"blk.{i}.{n}", kind, sizes)
            for n, kind, sizes in (
                ("attn_norm.weight", "F32", (H,)), ("attn_qkv.weight", "Q4_K", (H, 2 * keys_ + values)), ("attn_gate.weight", "Q4_K",
                (H, values)),
                ("ssm_ba.weight", "Q4_K", (H, 8)), ("ssm_conv1d.weight", "F32", (4, 2 * keys_ + values)), ("ssm_dt.bias", "F32", (4,)),
                ("ssm_a", "F32", (4,)), ("ssm_norm.weight", "F32", (64,)), ("ssm_out.weight", "Q4_K", (values, H)),
            )
        ]  # fmt: skip
    sizes = {
        **HEADS,
        "attention.key_length": 64,
        "block_count": 4,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": 256,
    }
    sizes |= {"expert_shared_feed_forward_length": 256, "ssm.conv_kernel": 4, "ssm.state_size": 64, "ssm.group_count": 2}
    found, _ = model(tmp_path, keys("qwen3next", **sizes, **{"ssm.time_step_rank": 4, "ssm.inner_size": values}), tensors)
    assert [type(found.blocks[n].mixers[0]) for n in found.order] == [GatedDelta] * 3 + [Attention]
    assert found.params == sum_of(tensors)


def test_mamba_has_no_attention(tmp_path: Path) -> None:
    tensors = ends(tied=True)
    for i in range(2):
        for n, sizes in (
            ("ssm_in.weight", (H, 1024)), ("ssm_conv1d.weight", (4, 512)), ("ssm_conv1d.bias", (512,)), ("ssm_x.weight", (512, 16 + 32)),
            ("ssm_dt.weight", (16, 512)), ("ssm_dt.bias", (512,)), ("ssm_a", (16, 512)), ("ssm_d", (512,)), ("ssm_out.weight", (512, H)),
            ("attn_norm.weight", (H,)),
        ):  # fmt: skip
            tensors.append((f"blk.{i}.{n}", "F32", sizes))
    sizes = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.inner_size": 512, "ssm.time_step_rank": 16, "attention.head_count": 0}
    found, _ = model(tmp_path, keys("mamba", **sizes, feed_forward_length=0), tensors)
    assert isinstance(found.blocks["layer"].mixers[0], Mamba1)
    assert found.params == sum_of(tensors)


def test_prediction_layers_are_not_parameters(tmp_path: Path) -> None:
    tensors = ends() + [
        t for i in range(3) for t in attention(i, 4, 2, 64, bias=True) + experts(i, 8, 256, shared=256, norm="post_attention_norm")
    ]
    tensors += [(f"blk.{i}.exp_probs_b.bias", "F32", (8,)) for i in range(3)] + [("blk.2.nextn.eh_proj.weight", "Q4_K", (2 * H, H))]
    sizes = {**HEADS, "block_count": 3, "nextn_predict_layers": 1, "expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1}
    found, _ = model(tmp_path, keys("glm4moe", **sizes, expert_feed_forward_length=256, leading_dense_block_count=0), tensors)
    assert len(found.order) == 2
    assert found.mtp is not None
    assert found.mtp.modules == 1
    assert found.params == sum_of(tensors, "blk.2", "exp_probs_b")
    assert found.note is None


def test_a_file_mix_is_believed_only_where_the_tensors_follow_it(tmp_path: Path) -> None:
    layers = [t for i in range(2) for t in attention(i, 4, 2, 64, "Q6_K") + dense(i, kind="Q6_K")]
    _, named = model(tmp_path, keys("llama", **HEADS, general_file_type=18), ends(kind="Q6_K") + layers)
    assert named == "q6_k"
    _, told = model(tmp_path, keys("llama", **HEADS, general_file_type=2), ends(kind="Q6_K") + layers)
    assert told is not None
    assert told.startswith("body=q6_k,")
    assert Precision.named(told).format_of("norm").name == "fp32"
    assert Precision.named(told).kv.name == "fp16"


def test_bytes_of_each_part_are_those_of_the_file(tmp_path: Path) -> None:
    file = read_gguf(
        gguf(tmp_path / "m.gguf", keys("llama", **HEADS), ends() + [t for i in range(2) for t in attention(i, 4, 2, 64) + dense(i)])
    )
    parts = stored_bytes(file)
    assert sum(parts.values()) == file.total_bytes
    assert parts["mlp"] == 2 * DENSE * 4.5 / 8
    assert parts["head"] == VOCAB * H * 6.5625 / 8


@pytest.mark.parametrize(
    ("name", "part"),
    [("blk.0.attn_q_norm.weight", "norm"), ("blk.0.ssm_norm.weight", "norm"), ("blk.1.ffn_gate_inp_shexp.weight", "router"),
    ("blk.1.ffn_up_shexp.weight", "shared_expert"),
     ("per_layer_token_embd.weight", "aux_embedding"), ("blk.9.nextn.eh_proj.weight", "mtp"), ("blk.0.indexer.attn_k.weight", "indexer")],
)  # fmt: skip
def test_parts_by_tensor_name(name: str, part: str) -> None:
    assert part_of(name) == part


def test_metadata_that_contradicts_the_tensors_is_refused(tmp_path: Path) -> None:
    tensors = ends() + [t for i in range(2) for t in attention(i, 4, 2, 64) + dense(i)]
    with pytest.raises(SpecError, match=r"llama tensors: holds [\d,]+ values in its tensors, but its metadata describes"):
        model(tmp_path, keys("llama", **{**HEADS, "feed_forward_length": 2 * FF}), tensors)


def test_a_small_gap_is_remarked(tmp_path: Path) -> None:
    tensors = [*ends(), *(t for i in range(2) for t in attention(i, 4, 2, 64) + dense(i)), ("strange.weight", "F32", (7,))]
    found, _ = model(tmp_path, keys("llama", **HEADS), tensors)
    assert found.note is not None
    assert "hold 7 values more" in found.note


@pytest.mark.parametrize("arch", ["rwkv7", "bert", "qwen9"])
def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path, arch: str) -> None:
    with pytest.raises(Unsupported, match=f"GGUF architecture '{arch}' is not understood"):
        model(tmp_path, keys(arch, **HEADS), ends())


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ({"block_count": None}, "block_count: is required and missing"),
        ({"block_count": 2**31}, "block_count: 2147483648: must be a whole number"),
        ({"attention.head_count": "four"}, "attention.head_count: four: must be a whole number"),
        ({"attention.head_count": [4, 2]}, "attention.head_count: differs between layers"),
        ({"attention.head_count_kv": [2]}, None),
    ],
)
def test_absurd_metadata_is_refused(tmp_path: Path, broken: dict[str, Any], rule: str | None) -> None:
    tensors = ends() + [t for i in range(2) for t in attention(i, 4, 2, 64) + dense(i)]
    metadata = keys("llama", **{**HEADS, **broken})
    if rule is None:
        assert model(tmp_path, metadata, tensors)[0].params == sum_of(tensors)
        return
    with pytest.raises(SpecError, match=rule):
        model(tmp_path, metadata, tensors)
