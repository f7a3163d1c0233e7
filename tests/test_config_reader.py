"""Published configurations to parameter counts: a table counted on instantiated models, the traps of real files, and refusals."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan.errors import InferplanError, SpecError, Unsupported
from inferplan.readers.huggingface import dense, exotic, experts, legacy, remote
from inferplan.readers.huggingface.config import load_config, read_config
from inferplan.readers.huggingface.families import READERS, SAME_AS, reader_of
from inferplan.specs.counts import counts

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "config_params.csv").read_text(encoding="utf-8").splitlines()))
PARTS = ("attention", "recurrent", "mlp", "router", "shared_expert", "experts", "norm", "vision")

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip
LAYER = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
ENDS = 2 * 100 * 64 + 64
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def model(base=LLAMA, **changes):
    """The model of a small configuration with some fields changed; `...` takes a field out."""
    return read_config({k: v for k, v in {**base, **changes}.items() if v is not ...}, name="small")


def refusal(base=LLAMA, **changes):
    """The message with which a changed configuration is refused."""
    with pytest.raises(InferplanError) as caught:
        model(base, **changes)
    return str(caught.value)


def windows(read):
    """The window of every layer's attention, None where it is full."""
    return [read.blocks[name].mixers[0].window for name in read.order]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model_type']}-{row['case']}")
def test_parameters_of_each_part_equal_an_instantiated_model(row):
    read = read_config(json.loads(row["config"]), name="case")
    found = counts(read)
    assert found.total == read.params == int(row["total"])
    stated = {part: int(row[part]) for part in PARTS if row[part]}
    assert {part: getattr(found, part) for part in stated} == stated


def test_the_table_covers_most_families():
    kinds = {row["model_type"] for row in ROWS}
    assert len(ROWS) >= 300
    assert len(kinds) >= 180
    assert all(row["source"] for row in ROWS)


def test_by_hand():
    assert model().params == 2 * LAYER + ENDS
    assert counts(model()).per_layer == (LAYER, LAYER)


# traps


def test_head_dim_is_not_the_width_over_the_heads():
    assert model(head_dim=32).params - model().params == 2 * 16 * (2 * 64 * 4 + 2 * 64 * 2)


def test_a_null_head_dim_is_the_width_over_the_heads_whatever_the_class_assumes():
    assert model(model_type="gemma", head_dim=None).blocks["layer"].mixers[0].head_dim == 16
    assert model(model_type="gemma").blocks["layer"].mixers[0].head_dim == 256


def test_null_key_value_heads_are_those_of_the_queries_whatever_the_class_assumes():
    assert model(model_type="mixtral", num_key_value_heads=None, num_local_experts=4).blocks["layer"].mixers[0].kv_heads == 4


def test_a_null_window_is_no_window_whatever_the_class_assumes():
    assert windows(model(model_type="mistral", sliding_window=None)) == [None, None]
    assert windows(model(model_type="mistral")) == [4096, 4096]


def test_the_text_decoder_is_found_inside_and_left_out_fields_come_from_its_class():
    nested = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}
    read = read_config({"model_type": "gemma3", "text_config": nested}, name="gemma")
    assert counts(read).text == 3_880_263_168
    assert (read.vocab, read.head) == (262_208, "tied")
    assert windows(read)[:7] == [1024] * 5 + [None, 1024]


def test_where_the_tied_flag_may_stand():
    text = {**LLAMA, "tie_word_embeddings": False}
    assert read_config({"model_type": "llava", "text_config": text}, name="x").head == "own"
    assert read_config({"model_type": "llava", "text_config": {**LLAMA, "tie_word_embeddings": True}}, name="x").head == "tied"
    assert read_config({"model_type": "llava", "tie_word_embeddings": True, "text_config": text}, name="x").head == "tied"
    assert model().head == "own"
    assert model(model_type="gemma").head == "tied"


def test_the_first_qwen_counts_both_halves_of_its_block():
    qwen = model(model_type="qwen", intermediate_size=256, num_key_value_heads=...)
    assert qwen.params == 2 * (4 * 64 * 64 + 3 * 64 + 3 * 64 * 128 + 2 * 64) + ENDS
    assert "both halves" in refusal(model_type="qwen", intermediate_size=255)


FALCON = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100}


@pytest.mark.parametrize(
    ("fields", "kv_heads", "norms"),
    [
        ({}, 1, 1),
        ({"multi_query": False}, 4, 1),
        ({"multi_query": False, "parallel_attn": False}, 4, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, 2),
        ({"new_decoder_architecture": True}, 4, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 2, 1),
    ],
)
def test_variants_of_falcon(fields, kv_heads, norms):
    expected = 100 * 64 + 128 + 64 * 64 * 2 + 2 * 64 * 16 * kv_heads + 8 * 64 * 64 + norms * 128
    assert model(FALCON, **fields).params == expected


