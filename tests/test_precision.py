"""Number formats and precisions against published bits per weight, GGUF file sizes, engine logs and hand counts."""

from __future__ import annotations

import csv
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.errors import InferplanError, NotFound, SpecError, Unsupported
from inferplan.specs import precision as module
from inferplan.specs.catalog import normalise
from inferplan.specs.precision import BODY, PARTS, Format, Precision, Tensor, library, mix_type, named_format, tensor_role
from inferplan.specs.weights import Part

DATA = Path(__file__).parent / "data"
GIB = 1024**3


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def every_format() -> list[Format]:
    """All that the files list, and the smallest and largest that each template makes."""
    held = library()
    found = {id(f): f for f in held.formats.values()}
    for file in held.files.values():
        for t in file.templates:
            options = {**t.choices, **t.between}
            for pick in (min, max):
                form = t.form.format(**{k: pick(v) if k in t.between else int(pick(v)) for k, v in options.items()})
                made = file.made(normalise(form))
                assert made, form
                found[id(made)] = made
    return list(found.values())


WEIGHTS = [f for f in every_format() if "weights" in f.applies_to]
CACHES = [f for f in every_format() if "kv" in f.applies_to]


# --- published bits -----------------------------------------------------------------------------------------------------


def _stated_bits(row: dict[str, str]) -> float:
    if row["compare"].startswith("kv"):
        f = named_format(row["format"], "kv")
        if row["compare"] == "kv":
            return f.kv_bytes_per_token(128, 128, head_dim=128) * 8 / 256
        return (f.payload_bits(1, 128) + (f.value or f).payload_bits(1, 128)) / 256
    f = named_format(row["format"])
    if row["compare"] == "unpacked":  # the table counts 3 bits a code; ten of them lie in 32
        return f.bits + f.bits_per_element - f.element_bits
    if row["compare"] == "nominal":
        return f.bits_per_element
    r, c = int(row["rows"]), int(row["cols"])
    index_bits = sum(t.matrix_bits(r, c) for t in f.tables if t.what == "g_idx")  # the table leaves g_idx out
    return (f.matrix_bits(r, c) - index_bits) / (r * c)


@pytest.mark.parametrize("row", rows("formats_bpw.csv"), ids=lambda r: r["published_name"])
def test_published_bits_per_element_are_exact(row: dict[str, str]) -> None:
    assert _stated_bits(row) == float(row["bits_per_element"])


def test_packed_words_are_counted_beside_nominal_bits() -> None:
    assert named_format("hqq-int3-g64").bits_per_element == pytest.approx(3.7)
    assert named_format("gptq-int3-g128").payload_bits(4096, 4096) == 4096 * 4096 * 3
    # 33 inputs take two runs of 32 values: 2 x 4 words of 32 bits per output, plus scale, packed zeros and g_idx
    assert named_format("gptq-int4-g32").matrix_bits(32, 33) == 32 * 2 * 128 + 2 * 32 * 16 + 2 * 128 + 33 * 32
    assert named_format("awq").bytes(8, 128) == 128 * 4 + 8 * 2 + 4
    assert named_format("fp8-block").bytes(129, 129) == 129 * 129 + 4 * 4
    assert named_format("nf4").bytes(100, 100) == 5000 + 157 + 4 + 4
    assert named_format("nvfp4").bytes(128, 24) == 128 * 12 + 128 * 2 + 4
    assert named_format("exl3-4.0").bytes(4096, 1024) == 4096 * 1024 / 2 + 2 * (4096 + 1024)


# --- properties ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", WEIGHTS, ids=lambda f: f.name)
def test_nominal_bits_are_the_limit_of_large_whole_matrices(f: Format) -> None:
    size = 2**19 * 15  # whole groups of 32, 40, 256 and whole words
    assert f.matrix_bits(size, size) / size**2 == pytest.approx(f.bits_per_element, abs=2e-5)


SIZES = st.integers(1, 20_000)


