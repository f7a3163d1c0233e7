"""GGUF headers: versions, values, tensor bytes, split files."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad.builders import ARRAY, BOOL, F32, F64, I8, I16, I32, I64, TEXT, TYPE_NUMBER, U8, U16, U32, U64, Writer, gguf, hole
from inferplan.errors import SpecError
from inferplan.readers.gguf import BLOCK_TYPES, GgufTensor, Skipped, architecture_config, read_gguf

TYPES = list(csv.DictReader((Path(__file__).parent / "data" / "ggml_types.csv").read_text().splitlines()))
W = Writer()


@pytest.mark.parametrize("row", TYPES, ids=lambda r: r["name"])
def test_block_types_against_the_published_table(row: dict[str, str]) -> None:
    kind = BLOCK_TYPES[int(row["number"])]
    assert (kind.name, kind.block, kind.nbytes) == (row["name"], int(row["block"]), int(row["nbytes"]))
    assert kind.bits == float(row["bits"])


def test_plain_number_types_and_withdrawn_numbers() -> None:
    assert {n: (BLOCK_TYPES[n].name, BLOCK_TYPES[n].bits) for n in range(24, 29)} == {
        24: ("I8", 8),
        25: ("I16", 16),
        26: ("I32", 32),
        27: ("I64", 64),
        28: ("F64", 64),
    }
    assert not {4, 5, 31, 32, 33, 36, 37, 38} & BLOCK_TYPES.keys()
    assert set(BLOCK_TYPES) == {int(row["number"]) for row in TYPES} | set(range(24, 29))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_and_kind_of_value(tmp_path: Path, version: int) -> None:
    w = Writer(version)
    values = {
        "u8": (U8, 255),
        "i8": (I8, -7),
        "u16": (U16, 65535),
        "i16": (I16, -9),
        "u32": (U32, 2**32 - 1),
        "i32": (I32, -1),
        "f32": (F32, 0.5),
    }
    values |= {"bool": (BOOL, True), "text": (TEXT, "Größe"), "u64": (U64, 2**64 - 1), "i64": (I64, -(2**63)), "f64": (F64, 1e-5)}
    keys = [w.key(name, kind, value) for name, (kind, value) in values.items()]
    keys += [
        w.array("layers", U32, [8, 0, 8]),
        w.array("flags", BOOL, [True, False]),
        w.array("tags", TEXT, ["a", ""]),
        w.array("none", F32, []),
    ]
    found = read_gguf(gguf(tmp_path / "m.gguf", keys, [("t", "Q4_K", (512, 3))], version=version))
    assert found.version == version
    assert found.metadata == {name: value for name, (_, value) in values.items()} | {
        "layers": [8, 0, 8],
        "flags": [True, False],
        "tags": ["a", ""],
        "none": [],
    }
    assert found.tensors == (GgufTensor("t", "Q4_K", (3, 512), 6 * 144, 0),)


def test_tensors_are_row_major_with_exact_bytes(tmp_path: Path) -> None:
    found = read_gguf(gguf(tmp_path / "m.gguf", [], [("e", "Q6_K", (256, 10)), ("n", "F32", (256,)), ("x", "MXFP4", (64, 6, 4))]))
    assert [(t.name, t.shape, t.nbytes) for t in found.tensors] == [("e", (10, 256), 2100), ("n", (256,), 1024), ("x", (4, 6, 64), 24 * 34)]
    assert found.total_bytes == 2100 + 1024 + 816
    assert found.parameters == 2560 + 256 + 1536
    assert found.bytes_by_type == {"Q6_K": 2100, "F32": 1024, "MXFP4": 816}


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_another_alignment(tmp_path: Path, alignment: int) -> None:
    keys = [W.key("general.alignment", U32, alignment)]
    found = read_gguf(gguf(tmp_path / "m.gguf", keys, [("a", "F32", (3,)), ("b", "F32", (5,))], alignment=alignment))
    assert found.tensors[1].offset == max(12, alignment if alignment >= 12 else 16 if alignment == 8 else 12)


def test_long_arrays_and_texts_are_stepped_over(tmp_path: Path) -> None:
    keys = [
        W.array("tokenizer.ggml.tokens", TEXT, [f"tok{i}" for i in range(5000)]),
        W.array("tokenizer.ggml.scores", F32, [float(i) for i in range(5000)]),
        W.key("tokenizer.huggingface.json", TEXT, "x" * 200_000),
        W.key("general.architecture", TEXT, "llama"),
    ]
    found = read_gguf(gguf(tmp_path / "m.gguf", keys, [("t", "F16", (2, 2))]))
    assert found.metadata["tokenizer.ggml.tokens"] == Skipped("text", 5000, tuple(f"tok{i}" for i in range(8)))
    assert found.metadata["tokenizer.ggml.scores"] == Skipped("f32", 5000, tuple(float(i) for i in range(8)))
    assert found.metadata["tokenizer.huggingface.json"] == Skipped("text", 200_000, ("x" * 64,))
    assert found.metadata["general.architecture"] == "llama"
    assert found.parameters == 4


def test_tokens_that_are_not_utf8_are_stepped_over(tmp_path: Path) -> None:
    tokens = W.text("tokens") + W.pack("I", ARRAY) + W.pack("I", TEXT) + W.count(2000) + W.text(b"\xff\xfe") * 2000
    found = read_gguf(hole(tmp_path / "m.gguf", W.file([tokens, W.key("after", U8, 1)], [])))
    assert found.metadata["after"] == 1
    assert found.metadata["tokens"].length == 2000


def test_a_layer_array_is_kept_whole(tmp_path: Path) -> None:
    heads = [8 if i % 4 == 3 else 0 for i in range(128)]
    found = read_gguf(gguf(tmp_path / "m.gguf", [W.array("lfm2.attention.head_count_kv", I32, heads)], []))
    assert found.metadata["lfm2.attention.head_count_kv"] == heads


def test_architecture_keys_lose_their_prefix(tmp_path: Path) -> None:
    keys = [
        W.key("general.architecture", TEXT, "qwen3"),
        W.key("qwen3.block_count", U32, 36),
        W.array("qwen3.attention.head_count_kv", U32, [8, 8]),
        W.key("qwen35.block_count", U32, 1),
        W.array("tokenizer.ggml.tokens", TEXT, ["a"] * 3000),
    ]
    found = architecture_config(read_gguf(gguf(tmp_path / "m.gguf", keys, [])))
    assert found == {"architecture": "qwen3", "block_count": 36, "attention.head_count_kv": [8, 8], "vocab_size": 3000}


def test_a_stated_vocabulary_wins_over_the_token_list(tmp_path: Path) -> None:
    keys = [W.key("general.architecture", TEXT, "a"), W.key("a.vocab_size", U32, 7), W.array("tokenizer.ggml.tokens", TEXT, ["x"] * 6)]
    assert architecture_config(read_gguf(gguf(tmp_path / "m.gguf", keys, [])))["vocab_size"] == 7
    assert architecture_config(read_gguf(gguf(tmp_path / "m.gguf", [keys[0], keys[2]], [])))["vocab_size"] == 6


@pytest.mark.parametrize("keys", [[], [W.key("general.architecture", U32, 3)], [W.key("general.architecture", TEXT, "")]])
def test_no_architecture_is_refused(tmp_path: Path, keys: list[bytes]) -> None:
    with pytest.raises(SpecError, match=r"general\.architecture: .*must name the architecture|general\.architecture: must name"):
        architecture_config(read_gguf(gguf(tmp_path / "m.gguf", keys, [])))


# -------------------------------------------------------------------------------------------------------- split files


def part(folder: Path, number: int, count: int = 3, *, no: int | None = None, stated: int = 3, tensor: str | None = None) -> Path:
    keys = [
        W.key("split.no", U16, number - 1 if no is None else no),
        W.key("split.count", U16, count),
        W.key("split.tensors.count", I32, stated),
    ]
    keys += [W.key("general.architecture", TEXT, "llama")] if number == 1 else []
    return gguf(folder / f"m-{number:05d}-of-00003.gguf", keys, [(tensor or f"t{number}", "Q8_0", (32, number))])


@pytest.mark.parametrize("named", [1, 2, 3])
def test_any_part_reads_the_whole(tmp_path: Path, named: int) -> None:
    parts = [part(tmp_path, number) for number in (1, 2, 3)]
    found = read_gguf(parts[named - 1])
    assert [t.name for t in found.tensors] == ["t1", "t2", "t3"]
    assert found.total_bytes == 34 * 6
    assert found.metadata["general.architecture"] == "llama"
    assert found.missing == ()


def test_missing_parts_are_named(tmp_path: Path) -> None:
    part(tmp_path, 1)
    found = read_gguf(part(tmp_path, 3))
    assert found.missing == ("m-00002-of-00003.gguf",)
    assert found.total_bytes == 34 * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"no": 2}, "split.no: 2: must be 1"),
        ({"count": 4}, "split.count: 4: must be 3"),
        ({"tensor": "t1"}, "t1: stands in two parts"),
    ],
)
def test_parts_that_disagree_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    first = part(tmp_path, 1)
    part(tmp_path, 3)
    part(tmp_path, 2, **change)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=words) as caught:
        read_gguf(first)
    assert caught.value.file == tmp_path / "m-00002-of-00003.gguf"


def test_a_wrong_number_of_tensors_over_all_parts(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        part(tmp_path, number, stated=5)
    with pytest.raises(SpecError, match=r"split\.tensors\.count: 5: does not agree with the 3 tensors"):
        read_gguf(tmp_path / "m-00001-of-00003.gguf")


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is one of 3 parts and must be named like name-00001-of-00003"):
        read_gguf(part(tmp_path, 1).rename(tmp_path / "model.gguf"))


@given(
    st.lists(st.tuples(st.sampled_from(sorted(TYPE_NUMBER)), st.integers(1, 5), st.integers(1, 5)), max_size=6), st.sampled_from([1, 2, 3])
)
def test_bytes_add_up_for_any_tensors(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int]], version: int) -> None:
    tensors = [(f"t{i}", kind, (blocks * BLOCK_TYPES[TYPE_NUMBER[kind]].block, rest)) for i, (kind, blocks, rest) in enumerate(rows)]
    found = read_gguf(gguf(tmp_path_factory.mktemp("g") / "m.gguf", [], tensors, version=version))
    assert found.parameters == sum(math.prod(sizes) for _, _, sizes in tensors)
    assert 8 * found.total_bytes == sum(math.prod(sizes) * BLOCK_TYPES[TYPE_NUMBER[kind]].bits for _, kind, sizes in tensors)
