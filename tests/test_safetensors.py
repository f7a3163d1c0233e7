"""Safetensors headers, sharded checkpoints, and the weights that packed tensors stand for."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad.builders import Shapes, safetensors
from inferplan.errors import SpecError
from inferplan.readers.safetensors import BITS, LogicalWeight, Tensor, logical, parse_index, read_checkpoint, read_header, read_index

# ------------------------------------------------------------------------------------------------------------- headers


def test_every_dtype_takes_its_bits(tmp_path: Path) -> None:
    expected = {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
    expected |= dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
    expected |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
    assert expected == BITS
    tensors, _ = read_header(safetensors(tmp_path / "m.safetensors", {d: (d, (3, 8)) for d in expected}))
    assert {t.dtype: t.nbytes for t in tensors} == {d: 3 * bits for d, bits in expected.items()}


def test_header_of_a_file_with_metadata(tmp_path: Path) -> None:
    shapes: Shapes = {"b": ("BF16", (4, 6)), "a": ("F32", ()), "empty": ("F16", (0, 7))}
    tensors, metadata = read_header(safetensors(tmp_path / "m.safetensors", shapes, {"format": "pt"}))
    assert metadata == {"format": "pt"}
    assert set(tensors) == {Tensor("b", "BF16", (4, 6), 48), Tensor("a", "F32", (), 4), Tensor("empty", "F16", (0, 7), 0)}
    assert [t.elements for t in sorted(tensors, key=lambda t: t.name)] == [1, 24, 0]


def test_a_large_file_costs_only_its_header(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(safetensors(tmp_path / "m.safetensors", {"w": ("BF16", (2**20, 2**13))}))
    assert checkpoint.total_bytes == 2**34
    assert checkpoint.parameters() == 2**33


def test_no_tensors_at_all(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(safetensors(tmp_path / "m.safetensors", {}))
    assert (checkpoint.tensors, checkpoint.total_bytes, checkpoint.parameters()) == ((), 0, 0)


@given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=5),
        st.tuples(st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 9), max_size=4)),
        max_size=8,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, list[int]]]) -> None:
    shapes = {name: (dtype, (*shape, 8)) for name, (dtype, shape) in tensors.items()}
    found, _ = read_header(safetensors(tmp_path_factory.mktemp("s") / "m.safetensors", shapes))
    assert {t.name: (t.dtype, t.shape) for t in found} == shapes
    assert all(8 * t.nbytes == BITS[t.dtype] * math.prod(t.shape) for t in found)


# -------------------------------------------------------------------------------------------------------- many files


def index(folder: Path, weight_map: dict[str, str], total: object = None, name: str = "model.safetensors.index.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"metadata": {} if total is None else {"total_size": total}, "weight_map": weight_map}))
    return path


def two_shards(folder: Path) -> Path:
    safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("F32", (2,)), "b": ("BF16", (3,))}, {"format": "pt"})
    safetensors(folder / "model-00002-of-00002.safetensors", {"c": ("I64", (1,))})
    names = {"a": 1, "b": 1, "c": 2}
    return index(folder, {n: f"model-0000{i}-of-00002.safetensors" for n, i in names.items()}, 22)


def test_an_index_adds_up_its_shards(tmp_path: Path) -> None:
    found = read_index(two_shards(tmp_path))
    assert found.stated_bytes == found.total_bytes == 22
    assert found.bytes_by_dtype == {"F32": 8, "I64": 8, "BF16": 6}
    assert found.elements_by_dtype == {"BF16": 3, "F32": 2, "I64": 1}
    assert (found.missing, found.unread, found.unlisted, found.metadata) == ((), (), (), {"format": "pt"})
    assert read_checkpoint(tmp_path) == found == read_checkpoint(tmp_path / "model.safetensors.index.json")


def test_missing_shards_are_named_with_their_tensors(tmp_path: Path) -> None:
    two_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    found = read_checkpoint(tmp_path)
    assert found.missing == ("model-00002-of-00002.safetensors",)
    assert found.unread == ("c",)
    assert found.total_bytes == 14
    assert found.stated_bytes == 22


def test_a_listed_tensor_its_shard_lacks_is_refused(tmp_path: Path) -> None:
    two_shards(tmp_path)
    safetensors(tmp_path / "model-00002-of-00002.safetensors", {"d": ("I64", (1,))})
    with pytest.raises(SpecError, match=r"weight_map\.c: is listed for model-00002-of-00002"):
        read_checkpoint(tmp_path)


def test_tensors_the_index_does_not_list_are_left_out_and_named(tmp_path: Path) -> None:
    two_shards(tmp_path)
    safetensors(tmp_path / "model-00002-of-00002.safetensors", {"c": ("I64", (1,)), "d": ("I64", (9,))})
    found = read_checkpoint(tmp_path)
    assert found.unlisted == ("d",)
    assert found.total_bytes == 22


def test_a_folder_with_parts_and_no_index(tmp_path: Path) -> None:
    two_shards(tmp_path).unlink()
    assert read_checkpoint(tmp_path).total_bytes == 22
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    assert read_checkpoint(tmp_path).missing == ("model-00001-of-00002.safetensors",)


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    two_shards(tmp_path).unlink()
    safetensors(tmp_path / "model-00002-of-00002.safetensors", {"a": ("F32", (2,))})
    with pytest.raises(SpecError, match="a: stands in two parts") as caught:
        read_checkpoint(tmp_path)
    assert caught.value.file == tmp_path / "model-00002-of-00002.safetensors"


def test_a_folder_with_a_choice(tmp_path: Path) -> None:
    safetensors(tmp_path / "adapter.safetensors", {"a": ("F32", (2,))})
    assert read_checkpoint(tmp_path).total_bytes == 8
    safetensors(tmp_path / "other.safetensors", {"a": ("F32", (3,))})
    with pytest.raises(SpecError, match=r"adapter\.safetensors, other\.safetensors: holds several checkpoints"):
        read_checkpoint(tmp_path)
    safetensors(tmp_path / "model.safetensors", {"a": ("F32", (4,))})
    assert read_checkpoint(tmp_path).total_bytes == 16


def test_the_standard_index_comes_before_others(tmp_path: Path) -> None:
    two_shards(tmp_path)
    index(tmp_path, {"x": "gone.safetensors"}, name="consolidated.safetensors.index.json")
    assert read_checkpoint(tmp_path).total_bytes == 22


def test_symlinked_shards_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    safetensors(blobs / "abc", {"w": ("BF16", (8, 8))})
    (snapshot / "model.safetensors").symlink_to(blobs / "abc")
    assert read_checkpoint(snapshot).total_bytes == 128


def test_an_index_without_a_total_or_with_a_float() -> None:
    assert parse_index(b'{"weight_map": {"w": "a.safetensors"}}').total_bytes is None
    assert parse_index(b'{"metadata": {"total_size": 1.6e10}, "weight_map": {"w": "a.safetensors"}}').total_bytes == 16_000_000_000


# ------------------------------------------------------------------------------------------------------ packed weights


def tensors(shapes: Shapes) -> list[Tensor]:
    return [Tensor(name, dtype, shape, math.prod(shape) * BITS[dtype] // 8) for name, (dtype, shape) in shapes.items()]


def one(shapes: Shapes, **kwargs: object) -> LogicalWeight:
    """The single weight the tensors stand for; its bytes must be all the bytes there are."""
    stored = tensors(shapes)
    (weight,) = logical(stored, **kwargs)  # type: ignore[arg-type]
    assert weight.stored_bytes == sum(t.nbytes for t in stored)
    return weight


OUT, IN = 96, 256


def gptq(bits: int, group: int = 64, order: bool = True, zeros: bool = True) -> Shapes:
    found: Shapes = {"l.qweight": ("I32", (IN * bits // 32, OUT)), "l.scales": ("F16", (IN // group, OUT))}
    if zeros:
        found["l.qzeros"] = ("I32", (IN // group, OUT * bits // 32))
    if order:
        found["l.g_idx"] = ("I32", (IN,))
    return found


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("order", "zeros"), [(True, True), (False, True), (True, False)])
def test_gptq_bits_come_from_its_companions(bits: int, order: bool, zeros: bool) -> None:
    weight = one(gptq(bits, order=order, zeros=zeros))
    assert (weight.name, weight.shape, weight.format_name, weight.group) == ("l.weight", (OUT, IN), f"gptq-int{bits}", 64)
    assert weight.stored_bytes - weight.scale_bytes == OUT * IN * bits // 8


def test_gptq_without_evidence_needs_the_bits() -> None:
    bare = gptq(4, order=False, zeros=False)
    with pytest.raises(SpecError, match=r"l\.qweight: \[32, 96\]: needs the bits of one value"):
        one(bare)
    assert one(bare, bits=4).shape == (OUT, IN)
    assert one(bare, bits=8).shape == (OUT, IN // 2)
    assert one(bare, bits={"l": 4}).shape == one(bare, bits={"l.weight": 4}).shape == (OUT, IN)


def test_gptq_bits_that_disagree_are_refused() -> None:
    with pytest.raises(SpecError, match="4 by qzeros, 4 by g_idx, 8 by the bits given"):
        one(gptq(4), bits=8)


@pytest.mark.parametrize("bits", [4, 8])
def test_awq_is_packed_along_the_output(bits: int) -> None:
    shapes: Shapes = {
        "l.qweight": ("I32", (IN, OUT * bits // 32)),
        "l.qzeros": ("I32", (IN // 128, OUT * bits // 32)),
        "l.scales": ("F16", (IN // 128, OUT)),
    }
    weight = one(shapes)
    assert (weight.shape, weight.format_name, weight.group) == ((OUT, IN), f"awq-int{bits}", 128)


def test_awq_of_a_7b_layer_takes_the_published_bits() -> None:
    """4 bits, and a 16-bit scale and a 4-bit zero for each 128 inputs: 4.15625 bits a weight."""
    weight = one({"l.qweight": ("I32", (4096, 512)), "l.qzeros": ("I32", (32, 512)), "l.scales": ("F16", (32, 4096))})
    assert 8 * weight.stored_bytes / weight.elements == 4.15625


def packed(bits: int, **more: tuple[str, tuple[int, ...]]) -> Shapes:
    return {
        "l.weight_packed": ("I32", (OUT, IN * bits // 32)),
        "l.weight_scale": ("BF16", (OUT, IN // 32)),
        "l.weight_shape": ("I64", (2,)),
        **{f"l.{name}": form for name, form in more.items()},
    }


def test_packed_integers_need_the_bits_or_the_order() -> None:
    assert one(packed(4), bits=4) == LogicalWeight("l.weight", (OUT, IN), "packed-int4", 12_288 + 1536 + 16, 1536 + 16, 32, "I32")
    assert one(packed(8), bits=8).shape == (OUT, IN)
    assert one(packed(4, weight_g_idx=("I32", (IN,)))).format_name == "packed-int4"
    with pytest.raises(SpecError, match="needs the bits"):
        one(packed(4))
    with pytest.raises(SpecError, match="with a remainder"):
        one(packed(4), bits=3)
    with pytest.raises(SpecError, match="does not hold 256 inputs at 8 bits"):
        one(packed(4, weight_g_idx=("I32", (IN,))), bits=8)


def test_nvfp4_both_ways() -> None:
    scale: Shapes = {"l.weight_scale": ("F8_E4M3", (OUT, IN // 16))}
    ours = one({"l.weight": ("U8", (OUT, IN // 2)), **scale, "l.weight_scale_2": ("F32", ()), "l.input_scale": ("F32", ())})
    theirs = one(
        {"l.weight_packed": ("U8", (OUT, IN // 2)), **scale, "l.weight_global_scale": ("F32", (1,)), "l.input_global_scale": ("F32", (1,))}
    )
    assert ours == theirs == LogicalWeight("l.weight", (OUT, IN), "nvfp4", 12_288 + 1536 + 8, 1536 + 8, 16, "U8")


def test_mxfp4_four_ways() -> None:
    blocks = one({"e.gate_up_proj_blocks": ("U8", (2, OUT, IN // 32, 16)), "e.gate_up_proj_scales": ("U8", (2, OUT, IN // 32))})
    assert (blocks.name, blocks.shape, blocks.format_name) == ("e.gate_up_proj", (2, OUT, IN), "mxfp4")
    assert 8 * blocks.stored_bytes / blocks.elements == 4.25
    assert one({"l.weight_packed": ("U8", (OUT, IN // 2)), "l.weight_scale": ("U8", (OUT, IN // 32))}).format_name == "mxfp4"
    assert one({"l.weight": ("I8", (OUT, IN // 2)), "l.scale": ("F8_E8M0", (OUT, IN // 32))}).shape == (OUT, IN)
    assert one({"l.weight": ("U32", (OUT, IN // 8)), "l.scales": ("U8", (OUT, IN // 32))}).shape == (OUT, IN)


def test_gpt_oss_biases_stay_weights() -> None:
    shapes: Shapes = {
        "e.down_proj_blocks": ("U8", (2, 64, 2, 16)),
        "e.down_proj_scales": ("U8", (2, 64, 2)),
        "e.down_proj_bias": ("BF16", (2, 64)),
    }
    assert {w.name: w.elements for w in logical(tensors(shapes))} == {"e.down_proj": 2 * 64 * 64, "e.down_proj_bias": 128}


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_four_bit(kind: str, nested: bool) -> None:
    count = OUT * IN
    shapes: Shapes = {
        "l.weight": ("U8", (count // 2, 1)),
        "l.weight.absmax": ("U8" if nested else "F32", (count // 64,)),
        "l.weight.quant_map": ("F32", (16,)),
        f"l.weight.quant_state.bitsandbytes__{kind}": ("U8", (90,)),
    }
    if nested:
        shapes |= {"l.weight.nested_absmax": ("F32", (count // 64 // 256,)), "l.weight.nested_quant_map": ("F32", (256,))}
    weight = one(shapes)
    assert (weight.elements, weight.format_name, weight.group) == (count, f"bnb-{kind}", 64)


def test_bitsandbytes_eight_bit() -> None:
    weight = one({"l.weight": ("I8", (OUT, IN)), "l.SCB": ("F32", (OUT,)), "l.weight_format": ("U8", ())})
    assert (weight.shape, weight.format_name, weight.scale_bytes) == ((OUT, IN), "bnb-int8", 4 * OUT + 1)


@pytest.mark.parametrize(
    ("scale", "name"),
    [
        (("weight_scale", "F32", ()), "fp8-tensor"),
        (("weight_scale", "F32", (1,)), "fp8-tensor"),
        (("weight_scale", "BF16", (OUT, 1)), "fp8-channel"),
        (("weight_scale_inv", "F32", (1, 2)), "fp8-block"),
        (("scale", "F8_E8M0", (OUT, IN // 32)), "mxfp8"),
    ],
)
def test_fp8_by_the_reach_of_its_scale(scale: tuple[str, str, tuple[int, ...]], name: str) -> None:
    weight = one({"l.weight": ("F8_E4M3", (OUT, IN)), f"l.{scale[0]}": scale[1:]})
    assert (weight.shape, weight.format_name) == ((OUT, IN), name)


def test_stacked_fp8_experts_with_a_suffix_scale() -> None:
    weight = one({"e.gate_up_proj": ("F8_E4M3", (4, OUT, IN)), "e.gate_up_proj_scale_inv": ("F32", (4, 1, 2))})
    assert (weight.name, weight.format_name) == ("e.gate_up_proj", "fp8-block")


def test_int8_with_a_scale() -> None:
    assert one({"l.weight": ("I8", (OUT, IN)), "l.weight_scale": ("BF16", (OUT, 1))}).format_name == "int8-channel"


@pytest.mark.parametrize("bits", [3, 4, 6, 8])
def test_mlx_needs_the_bits(bits: int) -> None:
    columns = IN * bits // 32
    shapes: Shapes = {"l.weight": ("U32", (OUT, columns)), "l.scales": ("F16", (OUT, IN // 64)), "l.biases": ("F16", (OUT, IN // 64))}
    weight = one(shapes, bits=bits)
    assert (weight.shape, weight.format_name, weight.group) == ((OUT, IN), f"mlx-int{bits}", 64)
    with pytest.raises(SpecError, match="needs the bits"):
        one(shapes)


def test_plain_weights_keep_names_that_look_like_companions() -> None:
    shapes: Shapes = {
        "n.weight": ("BF16", (8,)),
        "n.scale": ("BF16", (8,)),
        "m.layer_scale": ("F32", (8,)),
        "m.layer": ("F32", (8, 8)),
        "m.biases": ("F32", (2,)),
    }
    found = logical(tensors(shapes))
    assert {w.name: w.format_name for w in found} == {
        "n.weight": "bf16",
        "n.scale": "bf16",
        "m.layer_scale": "fp32",
        "m.layer": "fp32",
        "m.biases": "fp32",
    }
    assert sum(w.elements for w in found) == 8 + 8 + 8 + 64 + 2


def test_lone_scales_have_bytes_and_no_parameters(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(
        safetensors(
            tmp_path / "m.safetensors",
            {"k_proj.k_scale": ("F32", ()), "k_proj.weight": ("BF16", (4, 4)), "k_proj.input_scale": ("F32", ())},
        )
    )
    assert checkpoint.parameters() == 16
    assert sum(w.stored_bytes for w in checkpoint.logical()) == checkpoint.total_bytes == 40
    assert sorted(w.format_name for w in checkpoint.logical()) == ["bf16", "scale", "scale"]


@pytest.mark.parametrize(
    "shapes",
    [
        {"l.qweight": ("I32", (8, 8))},
        {"l.qweight": ("I32", (8, 8, 8)), "l.scales": ("F16", (8, 8))},
        {"l.qweight": ("I32", (8, 8)), "l.scales": ("F16", (0, 8))},
        {"l.weight": ("U8", (8, 8)), "l.weight_scale": ("F8_E4M3", (8, 9))},
        {"l.weight_packed": ("U8", (8, 8))},
        {"l.weight": ("U8", (8, 1)), "l.weight.absmax": ("F32", (1,))},
        {"l_blocks": ("U8", (2, 3, 15)), "l_scales": ("U8", (2, 3))},
        {"l.weight_packed": ("I32", ()), "l.weight_scale": ("F32", ())},
        {"l.q_weight": ("I32", (8, 8))},
        {"l.trellis": ("I16", (8, 8, 8))},
        {"l.W_q": ("U8", (8, 8))},
    ],
    ids=lambda s: next(iter(s)) + str(len(s)),
)
def test_packing_that_is_not_understood_is_refused_by_name(shapes: Shapes) -> None:
    with pytest.raises(SpecError) as caught:
        logical(tensors(shapes))
    assert next(iter(shapes)) in str(caught.value)


def test_a_refusal_of_a_checkpoint_names_the_file(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(safetensors(tmp_path / "m.safetensors", {"l.qweight": ("I32", (8, 8))}))
    with pytest.raises(SpecError, match=r"l\.qweight") as caught:
        checkpoint.parameters()
    assert caught.value.file == tmp_path / "m.safetensors"


@given(st.integers(1, 6), st.sampled_from([2, 4, 8]), st.sampled_from([32, 64, 128]))
def test_gptq_bytes_add_up_for_any_size(scale: int, bits: int, group: int) -> None:
    rows, columns = 128 * scale, 32 * scale
    shapes: Shapes = {
        "l.qweight": ("I32", (rows * bits // 32, columns)),
        "l.scales": ("F16", (rows // group, columns)),
        "l.qzeros": ("I32", (rows // group, columns * bits // 32)),
    }
    weight = one(shapes)
    assert weight.shape == (columns, rows)
    assert 8 * weight.stored_bytes / weight.elements == pytest.approx(bits + (16 + bits) / group, rel=1e-12)