def test_falcon_by_its_first_names():
    first = {"hidden_size": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100}
    new = read_config({**first, "model_type": "RefinedWeb", "n_head_kv": 2, "multi_query": True}, name="x")
    assert new.params == model(FALCON, new_decoder_architecture=True, num_kv_heads=2).params
    old = read_config({**first, "model_type": "RefinedWebModel", "multi_query": True, "parallel_attn": True}, name="x")
    assert old.params == model(FALCON).params


QWEN_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
DEEP = {**QWEN_MOE, "model_type": "dots1", "n_routed_experts": 4, "n_shared_experts": 1}


@pytest.mark.parametrize(
    ("base", "fields", "where"),
    [
        (QWEN_MOE, {}, [0, 1, 2, 3, 4, 5]),
        (QWEN_MOE, {"decoder_sparse_step": 2}, [1, 3, 5]),
        (QWEN_MOE, {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [3, 5]),
        (DEEP, {"first_k_dense_replace": 2}, [2, 3, 4, 5]),
        (DEEP, {"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2, 4]),
        (DEEP, {"moe_layer_freq": [0, 1, 0, 1, 1, 0]}, [1, 3, 4]),
        (DEEP, {"mlp_layer_types": ["dense"] * 4 + ["sparse"] * 2}, [4, 5]),
        ({**QWEN_MOE, "model_type": "llama4_text", "num_local_experts": 4}, {"interleave_moe_layer_step": 2}, [1, 3, 5]),
        ({**QWEN_MOE, "model_type": "llama4_text", "num_local_experts": 4}, {"moe_layers": [0, 5]}, [0, 5]),
        (
            {**QWEN_MOE, "model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2},
            {"moe_layer_start_index": 1, "moe_layer_end_index": 4, "moe_layer_interval": 2},
            [1, 3],
        ),
        ({**QWEN_MOE, "model_type": "afmoe"}, {"num_dense_layers": 3}, [3, 4, 5]),
        ({**QWEN_MOE, "model_type": "arctic", "num_local_experts": 4}, {"moe_layer_frequency": 3}, [2, 5]),
    ],
)
def test_which_layers_hold_experts(base, fields, where):
    read = model(base, **fields)
    assert [i for i, name in enumerate(read.order) if read.blocks[name].experts] == where


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("gemma2", {}, [8, None, 8, None, 8, None]),
        ("cohere2", {}, [8, 8, 8, None, 8, 8]),
        ("cwm", {}, [None, 8, 8, 8, None, 8]),
        ("gemma3_text", {"layer_types": ["full_attention"] * 5 + ["sliding_attention"]}, [None] * 5 + [8]),
        ("qwen2", {"use_sliding_window": False}, [None] * 6),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 4}, [None] * 4 + [8, 8]),
        ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 4, "num_experts": 4}, [8, None, 8, None, None, None]),
        ("qwen3_moe", {"use_sliding_window": True, "num_experts": 4}, [8] * 6),
        ("dots1", {"max_window_layers": 4, "n_routed_experts": 4}, [None] * 4 + [8, 8]),
        ("smollm3", {"use_sliding_window": True}, [None, None, None, 8, None, None]),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, [8, 8, 8, None, 8, None]),
        ("flint", {"num_experts": 4}, [None, None, 8, 8, 8, None]),
        ("afmoe", {"global_attn_every_n_layers": 3, "num_experts": 4}, [8, 8, None, 8, 8, None]),
        ("llama", {}, [None] * 6),
    ],
)
def test_which_layers_have_a_window(kind, fields, expected):
    more = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1, "num_shared_experts": 1}
    assert windows(model({**LLAMA, **more}, model_type=kind, num_hidden_layers=6, sliding_window=8, **fields)) == expected


def test_chunks_of_llama4_spare_the_layers_without_rotary_positions():
    base = {**QWEN_MOE, "model_type": "llama4_text", "num_local_experts": 4, "attention_chunk_size": 32}
    read = model(base)
    assert [read.blocks[name].mixers[0].chunk for name in read.order] == [32, 32, 32, None, 32, 32]


def test_deepseek_like_shared_experts_form_one_block():
    one, two = (counts(model(DEEP, n_shared_experts=n)).shared_expert for n in (1, 2))
    assert (one, two) == (6 * 3 * 64 * 16, 2 * 6 * 3 * 64 * 16)