@given(st.sampled_from(WEIGHTS), SIZES, SIZES, st.integers(0, 300), st.integers(0, 300))
def test_bytes_grow_with_the_matrix_and_never_fall_below_the_codes(f: Format, r: int, c: int, dr: int, dc: int) -> None:
    assert f.bytes(r + dr, c + dc) >= f.bytes(r, c) >= f.bits * r * c / 8
    assert f.matrix_bits(r, c) >= f.payload_bits(r, c)


@given(st.sampled_from(["gptq-int{}-g64", "hqq-int{}-g64", "mlx-q{}-g32", "gptq-int{}-channel"]), SIZES, SIZES)
def test_half_the_bits_halve_the_codes(form: str, r: int, c: int) -> None:
    wide, narrow = (named_format(form.format(bits)) for bits in (8, 4))
    assert wide.payload_bits(r, c) == 2 * narrow.payload_bits(r, c)


@pytest.mark.parametrize("f", every_format(), ids=lambda f: f.name)
def test_arrays_give_what_scalars_give(f: Format) -> None:
    r, c = np.array([[1], [77], [4096]]), np.array([1, 40, 129, 14336])
    if "weights" in f.applies_to:
        expected = [[f.bytes(int(a), int(b)) for b in c] for a in r[:, 0]]
        np.testing.assert_array_equal(f.bytes(r, c), expected)
    if "kv" in f.applies_to and "heads" in f.holds:
        for ask in (f.kv_bytes_per_token, f.kv_bytes_per_sequence):
            np.testing.assert_allclose(
                ask(128 * r, 64 * r, head_dim=128), [[ask(128 * int(a), 64 * int(a), head_dim=128)] for a in r[:, 0]]
            )


@pytest.mark.parametrize("f", [f for f in CACHES if "heads" in f.holds], ids=lambda f: f.name)
def test_a_cache_is_the_sum_of_k_and_v_and_of_its_heads(f: Format) -> None:
    eight = f.kv_bytes_per_token(1024, 1024, head_dim=128)
    assert eight == pytest.approx(8 * f.kv_bytes_per_token(128, 128, head_dim=128))
    k_only = f.kv_bytes_per_token(1024, 0, head_dim=128)
    assert 0 < k_only < eight
    assert f.kv_bytes_per_token(1024, 1024, head_dim=128, v_head_dim=128) == eight
    assert eight <= 2 * 1024 * (4 if f.name == "fp32" else 2)


# --- caches that engines printed ------------------------------------------------------------------------------------------


def test_caches_of_llama_cpp_logs() -> None:
    q8, q4 = named_format("q8_0", "kv"), named_format("q8_0/q4_0", "kv")
    mib = 1024**2
    # ik_llama.cpp#503 (Qwen3-32B, 64 layers), #377 (Nemotron-Ultra, 64 layers with KV), #437 (DeepSeek-R1, MLA), #389 (K q8_0, V f16)
    assert 64 * 16896 * q8.kv_bytes_per_token(1024, 1024, head_dim=128) / mib == 2244.0
    assert 64 * 12288 * q4.kv_bytes_per_token(1024, 1024, head_dim=128) / mib == 1248.0
    assert 61 * 61440 * q8.latent_bytes_per_token(512, 64) / mib == pytest.approx(2187.42, abs=0.01)
    mixed = named_format("q8_0/f16", "kv").kv_bytes_per_token(512, 512, head_dim=128)
    assert 94 * 8192 * mixed / mib == 1151.5


def test_caches_of_vllm_logs() -> None:
    assert named_format("nvfp4", "kv").kv_bytes_per_token(1024, 1024, head_dim=256) == 2048 * 0.5625  # vllm#57475
    assert named_format("bf16", "kv").latent_bytes_per_token(512, 64) == 1152
    ds_mla, index = named_format("fp8_ds_mla", "kv"), named_format("fp8-index", "kv")
    per_token = ds_mla.latent_bytes_per_token(512, 64) + index.kv_bytes_per_token(128, 0, head_dim=128)
    assert 61 * per_token == 48_068  # DeepSeek-V3.2 in SGLang


