"""Safetensors headers to typed tables of tensors, and packed tensors to the weights they stand for. Reads no weight, knows no Model.

Only the header of a file is read: eight bytes of length, then JSON. `read_checkpoint` takes a file, an index or a
folder; `logical` undoes the packing of the common quantised layouts from names, dtypes and shapes alone.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferplan.errors import SpecError
from inferplan.specs.document import open_regular, resolve

MAX_HEADER_BYTES = 32 * 1024 * 1024
MAX_TENSORS = 150_000
_MAX_VALUES = 8 * MAX_TENSORS
_MAX_MEMBERS = 4 * MAX_TENSORS
_MAX_RANK = 32
_MAX_NAME = 4096
_MAX_ELEMENTS = 2**63
INDEX_NAME = "model.safetensors.index.json"

BITS: dict[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one stored element, for each dtype the format defines."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor: its shape is row-major as written in the header, `nbytes` exact."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        """Stored elements, before any unpacking.

        >>> Tensor("w", "BF16", (3, 4), 24).elements
        12
        """
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Index:
    """What an index file says: which shard holds which tensor, and the bytes it claims for all of them."""

    weight_map: dict[str, str]
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a checkpoint as far as its files are there.

    `missing` names shards that are not beside the index, `unread` the tensors in them (known only from an index),
    `unlisted` tensors of shards which the index does not mention (left out of `tensors`), `stated_bytes` the total the
    index claims.
    """

    path: Path
    tensors: tuple[Tensor, ...]
    metadata: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    stated_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors read, without headers."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        """Stored bytes for each dtype that occurs, the largest first."""
        return _sums((t.dtype, t.nbytes) for t in self.tensors)

    @property
    def elements_by_dtype(self) -> dict[str, int]:
        """Stored elements (packed ones count once) for each dtype that occurs, the largest first."""
        return _sums((t.dtype, t.elements) for t in self.tensors)

    def logical(self, bits: Bits = None) -> list[LogicalWeight]:
        """The weights the tensors stand for; see `logical`."""
        try:
            return logical(self.tensors, bits=bits)
        except SpecError as e:
            raise e.within(self.path) from None

    def parameters(self, bits: Bits = None) -> int:
        """Logical parameters after unpacking: scales, zero points and other companions are not counted."""
        return sum(w.elements for w in self.logical(bits))


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for key, amount in pairs:
        totals[key] = totals.get(key, 0) + amount
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


# ---------------------------------------------------------------------------------------------------------- one file


def read_header(path: str | os.PathLike[str]) -> tuple[tuple[Tensor, ...], dict[str, str]]:
    """The tensors of one safetensors file in the order of their data, and its text metadata.

    Raises SpecError, naming file, tensor and rule, for anything the format does not allow: data offsets must lie in the
    file, leave no hole and no overlap, and agree with dtype x shape. Headers above 32 MiB or 150,000 tensors are refused.
    """
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(8)
            length = int.from_bytes(head, "little")
            _check_length(length, len(head), size, path)
            data = stream.read(length)
    except OSError as e:
        raise SpecError(f"cannot be read: {os.strerror(e.errno or 0)}", file=path) from None
    if len(data) != length:
        raise SpecError("ended while its header was read", file=path)
    return _tables(bounded_json(data, file=path), size - 8 - length, path)


def _check_length(length: int, got: int, size: int, path: Any) -> None:
    if got < 8:
        raise SpecError(f"is too short for a safetensors file ({got} bytes)", file=path)
    if length > size - 8:
        raise SpecError(
            f"is longer than the file ({size} bytes); the file is cut short or not safetensors",
            file=path,
            field="header length",
            value=length,
        )
    if length > MAX_HEADER_BYTES:
        raise SpecError(f"is above the {MAX_HEADER_BYTES // 1024**2} MiB read here", file=path, field="header length", value=length)


def bounded_json(data: bytes, *, file: Any = None) -> dict[str, Any]:
    """The mapping in JSON bytes, with bounds on its size checked before any object is built; duplicate keys are refused.

    Made for headers and indexes, which may hold far more entries than a document edited by hand.

    >>> bounded_json(b'{"weight_map": {"a": "b"}}')
    {'weight_map': {'a': 'b'}}
    """
    objects = data.count(b"{")
    values, members = data.count(b",") + data.count(b"[") + objects, data.count(b":")
    if len(data) > MAX_HEADER_BYTES or objects > MAX_TENSORS + 2 or values > _MAX_VALUES + 99 or members > _MAX_MEMBERS + 99:
        limits = f"{MAX_HEADER_BYTES // 1024**2} MiB, {MAX_TENSORS:,} tensors in a file, {_MAX_MEMBERS:,} in an index"
        raise SpecError(f"is above what is read here: {limits}", file=file)
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant, parse_int=_short_int, object_pairs_hook=_unique)
    except UnicodeDecodeError as e:
        raise SpecError(f"is not UTF-8 text (byte {e.start} of the JSON)", file=file) from None
    except json.JSONDecodeError as e:
        raise SpecError(f"is not valid JSON: {e.msg} (character {e.pos})", file=file) from None
    except RecursionError:
        raise SpecError("is nested too deeply", file=file) from None
    except ValueError as e:
        raise SpecError(f"is not valid JSON: {str(e)[:80]}", file=file) from None
    except SpecError as e:
        raise e.within(file) from None
    if not isinstance(value, dict):
        raise SpecError("must hold a JSON mapping at the top", file=file, value=type(value).__name__)
    return value


def brief(value: Any) -> Any:
    """A value as it may stand in a message: long or nested ones by their kind and length, so that showing them costs nothing.

    >>> brief([1, 2]), brief([[0]]), brief({"a": 1})
    ([1, 2], 'a list of 1', 'a mapping of 1')
    """
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if isinstance(value, list) and (len(value) > 8 or any(isinstance(v, (list, dict, str)) for v in value)):
        return f"a list of {len(value)}"
    return "null" if value is None else value


def _no_constant(word: str) -> Any:
    raise SpecError("is not a number that JSON allows", value=word)


def _short_int(digits: str) -> int:
    if len(digits) > 20:
        raise SpecError("is too large for a number here", value=f"{digits[:20]}...")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    raise SpecError("stands twice in one mapping", field=twice)


def _tables(header: dict[str, Any], room: int, path: Any) -> tuple[tuple[Tensor, ...], dict[str, str]]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SpecError("must map text to text", file=path, field="__metadata__")
    try:
        placed = sorted((_tensor(name, entry) for name, entry in header.items()), key=lambda p: p[:2])
        _check_layout(placed, room)
    except SpecError as e:
        raise e.within(path) from None
    return tuple(tensor for _, _, tensor in placed), metadata


_ENTRY = frozenset(("dtype", "shape", "data_offsets"))


def _tensor(name: str, entry: Any) -> tuple[int, int, Tensor]:
    """(begin, end, tensor) of one header entry."""
    _check_name(name)
    if not isinstance(entry, dict) or not entry.keys() >= _ENTRY:
        raise SpecError("must be a mapping with dtype, shape and data_offsets", field=name, value=brief(entry))
    dtype, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise SpecError("is not a dtype that is known here", field=f"{name[:60]}.dtype", value=brief(dtype))
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise SpecError("must be [begin, end] with begin <= end, in bytes", field=f"{name[:60]}.data_offsets", value=brief(offsets))
    begin, end = offsets
    shape = _shape(name, entry["shape"])
    width = math.prod(shape) * BITS[dtype]
    if width % 8 or width // 8 != end - begin:
        rule = f"takes {end - begin} bytes of data, but its shape and dtype {dtype} need {-(-width // 8)}"
        raise SpecError(rule, field=name, value=list(shape))
    return begin, end, Tensor(name, dtype, shape, end - begin)


def _check_name(name: str) -> None:
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise SpecError(f"is not a usable tensor name (1 to {_MAX_NAME} printable characters)", field="name", value=name)


def _counts(value: Any) -> bool:
    """Whether a value is a list of whole numbers at or above zero, none of them beyond 63 bits."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v < _MAX_ELEMENTS for v in value)


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not _counts(value):
        raise SpecError("must be a list of whole numbers at or above zero", field=f"{name[:60]}.shape", value=brief(value))
    if len(value) > _MAX_RANK:
        raise SpecError(f"has more than {_MAX_RANK} sizes", field=f"{name[:60]}.shape", value=brief(value))
    product = 1
    for size in value:
        product *= max(size, 1)
        if product >= _MAX_ELEMENTS:
            raise SpecError("has more elements than 63 bits can count", field=f"{name[:60]}.shape", value=brief(value))
    return tuple(value)


