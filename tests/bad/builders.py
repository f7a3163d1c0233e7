"""Small writers of safetensors and GGUF files without data (the data is a hole in the file), good or broken on purpose."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from inferplan.readers.gguf import BLOCK_TYPES
from inferplan.readers.safetensors import BITS

Shapes = dict[str, tuple[str, tuple[int, ...]]]


def entries(shapes: Shapes) -> dict[str, Any]:
    """Header entries with contiguous offsets."""
    at, found = 0, {}
    for name, (dtype, shape) in shapes.items():
        nbytes = math.prod(shape) * BITS[dtype] // 8
        found[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    return found


def safetensors(path: Path, shapes: Shapes, metadata: dict[str, str] | None = None) -> Path:
    """A valid safetensors file whose data is a hole."""
    header = entries(shapes)
    data = max((e["data_offsets"][1] for e in header.values()), default=0)
    return raw_safetensors(path, ({"__metadata__": metadata} if metadata else {}) | header, data)


def raw_safetensors(path: Path, header: Any, data: int = 0, length: int | None = None) -> Path:
    """Length, header (JSON-able, text or bytes) and a hole of `data` bytes."""
    text = header if isinstance(header, (bytes, str)) else json.dumps(header)
    body = text if isinstance(text, bytes) else text.encode()
    return hole(path, struct.pack("<Q", len(body) if length is None else length) + body, data)


def hole(path: Path, head: bytes, data: int = 0) -> Path:
    """A file that begins with `head` and goes on with a hole of `data` bytes."""
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + data)
    return path


U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
TYPE_NUMBER = {kind.name: number for number, kind in BLOCK_TYPES.items()}


class Writer:
    """The pieces of a GGUF header in one version and byte order."""

    def __init__(self, version: int = 3, order: str = "<") -> None:
        self.version, self.order = version, order

    def pack(self, form: str, value: Any) -> bytes:
        return struct.pack(self.order + form, value)

    def count(self, value: int) -> bytes:
        return self.pack("I" if self.version == 1 else "Q", value)

    def text(self, value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return self.count(len(data)) + data

    def scalar(self, kind: int, value: Any) -> bytes:
        return self.text(value) if kind == TEXT else self.pack(FORMS[kind], value)

    def key(self, name: str | bytes, kind: int, value: Any) -> bytes:
        return self.text(name) + self.pack("I", kind) + self.scalar(kind, value)

    def array(self, name: str, kind: int, values: list[Any]) -> bytes:
        head = self.text(name) + self.pack("I", ARRAY) + self.pack("I", kind) + self.count(len(values))
        return head + b"".join(self.scalar(kind, v) for v in values)

    def tensor(self, name: str | bytes, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
        dims = b"".join(self.count(size) for size in sizes)
        return self.text(name) + self.pack("I", len(sizes)) + dims + self.pack("I", kind) + self.pack("Q", offset)

    def file(self, keys: list[bytes], tensors: list[bytes], *, counts: tuple[int, int] | None = None, magic: bytes = b"GGUF") -> bytes:
        count = counts or (len(tensors), len(keys))
        return magic + self.pack("I", self.version) + self.count(count[0]) + self.count(count[1]) + b"".join(keys + tensors)


def gguf(path: Path, keys: list[bytes], tensors: list[tuple[str, str, tuple[int, ...]]], *, version: int = 3, alignment: int = 32) -> Path:
    """A valid GGUF file whose data is a hole; tensors as (name, type, sizes innermost first)."""
    writer, infos, at = Writer(version), [], 0
    for name, kind, sizes in tensors:
        infos.append(writer.tensor(name, sizes, TYPE_NUMBER[kind], at))
        block = BLOCK_TYPES[TYPE_NUMBER[kind]]
        at += -(-(math.prod(sizes) // block.block * block.nbytes) // alignment) * alignment
    head = writer.file(keys, infos)
    return hole(path, head + b"\0" * (-len(head) % alignment), at)