def test_int8_keeps_k_scales_per_channel_and_v_scales_per_token_and_head() -> None:
    kv, grouped = named_format("int8", "kv"), named_format("int8-kv-g128", "kv")
    # Llama-3-70B, one layer: 2 x 1024 codes and 8 fp16 scales of V a token; 1024 fp16 scales of K a sequence
    assert kv.kv_bytes_per_token(1024, 1024, head_dim=128) == 2048 + 8 * 2
    assert kv.kv_bytes_per_sequence(1024, 1024, head_dim=128) == 1024 * 2
    assert grouped.kv_bytes_per_token(1024, 1024, head_dim=128) == 2048 + 8 * 2 + 1024 * 2 / 128
    assert grouped.kv_bytes_per_sequence(1024, 1024, head_dim=128) == 0


def test_kivi_keeps_its_newest_tokens_in_16_bit() -> None:
    kivi = named_format("kivi-4", "kv")
    assert kivi.kv_bytes_per_token(1024, 1024, head_dim=128) == 2048 * 5 / 8
    assert kivi.kv_bytes_per_sequence(1024, 1024, head_dim=128) == 128 * (2048 * 2 - 2048 * 5 / 8)


@pytest.mark.parametrize("name", ["int8", "int4", "kivi-2", "nvfp4", "turboquant", "q8_0/q4_0"])
def test_what_scales_k_and_v_apart_holds_no_latent(name: str) -> None:
    with pytest.raises(Unsupported, match="cannot hold an MLA latent"):
        named_format(name, "kv").latent_bytes_per_token(512, 64)


def test_formats_refuse_what_they_cannot_express() -> None:
    with pytest.raises(Unsupported, match="cannot hold K and V per head"):
        named_format("fp8_ds_mla", "kv").kv_bytes_per_token(1024, 1024, head_dim=128)
    with pytest.raises(Unsupported, match=r"512 \+ 64 elements, not 256 \+ 64"):
        named_format("fp8_ds_mla", "kv").latent_bytes_per_token(256, 64)
    with pytest.raises(Unsupported, match="not one for weights"):
        named_format("int8", "kv").bytes(10, 10)
    with pytest.raises(Unsupported, match="not one for a KV cache"):
        named_format("awq").kv_bytes_per_token(1024, 1024, head_dim=128)
    with pytest.raises(Unsupported, match="already says what V is in"):
        named_format("int8/q4_0", "kv")


# --- GGUF files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A decoder as its GGUF file holds it; `loose` counts fp32 values outside matrices and norms of the stream."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128
    experts: int = 1
    tied: bool = False
    per_layer: int = 0
    loose: int = 0


SHAPES = {
    "llama-3.1-8b": Shape(32, 4096, 14336, 32, 8, 128256, loose=64),
    "llama-3-70b": Shape(80, 8192, 28672, 64, 8, 128256),
    "llama-2-7b": Shape(32, 4096, 11008, 32, 32, 32000),
    "llama-2-13b": Shape(40, 5120, 13824, 40, 40, 32000),
    "llama-1-30b": Shape(60, 6656, 17920, 52, 52, 32000),
    "llama-1-65b": Shape(80, 8192, 22016, 64, 64, 32000),
    "qwen2.5-1.5b": Shape(28, 1536, 8960, 12, 2, 151936, tied=True, per_layer=1536 + 2 * 256),
    "qwen2.5-coder-7b": Shape(28, 3584, 18944, 28, 4, 152064, per_layer=3584 + 2 * 512),
    "qwen3-32b": Shape(64, 5120, 25600, 64, 8, 151936, per_layer=256),
    "qwen3-30b-a3b": Shape(48, 2048, 768, 32, 4, 151936, experts=128, per_layer=256),
    "qwen3-235b-a22b": Shape(94, 4096, 1536, 64, 4, 151936, experts=128, per_layer=256),
    "gpt-oss-20b": Shape(24, 2880, 2880, 64, 8, 201088, 64, 32, per_layer=4096 + 2 * 512 + 2880 + 64 + 32 + 32 * 3 * 2880),
    "gpt-oss-120b": Shape(36, 2880, 2880, 64, 8, 201088, 64, 128, per_layer=4096 + 2 * 512 + 2880 + 64 + 128 + 128 * 3 * 2880),
}