def _check_layout(placed: list[tuple[int, int, Tensor]], room: int) -> None:
    """Each tensor must begin where the one before ended, and the last must end with the file."""
    at = 0
    for begin, end, tensor in placed:
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else "leaves a hole after the tensor before it"
            raise SpecError(f"{what}, which ends at byte {at}", field=f"{tensor.name[:60]}.data_offsets", value=[begin, end])
        if end > room:
            raise SpecError(
                f"ends beyond the {room} bytes of data in the file; is it cut short?",
                field=f"{tensor.name[:60]}.data_offsets",
                value=[begin, end],
            )
        at = end
    if at != room:
        raise SpecError(f"holds {room} bytes of data, but its header accounts for {at}")


# ------------------------------------------------------------------------------------------------------- many files


def parse_index(data: bytes, *, file: Any = None) -> Index:
    """The weight map and claimed total of an index file, from its bytes.

    >>> parse_index(b'{"metadata": {"total_size": 8}, "weight_map": {"w": "a.safetensors"}}')
    Index(weight_map={'w': 'a.safetensors'}, total_bytes=8)
    """
    value = bounded_json(data, file=file)
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SpecError("must map tensor names to shard files", file=file, field="weight_map", value=brief(weight_map))
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.isprintable() or not _PLAIN_NAME.fullmatch(shard):
            raise SpecError(
                "must be the plain name of a .safetensors file beside the index",
                file=file,
                field=f"weight_map.{name[:60]}",
                value=brief(shard),
            )
    metadata = value.get("metadata") or {}
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is not None and (isinstance(total, bool) or not isinstance(total, (int, float)) or not 0 <= total < _MAX_ELEMENTS):
        raise SpecError("must be a number of bytes", file=file, field="metadata.total_size", value=brief(total))
    return Index(weight_map, None if total is None else int(total))


