"""Hostile and broken files: each must end in one line that names the file, within 2 s and 500 MB, and in nothing else."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bad.builders import ARRAY, BOOL, TEXT, TYPE_NUMBER, U8, U32, Writer, entries, gguf, hole, raw_safetensors, safetensors
from inferplan.errors import SpecError
from inferplan.readers.gguf import read_gguf
from inferplan.readers.huggingface.config import load_config
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.safetensors import read_checkpoint, read_header, read_index
from inferplan.specs.document import load_json, load_yaml

LONGEST_S, LARGEST_BYTES = 2.0, 500 * 10**6
READERS: dict[str, Callable[[Path], Any]] = {
    ".yaml": load_yaml,
    ".json": load_json,
    ".index.json": read_index,
    ".safetensors": read_header,
    ".gguf": read_gguf,
}
Build = Callable[[Path], Any]
MIB = 2**20
W = Writer()


def text(data: bytes | str) -> Build:
    return lambda path: path.write_bytes(data if isinstance(data, bytes) else data.encode())


def long(make: Callable[[], bytes | str]) -> Build:
    """Text that is only made when the case runs."""
    return lambda path: text(make())(path)


def long_header(make: Callable[[], Any]) -> Build:
    return lambda path: raw_safetensors(path, make())


def header(value: Any, data: int = 0, length: int | None = None) -> Build:
    return lambda path: raw_safetensors(path, value, data, length)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), data: int = 8) -> Build:
    return header({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}, data)


def two(first: tuple[int, int], second: tuple[int, int], data: int) -> Build:
    entries = {n: {"dtype": "U8", "shape": [e - b], "data_offsets": [b, e]} for n, (b, e) in {"a": first, "b": second}.items()}
    return header(entries, data)


def head(keys: list[bytes] | None = None, infos: list[bytes] | None = None, *, data: int = 0, w: Writer = W, **more: Any) -> Build:
    return lambda path: hole(path, w.file(keys or [], infos or [], **more), data)


def one_tensor(sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0, name: str | bytes = "t", data: int = 4096) -> Build:
    return head([], [W.tensor(name, sizes, kind, offset)], data=data)


def key_bytes(kind: int, rest: bytes) -> Build:
    """One key whose value is given as raw bytes."""
    return head([W.text("some.key") + W.pack("I", kind) + rest])


def array_bytes(kind: int, length: int, rest: bytes = b"", data: int = 0) -> Build:
    value = W.text("some.key") + W.pack("I", ARRAY) + W.pack("I", kind) + W.count(length) + rest
    return head([value], data=data)


def symlink_loop(path: Path) -> None:
    other = path.with_name(f"other{path.suffix}")
    path.symlink_to(other)
    other.symlink_to(path)


ANY_KIND: dict[str, tuple[Build, str]] = {
    "nothing there": (lambda path: None, "cannot be read"),
    "a directory": (lambda path: path.mkdir(), "is a directory"),
    "a fifo": (lambda path: os.mkfifo(path), "is not a regular file"),
    "a symlink loop": (symlink_loop, "cannot be read"),
    "a symlink to nothing": (lambda path: path.symlink_to("gone"), "cannot be read"),
    "a symlink to a device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "empty": (text(b""), ""),
    "one byte": (text(b"\xff"), ""),
    "a page of zeros": (text(bytes(4096)), ""),
    "a pickle": (text(b"\x80\x02}q\x00X\x01\x00\x00\x00wq\x01K\x01s."), ""),
    "a zip": (text(b"PK\x03\x04" + bytes(60)), ""),
    "a hole of a terabyte": (lambda path: hole(path, b"", 2**40), ""),
}

BOTH: dict[str, tuple[Build, str]] = {
    "utf-16": (text("a: 1".encode("utf-16")), "is not UTF-8 text"),
    "latin-1": (text(b'{"a": "\xe9"}'), "is not UTF-8 text"),
    "a bare word": (text('"word"'), "must hold a mapping"),
    "a list": (text("[1, 2]"), "must hold a mapping"),
    "key twice": (text('{"a": 1, "a": 2}'), "stands twice"),
    "nested 70 deep": (text('{"a":' * 70 + "1" + "}" * 70), "deep"),
    "nested 900 deep": (text("[" * 900 + "]" * 900), ""),
    "nested a million deep": (long(lambda: "[" * 1_000_000), ""),
    "open mapping": (text('{"a": {"b": 1'), "is not valid"),
    "a number of 5000 digits": (text('{"a": ' + "9" * 5000 + "}"), ""),
    "a number beyond 63 bits": (text('{"a": 9223372036854775808}'), "too large"),
    "9 MiB": (long(lambda: '{"a": "' + "x" * 9 * MIB + '"}'), "is larger than the 8 MiB"),
    "3 million values": (long(lambda: '{"a": [' + "1," * 3_000_000 + "1]}"), ""),
    "a million lists": (long(lambda: '{"a": [' + "[]," * 1_000_000 + "1]}"), ""),
    "500,000 keys, one twice": (long(lambda: "{" + ", ".join(f'"k{i}": 0' for i in range(500_000)) + ', "k499999": 0}'), ""),
    "a lone surrogate": (text('{"\\ud800": 1}'), ""),
}

YAML: dict[str, tuple[Build, str]] = {
    "alias bomb": (text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"), "anchors and aliases"),
    "alias glued to a quoted key": (text('{"b":&x [1, 2], "a":*x}'), "anchors and aliases"),
    "alias to itself": (text("a: &a [*a]\n"), "anchors and aliases"),
    "python object": (text('a: !!python/object/apply:os.system ["true"]'), ""),
    "unknown tag": (text("a: !spam 1"), ""),
    "set tag": (text("a: !!set {b, c}"), ""),
    "binary tag": (text('a: !!binary "AAAA"'), ""),
    "timestamp tag": (text("a: !!timestamp 2001-01-01"), ""),
    "bool tag on text": (text('a: !!bool "zz"'), ""),
    "map tag on a list": (text("a: !!map [1]"), ""),
    "int tag on text": (text('a: !!int "zz"'), ""),
    "list as key": (text("? [a]\n: 1"), "must be plain text"),
    "two documents": (text("a: 1\n---\nb: 2\n"), "is not valid YAML"),
    "tab": (text("a:\n\t- b"), "line 2"),
    "control character": (text(b"a: \x01"), "is not valid YAML"),
    "nan": (text("a: .nan"), "finite"),
    "infinity": (text("a: {b: -.inf}"), "a.b: -inf: must be a finite number"),
    "key twice in depth": (text("a:\n  b: 1\n  b: 2\n"), "b: stands twice in one mapping (line 3)"),
    "dashes": (long(lambda: "- " * 500_000 + "a"), "deep"),
    "deep indents": (long(lambda: "\n".join(" " * i + "a:" for i in range(500))), "deep"),
    "2 million lines": (long(lambda: "a:\n" + "- b\n" * 2_000_000), ""),
    "600,000 keys": (long(lambda: "".join(f"k{i}: 1\n" for i in range(600_000))), ""),
    "a million digits and a letter": (long(lambda: "- " + "1" * 1_000_000 + "x"), ""),
    "long digits, many times": (long(lambda: ("- " + "1" * 900 + "x\n") * 8000), ""),
}

JSON: dict[str, tuple[Build, str]] = {
    "nan": (text('{"a": NaN}'), "NaN: is not a number that JSON allows"),
    "infinity": (text('{"a": [-Infinity]}'), "-Infinity: is not a number that JSON allows"),
    "overflow": (text('{"a": {"b": [1, 1e999]}}'), "a.b[1]: inf: must be a finite number"),
    "trailing text": (text('{"a": 1} x'), "Extra data"),
    "comment": (text('{"a": 1} // x'), "Extra data"),
    "single quotes": (text("{'a': 1}"), "is not valid JSON"),
    "raw newline in text": (text('{"a": "\n"}'), "is not valid JSON"),
}

GOOD_INDEX = {"metadata": {"total_size": 8}, "weight_map": {"w": "a.safetensors"}}
INDEX: dict[str, tuple[Build, str]] = {
    "no weight map": (text("{}"), "weight_map: null: must map"),
    "a list as weight map": (text('{"weight_map": ["w"]}'), "weight_map: a list of 1: must map"),
    "an empty weight map": (text('{"weight_map": {}}'), "weight_map: a mapping of 0: must map"),
    "a number as shard": (text('{"weight_map": {"w": 3}}'), "weight_map.w: 3: must be the plain name"),
    "a shard elsewhere": (text('{"weight_map": {"w": "../../etc/x.safetensors"}}'), "must be the plain name"),
    "an absolute shard": (text('{"weight_map": {"w": "/etc/x.safetensors"}}'), "must be the plain name"),
    "a pickle as shard": (text('{"weight_map": {"w": "model.bin"}}'), "must be the plain name"),
    "a surrogate shard": (text('{"weight_map": {"w": "\\udc00.safetensors"}}'), "must be the plain name"),
    "a newline shard": (text('{"weight_map": {"w": "a\\nb.safetensors"}}'), "must be the plain name"),
    "a long shard": (text('{"weight_map": {"w": "' + "a" * 5000 + '.safetensors"}}'), "must be the plain name"),
    "text as total": (text(json.dumps(GOOD_INDEX | {"metadata": {"total_size": "8"}})), "metadata.total_size: 8: must be a number"),
    "negative total": (text(json.dumps(GOOD_INDEX | {"metadata": {"total_size": -8}})), "metadata.total_size: -8: must be a number"),
    "infinite total": (text(json.dumps(GOOD_INDEX).replace("8}", "1e999}")), "metadata.total_size: inf: must be a number"),
    "key twice": (text('{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}'), "w: stands twice"),
    "a million entries": (
        long(lambda: '{"weight_map": {' + ",".join(f'"{i}":"a"' for i in range(1_000_000)) + "}}"),
        "is above what is read here",
    ),
    "40 MiB": (long(lambda: b'{"a": "' + b"x" * 40 * MIB + b'"}'), "is above what is read here"),
}

SAFETENSORS: dict[str, tuple[Build, str]] = {
    "seven bytes": (text(b"1234567"), "is too short for a safetensors file (7 bytes)"),
    "header length 2^63": (header("{}", length=2**63), "header length: 9223372036854775808: is longer than the file (10 bytes)"),
    "header length 2^64 - 1": (header("{}", length=2**64 - 1), "is longer than the file"),
    "header longer by one": (header("{}", length=3), "is longer than the file"),
    "header cut": (header('{"a": 1}', length=4), "is not valid JSON"),
    "header of length 0": (header("", 100), "is not valid JSON"),
    "header of 33 MiB": (long_header(lambda: b" " * (33 * MIB)), "is above the 32 MiB"),
    "header of a gigabyte, in a hole": (lambda path: hole(path, struct.pack("<Q", 10**9), 10**9), "is above the 32 MiB"),
    "not UTF-8": (header(b'{"\xff": 1}'), "is not UTF-8 text"),
    "not JSON": (header("{w}"), "is not valid JSON"),
    "a list": (header([1]), "must hold a JSON mapping"),
    "nested deep": (header('{"a":' + "[" * 100_000), "nested too deeply"),
    "nested 900 deep": (header('{"a":' + "[" * 900 + "]" * 900 + "}"), "a: a list of 1: must be a mapping"),
    "name twice": (header('{"w": {}, "w": {}}'), "w: stands twice"),
    "field twice": (header('{"w": {"dtype": "F32", "dtype": "F32"}}'), "dtype: stands twice"),
    "metadata with a number": (header({"__metadata__": {"a": 1}}), "__metadata__: must map text to text"),
    "metadata as a list": (header({"__metadata__": []}), "__metadata__: must map text to text"),
    "entry as text": (header({"w": "F32"}), "w: F32: must be a mapping with dtype"),
    "entry without offsets": (header({"w": {"dtype": "F32", "shape": [1]}}), "w: a mapping of 2: must be a mapping with dtype"),
    "unknown dtype": (entry(dtype="F7"), "w.dtype: F7: is not a dtype"),
    "dtype as number": (entry(dtype=32), "w.dtype: 32: is not a dtype"),
    "dtype as list": (entry(dtype=["F32"]), "w.dtype: a list of 1: is not a dtype"),
    "dtype as null": (entry(dtype=None), "w.dtype: null: is not a dtype"),
    "negative size": (entry(shape=[-2]), "w.shape: [-2]: must be a list of whole numbers"),
    "fractional size": (entry(shape=[2.0]), "w.shape: [2.0]: must be a list of whole numbers"),
    "true as size": (entry(shape=[True, 2]), "w.shape: [True, 2]: must be a list of whole numbers"),
    "shape as number": (entry(shape=2), "w.shape: 2: must be a list"),
    "shape of 2^62 squared": (entry(shape=[2**62, 2**62]), "has more elements than 63 bits"),
    "shape of 2^62 squared times 0": (entry(shape=[2**62, 2**62, 0], offsets=[0, 0], data=0), "has more elements than 63 bits"),
    "size beyond 64 bits": (entry(shape=[2**70]), "is too large for a number here"),
    "200,000 sizes": (entry(shape=[1] * 200_000), "has more than 32 sizes"),
    "shape too small for its bytes": (entry(shape=[1]), "takes 8 bytes of data, but its shape and dtype F32 need 4"),
    "half a byte": (entry(dtype="F4", shape=[3], offsets=[0, 1], data=1), "takes 1 bytes of data"),
    "offsets swapped": (entry(offsets=[8, 0]), "must be [begin, end] with begin <= end"),
    "three offsets": (entry(offsets=[0, 4, 8]), "must be [begin, end]"),
    "negative offset": (entry(offsets=[-8, 0]), "must be [begin, end]"),
    "text offsets": (entry(offsets=["0", "8"]), "a list of 2: must be [begin, end]"),
    "beyond the file": (entry(data=7), "ends beyond the 7 bytes of data"),
    "bytes left over": (entry(data=9), "holds 9 bytes of data, but its header accounts for 8"),
    "overlap": (two((0, 8), (4, 12), 12), "b.data_offsets: [4, 12]: overlaps the tensor before it"),
    "the same bytes twice": (two((0, 8), (0, 8), 8), "overlaps the tensor before it"),
    "a hole": (two((0, 8), (9, 12), 12), "leaves a hole after the tensor before it, which ends at byte 8"),
    "not from the start": (two((4, 8), (8, 12), 12), "leaves a hole"),
    "empty name": (header(entries({"": ("U8", (0,))})), "is not a usable tensor name"),
    "name with a newline": (header(entries({"a\nb": ("U8", (0,))})), "is not a usable tensor name"),
    "surrogate name": (header('{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'), "is not a usable tensor name"),
    "10 MB name": (long_header(lambda: entries({"x" * 10**7: ("U8", (0,))})), "is not a usable tensor name"),
    "10 MB dtype": (entry(dtype="x" * 10**7), "is not a dtype"),
    "200,000 tensors": (
        long_header(lambda: '{"a":{},' + ",".join(f'"{i}":{{}}' for i in range(200_000)) + "}"),
        "is above what is read here",
    ),
    "a million numbers": (long_header(lambda: '{"a": [' + "1," * 1_000_000 + "1]}"), "a: a list of 1000001: must be a mapping"),
    "numbers of 4000 digits": (long_header(lambda: '{"a": [' + ("9" * 4000 + ",") * 5000 + "1]}"), "is too large for a number here"),
    "wide text": (long_header(lambda: '{"a": "\U0001f600' + "x" * (31 * MIB) + '"}'), "must be a mapping"),
    "gguf inside": (lambda path: gguf(path, [], []), ""),
}

GGUF: dict[str, tuple[Build, str]] = {
    "magic only": (text(b"GGUF"), "version: asks for 4 bytes at byte 4, but the file ends at 4"),
    "other magic": (head(magic=b"GGUX"), "magic: GGUX: is not a GGUF file"),
    "ggml file": (text(b"lmgg" + bytes(40)), "is a ggml file from before GGUF"),
    "ggjt file": (text(b"tjgg" + bytes(40)), "is a ggml file from before GGUF"),
    "version 0": (head(w=Writer(0)), "version: 0: is not a GGUF version"),
    "version 99": (head(w=Writer(99)), "version: 99: is not a GGUF version"),
    "big-endian": (head(w=Writer(3, ">")), "is a big-endian GGUF file"),
    "2^60 keys": (head(counts=(0, 2**60)), "key count: 1152921504606846976: is above"),
    "2^60 tensors": (head(counts=(2**60, 0)), "tensor count: 1152921504606846976: is above"),
    "more keys than bytes": (head(counts=(0, 1000), data=100), "key count: 1000: is more than the rest of the file can hold"),
    "more tensors than bytes": (head(counts=(1000, 0), data=100), "tensor count: 1000: is more than the rest"),
    "keys of nothing": (head(counts=(0, 3), data=100), "key 0: is not a usable name"),
    "key length 2^62": (head([W.count(2**62) + b"abcdefgh"]), "is text of 4611686018427387904 bytes"),
    "key of 10 MB": (head([W.key("k" * 10**7, U8, 1)]), "is text of 10000000 bytes"),
    "key not UTF-8": (head([W.key(b"\xff\xfe", U8, 1)]), "key 0: is not UTF-8 text"),
    "key with a newline": (head([W.key("a\nb", U8, 1)]), "is not a usable name"),
    "key twice": (head([W.key("a.b", U8, 1), W.key("a.b", U8, 1)]), "a.b: stands twice in the metadata"),
    "text length 2^62": (key_bytes(TEXT, W.count(2**62)), "some.key: asks for 4611686018427387904 bytes"),
    "text length 2^64 - 1": (key_bytes(TEXT, W.count(2**64 - 1)), "some.key: asks for 18446744073709551615 bytes"),
    "text not UTF-8": (key_bytes(TEXT, W.text(b"a\xff")), "some.key: is not UTF-8 text (byte 1 of 2)"),
    "value type 13": (key_bytes(13, bytes(8)), "some.key: 13: is not a type of value"),
    "value type 2^32 - 1": (key_bytes(2**32 - 1, bytes(8)), "is not a type of value"),
    "a bool of 2": (key_bytes(BOOL, b"\x02" + bytes(8)), "some.key: 2: must be true or false"),
    "bools of 2": (array_bytes(BOOL, 3, b"\x00\x02\x01"), "some.key: 2: must be true or false"),
    "value cut": (key_bytes(U32, b"\x01"), "some.key: asks for 4 bytes"),
    "array of arrays": (array_bytes(ARRAY, 1, W.pack("I", U8) + W.count(0)), "some.key: is an array of arrays"),
    "array type 99": (array_bytes(99, 1, bytes(64)), "some.key: 99: is not a type of value"),
    "array length 2^60": (array_bytes(U8, 2**60), "is an array of 1152921504606846976 values"),
    "array length 2^63 of text": (array_bytes(TEXT, 2**63, bytes(800)), "is an array of 9223372036854775808 values"),
    "array cut": (array_bytes(U32, 2000, bytes(7996)), "is an array of 2000 values, more than the rest"),
    "text array cut": (array_bytes(TEXT, 2000, W.text("abc") * 1999), "but the file ends at"),
    "text in an array of 2^62": (
        array_bytes(TEXT, 2000, W.text("a") * 1000 + W.count(2**62), 16_000),
        "asks for 4611686018427387904 bytes of text",
    ),
    "10 million texts": (array_bytes(TEXT, 10**7, b"", 10**8), "above the 1,500,000 read here"),
    "a gigabyte of texts in a hole": (array_bytes(TEXT, 10_000, W.text("a") * 8 + W.count(10**9), 10**9), "but only 128 MiB"),
    "alignment 0": (head([W.key("general.alignment", U32, 0)]), "general.alignment: 0: must be a power of two"),
    "alignment 48": (head([W.key("general.alignment", U32, 48)]), "general.alignment: 48: must be a power of two"),
    "alignment as text": (head([W.key("general.alignment", TEXT, "32")]), "general.alignment: 32: must be a power of two"),
    "alignment as array": (head([W.array("general.alignment", U8, [32])]), "general.alignment: list: must be a power of two"),
    "no sizes": (one_tensor(()), "t: 0: must have 1 to 4 sizes"),
    "five sizes": (one_tensor((1, 1, 1, 1, 1)), "t: 5: must have 1 to 4 sizes"),
    "size 0": (one_tensor((32, 0)), "t: [32, 0]: must have sizes from 1"),
    "size 2^62 squared": (one_tensor((2**62, 2**62)), "with a product below 2^63"),
    "size 2^64 - 1": (one_tensor((2**64 - 1,)), "with a product below 2^63"),
    "withdrawn type": (one_tensor(kind=4), "t: 4: is not a tensor type number"),
    "unknown type": (one_tensor(kind=999), "t: 999: is not a tensor type number"),
    "part of a block": (one_tensor((33,), TYPE_NUMBER["Q4_0"]), "must have a first size that is a multiple of 32 for Q4_0"),
    "crooked offset": (one_tensor(offset=7), "t: 7: must begin at a multiple of the alignment 32"),
    "offset 2^63": (one_tensor(offset=2**63), "but the file has"),
    "cut short": (one_tensor(data=100), "t: ends at byte 128 of the data, but the file has"),
    "no data at all": (one_tensor(data=0), "is it cut short?"),
    "tensor name twice": (head([], [W.tensor("t", (8,), 0, 0)] * 2, data=4096), "t: stands twice among the tensors"),
    "tensor name not UTF-8": (one_tensor(name=b"\xc3"), "tensor 0: is not UTF-8 text"),
    "empty tensor name": (one_tensor(name=""), "tensor 0: is not a usable name"),
    "overlap": (
        head([], [W.tensor("a", (16,), 0, 0), W.tensor("b", (16,), 0, 32)], data=4096),
        "b: 32: overlaps the tensor before it, which ends at byte 64",
    ),
    "split count as text": (head([W.key("split.count", TEXT, "3")]), "split.count: 3: must be a whole number"),
    "split count 2^32 - 1": (head([W.key("split.count", U32, 2**32 - 1)]), "split.count: 4294967295: must be a whole number"),
    "split without a part name": (head([W.key("split.count", U32, 2)]), "is one of 2 parts and must be named"),
    "safetensors inside": (lambda path: safetensors(path, {"w": ("U8", (8,))}), "is not a GGUF file"),
}

TABLES = {".yaml": YAML | BOTH, ".json": JSON | BOTH, ".index.json": INDEX, ".safetensors": SAFETENSORS, ".gguf": GGUF}


def cases() -> list[Any]:
    found = []
    for suffix, table in TABLES.items():
        for name, (build, words) in (table | ANY_KIND).items():
            found.append(pytest.param(suffix, build, words, id=f"{suffix}-{name}"))
    return found


@pytest.mark.parametrize(("suffix", "build", "words"), cases())
def test_one_line_in_time(tmp_path: Path, suffix: str, build: Build, words: str) -> None:
    path = tmp_path / f"x{suffix}"
    build(path)
    start = time.process_time()
    with pytest.raises(SpecError) as caught:
        READERS[suffix](path)
    took = time.process_time() - start
    message = str(caught.value)
    assert took < LONGEST_S
    assert caught.value.file == path
    assert len(message.splitlines()) == 1
    assert len(message) < 600
    assert message.isprintable()
    assert words in message


def test_there_are_enough_of_them() -> None:
    assert len(cases()) > 150


HEAVY = [
    (".safetensors", "wide text"),
    (".safetensors", "a million numbers"),
    (".safetensors", "header of a gigabyte, in a hole"),
    (".index.json", "40 MiB"),
    (".gguf", "10 million texts"),
    (".gguf", "a gigabyte of texts in a hole"),
    (".gguf", "a hole of a terabyte"),
    (".yaml", "a hole of a terabyte"),
    (".json", "9 MiB"),
]
CHILD = """
import sys, resource
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]),) * 2)
from inferplan.errors import SpecError
from inferplan.readers.gguf import read_gguf
from inferplan.readers.safetensors import read_header, read_index
from inferplan.specs.document import load_json, load_yaml
readers = {".yaml": load_yaml, ".json": load_json, ".index.json": read_index, ".safetensors": read_header, ".gguf": read_gguf}
try:
    readers[sys.argv[1]](sys.argv[2])