def matrices(s: Shape) -> list[tuple[str, int, int, int]]:
    """(role, rows, cols, copies) of one layer."""
    q, kv, suffix = s.heads * s.head_dim, s.kv_heads * s.head_dim, "_exps" if s.experts > 1 else ""
    attention = [("attn_q", q, s.hidden, 1), ("attn_k", kv, s.hidden, 1), ("attn_v", kv, s.hidden, 1), ("attn_output", s.hidden, q, 1)]
    up = [(f"ffn_{side}{suffix}", s.ffn, s.hidden, s.experts) for side in ("gate", "up")]
    router = [("ffn_gate_inp", s.experts, s.hidden, 1)] if s.experts > 1 else []
    return [*attention, *up, (f"ffn_down{suffix}", s.hidden, s.ffn, s.experts), *router]


def file_size(s: Shape, mix: str, imatrix: bool | None) -> tuple[float, int]:
    """Bytes and parameters of a file's tensors, its header left out."""
    held, known = library(), {"gqa": s.heads // s.kv_heads, "experts": s.experts, "imatrix": imatrix, "tied": s.tied}

    def kind(role: str, layer: int, cols: int) -> str:
        return held.tensor_type(held.mix(mix), Tensor(role, layer, s.layers, cols, **known))

    fp32 = s.layers * (2 * s.hidden + s.per_layer) + s.hidden + s.loose
    size, params = 4.0 * fp32, fp32
    for role, r, c, copies in matrices(s):
        kinds = Counter(kind(role, layer, c) for layer in range(s.layers))
        size += sum(count * copies * named_format(name).bytes(r, c) for name, count in kinds.items())
        params += s.layers * copies * r * c
    for role in ("token_embd",) if s.tied else ("token_embd", "output"):
        size += named_format(kind(role, 0, s.hidden)).bytes(s.vocab, s.hidden)
        params += s.vocab * s.hidden
    return size, params


@pytest.mark.parametrize("row", rows("gguf_sizes.csv"), ids=lambda r: f"{r['model']}-{r['mix']}-{r['quantity']}")
def test_gguf_files_have_their_published_size(row: dict[str, str]) -> None:
    size, params = file_size(SHAPES[row["model"]], row["mix"], {"yes": True, "no": False, "": None}[row["imatrix"]])
    found = size * 8 / params if row["quantity"] == "bits_per_weight" else size / GIB
    # the table of Llama-3.1-8B gives bits of the tensors alone to five digits; the others round, or hold a header as well
    limit = 3e-5 if row["model"] == "llama-3.1-8b" and row["quantity"] == "bits_per_weight" else 5e-3
    assert found == pytest.approx(float(row["value"]), rel=limit)


def test_mixes_look_at_shape_experts_and_ties() -> None:
    assert mix_type("q4_k_m", "attn_v", 1, 80, 8192, gqa=8) == "q6_k"
    assert mix_type("q4_k_m", "attn_v", 11, 80, 8192, gqa=8) == "q5_k"  # the 70B rule
    assert mix_type("q4_k_m", "attn_v", 11, 80, 8192, gqa=1) == "q4_k"
    assert mix_type("q3_k_s", "attn_v", 5, 32, 4096, gqa=4, experts=8) == "q8_0"
    assert mix_type("q4_k_m", "ffn_down", 6, 30, 2880) == "q5_0"
    assert mix_type("q4_k_m", "ffn_down", 5, 30, 2880) == "q8_0"
    assert mix_type("q4_k_m", "ffn_down", 6, 30, 2890) == "fp16"
    assert mix_type("q4_k_m", "token_embd", 0, 32, 1536, tied=True) == "q6_k"
    assert mix_type("q4_k_m", "token_embd", 0, 32, 1536) == "q4_k"
    assert mix_type("q4_k_m", "output", 0, 32, 2880) == "q8_0"
    assert mix_type("q4_k_m", "attn_norm", 0, 32, 4096) == "fp32"
    assert mix_type("q4_k_m", "ffn_down_exps", 6, 32, 4096, experts=64) == "q6_k"


def test_every_mix_names_formats_that_exist() -> None:
    held = library()
    for mix in held.mixes.values():
        for name in (mix.base, mix.output, mix.token_embd or mix.base, *(r.type for g in mix.use for r in held.rules.groups[g])):
            assert named_format(name).name == name
        for rule in mix.rules:
            assert named_format(rule.type).name == rule.type
    for odd, fallback in held.rules.fallback.items():
        assert named_format(odd).block > named_format(fallback).block == 32


# --- checkpoints that engines loaded --------------------------------------------------------------------------------------


def checkpoint(s: Shape, precision: Precision) -> float:
    linear = {"attn": "attention", "ffn": "mlp"}
    body = sum(precision.format_of(linear[role.split("_")[0]]).bytes(r, c) for role, r, c, _ in matrices(s))
    small = precision.format_of("norm").bytes(1, s.layers * 2 * s.hidden + s.hidden)
    ends = sum(precision.format_of(part).bytes(s.vocab, s.hidden) for part in ("embedding", "head"))
    return s.layers * body + small + ends


QWEN_72B = Shape(80, 8192, 29696, 64, 8, 152064)  # GPTQ copies pad the feed-forward width from 29,568


@pytest.mark.parametrize(
    ("shape", "name", "gib", "rel"),
    [
        (SHAPES["llama-3.1-8b"], "bf16", 14.99, 3e-3),  # vllm logs, model loading; a rotary table of 0.03 GiB on top
        (SHAPES["llama-3.1-8b"], "fp32", 29.98, 3e-3),
        (SHAPES["llama-3.1-8b"], "fp8", 8.49, 5e-3),
        (SHAPES["llama-3.1-8b"], "w8a8", 8.49, 5e-3),
        (SHAPES["llama-3.1-8b"], "w4a16", 5.38, 15e-3),
        (SHAPES["llama-3-70b"], "w8a8", 67.72, 2e-3),  # vllm#12569
        (SHAPES["llama-3-70b"], "fp8-channel", 2 * 33.88, 3e-3),
        (QWEN_72B, "w4a16", 38.526, 2e-3),  # vllm#11230: GPTQ int4, repacked for marlin without zero points and g_idx
    ],
)
def test_checkpoints_take_what_engines_loaded(shape: Shape, name: str, gib: float, rel: float) -> None:
    assert checkpoint(shape, Precision.named(name)) / GIB == pytest.approx(gib, rel=rel)


def test_llama_2_7b_awq_by_hand() -> None:
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    packed = linear // 2 + linear // 128 * 2 + linear // 128 // 2
    wide = 2 * (2 * 32000 * 4096 + 65 * 4096)
    assert checkpoint(SHAPES["llama-2-7b"], Precision.named("awq")) == packed + wide == 3_889_307_648


def test_llama_2_70b_by_hand() -> None:
    shape = Shape(80, 8192, 28672, 64, 8, 32000)
    linear = 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 8192 * 28672)
    wide = 2 * (2 * 32000 * 8192 + 161 * 8192)
    inputs = 80 * (6 * 8192 + 28672)  # one g_idx entry per input of each of the seven matrices
    assert checkpoint(shape, Precision.named("gptq")) == linear // 2 + linear // 128 * 5 // 2 + 4 * inputs + wide
    assert checkpoint(shape, Precision.named("fp8-block")) == linear + linear // 128**2 * 4 + wide
    assert checkpoint(shape, Precision.named("fp8")) == linear + 80 * 7 * 4 + wide


