"""Text files to plain Python values, safely: YAML and JSON with limits. Knows no spec and no field.

Every refusal is one SpecError that names the file and, where there is one, the place. A document holds only mappings
with unique text keys, lists, text, finite numbers, booleans and nulls.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from inferplan.errors import SpecError

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 200_000
MAX_YAML_NODES = 50_000


def read_bytes(path: str | os.PathLike[str], *, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file of at most `limit` bytes. A directory, FIFO, device or symlink loop is refused."""
    try:
        with open_regular(path) as stream:
            data: bytes = stream.read(limit + 1)
    except OSError as e:
        raise SpecError(f"cannot be read: {os.strerror(e.errno) if e.errno else e}", file=path) from None
    if len(data) > limit:
        raise SpecError(f"is larger than the {limit // 1024**2} MiB a document may have", file=path)
    return data


def open_regular(path: str | os.PathLike[str]) -> Any:
    """An unbuffered binary stream on a regular file; raises SpecError for anything else, and never blocks on a FIFO."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except ValueError:
        raise SpecError("is not a usable file name", file=path) from None
    except OSError as e:
        raise SpecError(f"cannot be read: {os.strerror(e.errno or 0)}", file=path) from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise SpecError(f"is {kind}, where a file was expected", file=path)
    return os.fdopen(fd, "rb")


def read_text(path: str | os.PathLike[str], *, limit: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file (a byte order mark is dropped)."""
    data = read_bytes(path, limit=limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SpecError(f"is not UTF-8 text (byte {e.start})", file=path) from None


def load_json(path: str | os.PathLike[str], *, limit: int = MAX_BYTES, infinity: bool = False) -> dict[str, Any]:
    """The mapping a JSON file holds."""
    return parse_json(read_text(path, limit=limit), file=path, infinity=infinity)


def parse_json(text: str, *, file: Any = None, infinity: bool = False) -> dict[str, Any]:
    """The mapping a JSON text holds; duplicate keys, NaN, overflow and deep nesting are refused.

    `infinity=True` reads the word `Infinity` as null in fields that end in `limit`: published configs have an open time-step limit.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    unbounded: list[str] = []

    def refuse(word: str) -> Any:
        if infinity and word != "NaN":
            unbounded.append(word)
            return float(word)
        raise SpecError("is not a number that JSON allows", file=file, value=word)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise SpecError("stands twice in one mapping", file=file, field=_first_twice(k for k, _ in pairs))
        return {k: _bounded(v) if k.endswith("limit") else v for k, v in pairs} if unbounded else found

    if text.count(",") + text.count("[") + text.count("{") > MAX_NODES:
        raise SpecError(f"holds more than {MAX_NODES:,} nodes", file=file)
    try:
        value = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except json.JSONDecodeError as e:
        raise SpecError(f"is not valid JSON: {e.msg} (line {e.lineno}, column {e.colno})", file=file) from None
    except RecursionError:
        raise SpecError(f"is nested deeper than {MAX_DEPTH} levels", file=file) from None
    except ValueError as e:
        raise SpecError(f"is not valid JSON: {str(e)[:80]}", file=file) from None
    return _checked(value, file)


def _bounded(value: Any) -> Any:
    """A limit, or a pair of them, with null for infinity."""
    if isinstance(value, list):
        return [_bounded(v) for v in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _first_twice(keys: Iterable[str]) -> str:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with unique keys, without dates, and with numbers as people write them (1e6 is a number)."""


def _plain(node: Any) -> Any:
    """The value of a parsed node: faster than the constructors of the library, which are made for any type."""
    if isinstance(node, yaml.MappingNode):
        return _mapping(node)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    reader = _SCALARS.get(node.tag)
    return reader(node.value) if reader else node.value


def _mapping(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise SpecError("a key must be plain text", value=_plain(key_node))
        key = key_node.value
        if key in found:
            raise SpecError(f"stands twice in one mapping (line {key_node.start_mark.line + 1})", field=key)
        found[key] = _plain(value_node)
    return found


def _float(text: str) -> float:
    """A float as YAML writes it: with underscores, .inf and .nan."""
    bare = text.replace("_", "").lower()
    return float(bare.replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: dict[str, Callable[[str], Any]] = {
    "tag:yaml.org,2002:null": lambda text: None,
    "tag:yaml.org,2002:bool": lambda text: text == "true",
    "tag:yaml.org,2002:int": lambda text: int(text.replace("_", "")),
    "tag:yaml.org,2002:float": _float,
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(("timestamp", ":float", ":int", ":bool", "merge", "value"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)\Z"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    # possessive, so that a long run of digits is passed over once
    re.compile(r"(?:[-+]?(?:[0-9][0-9_]*+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"),
    list("-+.0123456789"),
)


def load_yaml(path: str | os.PathLike[str], *, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The mapping a YAML file holds."""
    return parse_yaml(read_text(path, limit=limit), file=path)


def parse_yaml(text: str, *, file: Any = None) -> dict[str, Any]:
    r"""The mapping a YAML text holds. Anchors and aliases, tags, duplicate keys, NaN and deep nesting are refused.

    >>> parse_yaml("a: 1e3\nb: [on, 2]")
    {'a': 1000.0, 'b': ['on', 2]}
    """
    if text.count("\n") + text.count(",") > MAX_YAML_NODES:
        raise SpecError(f"holds more than {MAX_YAML_NODES:,} lines and values", file=file)
    try:
        if _suspicious(text):
            _scan(text)
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else _plain(node)
    except yaml.MarkedYAMLError as e:
        where = f" (line {e.problem_mark.line + 1})" if e.problem_mark else ""
        raise SpecError(f"is not valid YAML: {e.problem or e.context or 'cannot be parsed'}{where}", file=file) from None
    except yaml.YAMLError as e:
        raise SpecError(f"is not valid YAML: {str(e).splitlines()[0][:80]}", file=file) from None
    except RecursionError:
        raise SpecError(f"is nested deeper than {MAX_DEPTH} levels", file=file) from None
    except ValueError as e:
        raise SpecError(f"is not valid YAML: {str(e)[:80]}", file=file) from None
    except SpecError as e:
        raise e.within(file) from None
    return _checked(value, file)


_MARKED = re.compile(r"""(?:^|[\s\[{,:"'?-])[&*!]\S?""", re.MULTILINE)
_DEEP_INDENT = re.compile(rf"^[ \-?:]{{{MAX_DEPTH},}}", re.MULTILINE)


def _suspicious(text: str) -> bool:
    """Whether a text could hold an alias, a tag or deep nesting, so that it is worth a pass over its events."""
    return bool(_MARKED.search(text)) or _brackets(text) > MAX_DEPTH or bool(_DEEP_INDENT.search(text))


def _brackets(text: str) -> int:
    """The deepest nesting of brackets, those in quotes counted too; the parser has a limit of its own behind this."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for mark in re.findall(r"[\[\]{}]", text):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _scan(text: str) -> None:
    """Refuse aliases, deep nesting and too many nodes from the event stream, before any object is built."""
    depth = 0
    event: Any
    for nodes, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if getattr(event, "anchor", None):
            raise SpecError(f"anchors and aliases are not allowed (line {event.start_mark.line + 1})", value=event.anchor)
        if getattr(event, "tag", None):
            raise SpecError(f"tags are not allowed (line {event.start_mark.line + 1})", value=event.tag)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SpecError(f"is nested deeper than {MAX_DEPTH} levels (line {event.start_mark.line + 1})")
        if nodes > MAX_NODES:
            raise SpecError(f"holds more than {MAX_NODES:,} nodes")


def _checked(value: Any, file: Any) -> dict[str, Any]:
    """The value itself, once it is a mapping with text keys, finite numbers and a bearable depth."""
    if not isinstance(value, dict):
        raise SpecError("must hold a mapping of names to values at the top", file=file, value=value)
    todo: list[tuple[str, Any, int]] = [("", value, 1)]
    nodes = 0
    while todo:
        field, item, depth = todo.pop()
        nodes += 1
        if depth > MAX_DEPTH:
            raise SpecError(f"is nested deeper than {MAX_DEPTH} levels", file=file, field=field[:60])
        if nodes > MAX_NODES:
            raise SpecError(f"holds more than {MAX_NODES:,} nodes", file=file)
        if isinstance(item, str) and not item.isascii() and not _encodable(item):
            raise SpecError("is text with half a character (a lone surrogate)", file=file, field=field[:60])
        if isinstance(item, dict) and not all(k.isascii() or _encodable(k) for k in item):
            raise SpecError("has a key with half a character (a lone surrogate)", file=file, field=field[:60] or None)
        if isinstance(item, float) and not math.isfinite(item):
            raise SpecError("must be a finite number", file=file, field=field, value=item)
        if isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise SpecError("is too large for a number here", file=file, field=field, value=f"{str(item)[:20]}...")
        if isinstance(item, dict):
            todo += [(f"{field}.{k}" if field else k, v, depth + 1) for k, v in item.items()]
        elif isinstance(item, list):
            todo += [(f"{field}[{i}]", v, depth + 1) for i, v in enumerate(item)]
    return value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def resolve(path: str | os.PathLike[str]) -> Path:
    """A path with `~` expanded; refuses names that no file can have."""
    text = os.fspath(path)
    if "\0" in text or len(text) > 4096:
        raise SpecError("is not a usable file name", value=text)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SpecError("begins with the home folder of a user that is not known here", value=text) from None


def table_rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV table that has just these columns, and in each row a cell for every one; raises SpecError for any other."""
    reader = csv.DictReader(io.StringIO(read_text(path)))
    if tuple(reader.fieldnames or ()) != columns:
        raise SpecError(f"must have the columns {', '.join(columns)}", file=path)
    rows = list(reader)
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise SpecError("has more or fewer cells than there are columns", file=path, field=f"line {line}")
    return rows