def test_correction_biases_are_stored_beside_the_parameters_or_among_them():
    assert counts(model(DEEP, first_k_dense_replace=0)).router_buffers == 6 * 4
    ernie = {**QWEN_MOE, "model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 0}
    found = counts(model(ernie))
    assert (found.router, found.router_buffers) == (6 * (4 * 64 + 4), 0)


# remote code


@pytest.mark.parametrize(
    ("kind", "fields", "more_per_layer", "more"),
    [
        ("aquila", {}, 0, 0),
        ("xverse", {}, 0, 0),
        ("skywork", {}, 0, 0),
        ("baichuan", {}, 0, 0),
        ("internlm2", {"bias": False}, 0, 0),
        ("internlm2", {"bias": True}, 64 + 32 + 32 + 64, 0),
        ("internlm", {}, 64 + 32 + 32 + 64, 0),
        ("internlm", {"bias": False}, 0, 0),
        ("orion", {}, 2 * 64, 64),
        ("stablelm_epoch", {}, 2 * 64, 64),
        ("stablelm_epoch", {"use_qkv_bias": True}, 2 * 64 + 64 + 32 + 32, 64),
        ("minicpm", {}, 0, -6400),
        ("grok-1", {"num_experts": 2, "num_experts_per_tok": 1, "tie_word_embeddings": False}, 2 * 64 + 2 * 64 + 3 * 64 * 128, 0),
        ("telechat", {"tie_word_embeddings": False}, 128, 0),
    ],
)
def test_llama_like_families_of_remote_code(kind, fields, more_per_layer, more):
    assert model(model_type=kind, **fields).params == model().params + 2 * more_per_layer + more


def test_arctic_has_a_square_block_beside_its_mixture():
    fields = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_layer_frequency": 1, "parallel_attn_mlp_res": True}
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 + 3 * 64 * 64 + 4 * 64 + 4 * 3 * 64 * 128
    assert model(model_type="arctic", **fields).params == 2 * layer + ENDS


def test_decilm_has_key_value_heads_of_its_own_on_each_layer():
    read = model(model_type="deci", num_key_value_heads_per_layer=[1, 4])
    assert [read.blocks[name].mixers[0].kv_heads for name in read.order] == [1, 4]
    assert "must divide the 4 query heads" in refusal(model_type="deci", num_key_value_heads_per_layer=[3, 4])


def test_phi_by_its_first_names():
    first = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": None, "vocab_size": 100}
    layer = 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 2 * 64
    for kind in ("phi-msft", "mixformer-sequential"):
        assert read_config({**first, "model_type": kind}, name="x").params == 2 * layer + 2 * 6400 + 100 + 128
    odd = {**first, "model_type": "mixformer-sequential", "architecture": {"block_cls": "sequential"}}
    with pytest.raises(SpecError, match=r"architecture\.block_cls: sequential: is not a block that is known here"):
        read_config(odd, name="x")


def test_chatglm():
    glm = {
        "model_type": "chatglm", "hidden_size": 64, "num_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 128, "kv_channels": 16,
        "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True, "padded_vocab_size": 128, "vocab_size": 100,
    }  # fmt: skip
    assert read_config(glm, name="x").params == 2 * (LAYER + 128) + 2 * 128 * 64 + 64
    with pytest.raises(Unsupported, match="first version"):
        read_config({**glm, "inner_hidden_size": 256}, name="x")
    with pytest.raises(SpecError, match="pre_seq_len"):
        read_config({**glm, "pre_seq_len": 128}, name="x")


def test_a_null_width_of_gpt_neo_is_four_times_the_stream():
    neo = {**LLAMA, "model_type": "gpt_neo", "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 32}
    assert model(neo, intermediate_size=None).params == model(neo, intermediate_size=256).params
    assert windows(model(neo, window_size=16)) == [None, 16]


def test_mpt_switches():
    mpt = {"model_type": "mpt", "d_model": 64, "n_layers": 1, "n_heads": 4, "vocab_size": 100, "max_seq_len": 32}
    plain = 100 * 64 + 4 * 64 * 64 + 8 * 64 * 64 + 3 * 64
    assert read_config(mpt, name="x").params == plain
    assert read_config({**mpt, "no_bias": False}, name="x").params == plain + 4 * 64 + 4 * 64 + 64 + 3 * 64
    assert read_config({**mpt, "tie_word_embeddings": False}, name="x").params == plain + 6400
    assert read_config({**mpt, "attn_config": {"alibi": False}}, name="x").params == plain + 32 * 64
    for more in ({"attn_config": {"qk_ln": True}}, {"ffn_config": {"ffn_type": "mptglu"}}):
        with pytest.raises(SpecError, match="known here"):
            read_config({**mpt, **more}, name="x")


# refusals


def test_an_unknown_type_is_named_with_its_near_misses():
    with pytest.raises(Unsupported, match=r"model type 'lama' is not understood.*near it: .*llama"):
        model(model_type="lama")
    with pytest.raises(Unsupported, match="model type 'transformer-xl' is not understood"):
        model(model_type="transformer-xl")
    assert "model_type" in refusal(model_type=...)
    assert len(refusal(model_type="x" * 5000)) < 300


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_an_essential_field_is_not_invented(field):
    assert refusal(**{field: ...}) == f"{field}: is required and missing"
    assert refusal(**{field: None}) == f"{field}: is required and missing"


def test_a_vocabulary_is_required():
    assert "vocab_size: is required and missing" in refusal(vocab_size=...)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size: 64: must be a whole number"),
        ({"hidden_size": 64.5}, "hidden_size: 64.5: must be a whole number"),
        ({"hidden_size": True}, "hidden_size: True: must be a whole number"),
        ({"hidden_size": [64]}, "hidden_size: [64]: must be a whole number"),
        ({"hidden_size": -64}, "hidden_size: -64: must lie between 1 and 100,000,000"),
        ({"hidden_size": 10**12}, "hidden_size: 1000000000000: must lie between 1 and 100,000,000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0: must lie between 1 and 100,000,000"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers: 5000: must lie between 1 and 4,096"),
        ({"vocab_size": "many"}, "vocab_size: many: must be a whole number"),
        ({"intermediate_size": None}, "intermediate_size: is null, and no other field gives the width of the feed-forward block"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3: must divide the 4 query heads"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, "head_dim: is absent, and 6 heads do not divide the width 64"),
        ({"attention_bias": "yes"}, "attention_bias: yes: must be true or false"),
        ({"use_qk_norm": True}, "use_qk_norm: True: is set, and what it adds to this family is not known here"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention: True: is set"),
        ({"model_type": "gemma3_text", "layer_types": "full_attention"}, "layer_types: full_attention: must be a list"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "layer_types: has 1 values for 2 layers"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention", "odd"]}, "layer_types: odd: is a kind of layer this family"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types: linear_attention: is a kind of layer this family does not have"),
        ({"model_type": "laguna", "gating": "odd"}, "gating: odd: is not a gate that is known here"),
        ({"model_type": "helium", "head_dim": 32}, "head_dim: 32: times 4 heads must equal the width 64"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, "must list pairs of names and a repeat of 1 to 2"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 1]]}, "attention_types: has 1 values for 2 layers"),
        ({"model_type": "dbrx", "ffn_config": 3}, "ffn_config: 3: must be a mapping"),
    ],
)
def test_an_absurd_dense_field_is_named(fields, message):
    assert message in refusal(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts_per_tok": 5}, "num_experts_per_tok: 5: must not exceed the 4 experts"),
        ({"num_local_experts": -1}, "num_local_experts: -1: must lie between 1 and 100,000,000"),
        ({"num_local_experts": "4"}, "num_local_experts: 4: must be a whole number"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0, "a"]}, "mlp_only_layers: a: must be a whole number"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "decoder_sparse_step: 0: must lie between 1 and 100,000,000"),
        ({"model_type": "dots1", "moe_layer_freq": [1]}, "moe_layer_freq: has 1 values for 2 layers"),
        ({"model_type": "dots1", "mlp_layer_types": ["sparse", "odd"]}, "mlp_layer_types: odd: is not one of dense, sparse"),
    ],
)
def test_an_absurd_field_of_a_mixture_is_named(fields, message):
    assert message in refusal(MIXTRAL, **fields)