# --- precisions by name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "weights", "kv", "head", "compute"),
    [
        ("bf16", "bf16", "bf16", "bf16", "bf16"),
        ("FP16", "fp16", "fp16", "fp16", "fp16"),
        ("fp32", "fp32", "fp32", "fp32", "fp32"),
        ("fp8", "fp8", "bf16", "bf16", "fp8"),
        ("fp8_block", "fp8-block", "bf16", "bf16", "fp8"),
        ("w8a8", "int8", "bf16", "bf16", "int8"),
        ("int8", "int8", "bf16", "bf16", "int8"),
        ("w8a16", "int8-weight-only", "bf16", "bf16", "bf16"),
        ("w4a16", "int4-g128", "bf16", "bf16", "bf16"),
        ("w4a8kv4", "qserve-w4a8-g128", "int4-head-kv", "bf16", "int8"),
        ("w8a8kv8", "int8", "int8-kv", "bf16", "int8"),
        ("w4a16-kv16", "int4-g128", "bf16", "bf16", "bf16"),
        ("awq", "awq-int4-g128", "bf16", "bf16", "bf16"),
        ("gptq-int3-g128", "gptq-int3-g128", "bf16", "bf16", "bf16"),
        ("bnb-4bit", "nf4", "bf16", "bf16", "bf16"),
        ("nvfp4", "nvfp4", "bf16", "bf16", "fp4"),
        ("exl2-4.65", "exl2-4.65", "bf16", "exl2-6.0", "bf16"),
        ("mlx-4bit", "mlx-q4-g64", "bf16", "mlx-q4-g64", "bf16"),
        ("hqq-4bit", "hqq-int4-g64", "bf16", "bf16", "bf16"),
        ("Q4_K_M", "q4_k", "fp16", "q6_k", "int8"),
        ("gguf Q8_0", "q8_0", "fp16", "q8_0", "int8"),
        ("iq2_xxs", "iq2_xxs", "fp16", "q5_k", "int8"),
    ],
)
def test_presets(text: str, weights: str, kv: str, head: str, compute: str) -> None:
    p = Precision.named(text)
    assert (p.weights.name, p.kv.name, p.format_of("head").name, p.compute_of("mlp")) == (weights, kv, head, compute)


