"""GGUF headers to typed tables: metadata and tensor infos, with the exact bytes of each tensor. Reads no weight, knows no Model.

Versions 1 to 3, little-endian. Long arrays and texts (token lists, chat templates of tokenizers) are stepped over: their
length and first values stay, as `Skipped`. Split files are read together with the parts that lie beside them.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from inferplan.errors import SpecError
from inferplan.specs.document import open_regular, resolve

MAX_TENSORS = 100_000
MAX_KEYS = 16_384
MAX_STRINGS = 1_500_000
_MAX_HEADER_BYTES = 128 * 1024 * 1024
_MAX_KEPT_BYTES = 8 * 1024 * 1024
_MAX_KEPT_TEXTS = 50_000
_LONGEST_NAME = 65_535
_LONGEST_TEXT = 65_536
_LONGEST_ARRAY = 1024
_SHOWN_FIRST = 8
_SHOWN_BYTES = 64  # of a text that is stepped over
_MAX_ELEMENTS = 2**63

_WIDTHS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlockType:
    """A stored number format: `nbytes` for each run of `block` values along the innermost size."""

    name: str
    block: int
    nbytes: int

    @property
    def bits(self) -> float:
        """Bits per value with scales.

        >>> BLOCK_TYPES[12].bits
        4.5
        """
        return 8 * self.nbytes / self.block


BLOCK_TYPES = {number: BlockType(*row) for number, row in _WIDTHS.items()}
"""The number formats by the type number that stands in the file. Numbers 4, 5, 31-33 and 36-38 were withdrawn."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One stored tensor. `shape` is row-major, (out, in) for a matrix: the reverse of the order in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int

    @property
    def elements(self) -> int:
        """Values, each one parameter."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A long array or text of which only the length (values, or bytes of text) and the first values are kept."""

    kind: str
    length: int
    first: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Gguf:
    """What stands in the headers of a GGUF file and its parts. `missing` names parts that are not beside it."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    missing: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors read, without headers and padding."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def parameters(self) -> int:
        """Values in all tensors read."""
        return sum(t.elements for t in self.tensors)

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """Stored bytes for each number format that occurs, the largest first."""
        totals: dict[str, int] = {}
        for tensor in self.tensors:
            totals[tensor.type] = totals.get(tensor.type, 0) + tensor.nbytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def architecture_config(gguf: Gguf) -> dict[str, Any]:
    """The hyperparameters under their plain names: `llama.block_count` becomes `block_count`.

    `architecture` is added, and `vocab_size` from the length of the token list where no key gives it. Values are as in the
    file: a number, or a list with one number for each layer.

    >>> architecture_config(Gguf(Path("x"), 3, {"general.architecture": "llama", "llama.block_count": 2}, ()))
    {'architecture': 'llama', 'block_count': 2}
    """
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise SpecError("must name the architecture", file=gguf.path, field="general.architecture", value=name)
    prefix = f"{name}."
    found = {"architecture": name} | {k.removeprefix(prefix): v for k, v in gguf.metadata.items() if k.startswith(prefix)}
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and "vocab_size" not in found:
        found["vocab_size"] = tokens.length if isinstance(tokens, Skipped) else len(tokens)
    return found


# ------------------------------------------------------------------------------------------------------------- bytes


class _Reader:
    """The header bytes of one file, front to back, never past its end and never more than the header limit."""

    def __init__(self, stream: BinaryIO, path: Any) -> None:
        self.stream, self.path = stream, path
        self.size = os.fstat(stream.fileno()).st_size
        self.at = self.taken = self.kept = self.strings = 0
        self.wide = True

    def error(self, rule: str, field: str | None = None, value: Any = None) -> SpecError:
        return SpecError(rule, file=self.path, field=field, value=value)

    def room(self, count: int, field: str) -> None:
        if count > self.size - self.at:
            raise self.error(f"asks for {count} bytes at byte {self.at}, but the file ends at {self.size}", field)

    def take(self, count: int, field: str) -> bytes:
        self.room(count, field)
        self.taken += count
        if self.taken > _MAX_HEADER_BYTES:
            raise self.error(f"lies beyond the {_MAX_HEADER_BYTES // 1024**2} MiB of header read here", field)
        data = self.stream.read(count)
        if len(data) != count:
            raise self.error("ended while its header was read", field)
        self.at += count
        return data

    def skip(self, count: int, field: str) -> None:
        self.room(count, field)
        self.stream.seek(count, os.SEEK_CUR)
        self.at += count

    def u32(self, field: str) -> int:
        return int.from_bytes(self.take(4, field), "little")

    def count(self, field: str) -> int:
        """A length: 32 bits in version 1, 64 bits after."""
        return int.from_bytes(self.take(8 if self.wide else 4, field), "little")

    def text(self, field: str, longest: int) -> str:
        length = self.count(field)
        if length > longest:
            raise self.error(f"is text of {length} bytes, above the {longest} allowed here", field)
        return self.decode(self.take(length, field), field)

    def decode(self, data: bytes, field: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as e:
            raise self.error(f"is not UTF-8 text (byte {e.start} of {len(data)})", field) from None


_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_KINDS = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "text", 10: "u64", 11: "i64", 12: "f64"}
_BOOL, _TEXT, _ARRAY = 7, 8, 9
_LEAST_TENSOR, _LEAST_KEY = 24, 9  # bytes of an entry in version 1 without its name, with one size or a value of one byte


def _value(reader: _Reader, kind: int, field: str) -> Any:
    if kind in _SCALARS:
        return _numbers(reader, kind, field, 1)[0]
    if kind == _TEXT:
        return _text(reader, field)
    if kind == _ARRAY:
        return _array(reader, field)
    raise reader.error("is not a type of value that GGUF has", field, kind)


def _text(reader: _Reader, field: str) -> str | Skipped:
    """Text of up to 64 KiB as it is; of longer text the length and the beginning."""
    length = reader.count(field)
    reader.room(length, field)
    if length <= _LONGEST_TEXT and reader.kept + length <= _MAX_KEPT_BYTES:
        reader.kept += length
        return reader.decode(reader.take(length, field), field)
    shown = min(length, _SHOWN_BYTES)
    first = reader.take(shown, field).decode(errors="replace")
    reader.skip(length - shown, field)
    return Skipped("text", length, (first,))


def _array(reader: _Reader, field: str) -> list[Any] | Skipped:
    """A short array as a list; of a long one the length and the first values."""
    kind, length = reader.u32(field), reader.count(field)
    if kind == _ARRAY:
        raise reader.error("is an array of arrays, which is not read", field)
    if kind != _TEXT and kind not in _SCALARS:
        raise reader.error("is not a type of value that GGUF has", field, kind)
    width = (8 if reader.wide else 4) if kind == _TEXT else struct.calcsize(_SCALARS[kind])
    if length * width > reader.size - reader.at:
        raise reader.error(f"is an array of {length} values, more than the rest of the file can hold", field)
    long = length > _LONGEST_ARRAY or reader.kept + length * width > _MAX_KEPT_BYTES
    if kind == _TEXT:
        return _texts(reader, field, length, long)
    values = _numbers(reader, kind, field, min(length, _SHOWN_FIRST) if long else length)
    if not long:
        return values
    reader.skip((length - len(values)) * width, field)
    return Skipped(_KINDS[kind], length, tuple(values))


def _numbers(reader: _Reader, kind: int, field: str, count: int) -> list[Any]:
    form = _SCALARS[kind]
    data = reader.take(count * struct.calcsize(form), field)
    reader.kept += len(data)
    if kind == _BOOL and any(byte > 1 for byte in data):
        raise reader.error("must be true or false (1 or 0)", field, max(data))
    return list(struct.unpack(f"<{count}{form[1]}", data))


def _texts(reader: _Reader, field: str, length: int, long: bool) -> list[Any] | Skipped:
    reader.strings += length
    if reader.strings > MAX_STRINGS:
        raise reader.error(f"brings the texts in arrays above the {MAX_STRINGS:,} read here", field, length)
    if not long and reader.strings <= _MAX_KEPT_TEXTS:
        return [_text(reader, field) for _ in range(length)]
    shown = min(length, _SHOWN_FIRST)
    first = [reader.take(reader.count(field), field)[:_SHOWN_BYTES].decode(errors="replace") for _ in range(shown)]
    _skip_texts(reader, length - shown, field)
    return Skipped("text", length, tuple(first))


def _skip_texts(reader: _Reader, count: int, field: str) -> None:
    """Step over texts; written out flat because vocabularies have a few hundred thousand."""
    width = 8 if reader.wide else 4
    read, seek, convert = reader.stream.read, reader.stream.seek, int.from_bytes
    at, end = reader.at, min(reader.size, reader.at + _MAX_HEADER_BYTES - reader.taken)
    for _ in range(count):
        length = convert(read(width), "little")
        at += width + length
        if at > end:
            where = f"the file ends at {end}" if end == reader.size else f"only {_MAX_HEADER_BYTES // 1024**2} MiB of header are read here"
            raise reader.error(f"asks for {length} bytes of text up to byte {at}, but {where}", field)
        seek(length, os.SEEK_CUR)
    reader.taken += at - reader.at
    reader.at = at


# ---------------------------------------------------------------------------------------------------------- one file


def _header(reader: _Reader) -> tuple[int, dict[str, Any], tuple[GgufTensor, ...]]:
    version = _version(reader)
    reader.wide = version > 1
    tensors, keys = reader.count("tensor count"), reader.count("key count")
    _check_count(reader, "tensor count", tensors, MAX_TENSORS, _LEAST_TENSOR)
    _check_count(reader, "key count", keys, MAX_KEYS, _LEAST_KEY)
    metadata: dict[str, Any] = {}
    for number in range(keys):
        key = _name(reader, f"key {number}")
        if key in metadata:
            raise reader.error("stands twice in the metadata", key)
        metadata[key] = _value(reader, reader.u32(key), key)
    return version, metadata, _tensors(reader, tensors, _alignment(reader, metadata))


def _version(reader: _Reader) -> int:
    magic = reader.take(4, "magic")
    if magic in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        raise reader.error("is a ggml file from before GGUF, which is not read; convert it to GGUF")
    if magic != b"GGUF":
        raise reader.error("is not a GGUF file: it must begin with the letters GGUF", "magic", magic.decode("latin-1"))
    version = reader.u32("version")
    if version and not version & 0xFFFF:
        raise reader.error("is a big-endian GGUF file, which is not read", "version", version >> 16)
    if version not in (1, 2, 3):
        raise reader.error("is not a GGUF version that is read here (1 to 3)", "version", version)
    return version


def _check_count(reader: _Reader, field: str, count: int, most: int, least_bytes: int) -> None:
    if count > most:
        raise reader.error(f"is above the {most:,} read here", field, count)
    if count * least_bytes > reader.size - reader.at:
        raise reader.error("is more than the rest of the file can hold", field, count)


def _name(reader: _Reader, field: str) -> str:
    name = reader.text(field, _LONGEST_NAME)
    if not name or not name.isprintable():
        raise reader.error("is not a usable name (one or more printable characters)", field, name)
    reader.kept += len(name)
    if reader.kept > 4 * _MAX_KEPT_BYTES:
        raise reader.error("brings the names above what is read here", field)
    return name


def _alignment(reader: _Reader, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 1 <= value <= 2**31 or value & (value - 1):
        raise reader.error("must be a power of two", "general.alignment", value if isinstance(value, (int, str)) else type(value).__name__)
    return value


def _tensors(reader: _Reader, count: int, alignment: int) -> tuple[GgufTensor, ...]:
    found: dict[str, GgufTensor] = {}
    for number in range(count):
        tensor = _tensor(reader, number, alignment)
        if tensor.name in found:
            raise reader.error("stands twice among the tensors", tensor.name)
        found[tensor.name] = tensor
    _check_layout(reader, found.values(), -(-reader.at // alignment) * alignment)
    return tuple(found.values())


def _tensor(reader: _Reader, number: int, alignment: int) -> GgufTensor:
    name = _name(reader, f"tensor {number}")
    rank = reader.u32(name)
    if not 1 <= rank <= 4:
        raise reader.error("must have 1 to 4 sizes", name, rank)
    sizes = [reader.count(name) for _ in range(rank)]
    number_of_type, offset = reader.u32(name), int.from_bytes(reader.take(8, name), "little")
    if 0 in sizes or math.prod(sizes) >= _MAX_ELEMENTS:
        raise reader.error("must have sizes from 1, with a product below 2^63", name, sizes)
    kind = BLOCK_TYPES.get(number_of_type)
    if kind is None:
        raise reader.error("is not a tensor type number that is known here", name, number_of_type)
    if sizes[0] % kind.block:
        raise reader.error(f"must have a first size that is a multiple of {kind.block} for {kind.name}", name, sizes)
    if offset % alignment:
        raise reader.error(f"must begin at a multiple of the alignment {alignment}", name, offset)
    return GgufTensor(name, kind.name, tuple(reversed(sizes)), math.prod(sizes) // kind.block * kind.nbytes, offset)


def _check_layout(reader: _Reader, tensors: Iterable[GgufTensor], start: int) -> None:
    """Tensors must lie in the file and must not overlap."""
    end, room = 0, reader.size - start
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset < end:
            raise reader.error(f"overlaps the tensor before it, which ends at byte {end} of the data", tensor.name, tensor.offset)
        end = tensor.offset + tensor.nbytes
        if end > room:
            raise reader.error(f"ends at byte {end} of the data, but the file has {max(room, 0)}; is it cut short?", tensor.name)


# -------------------------------------------------------------------------------------------------------- split files


_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def read_gguf(path: str | os.PathLike[str]) -> Gguf:
    """The metadata and tensors of a GGUF file; of a split one, all parts that lie beside the one named.

    The metadata is that of the first part that is there. Raises SpecError, naming file, field and rule, for anything the
    format does not allow, and for parts that disagree. Big-endian files and those from before GGUF are refused.
    """
    place = resolve(path)
    whole = _read_one(place)
    count = whole.metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= 65_535:
        raise SpecError("must be a whole number up to 65535", file=place, field="split.count", value=_shown(count))
    return whole if count <= 1 else _read_parts(place, whole, count)


def _shown(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else type(value).__name__


def _read_one(place: Path) -> Gguf:
    try:
        with open_regular(place) as stream:
            return Gguf(place, *_header(_Reader(stream, place)))
    except OSError as e:
        raise SpecError(f"cannot be read: {os.strerror(e.errno or 0)}", file=place) from None


def _read_parts(place: Path, named: Gguf, count: int) -> Gguf:
    match = _PART.fullmatch(place.name)
    if not match or int(match[3]) != count:
        raise SpecError(f"is one of {count} parts and must be named like name-00001-of-{count:05d}.gguf", file=place)
    names = [f"{match[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    here = {name: place.parent / name for name in names if name == place.name or (place.parent / name).exists()}
    tensors: dict[str, GgufTensor] = {}
    parts = [named if name == place.name else _read_one(file) for name, file in here.items()]
    for part in parts:
        _check_part(part, count, names.index(part.path.name))
        twice = next((t.name for t in part.tensors if t.name in tensors), None)
        if twice is not None:
            raise SpecError("stands in two parts of one model", file=part.path, field=twice)
        tensors |= {t.name: t for t in part.tensors}
    missing = tuple(name for name in names if name not in here)
    _check_total(parts[0], len(tensors), complete=not missing)
    return Gguf(place, parts[0].version, parts[0].metadata, tuple(tensors.values()), missing)


def _check_part(part: Gguf, count: int, number: int) -> None:
    for field, expected in (("split.count", count), ("split.no", number)):
        value = part.metadata.get(field)
        if value != expected:
            raise SpecError(f"must be {expected}, as the file names say", file=part.path, field=field, value=_shown(value))


def _check_total(part: Gguf, found: int, *, complete: bool) -> None:
    stated = part.metadata.get("split.tensors.count")
    if complete and stated is not None and stated != found:
        raise SpecError(
            f"does not agree with the {found} tensors in the parts", file=part.path, field="split.tensors.count", value=_shown(stated)
        )