def test_a_message_names_the_file_and_the_place_inside_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llava", "text_config": {**LLAMA, "hidden_size": -1}}))
    with pytest.raises(SpecError, match=r"config\.json: text_config\.hidden_size: -1: must lie between"):
        load_config(path)
    path.write_text(json.dumps({**LLAMA, "model_type": "lama"}))
    with pytest.raises(Unsupported, match=r"config\.json: model type 'lama'"):
        load_config(path)


def test_every_alias_has_a_reader():
    assert all(kind in READERS for kind in SAME_AS.values())
    assert not set(SAME_AS) & set(READERS)
    assert reader_of("skywork")[0] == "llama"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(-3, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FLAT = {*dense.TRAITS, *legacy.READERS, *experts.READERS, *exotic.READERS, *remote.READERS}


@given(row=st.sampled_from([row for row in ROWS if row["model_type"] in FLAT]), data=st.data())
def test_a_spoilt_field_is_refused_in_one_line_or_read(row, data):
    config = json.loads(row["config"])
    config[data.draw(st.sampled_from(sorted(set(config))))] = data.draw(JUNK)
    message = ""
    try:
        assert read_config(config, file="config.json", name="spoilt").params > 0
    except InferplanError as refused:
        message = str(refused)
    assert "\n" not in message
    assert len(message) < 400