def test_kv_is_a_knob_of_its_own() -> None:
    assert Precision.named("fp8", kv="fp8").kv.name == "fp8"
    assert Precision.named("q4_k_m", kv="q8_0/q4_0").kv.name == "q8_0/q4_0"
    assert Precision.named("bf16", kv="auto") == Precision.named("bf16")
    assert Precision.named("bf16", kv="int8").kv.value is not None
    with pytest.raises(NotFound, match="no KV format called 'awq'"):
        Precision.named("bf16", kv="awq")


def test_what_stays_wide() -> None:
    for name in ("fp8", "awq", "nf4", "nvfp4", "w8a8"):
        p = Precision.named(name)
        assert {part for part in PARTS if p.format_of(part).quantised} == set(BODY)
    oss, moe, gguf = (Precision.named(name) for name in ("mxfp4", "nvfp4-moe", "q4_k_m"))
    assert {part for part in PARTS if oss.format_of(part).quantised} == {"experts"}
    assert moe.format_of("attention").name == "bf16"
    assert moe.format_of("experts").name == moe.format_of("mlp").name == "nvfp4"
    assert gguf.format_of("norm").name == gguf.format_of("router").name == "fp32"
    assert gguf.state is not None
    assert gguf.state.name == "fp32"


def test_parts_one_by_one() -> None:
    p = Precision.named("body=q4_k, head=q6_k, shared-expert=q8_0, kv=int8, compute=bf16, state=fp32")
    assert [p.format_of(part).name for part in ("mlp", "head", "shared_expert", "norm")] == ["q4_k", "q6_k", "q8_0", "bf16"]
    assert (p.kv.name, p.compute_of("mlp"), p.compute_of("norm")) == ("int8-kv", "bf16", "bf16")


def test_mixes_answer_per_tensor_and_layer() -> None:
    p = Precision.named("q4_k_m")
    down = Tensor("ffn_down", 0, layers=32, cols=14336)
    assert {f.name: n for f, n in p.formats_of("mlp", down)} == {"q6_k": 16, "q4_k": 16}
    assert [(f.name, n) for f, n in p.formats_of("mlp", down, which=[0, 1, 2])] == [("q6_k", 3)]
    assert [(f.name, n) for f, n in Precision.named("awq").formats_of("mlp", down)] == [("awq-int4-g128", 32)]
    assert [f.name for f, _ in Precision.named("mxfp4_moe").formats_of("experts", Tensor("ffn_up_exps", 0, 24, 2880))] == ["mxfp4"]
    assert Precision.named("mxfp4_moe").format_of("experts").name == "mxfp4"


