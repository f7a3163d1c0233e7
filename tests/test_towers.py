"""Encoders, projectors and encoder-decoder families: parameters against independent counts, caches, and what is said of a stranger."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.errors import InferplanError, SpecError
from inferplan.readers.huggingface.config import read_config
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Model
from inferplan.specs.weights import params

with (Path(__file__).parent / "data" / "tower_params.csv").open(encoding="utf-8", newline="") as f:
    ROWS = {row["case"]: row for row in csv.DictReader(f)}
CONFIGS: dict[str, dict[str, Any]] = {name: json.loads(row["config"]) for name, row in ROWS.items()}
DEPTHS = ("num_hidden_layers", "depth", "encoder_layers", "num_layers", "num_blocks")


def vision(model: Model) -> int:
    return params(w for w in model.weights() if w.part == "vision")


def changed(name: str, *path: str, to: Any) -> dict[str, Any]:
    """A copy of a case with one field replaced."""
    data = copy.deepcopy(CONFIGS[name])
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return data


def encoder_depth(name: str) -> tuple[str, ...] | None:
    """Where a case states how many layers its image or sound encoder has."""
    outer = CONFIGS[name].get("thinker_config", CONFIGS[name])
    for part in ("vision_config", "audio_config", "encoder_config"):
        field = next((d for d in DEPTHS if d in outer.get(part, {})), None)
        if field:
            return part, field
    return None


DEEP = {name: path for name in ROWS if (path := encoder_depth(name))}


@pytest.mark.parametrize("name", ROWS)
def test_parameters_equal_the_independent_count(name: str) -> None:
    model = read_config(CONFIGS[name])
    assert model.params == int(ROWS[name]["total"])
    assert vision(model) == int(ROWS[name]["vision"])
    assert model.note is None


def test_the_table_covers_the_families() -> None:
    assert len(ROWS) >= 25
    assert sum(int(row["vision"]) > 0 for row in ROWS.values()) >= 40
    assert all("transformers 5.24.0" in row["source"] for row in ROWS.values())


@pytest.mark.parametrize("name", DEEP)
def test_each_further_layer_of_an_encoder_adds_the_same(name: str) -> None:
    path = DEEP[name]
    part, field = path
    here = CONFIGS[name][part][field]
    totals = [vision(read_config(changed(name, *path, to=here + extra))) for extra in (12, 24, 36)]
    assert totals[0] < totals[1] < totals[2]
    assert totals[2] - totals[1] == totals[1] - totals[0]


@settings(max_examples=40, deadline=None)
@given(
    heads=st.sampled_from([2, 4, 8]),
    head=st.integers(8, 80),
    inner=st.integers(16, 4000),
    side=st.integers(1, 40),
    layers=st.integers(1, 40),
)
def test_siglip_matches_its_closed_form(heads: int, head: int, inner: int, side: int, layers: int) -> None:
    h = heads * head
    tower = {
        "model_type": "siglip_vision_model",
        "hidden_size": h,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
    }
    data = changed("gemma3-a", "vision_config", to={**tower, "image_size": 14 * side, "patch_size": 14, "vision_use_head": False})
    text = data["text_config"]["hidden_size"]
    layer = 4 * h * h + 4 * h + 2 * h * inner + inner + h + 4 * h
    expected = layers * layer + (3 * 14 * 14 + 1) * h + side * side * h + 2 * h + h * text + h
    assert vision(read_config(data)) == expected


def test_layers_of_an_encoder_neither_mask_nor_cache() -> None:
    for name, config in CONFIGS.items():
        model = read_config(config)
        for tower in model.towers.values():
            mixers = [m for _, _, block in tower.groups() for m in block.mixers if isinstance(m, Attention)]
            assert not any(m.cached or m.causal for m in mixers), name
            assert [entry for _, _, block in tower.groups() for entry in block.cache()] == []


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("gemma3-a", 256),
        ("paligemma-a", 16),
        ("idefics3-a", 4),
        ("internvl-a", 256),
        ("llama4-a", 4),
        ("qwen2_5_vl-a", None),
        ("whisper-cond", 99),
    ],
)
def test_tokens_per_image_where_they_are_constant(name: str, tokens: int | None) -> None:
    model = read_config(CONFIGS[name])
    assert next(iter(model.towers.values())).tokens == tokens


def test_whisper_keeps_its_encoder_in_the_text_part_and_a_cross_cache_of_fixed_length() -> None:
    model = read_config(CONFIGS["whisper-cond"])
    assert vision(model) == 0
    kinds = {entry.kind: (count, entry.fixed_tokens) for count, entry in model.cache()}
    assert kinds == {"full": (3, None), "cross": (3, 99)}


def test_t5_cross_attention_caches_per_encoder_token() -> None:
    small = {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128}
    model = read_config(small)
    assert model.params == 60_506_624
    cached = {(e.kind, e.fixed_tokens, e.k_elements + e.v_elements) for _, e in model.cache()}
    assert cached == {("full", None, 1024), ("cross", None, 1024)}
    own = read_config({**small, "tie_word_embeddings": False})
    assert own.params - model.params == 32128 * 512


def test_encoder_only_models_keep_no_cache() -> None:
    for name in ("bert-Model", "roberta-ForMaskedLM", "modernbert-ForMaskedLM", "t5enc"):
        assert read_config(CONFIGS[name]).cache() == []


def test_llama_vision_looks_at_the_image_on_the_listed_layers_alone() -> None:
    model = read_config(CONFIGS["mllama-a"])
    listed = CONFIGS["mllama-a"]["text_config"]["cross_attention_layers"]
    assert [i for i, name in enumerate(model.order) if name == "cross"] == listed
    assert {entry.kind for _, entry in model.cache()} == {"full", "cross"}


def test_a_stranger_is_named_and_the_text_model_kept() -> None:
    known = read_config(CONFIGS["llava-a"])
    model = read_config(changed("llava-a", "vision_config", to={"model_type": "eye_of_newt", "hidden_size": 64}))
    assert model.note is not None
    assert "vision_config (eye_of_newt)" in model.note
    assert model.towers == {}
    assert model.params == known.params - vision(known)


@pytest.mark.parametrize(
    "extra", [{"img_processor": {"name": "clip"}}, {"talker_config": {"hidden_size": 8}}, {"speech_config": {"layers": 2}}]
)
def test_other_keys_that_hold_an_encoder_are_named_too(extra: dict[str, Any]) -> None:
    text = {
        "model_type": "phi3",
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 500,
    }
    assert read_config(text).note is None
    note = read_config({**text, **extra}).note
    assert note is not None
    assert next(iter(extra)) in note


def test_an_absent_encoder_is_the_class_default_and_a_null_one_is_none() -> None:
    absent, null = copy.deepcopy(CONFIGS["llama4-a"]), changed("llama4-a", "vision_config", to=None)
    del absent["vision_config"]
    assert vision(read_config(absent)) > 0
    assert read_config(null).towers == {}


NASTY = [-1, 0, "x", [], {}, [[1]], 1.5, True, 10**12, 10**7, float("nan"), float("inf")]
TREATED = ("qwen2_5_vl-a", "internvl-a", "mllama-a", "gemma4-a", "idefics2-a", "granite_speech-a", "whisper-cond", "bert-a", "t5-a")


def outcome(data: dict[str, Any]) -> str:
    """What a user would read: nothing, or the message of the error."""
    try:
        read_config(data, file="config.json")
    except InferplanError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("name", TREATED)
def test_absurd_fields_end_in_one_line(name: str) -> None:
    data = CONFIGS[name]
    nested = [k for k in ("vision_config", "audio_config", "encoder_config", "perceiver_config", "projector_config") if data.get(k)]
    paths = [(k, field) for k in nested for field in data[k]] + [(k,) for k in nested]
    said = [outcome(changed(name, *path, to=value)) for path in paths or [(k,) for k in data] for value in NASTY]
    assert any(said)
    assert not any("\n" in text for text in said)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("gemma3-a", ("vision_config", "num_attention_heads"), 7),
        ("gemma3-a", ("vision_config", "image_size"), 3),
        ("internvl-a", ("downsample_ratio",), 0),
        ("bert-Model", ("num_attention_heads",), 7),
        ("whisper-cond", ("encoder_layers",), 10**6),
        ("bert-Model", ("architectures",), ["BertForDivination"]),
    ],
)
def test_the_field_is_named(name: str, path: tuple[str, ...], value: Any) -> None:
    with pytest.raises(SpecError, match=path[-1]):
        read_config(changed(name, *path, to=value), file="config.json")