_PLAIN_NAME = re.compile(r"[^/\\]{1,240}\.safetensors")
_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


def read_index(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint an index file describes, from the headers of those shards that lie beside it.

    Shards that are not there are named in `missing`. A listed tensor its shard does not hold raises SpecError.
    """
    place = resolve(path)
    index = parse_index(_index_bytes(place), file=place)
    listed: dict[str, list[str]] = {}
    for name, shard in index.weight_map.items():
        listed.setdefault(shard, []).append(name)
    there = {shard: _kind(place.parent / shard) is not None for shard in listed}
    shards = sorted(shard for shard, found in there.items() if found)
    tensors, unlisted, metadata = _read_shards(place, shards, listed)
    missing = tuple(sorted(shard for shard, found in there.items() if not found))
    unread = tuple(name for shard in missing for name in listed[shard])
    return Checkpoint(place, tensors, metadata, missing, unread, unlisted, index.total_bytes)


def _index_bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            data: bytes = stream.read(MAX_HEADER_BYTES + 1)
    except OSError as e:
        raise SpecError(f"cannot be read: {os.strerror(e.errno or 0)}", file=path) from None
    return data


def _read_shards(
    place: Path, shards: list[str], listed: dict[str, list[str]]
) -> tuple[tuple[Tensor, ...], tuple[str, ...], dict[str, str]]:
    kept: list[Tensor] = []
    unlisted: list[str] = []
    metadata: dict[str, str] = {}
    for shard in shards:
        tensors, own = read_header(place.parent / shard)
        names, wanted = {t.name for t in tensors}, set(listed[shard])
        absent = next((name for name in listed[shard] if name not in names), None)
        if absent is not None:
            raise SpecError(f"is listed for {shard}, which does not hold it", file=place, field=f"weight_map.{absent[:60]}")
        kept += [t for t in tensors if t.name in wanted]
        unlisted += [t.name for t in tensors if t.name not in wanted]
        metadata |= own
        if len(kept) > _MAX_MEMBERS:
            raise SpecError(f"names more than {_MAX_MEMBERS:,} tensors in its shards", file=place)
    return tuple(kept), tuple(unlisted), metadata


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at a path: one .safetensors file, an index (.json), or a folder that holds either.

    In a folder the index comes first; without one, a single file or one set of `-00001-of-0000N` parts is taken.
    Raises SpecError where the folder leaves a choice.
    """
    place = resolve(path)
    if _kind(place) == stat.S_IFDIR:
        return _read_folder(place)
    if place.suffix == ".json":
        return read_index(place)
    tensors, metadata = read_header(place)
    return Checkpoint(place, tensors, metadata)


def _kind(path: Path) -> int | None:
    """The kind of file at a path (as in `stat`), or None where there is none that can be looked at."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return None


def _read_folder(place: Path) -> Checkpoint:
    try:
        names = sorted(entry.name for entry in place.iterdir() if ".safetensors" in entry.name)
    except OSError as e:
        raise SpecError(f"cannot be read: {os.strerror(e.errno or 0)}", file=place) from None
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    if INDEX_NAME in indexes or len(indexes) == 1:
        return read_index(place / (INDEX_NAME if INDEX_NAME in indexes else indexes[0]))
    files = [name for name in names if name.endswith(".safetensors")]
    if "model.safetensors" in files or len(files) == 1 and not _PART_NAME.fullmatch(files[0]):
        return read_checkpoint(place / ("model.safetensors" if "model.safetensors" in files else files[0]))
    return _read_parts(place, files)


def _read_parts(place: Path, files: list[str]) -> Checkpoint:
    """One set of numbered parts without an index."""
    if not files:
        raise SpecError("holds no .safetensors file", file=place)
    parts = [_PART_NAME.fullmatch(name) for name in files]
    sets = {(m[1], m[3]) for m in parts if m}
    if len(sets) != 1 or None in parts:
        raise SpecError("holds several checkpoints; name one file of them", file=place, value=", ".join(files[:4]))
    (stem, count) = sets.pop()
    wanted = [f"{stem}-{i:05d}-of-{count}.safetensors" for i in range(1, int(count) + 1)]
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for name in files:
        found, own = read_header(place / name)
        twice = next((t.name for t in found if t.name in tensors), None)
        if twice is not None:
            raise SpecError("stands in two parts of one checkpoint", file=place / name, field=twice)
        tensors |= {t.name: t for t in found}
        metadata |= own
    return Checkpoint(place, tuple(tensors.values()), metadata, missing=tuple(sorted(set(wanted) - set(files))))


# ------------------------------------------------------------------------------------------- what the tensors stand for


Bits = int | Mapping[str, int] | None
"""Bits of one packed value: one number, or a number for each weight name; None where the shapes must say."""


@dataclass(frozen=True, slots=True)
class LogicalWeight:
    """A weight as the model means it, whatever is stored for it.

    `shape` is (out, in) for a matrix, with leading sizes for stacked experts; bitsandbytes 4-bit keeps its shape among
    the data, so there it is flat. `stored_bytes` includes `scale_bytes`, the bytes of scales, zero points and other
    companions. `group` values along the input share a scale. `format_name` "scale" marks a companion without a weight
    of its own (a KV-cache scale, say): it has bytes but no parameters.
    """

    name: str
    shape: tuple[int, ...]
    format_name: str
    stored_bytes: int
    scale_bytes: int = 0
    group: int | None = None
    dtype: str = ""

    @property
    def elements(self) -> int:
        """Logical parameters.

        >>> LogicalWeight("w", (4, 8), "mxfp4", 17).elements
        32
        """
        return 0 if self.format_name == "scale" else math.prod(self.shape)


_NEVER_A_WEIGHT = (
    "input_scale|input_global_scale|output_scale|pre_quant_scale|[kqv]_scale|[kqv]_zero_point|prob_scale|weight_scale_inv|weight_scale_2|weight_scale|"
    "weight_global_scale|weight_zero_point|weight_g_idx|weight_shape|weight_format|SCB|qzeros|g_idx|"
    r"weight\.(?:nested_)?(?:absmax|quant_map)|weight\.quant_state\.bitsandbytes__(?:nf4|fp4)"
)
_COMPANION = re.compile(rf"[._]({_NEVER_A_WEIGHT}|scales|scale_inv|scale|biases)\Z")
_ONLY_COMPANION = re.compile(rf"[._](?:{_NEVER_A_WEIGHT})\Z")
_BASES = (".weight", ".qweight", ".weight_packed", "", "_blocks")
_PACKABLE = frozenset(BITS) - {"F64", "F32", "F16", "BF16", "I64", "U64", "C64", "BOOL", "I16", "U16"}
_NOT_UNPACKED = {".q_weight": "EXL2", ".trellis": "EXL3", ".W_q": "HQQ", ".codes": "AQLM", "._data": "quanto"}
_PLAIN = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8", "F8_E5M2": "fp8-e5m2", "F4": "fp4"}


def logical(tensors: Iterable[Tensor], *, bits: Bits = None) -> list[LogicalWeight]:
    """The weights that tensors stand for, scales and zero points grouped under the weight they belong to.

    Known layouts: GPTQ, AWQ, compressed-tensors (packed int, nvfp4, mxfp4), bitsandbytes (4-bit and int8), MLX, mxfp4
    blocks, ModelOpt nvfp4, fp8 and int8 with scales. Everything else is its own weight. `bits` is needed where names and
    shapes do not tell the width; where they do, `bits` must agree. Raises SpecError otherwise.

    >>> logical([Tensor("w_blocks", "U8", (2, 64, 1, 16), 2048), Tensor("w_scales", "U8", (2, 64, 1), 128)])[0].shape
    (2, 64, 32)
    """
    by_name = {t.name: t for t in tensors}
    parts: dict[str, dict[str, Tensor]] = {}
    lone: list[Tensor] = []
    for tensor in by_name.values():
        owner = _owner(tensor, by_name)
        if owner is None:
            lone.append(tensor)
        else:
            parts.setdefault(owner[0], {})[owner[1]] = tensor
    return [_weight(t, parts.get(t.name, {}), bits) for t in lone]


def _owner(tensor: Tensor, by_name: dict[str, Tensor]) -> tuple[str, str] | None:
    """(name of the tensor this one accompanies, its role), or None where it stands for itself."""
    match = _COMPANION.search(tensor.name)
    if not match:
        return None
    stem = tensor.name[: match.start()]
    for ending in _BASES:
        base = by_name.get(stem + ending)
        if base is not None and base is not tensor and base.dtype in _PACKABLE and not _COMPANION.search(base.name):
            return base.name, match[1].removeprefix("weight.")
    return None


@dataclass(frozen=True, slots=True)
class _Packed:
    """A stored tensor with its companions by role, and what the caller knows of its bits."""

    base: Tensor
    parts: dict[str, Tensor]
    bits: Bits

    @property
    def name(self) -> str:
        for ending, short in ((".qweight", ".weight"), (".weight_packed", ".weight"), ("_blocks", "")):
            if self.base.name.endswith(ending) and self.parts:
                return self.base.name.removesuffix(ending) + short
        return self.base.name

    @property
    def scale(self) -> Tensor | None:
        roles = ("weight_scale", "weight_scale_inv", "scales", "scale", "scale_inv", "absmax", "SCB")
        return next((self.parts[role] for role in roles if role in self.parts), None)

    def known_bits(self) -> int | None:
        stem = self.name.removesuffix(".weight")
        value = self.bits if isinstance(self.bits, int) or self.bits is None else self.bits.get(self.name, self.bits.get(stem))
        if value is not None and not 1 <= value <= 16:
            raise SpecError("must be the bits of one packed value, 1 to 16", field="bits", value=value)
        return value

    def weight(self, shape: tuple[int, ...], format_name: str, group: int | None = None) -> LogicalWeight:
        extra = sum(t.nbytes for t in self.parts.values())
        return LogicalWeight(self.name, shape, format_name, self.base.nbytes + extra, extra, group, self.base.dtype)

    def refuse(self, rule: str) -> SpecError:
        return SpecError(rule, field=self.base.name, value=list(self.base.shape))


def _weight(tensor: Tensor, parts: dict[str, Tensor], bits: Bits) -> LogicalWeight:
    if not parts and _ONLY_COMPANION.search(tensor.name):
        return LogicalWeight(tensor.name, tensor.shape, "scale", tensor.nbytes, tensor.nbytes, None, tensor.dtype)
    return _layout(tensor, parts)(_Packed(tensor, parts, bits))


def _layout(tensor: Tensor, parts: dict[str, Tensor]) -> Callable[[_Packed], LogicalWeight]:
    """The reading that fits a tensor's name, dtype and companions."""
    name, dtype = tensor.name, tensor.dtype
    foreign = next((kind for ending, kind in _NOT_UNPACKED.items() if name.endswith(ending)), None)
    if foreign and dtype in BITS.keys() - _PLAIN.keys():
        raise SpecError(f"is packed as {foreign}, which is not unpacked here", field=name, value=list(tensor.shape))
    if name.endswith(".qweight") and dtype == "I32":
        return _gptq_or_awq
    if name.endswith(".weight_packed"):
        return _packed_int if dtype == "I32" else _fp4
    if name.endswith("_blocks") and dtype == "U8" and "scales" in parts:
        return _mxfp4_blocks
    if dtype == "U8" and "absmax" in parts:
        return _bnb_4bit
    if dtype == "U32" and "scales" in parts:
        return _mlx
    if dtype == "U8" and parts or dtype == "I8" and any(t.dtype == "F8_E8M0" for t in parts.values()):
        return _fp4
    return _scaled_or_plain


def _agreed(packed: _Packed, evidence: dict[str, float]) -> int:
    """The bits that every piece of evidence gives."""
    known = packed.known_bits()
    found = {**evidence, **({} if known is None else {"the bits given": float(known)})}
    if not found:
        raise packed.refuse("needs the bits of one value (2, 3, 4, 8): names and shapes do not tell them")
    first = next(iter(found.values()))
    if any(value != first for value in found.values()) or first != int(first) or not 1 <= first <= 16:
        says = ", ".join(f"{value:g} by {source}" for source, value in found.items())
        raise packed.refuse(f"has no single number of bits: {says}")
    return int(first)


def _gptq_or_awq(packed: _Packed) -> LogicalWeight:
    """I32 [in * bits / 32, out] is GPTQ, I32 [in, out * bits / 32] is AWQ: the width of the scales [groups, out] tells."""
    scales = packed.parts.get("scales")
    if scales is None or len(scales.shape) != 2 or len(packed.base.shape) != 2 or 0 in scales.shape or 0 in packed.base.shape:
        raise packed.refuse("needs two sizes, and scales of the form [groups, out] beside it")
    (rows, columns), (groups, out) = packed.base.shape, scales.shape
    zeros = packed.parts.get("qzeros")
    evidence = {} if zeros is None or len(zeros.shape) != 2 else {"qzeros": 32 * zeros.shape[1] / out}
    if columns != out:
        evidence = {"scales": 32 * columns / out, **evidence}
        bits = _agreed(packed, evidence)
        return packed.weight((out, rows), f"awq-int{bits}", -(-rows // groups))
    order = packed.parts.get("g_idx")
    if order is not None and order.elements:
        evidence["g_idx"] = 32 * rows / order.elements
    bits = _agreed(packed, evidence)
    if 32 * rows % bits:
        raise packed.refuse(f"does not hold a whole number of {bits}-bit values")
    return packed.weight((out, 32 * rows // bits), f"gptq-int{bits}", -(-32 * rows // bits // groups))


def _packed_int(packed: _Packed) -> LogicalWeight:
    """Compressed-tensors: I32 [..., out, ceil(in / (32 // bits))]; the true shape stands among the data, so bits must be known."""
    *lead, columns = packed.base.shape or (0,)
    order = packed.parts.get("weight_g_idx")
    if order is not None and order.elements:
        return _with_inputs(packed, (*lead, order.elements), columns)
    bits = _agreed(packed, {})
    if 32 % bits:
        raise packed.refuse(f"holds {32 // bits} values of {bits} bits a word with a remainder: the shapes alone do not give its width")
    return _grouped(packed, (*lead, columns * (32 // bits)), f"packed-int{bits}")


def _with_inputs(packed: _Packed, shape: tuple[int, ...], columns: int) -> LogicalWeight:
    fits = [bits for bits in (2, 3, 4, 5, 6, 7, 8) if -(-shape[-1] // (32 // bits)) == columns]
    known = packed.known_bits()
    if len(fits) > 1 and known in fits:
        fits = [b for b in fits if b == known]
    if len(fits) != 1 or known not in (None, fits[0]):
        raise packed.refuse(f"does not hold {shape[-1]} inputs at {known if known else 'any one number of'} bits")
    return _grouped(packed, shape, f"packed-int{fits[0]}")


def _grouped(packed: _Packed, shape: tuple[int, ...], format_name: str) -> LogicalWeight:
    """A weight whose scales [..., out, groups] tell the group."""
    scale = packed.scale
    groups = scale.shape[-1] if scale is not None and len(scale.shape) > 1 else 0
    return packed.weight(shape, format_name, -(-shape[-1] // groups) if groups else None)


def _mxfp4_blocks(packed: _Packed) -> LogicalWeight:
    """U8 [..., blocks, 16], two values a byte, one U8 scale for each block of 32."""
    shape, scales = packed.base.shape, packed.parts["scales"]
    if len(shape) < 2 or shape[-1] != 16 or scales.shape != shape[:-1]:
        raise packed.refuse("must be [..., blocks, 16] with scales [..., blocks]")
    return packed.weight((*shape[:-2], shape[-2] * 32), "mxfp4", 32)


_FP4_SCALES = {"F8_E4M3": ("nvfp4", 16), "U8": ("mxfp4", 32), "F8_E8M0": ("mxfp4", 32)}


def _fp4(packed: _Packed) -> LogicalWeight:
    """U8 [..., in / 2], two values a byte; the scale's dtype tells nvfp4 (fp8, blocks of 16) from mxfp4 (powers of two, 32)."""
    scale, shape = packed.scale, packed.base.shape
    format_name, block = _FP4_SCALES.get(scale.dtype, ("", 0)) if scale is not None else ("", 0)
    if scale is None or not block or not shape or not scale.shape or scale.shape[-1] != -(-shape[-1] * 2 // block):
        raise packed.refuse("is packed in a way that is not known here")
    return packed.weight((*shape[:-1], shape[-1] * 2), format_name, block)


def _bnb_4bit(packed: _Packed) -> LogicalWeight:
    """U8 [n, 1], two values a byte; the matrix shape stands among the data, so the shape is flat."""
    kind = next((role.rpartition("__")[2] for role in packed.parts if role.startswith("quant_state.")), None)
    if kind is None:
        raise packed.refuse("has absmax but no quant_state beside it")
    values, blocks = packed.base.elements * 2, packed.parts["absmax"].elements
    return packed.weight((values,), f"bnb-{kind}", values // blocks if blocks else None)


def _mlx(packed: _Packed) -> LogicalWeight:
    """U32 [..., in * bits / 32] with scales [..., in / group]; without biases it is mxfp4, groups of 32."""
    *lead, columns = packed.base.shape or (0,)
    if packed.parts["scales"].dtype == "U8":
        return packed.weight((*lead, columns * 8), "mxfp4", 32)
    bits = _agreed(packed, {})
    if 32 * columns % bits:
        raise packed.refuse(f"does not hold a whole number of {bits}-bit values")
    return _grouped(packed, (*lead, 32 * columns // bits), f"mlx-int{bits}")


def _scaled_or_plain(packed: _Packed) -> LogicalWeight:
    """One stored element for each value: fp8 and int8 with their scales, and everything unquantised."""
    base, scale = packed.base, packed.scale
    plain = _PLAIN.get(base.dtype, base.dtype.lower())
    if scale is None:
        return packed.weight(base.shape, plain)
    if "SCB" in packed.parts:
        return packed.weight(base.shape, "bnb-int8")
    kind = "int8" if base.dtype == "I8" else plain
    if scale.dtype in ("U8", "F8_E8M0") and base.shape and scale.shape and scale.shape[-1] * 32 == base.shape[-1]:
        return packed.weight(base.shape, f"mx{kind}", 32)
    return packed.weight(base.shape, f"{kind}-{_granularity(base.shape, scale)}")


def _granularity(shape: tuple[int, ...], scale: Tensor) -> str:
    """How far one scale reaches: the tensor (each expert of a stack), an output channel, or a block."""
    experts, rows = math.prod(shape[:-2]), math.prod(shape[:-1])
    if scale.elements in (1, experts):
        return "tensor"
    return "channel" if scale.elements == rows else "block"
