"""Worked problems of the founding article and of public texts that need no more than one device at its roof."""

import numpy as np
import pytest

import inferplan as ip
from inferplan.engine.cache_bytes import kv_bytes_per_token, sequence_bytes
from inferplan.ops.attention import attention_flops, causal_pairs
from inferplan.ops.moe import distinct_experts
from inferplan.roofline.bounds import memory_s
from inferplan.specs.model import Model

BF16 = ip.precision("bf16")


def test_seven_billion_at_two_bytes() -> None:
    moved = 7e9 * 2
    assert moved == 14e9
    assert memory_s(moved, 2e12) == pytest.approx(7e-3)
    assert memory_s(moved, 3.35e12) == pytest.approx(4.2e-3, abs=5e-5)
    assert memory_s(7e9, 2e12) == pytest.approx(3.5e-3)


def test_the_exact_seven_billion() -> None:
    model = ip.model("7b")
    assert model.params == 6_738_415_616
    found = ip.decode(model, ip.hardware("a100"), ip.precision("fp16"), context=1)
    assert float(found.weight_bytes) == 2 * (6_738_415_616 - 32_000 * 4096) + 2 * 4096
    a100 = ip.decode(model, ip.hardware("a100"), ip.precision("fp16"), context=1024)
    h100 = ip.decode(model, ip.hardware("h100"), ip.precision("fp16"), context=1024)
    assert float(a100.floor_s / h100.floor_s) == pytest.approx(3.35 / 2.039)
    assert a100.bound == "memory"


def test_fp8_halves_the_bytes_of_what_it_holds() -> None:
    model = ip.model("7b")
    wide, narrow = (ip.weight_bytes_by_part(model, ip.precision(p)) for p in ("bf16", "fp8"))
    for part in ("attention", "mlp"):
        assert narrow[part] == pytest.approx(wide[part] / 2, rel=1e-6)
    assert narrow["embedding"] == wide["embedding"]


def test_llama2_13b_cache_of_8192_tokens() -> None:
    each = kv_bytes_per_token(ip.model("llama-2-13b"), BF16)
    assert each == 2 * 40 * 40 * 128 * 2
    assert each * 8192 == pytest.approx(6.7e9, rel=2e-3)


def test_llama3_70b_int8_cache() -> None:
    assert kv_bytes_per_token(ip.model("llama-3-70b"), ip.precision("bf16", kv="int8-tensor")) == 163_840


def test_deepseek_v3_latent() -> None:
    assert kv_bytes_per_token(ip.model("deepseek-v3"), BF16) == 61 * (512 + 64) * 2 == 70_272


def test_gpt_oss_windows() -> None:
    model = ip.model("gpt-oss-120b")
    full = 18 * 2 * 8 * 64 * 2
    assert kv_bytes_per_token(model, BF16) == 2 * full
    tokens = 131_072
    assert float(sequence_bytes(model, BF16, float(tokens))) == full * tokens + full * 128
    assert full * tokens / 2**30 == pytest.approx(4.5)


def test_tied_eighteen_billion() -> None:
    layer = {
        "mixer": {"kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 256},
        "ffn": {"kind": "dense", "width": 16_384},
        "norms": 0,
    }
    model = Model.from_mapping(
        {"name": "m", "title": "M", "hidden": 4096, "vocab": 32_128, "head": "tied", "norms": 0, "layers": "a*64", "blocks": {"a": layer}}
    )
    assert model.params == pytest.approx(18.4e9, rel=3e-3)


def test_v5e_critical_batch() -> None:
    part = ip.hardware("tpu-v5e")
    assert part.ridge("bf16") == pytest.approx(240, rel=0.02)


@pytest.mark.parametrize(("part", "dtype", "ridge"), [("a100", "bf16", 153.0), ("h100", "bf16", 295.3), ("h100", "fp8", 590.7)])
def test_ridge_points(part: str, dtype: str, ridge: float) -> None:
    assert ip.hardware(part).ridge(dtype) == pytest.approx(ridge, abs=0.05)


def test_distinct_experts() -> None:
    assert distinct_experts(256, 8, 32) == pytest.approx(163.3, abs=0.05)
    assert distinct_experts(256, 8, 64) == pytest.approx(222.4, abs=0.05)


@pytest.mark.parametrize(("cached", "new"), [(4096, 1), (0, 4096), (1000, 24)])
def test_intensity_of_multi_head_attention(cached: int, new: int) -> None:
    """S T / (S + T) FLOP per byte in bf16, without a causal mask: about 1 in decode, T / 2 in prefill."""
    heads, dim = 32, 128
    seen = cached + new
    flops = attention_flops(heads, dim, dim, new * seen)
    moved = 2 * heads * dim * (2 * seen + 2 * new)
    assert flops / moved == pytest.approx(seen * new / (seen + new))


def test_causal_prefill_does_half_of_the_rectangle() -> None:
    assert causal_pairs(4096, 0) == pytest.approx(4096 * 4096 / 2, rel=1e-3)


def test_decode_never_beats_either_roof() -> None:
    part, model = ip.hardware("h100"), ip.model("llama-3.1-8b")
    batch, context = np.array([[1.0], [8.0], [512.0]]), np.array([128.0, 4096.0, 65_536.0])
    found = ip.decode(model, part, ip.precision("fp8"), batch=batch, context=context)
    assert np.all(found.floor_s >= found.bytes / part.bandwidth_bytes_per_s - 1e-18)
    assert np.all(found.floor_s >= found.flops / part.peak_flops_per_s("fp8") - 1e-18)
    assert np.all(np.diff(found.floor_s, axis=0) > 0)
    assert np.all(np.diff(found.floor_s, axis=1) > 0)