@pytest.mark.parametrize(
    ("text", "near"),
    [("q4_k_x", "q4_k_m"), ("gptq-int5-g128", "gptq"), ("fp7", "fp8"), ("awq-int4-g100", "awq"), ("w4a16kv5", "kv4"), ("", "precision")],
)
def test_unknown_names_list_near_misses(text: str, near: str) -> None:
    with pytest.raises(NotFound, match=near):
        Precision.named(text)


@pytest.mark.parametrize(
    "text", ["body", "body=", "body=awq,body=awq", "body=awq,nose=fp8", "head=q6_k", "=", "body=awq,,", "body=awq,compute=x"]
)
def test_a_broken_assignment_is_refused(text: str) -> None:
    with pytest.raises(SpecError if "=" in text else NotFound):
        Precision.named(text)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40) | st.text("wakv0123468qp_.-=,/", max_size=12))
def test_any_text_is_a_precision_or_one_line(text: str) -> None:
    try:
        said = Precision.named(text).summary
    except InferplanError as e:
        said = str(e)
    assert said
    assert said.isprintable()


def test_unknown_part_is_refused() -> None:
    with pytest.raises(SpecError, match="is not one of"):
        Precision.named("fp8").format_of("nose")


# --- the files --------------------------------------------------------------------------------------------------------------


def test_parts_cover_those_of_a_model() -> None:
    assert set(get_args(Part)) <= set(PARTS)
    assert tensor_role("local.attention.q", "attention") == "attn_q"
    assert tensor_role("global.experts.shared.down", "shared_expert") == "ffn_down_shexp"
    assert tensor_role("mla.kv_a", "attention") == "other"


def test_presets_and_mixes_have_names_of_their_own_and_make_precisions() -> None:
    held = library()
    presets = [n for f in held.files.values() for p in f.presets for n in (p.name, *p.aliases)]
    mixes = [n for m in held.rules.mixes for n in (m.name, *m.aliases)]
    for names in (presets, mixes):
        assert max(Counter(map(normalise, names)).values()) == 1
    for name in (*presets, *mixes):
        assert Precision.named(name).kv.quantised is (name in ("w4a8kv4", "qserve"))


def test_every_alias_leads_to_its_format() -> None:
    held = library()
    for f in {id(f): f for f in held.formats.values()}.values():
        for use in f.applies_to:
            assert all(named_format(name, use) is f for name in (f.name, *f.aliases))
    for file in held.files.values():
        for t in file.templates:
            for name, aliases in t.names.items():
                use = held.files[file.name].made(normalise(name)).applies_to[0]  # type: ignore[union-attr]
                assert {named_format(a, use).name for a in (name, *aliases)} == {name}


FILE = """
name: mine
title: Mine
sources: {own: {title: a note, kind: assumed}}
formats:
  - {name: int8, title: my int8, bits: 8, compute: bf16, source: own}
templates:
  - form: "mine-{bits}"
    choices: {bits: [1, 5]}
    format: {title: "mine {bits}", bits: "{bits}", compute: bf16, source: own}
"""


def _user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "mine.yaml").write_text(text)
    monkeypatch.setenv("INFERPLAN_PATH", os.fspath(tmp_path))


def test_a_users_format_shadows_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _user_folder(tmp_path, monkeypatch, FILE)
    assert named_format("int8").title == "my int8"
    assert named_format("mine-5").bits == 5
    assert named_format("awq").bits == 4
    assert Precision.named("w8a8").compute_of("mlp") == "bf16"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("source: own", "source: other", "source"),
        ("bits: 8", "bits: 0", "formats"),
        ("compute: bf16", "compute: fp7", "compute"),
        ("name: mine", "name: yours", "must equal the file's name"),
        ("formats:", "formats:\n  - {name: INT8, title: twice, bits: 8, compute: bf16, source: own}", "as well"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str) -> None:
    _user_folder(tmp_path, monkeypatch, FILE.replace(old, new))
    with pytest.raises(SpecError, match=said) as found:
        named_format("int8")
    assert os.fspath(tmp_path) in str(found.value)


def test_every_function_is_short() -> None:
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(module))
    lengths = sorted(n.end_lineno - n.body[0].lineno + 1 for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.end_lineno)
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[-1] <= 60