except SpecError:
    sys.stdout.write("refused")
"""


@pytest.mark.parametrize(("suffix", "name"), HEAVY, ids=lambda v: v)
def test_memory_stays_below_half_a_gigabyte(tmp_path: Path, suffix: str, name: str) -> None:
    path = tmp_path / f"x{suffix}"
    (TABLES[suffix] | ANY_KIND)[name][0](path)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, suffix, str(path), str(LARGEST_BYTES)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "refused", done.stderr


def test_the_memory_limit_bites() -> None:
    """The child of the test above does fail where memory is used without bound."""
    code = CHILD.split("from inferplan.errors")[0] + "bytearray(600 * 10**6)"
    done = subprocess.run([sys.executable, "-c", code, "", "", str(LARGEST_BYTES)], capture_output=True, text=True, timeout=60, check=False)
    assert "MemoryError" in done.stderr


@pytest.mark.parametrize("build", [ANY_KIND[name][0] for name in ("a fifo", "a symlink loop", "nothing there", "empty")])
@pytest.mark.parametrize("suffix", [".safetensors", ".json", ""])
def test_checkpoints_that_are_no_files(tmp_path: Path, build: Build, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    build(path)
    with pytest.raises(SpecError) as caught:
        read_checkpoint(path)
    assert caught.value.file == path


@pytest.mark.parametrize("name", ["\0", "a" * 300, "a" * 5000, "\ud800", "x/" * 2000])
@pytest.mark.parametrize("reader", [read_checkpoint, read_gguf, read_index, read_header, load_yaml, load_json])
def test_names_that_no_file_can_have(name: str, reader: Callable[[str], Any]) -> None:
    with pytest.raises(SpecError) as caught:
        reader(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("reader", [read_checkpoint, read_gguf, read_index])
def test_the_home_of_nobody(reader: Callable[[str], Any]) -> None:
    with pytest.raises(SpecError, match="~nosuchuser/x"):
        reader("~nosuchuser/x")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"holds no \.safetensors file"):
        read_checkpoint(tmp_path)


def test_a_folder_whose_index_is_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    with pytest.raises(SpecError, match="is not a regular file"):
        read_checkpoint(tmp_path)


def test_a_shard_that_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "x.index.json").write_text(json.dumps(GOOD_INDEX))
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(SpecError, match="is a directory"):
        read_index(tmp_path / "x.index.json")


# --------------------------------------------------------------------------------------------- random damage to good files

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD_SAFETENSORS = {"a.weight": ("BF16", (4, 6)), "b": ("F32", ()), "c.qweight": ("I32", (2, 8)), "c.scales": ("F16", (1, 8))}
GOOD_KEYS = [
    W.key("general.architecture", TEXT, "llama"),
    W.array("llama.attention.head_count_kv", U32, [8, 8]),
    W.key("general.alignment", U32, 32),
    W.array("tokenizer.ggml.tokens", TEXT, ["a", "bc"]),
    W.array("tokenizer.ggml.merges", TEXT, ["x y"] * 1100),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("good")
    gguf(folder / "x.gguf", GOOD_KEYS, [("a", "Q4_0", (32, 2)), ("b", "F32", (8,))])
    safetensors(folder / "x.safetensors", GOOD_SAFETENSORS, {"format": "pt"})
    (folder / "x.index.json").write_text(json.dumps(GOOD_INDEX))
    return {path.name[1:]: path.read_bytes() for path in folder.iterdir()}


def outcome(path: Path, data: bytes) -> str:
    """ "read" or "refused"; any other end is an exception that fails the test."""
    path.write_bytes(data)
    start = time.process_time()
    refusal = None
    try:
        READERS[path.name[path.name.index(".") :]](path)
    except SpecError as e:
        refusal = e
    assert time.process_time() - start < LONGEST_S
    if refusal is None:
        return "read"
    assert len(str(refusal).splitlines()) == 1
    assert refusal.file is not None
    return "refused"


def test_the_undamaged_files_are_read(tmp_path: Path, good: dict[str, bytes]) -> None:
    assert {outcome(tmp_path / f"x{suffix}", data) for suffix, data in good.items()} == {"read"}


FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6)


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".index.json"])
@FUZZ
@given(flips=FLIPS)
def test_flipped_bytes(tmp_path: Path, good: dict[str, bytes], suffix: str, flips: list[tuple[float, int]]) -> None:
    data = bytearray(good[suffix])
    for where, mask in flips:
        data[int(where * min(len(data), 700))] ^= mask
    outcome(tmp_path / f"x{suffix}", bytes(data))


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
@FUZZ
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, good: dict[str, bytes], suffix: str, where: float) -> None:
    data = good[suffix]
    assert outcome(tmp_path / f"x{suffix}", data[: int(where * len(data))]) == "refused"


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
@FUZZ
@given(at=st.integers(0, 60), value=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**60, 2**62, 2**63, 2**64 - 1]))
def test_huge_numbers_anywhere(tmp_path: Path, good: dict[str, bytes], suffix: str, at: int, value: int) -> None:
    data = bytearray(good[suffix])
    data[at : at + 8] = struct.pack("<Q", value)
    outcome(tmp_path / f"x{suffix}", bytes(data))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3),
)


@FUZZ
@given(value=JSON_VALUES, place=st.sampled_from(["dtype", "shape", "data_offsets", "entry", "__metadata__", "all"]))
def test_any_json_in_any_place_of_a_header(tmp_path: Path, value: Any, place: str) -> None:
    found: Any = entries({"w": ("F32", (2,))})
    if place in ("dtype", "shape", "data_offsets"):
        found["w"][place] = value
    elif place == "all":
        found = value
    else:
        found["w" if place == "entry" else place] = value
    outcome(raw_safetensors(tmp_path / "x.safetensors", found, 8), (tmp_path / "x.safetensors").read_bytes())


# ------------------------------------------------------------------------------------- numbers of a config.json that make no sense

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 128}
WIDTHS = (
    "intermediate_size",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "hidden_size",
    "num_hidden_layers",
    "vocab_size",
)


def refused_config(path: Path, config: dict[str, Any]) -> str:
    path.write_text(json.dumps(config))
    with pytest.raises(SpecError) as caught:
        load_config(path)
    assert caught.value.file == path
    assert str(caught.value).isprintable()
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("field", WIDTHS)
def test_widths_and_counts_below_one_or_without_bound(tmp_path: Path, field: str) -> None:
    path = tmp_path / "config.json"
    for value in (-1, 0, -(2**40)):
        assert refused_config(path, {**LLAMA, field: value}).startswith(f"{field}: {value}: must lie between 1 and ")
    for value in (float("inf"), float("-inf")):
        assert refused_config(path, {**LLAMA, field: value}) == f"{field}: {value}: must be a finite number"
    for value in (1.5, True, "8", [8]):
        assert refused_config(path, {**LLAMA, field: value}) == f"{field}: {value}: must be a whole number"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("sliding_window", -5, "sliding_window: -5: must lie between 1 and"),
        ("sliding_window", float("inf"), "sliding_window: inf: must be a finite number"),
        ("torch_dtype", "abc", "torch_dtype: abc: is not one of float32, "),
        ("torch_dtype", [1], "torch_dtype: [1]: is not one of"),
        ("torch_dtype", -1, "torch_dtype: -1: is not one of"),
        ("dtype", "torch.wombat", "dtype: torch.wombat: is not one of"),
        ("tie_word_embeddings", float("inf"), "tie_word_embeddings: inf: must be a finite number"),
        ("tie_word_embeddings", -1, "tie_word_embeddings: -1: must be true or false"),
        ("quantization_config", float("inf"), "quantization_config: inf: must be a finite number"),
        ("quantization_config", {"bits": float("inf")}, "quantization_config.bits: inf: must be a finite number"),
        ("quantization_config", -1, "quantization_config: -1: must be a mapping"),
    ],
)
def test_other_fields_that_make_no_sense(tmp_path: Path, field: str, value: Any, words: str) -> None:
    base = {**MISTRAL, "torch_dtype": None} if field == "dtype" else MISTRAL
    assert refused_config(tmp_path / "config.json", {**base, field: value}).startswith(words)


def test_values_by_which_published_files_say_none(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for value in (None, 0):
        path.write_text(json.dumps({**MISTRAL, "sliding_window": value}))
        model = load_config(path)
        assert [block.mixers[0].window for block in model.blocks.values()] == [None]
    for name in ("num_nextn_predict_layers", "shared_intermediate_size", "type_vocab_size"):
        assert Fields({name: 0}).maybe(name) is None
    assert Fields({"max_relative_positions": -1}).maybe("max_relative_positions") is None
    with pytest.raises(SpecError, match="num_nextn_predict_layers: -1: must lie between 1 and"):
        Fields({"num_nextn_predict_layers": -1}).maybe("num_nextn_predict_layers")
    assert Fields({"width": 0}, defaults={"width": 0}).maybe("width") is None


def test_an_open_time_step_limit_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]}))
    assert load_config(path).vocab == 100
    with pytest.raises(SpecError, match="Infinity: is not a number that JSON allows"):
        load_json(path)


def test_a_missing_vocabulary_is_named_as_people_write_it(tmp_path: Path) -> None:
    config = {k: v for k, v in LLAMA.items() if k != "vocab_size"}
    assert refused_config(tmp_path / "config.json", config) == "vocab_size: is required and missing"
